#!/usr/bin/env bash
# SQLite and PostgreSQL on a volume beside the same on the bare disk: commits a second of each, in
# turns, and the ratio. The volume is attached to this host with an ext4 file system on it; the
# bare disk is a directory on the disk that the cluster stores on. Needs root, for the loop device.
#
#   scripts/bench-databases.sh [SECONDS]     of each turn of pgbench (default: 10)
#
#   CRATON_BENCH_DIR      where the cluster and the bare disk's databases live (default: a
#                         temporary directory, removed)
#   CRATON_BENCH_BINARY   a craton to use instead of building one
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${1:-10}
rounds=3      # turns of each; the machine's moods are shared by both
inserts=300   # commits of one turn of SQLite
scale=5       # of pgbench: 75 MB

die() { printf 'bench-databases: %s\n' "$*" >&2; exit 1; }
[ "$(id -u)" = 0 ] || die "run it as root: it mounts a file system from a loop device"
postgres=$(find /usr/lib/postgresql -maxdepth 2 -name bin 2>/dev/null | sort -V | tail -1 || true)
missing=""
for tool in nbdfuse:libnbd-bin losetup:mount mkfs.ext4:e2fsprogs sqlite3:sqlite3 fusermount3:fuse3 jq:jq; do
    command -v "${tool%%:*}" >/dev/null || missing="$missing ${tool##*:}"
done
[ -n "$postgres" ] || missing="$missing postgresql"
[ -z "$missing" ] || die "install these packages first:$missing"
[ -e /dev/fuse ] || die "/dev/fuse is missing: load the module 'fuse'"

craton=${CRATON_BENCH_BINARY:-}
if [ -z "$craton" ]; then
    cargo build --release --locked -p craton
    craton="$PWD/target/release/craton"
fi
work=${CRATON_BENCH_DIR:-$(mktemp -d "${TMPDIR:-/tmp}/craton-databases.XXXXXX")}
mkdir -p "$work/volume" "$work/disk"
chmod 755 "$work"
cluster="$work/cluster"
export CRATON_RUN_DIR="$work/run"
as_postgres() { (cd / && runuser -u postgres -- "$@"); }
finish() {
    code=$?
    for place in volume disk; do
        [ ! -e "$work/$place/pg/postmaster.pid" ] ||
            as_postgres "$postgres/pg_ctl" -D "$work/$place/pg" -m immediate stop >/dev/null 2>&1 || true
    done
    umount "$work/volume" 2>/dev/null || true
    "$craton" volume detach databases >/dev/null 2>&1 || true
    "$craton" cluster down --dir "$cluster" >/dev/null 2>&1 || true
    if [ -z "${CRATON_BENCH_DIR:-}" ]; then rm -rf "$work"; else rm -rf "$work/disk"; fi
    exit $code
}
trap finish EXIT

"$craton" cluster up --dir "$cluster" --masters 3 --chunkservers 3 --block-servers 2 \
    --block-managers 1 --frontends 1 --object-servers 0 >/dev/null
export CRATON_CLUSTER=$cluster
"$craton" volume create databases --size 4GiB >/dev/null
loop=$("$craton" volume attach databases)
mkfs.ext4 -q -F "$loop"
mount "$loop" "$work/volume"

# Commits a second of SQLite, one row each: JOURNAL, PLACE.
sqlite() {
    local file="$work/$2/$1.db" began took
    sqlite3 "$file" "PRAGMA journal_mode=$1; CREATE TABLE IF NOT EXISTS rows(id INTEGER PRIMARY KEY, text TEXT);" >/dev/null
    began=$(date +%s%N)
    { echo 'PRAGMA synchronous=FULL;'
      for _ in $(seq $inserts); do echo 'INSERT INTO rows(text) VALUES(hex(randomblob(500)));'; done
    } | sqlite3 "$file"
    took=$(($(date +%s%N) - began))
    [ "$(sqlite3 "$file" 'PRAGMA integrity_check;')" = ok ] || die "$file is damaged"
    echo $((inserts * 1000000000 / took))
}

# Transactions a second of pgbench: CLIENTS, PLACE.
pgbench() {
    as_postgres "$postgres/pgbench" -n -h "$work/$2" -c "$1" -j 1 -T "$seconds" bench 2>/dev/null |
        sed -n 's/^tps = \([0-9]*\).*without initial.*/\1/p'
}

for place in disk volume; do
    install -d -o postgres "$work/$place/pg"
    chown postgres "$work/$place"
    as_postgres "$postgres/initdb" -D "$work/$place/pg" --no-sync -A trust >/dev/null
    as_postgres "$postgres/pg_ctl" -D "$work/$place/pg" -w -l "$work/$place/log" \
        -o "-c listen_addresses= -c unix_socket_directories=$work/$place" start >/dev/null
    as_postgres "$postgres/createdb" -h "$work/$place" bench
    as_postgres "$postgres/pgbench" -q -i -s $scale -h "$work/$place" bench >/dev/null 2>&1
done

printf '%-38s %10s %10s %8s\n' "commits a second" "bare disk" volume ratio
row() { # NAME FUNCTION ARGUMENT
    local sum_disk=0 sum_volume=0 got
    for _ in $(seq $rounds); do
        got=$("$2" "$3" disk) && sum_disk=$((sum_disk + got))
        got=$("$2" "$3" volume) && sum_volume=$((sum_volume + got))
    done
    awk -v name="$1" -v d=$sum_disk -v v=$sum_volume -v n=$rounds 'BEGIN {
        if (d == 0 || v == 0) { print name ": no commits" > "/dev/stderr"; exit 1 }
        printf "%-38s %10.0f %10.0f %8.2f\n", name, d / n, v / n, v / d }'
}
row "SQLite, one row, rollback journal" sqlite DELETE
row "SQLite, one row, write-ahead log" sqlite WAL
row "pgbench (TPC-B), 1 client" pgbench 1
row "pgbench (TPC-B), 8 clients" pgbench 8
