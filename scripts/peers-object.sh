#!/usr/bin/env bash
# S3 of Craton beside radosgw (Ceph) and MinIO on this machine: CPU of all processes of a service an
# operation, and operations a second, in turns of one run. The load is the same for all
# (scripts/peers-object/load.go); its own CPU is not counted. CPU is the total of a turn, from its
# start to its end, with what a service uses idle in it; 'beside' is what it uses in others' turns.
#
#   scripts/peers-object.sh [--json] [--turns N] [--seconds N] [--sizes BYTES,...] [--concurrency N]
#   scripts/peers-object.sh --install     of Debian's packages and as a Go module; starts no service
#
#   CRATON               the craton to measure (default: target/release/craton)
#   MINIO                the minio to measure (default: the one on PATH)
#   CRATON_PEERS_DIR     folder in which the temporary directory is made (default: TMPDIR, or /tmp)
#
# Craton: 1 master, 3 chunkservers, 1 object manager, 1 object server, 1 gateway; three copies.
# Ceph: 1 monitor, 1 manager, 3 OSDs (bluestore on files), 1 radosgw; pools of size 3, min_size 2.
# MinIO: 1 process, 4 drives as directories, EC:2 (2 of data, 2 of parity), its default for four.
# All store in the same file system, listen on loopback only, and have their defaults else, but for
# radosgw's tcp_nodelay: without it each GET waits 40 ms for a delayed acknowledgement of TCP. What is
# not installed is not measured. Nothing stays behind.
set -euo pipefail
cd "$(dirname "$0")/.."

ceph_packages="ceph-mon ceph-mgr ceph-osd radosgw ceph-common"
minio_module=github.com/minio/minio
# Its main branch of that day: names of its releases are no versions of a Go module.
minio_version=v0.0.0-20260212201848-7aac2a2c5b7c
osd_bytes=$((8 << 30)) # Of each OSD's file, which is sparse.
placement_groups=32    # Of the pools of data and index; others have 8.
start_s_max=120

die() { printf 'peers-object: %s\n' "$*" >&2; exit 1; }
say() { printf 'peers-object: %s\n' "$*" >&2; }

install() {
    [ "$(id -u)" = 0 ] || die "--install needs root, for apt-get"
    local policy=/usr/sbin/policy-rc.d made=""
    # Packages start their services as they are installed, unless this says no.
    if [ ! -e $policy ]; then
        printf '#!/bin/sh\nexit 101\n' >$policy
        chmod 755 $policy
        made=1
    fi
    # shellcheck disable=SC2064,SC2086
    trap "[ -z '$made' ] || rm -f $policy" EXIT
    apt-get update -q
    # shellcheck disable=SC2086
    DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends jq $ceph_packages
    if command -v go >/dev/null; then
        nice -n 19 go install "$minio_module@$minio_version" || say "MinIO cannot be built: it will not be measured"
    else
        say "go is missing: MinIO is not built"
    fi
    exit 0
}

load_flags=()
while [ $# -gt 0 ]; do
    case $1 in
        --install) install ;;
        --json) load_flags+=(-json) ;;
        --turns | --seconds | --sizes | --concurrency)
            [ $# -gt 1 ] || die "$1 needs a value"
            load_flags+=("-${1#--}" "$2")
            shift
            ;;
        *) die "unknown: $1; the head of scripts/peers-object.sh has its use" ;;
    esac
    shift
done

craton=${CRATON:-target/release/craton}
[ -x "$craton" ] || die "$craton is not there: run 'cargo build --release' first, or set CRATON"
craton=$(realpath "$craton")
for tool in go jq; do
    command -v $tool >/dev/null || die "$tool is missing: install it, or run this with --install"
done
minio=${MINIO:-$(command -v minio || true)}
[ -n "$minio" ] || minio="$(go env GOPATH)/bin/minio"

parent=${CRATON_PEERS_DIR:-${TMPDIR:-/tmp}}
[ "$(df -Pm "$parent" | awk 'NR == 2 { print $4 }')" -gt 40000 ] || die "$parent has less than 40 GB free: runs of 4 MiB take 25"
# Short: names of sockets have at most 107 bytes.
work=$(mktemp -d "$parent/peers.XXXXXX")
pids=()
finish() {
    local code=$? pid tries
    trap '' INT TERM
    [ ! -e "$work/craton/cluster.json" ] || "$craton" cluster down --dir "$work/craton" >/dev/null 2>&1 || true
    for pid in "${pids[@]}"; do kill "$pid" 2>/dev/null || true; done
    for pid in "${pids[@]}"; do
        tries=0
        while kill -0 "$pid" 2>/dev/null && [ $tries -lt 200 ]; do
            sleep 0.1
            tries=$((tries + 1))
        done
        kill -9 "$pid" 2>/dev/null || true
        wait "$pid" 2>/dev/null || true
    done
    rm -rf "$work"
    exit $code
}
trap finish EXIT
trap 'exit 130' INT TERM

go build -o "$work/load" scripts/peers-object/load.go
mapfile -t ports < <("$work/load" -ports 5)
key=peersaccesskey
secret=$(od -An -tx1 -N20 /dev/urandom | tr -d ' \n')
: >"$work/services"
: >"$work/missing"
chmod 600 "$work/services"

# Waits until a command succeeds: WHAT LOG COMMAND...
await() {
    local what=$1 log=$2 end=$((SECONDS + start_s_max))
    shift 2
    until "$@" >/dev/null 2>&1; do
        if [ $SECONDS -ge $end ]; then
            tail -20 "$log" >&2 || true
            die "$what does not serve after $start_s_max s"
        fi
        sleep 0.2
    done
}
# Starts a process in the background: NAME LOG COMMAND...; its number is in $started.
start() {
    local log=$1
    shift
    "$@" </dev/null >>"$log" 2>&1 &
    started=$!
    pids+=("$started")
}

start_craton() {
    export CRATON_RUN_DIR="$work/run"
    local dir="$work/craton" processes
    "$craton" cluster up --dir "$dir" --masters 1 --chunkservers 3 --block-servers 0 --block-managers 0 \
        --frontends 0 --object-managers 1 --object-servers 1 --gateways 1 >"$work/craton.log" 2>&1 ||
        { cat "$work/craton.log" >&2; die "craton does not start"; }
    processes=$("$craton" cluster status --dir "$dir" --json |
        jq -r '[.processes[] | "\(.role)=\(.pid)"] | join(" ")')
    jq -r --arg version "$("$craton" --version)" --arg processes "$processes" \
        '["craton", $version, (.endpoint | sub("^http://"; "")), .access_key, .secret_key, $processes] | join("|")' \
        "$dir/s3.json" >>"$work/services"
}

start_radosgw() {
    local dir="$work/ceph" tool missing="" monitor manager osds="" id uuid pool
    for tool in ceph-mon ceph-mgr ceph-osd radosgw ceph ceph-authtool monmaptool radosgw-admin; do
        command -v $tool >/dev/null || missing="$missing $tool"
    done
    if [ -n "$missing" ]; then
        echo "radosgw: not measured: not installed:$missing" >>"$work/missing"
        return
    fi
    mkdir -p "$dir"/{mon,mgr,osd.0,osd.1,osd.2,rgw,run,log}
    local fsid v2=${ports[0]} v1=${ports[1]}
    fsid=$(cat /proc/sys/kernel/random/uuid)
    cat >"$dir/ceph.conf" <<EOF
[global]
fsid = $fsid
mon host = [v2:127.0.0.1:$v2,v1:127.0.0.1:$v1]
mon initial members = a
public addr = 127.0.0.1
cluster addr = 127.0.0.1
run dir = $dir/run
admin socket = $dir/run/\$name.asok
crash dir = $dir/log
log file = $dir/log/\$name.log
err to stderr = true
osd pool default size = 3
osd pool default min size = 2
osd pool default pg num = 8
osd pool default pgp num = 8
osd pool default pg autoscale mode = off
osd crush chooseleaf type = 0
osd objectstore = bluestore
bluestore block size = $osd_bytes
mgr initial modules = iostat
auth allow insecure global id reclaim = false
[mon]
mon data = $dir/mon
mon cluster log file = $dir/log/cluster.log
[mgr]
mgr data = $dir/mgr
keyring = $dir/mgr/keyring
[osd]
osd data = $dir/osd.\$id
keyring = $dir/osd.\$id/keyring
[client.admin]
keyring = $dir/admin.keyring
[client.rgw]
keyring = $dir/rgw/keyring
rgw data = $dir/rgw
rgw frontends = beast endpoint=127.0.0.1:${ports[2]} tcp_nodelay=1
EOF
    export CEPH_CONF="$dir/ceph.conf"
    {
        ceph-authtool --create-keyring "$dir/mon.keyring" --gen-key -n mon. --cap mon 'allow *'
        ceph-authtool --create-keyring "$dir/admin.keyring" --gen-key -n client.admin \
            --cap mon 'allow *' --cap osd 'allow *' --cap mgr 'allow *'
        ceph-authtool "$dir/mon.keyring" --import-keyring "$dir/admin.keyring"
        monmaptool --create --clobber --fsid "$fsid" --addv a "[v2:127.0.0.1:$v2,v1:127.0.0.1:$v1]" "$dir/monmap"
        ceph-mon --mkfs -i a --monmap "$dir/monmap" --keyring "$dir/mon.keyring"
    } >"$dir/log/make.log" 2>&1 || { cat "$dir/log/make.log" >&2; die "Ceph's monitor cannot be made"; }
    start "$dir/log/mon.out" ceph-mon -f -i a
    monitor=$started
    await "Ceph's monitor" "$dir/log/mon.out" ceph --connect-timeout 10 status
    ceph auth get-or-create mgr.a mon 'allow profile mgr' osd 'allow *' mds 'allow *' >"$dir/mgr/keyring"
    start "$dir/log/mgr.out" ceph-mgr -f -i a
    manager=$started
    for id in 0 1 2; do
        uuid=$(cat /proc/sys/kernel/random/uuid)
        ceph osd new "$uuid" $id >>"$dir/log/make.log" 2>&1
        ceph auth get-or-create osd.$id mon 'allow profile osd' mgr 'allow profile osd' osd 'allow *' \
            >"$dir/osd.$id/keyring"
        ceph-osd -i $id --mkfs --osd-uuid "$uuid" >>"$dir/log/make.log" 2>&1 ||
            { tail -20 "$dir/log/make.log" >&2; die "Ceph's OSD $id cannot be made"; }
        start "$dir/log/osd.$id.out" ceph-osd -f -i $id
        osds="$osds osd=$started"
    done
    # shellcheck disable=SC2016
    await "Ceph's OSDs" "$dir/log/osd.0.out" sh -c '[ "$(ceph osd stat -f json | jq .num_up_osds)" = 3 ]'
    for pool in default.rgw.buckets.index default.rgw.buckets.data; do
        ceph osd pool create $pool $placement_groups $placement_groups >>"$dir/log/make.log" 2>&1
        ceph osd pool application enable $pool rgw >>"$dir/log/make.log" 2>&1
    done
    ceph auth get-or-create client.rgw mon 'allow rw' osd 'allow rwx' mgr 'allow rw' >"$dir/rgw/keyring"
    start "$dir/log/rgw.out" radosgw -f -n client.rgw
    local gateway=$started endpoint=127.0.0.1:${ports[2]}
    await radosgw "$dir/log/rgw.out" curl -s -o "$dir/answer" "http://$endpoint/"
    radosgw-admin user create --uid=peers --display-name=peers --access-key="$key" --secret-key="$secret" \
        >"$dir/log/user.log" 2>&1 || { cat "$dir/log/user.log" >&2; die "radosgw's user cannot be made"; }
    # shellcheck disable=SC2016
    await "Ceph's placement groups" "$dir/log/osd.0.out" \
        sh -c 'ceph pg stat -f json | jq -e "[.pg_summary.num_pg_by_state[].name] == [\"active+clean\"]"'
    for pool in default.rgw.buckets.index default.rgw.buckets.data; do
        [ "$(ceph osd pool get $pool size -f json | jq .size)" = 3 ] || die "$pool has not three copies"
    done
    printf 'radosgw|%s|%s|%s|%s|mon=%s mgr=%s%s rgw=%s\n' "$(radosgw --version)" "$endpoint" "$key" "$secret" \
        "$monitor" "$manager" "$osds" "$gateway" >>"$work/services"
}

start_minio() {
    if [ ! -x "$minio" ]; then
        echo "minio: not measured: there is no minio on PATH or in MINIO" >>"$work/missing"
        return
    fi
    local dir="$work/minio" endpoint=127.0.0.1:${ports[3]} version
    mkdir -p "$dir"/{d1,d2,d3,d4,certs,home}
    # Directories of the root's file system are drives by that threshold. With CI set it takes shortcuts.
    start "$dir/log" env -u CI -u MINIO_CI_CD HOME="$dir/home" MINIO_ROOT_USER="$key" MINIO_ROOT_PASSWORD="$secret" \
        MINIO_BROWSER=off MINIO_UPDATE=off MINIO_ROOTDRIVE_THRESHOLD_SIZE=1B \
        "$minio" server --quiet --certs-dir "$dir/certs" --address "$endpoint" \
        --console-address "127.0.0.1:${ports[4]}" "$dir/d{1...4}"
    await MinIO "$dir/log" curl -sf "http://$endpoint/minio/health/cluster"
    version=$(go version -m "$minio" 2>/dev/null | awk '$1 == "mod" { print $3 }')
    printf 'minio|minio %s|%s|%s|%s|minio=%s\n' "${version:-of unknown version}" "$endpoint" "$key" "$secret" \
        "$started" >>"$work/services"
}

say "starting craton, radosgw and MinIO"
start_craton
start_radosgw
start_minio
sed 's/^/peers-object: /' "$work/missing" >&2
# In the background: a signal ends the wait, and all with it.
"$work/load" -services "$work/services" -missing "$work/missing" "${load_flags[@]}" &
pids+=($!)
wait $!
