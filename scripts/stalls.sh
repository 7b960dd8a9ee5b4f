#!/bin/sh
# Longest write of a volume while a process is killed, or stands still for 10 s, or gets no packets for
# 10 s ("grey": what others send to it is dropped, its own connections stay): 4 KiB random writes at
# depth 8 over NBD, for 20 s, by fio. A cluster of its own: 3 masters, 5 chunkservers, 2 block managers,
# 3 block servers.
#
#   scripts/stalls.sh POLICY none|kill|stop|grey [PROCESS [CRATON]]
#
# With CRATON_STALLS_SHARED=1 the volume is a shared one that a second front end has open too, and writes
# to: then a successor waits for the former owner's lease. The figures are of the first one.
#
# PROCESS is an ID (cs2, bs1, m1 ...), 'leader' for the master that leads the cluster group, or
# 'manager' for the block manager that leads. Prints one line: policy, fault, process, writes a second,
# and the longest, in ms. Compare only lines of one run of the machine, with 'none' among them.
# 'grey' needs root: it runs in a network namespace of its own.
set -eu
policy=${1:?a policy, such as rep3}
fault=${2:?none, kill, stop or grey}
process=${3:-cs2}
craton=${4:-target/shipped/craton}
if [ "$fault" = grey ] && [ -z "${CRATON_STALLS_NETWORK:-}" ]; then
    CRATON_STALLS_NETWORK=own exec unshare --net "$0" "$policy" "$fault" "$process" "$craton"
fi
if [ -n "${CRATON_STALLS_NETWORK:-}" ]; then
    # As in the chaos command: a routing rule can drop what goes to a port.
    ip link set lo up
    ip rule add pref 100 lookup local
    ip rule del pref 0
fi
frontends=1
shared=
if [ -n "${CRATON_STALLS_SHARED:-}" ]; then
    frontends=2
    shared=--shared
fi
scratch=$(mktemp -d)
trap '"$craton" cluster down --dir "$scratch/cluster" >/dev/null 2>&1 || true; rm -rf "$scratch"' EXIT
"$craton" cluster up --dir "$scratch/cluster" --masters 3 --chunkservers 5 --block-managers 2 \
    --block-servers 3 --frontends $frontends >/dev/null 2>&1
"$craton" volume create v --size 1GiB --policy "$policy" $shared --cluster "$scratch/cluster" >/dev/null
field() {
    python3 -c "import json, sys; book = json.load(open('$scratch/cluster/cluster.json')); print($1)"
}
case $process in
    leader | manager)
        sleep 4 # Block managers report each 3 s.
        "$craton" status --json --cluster "$scratch/cluster" >"$scratch/status.json"
        process=$(python3 - "$process" "$scratch/status.json" <<'END'
import json, sys
kind, path = sys.argv[1:]
status = json.load(open(path))
if kind == "leader":
    print(next(one["id"] for one in status["masters"] if "cluster" in one["leads"]))
else:
    print(next(one["id"] for one in status["block_managers"] if one["leader"]))
END
        )
        ;;
esac
uri=$(field "book['endpoints']['nbd']")
pid=$(field "[one['pid'] for one in book['processes'] if one['id'] == '$process'][0]")
addr=$(field "[one['addr'] for one in book['processes'] if one['id'] == '$process'][0]")
write_for() {
    fio --name=writes --ioengine=nbd --uri="$1/v" --rw=randwrite --bs=4k --size=1G --time_based \
        --runtime=20 --output-format=json --output="$scratch/$2.json" --iodepth="$3" >/dev/null 2>&1
}
if [ -n "$shared" ]; then
    second=$(field "[one['addr'] for one in book['processes'] if one['id'] == 'f2'][0]")
    write_for "nbd://$second" other 1 &
    other=$!
fi
write_for "$uri" fio 8 &
load=$!
sleep 6
drop() {
    ip rule "$1" pref 10 ipproto tcp dport "${addr##*:}" blackhole
}
case $fault in
    kill) kill -9 "$pid" ;;
    stop) kill -STOP "$pid" && sleep 10 && kill -CONT "$pid" ;;
    grey) drop add && sleep 10 && drop del ;;
esac
wait "$load" ${other:-}
python3 - "$policy${shared:+ shared}" "$fault" "$process" "$scratch/fio.json" <<'END'
import json, sys
policy, fault, process, path = sys.argv[1:]
write = json.load(open(path))["jobs"][0]["write"]
longest = write["clat_ns"]["max"] / 1e6
where = "" if fault == "none" else f" {process}"
print(f"{policy} {fault}{where}: {write['iops']:.0f} writes a second, the longest {longest:.1f} ms")
END
