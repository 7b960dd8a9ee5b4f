#!/usr/bin/env bash
# The demo of block volumes: builds Craton, starts a cluster with block servers here, puts an ext4
# file system and a database on a volume, kills a block server and a chunkserver while rows are
# committed, and checks database and file system afterwards. Needs root, for the loop device.
#
#   CRATON_DEMO_DIR      where the cluster lives (default: a temporary directory, removed)
#   CRATON_DEMO_BINARY   a craton to use instead of building one
set -euo pipefail
cd "$(dirname "$0")/.."

say() { printf '\n\033[1m== %s\033[0m\n' "$*"; }
die() { printf 'demo-block: %s\n' "$*" >&2; exit 1; }

[ "$(id -u)" = 0 ] || die "run it as root: it mounts a file system from a loop device"
missing=""
for tool in nbdfuse:libnbd-bin losetup:mount mkfs.ext4:e2fsprogs fsck.ext4:e2fsprogs \
    sqlite3:sqlite3 fusermount3:fuse3 nbdinfo:libnbd-bin; do
    command -v "${tool%%:*}" >/dev/null || missing="$missing ${tool##*:}"
done
if [ -n "$missing" ] && command -v apt-get >/dev/null; then
    # One word each.
    # shellcheck disable=SC2086
    apt-get update -q && apt-get install -y -q --no-install-recommends $missing && missing=""
fi
[ -z "$missing" ] || die "install these packages first:$missing"
[ -e /dev/fuse ] || die "/dev/fuse is missing: load the module 'fuse'"

craton=${CRATON_DEMO_BINARY:-}
if [ -z "$craton" ]; then
    command -v cargo >/dev/null || die "cargo is missing: install Rust (https://rustup.rs)"
    say "Building (release)"
    cargo build --release --locked -p craton
    craton="$PWD/target/release/craton"
fi

work=${CRATON_DEMO_DIR:-$(mktemp -d "${TMPDIR:-/tmp}/craton-block.XXXXXX")}
mkdir -p "$work/mnt"
cluster="$work/cluster"
export CRATON_RUN_DIR="$work/run"
loop=""
load=""
detach() {
    umount "$work/mnt" 2>/dev/null || true
    [ -z "$loop" ] || "$craton" volume detach disk
    loop=""
}
finish() {
    code=$?
    [ -z "$load" ] || kill "$load" 2>/dev/null || true
    detach || true
    "$craton" cluster down --dir "$cluster" >/dev/null 2>&1 || true
    [ -n "${CRATON_DEMO_DIR:-}" ] || rm -rf "$work"
    [ "$code" = 0 ] || printf '\ndemo-block: FAILED (exit code %s)\n' "$code" >&2
}
trap finish EXIT

say "Starting 3 masters, 4 chunkservers, 2 block servers, a block manager and a front end"
"$craton" cluster up --dir "$cluster" --masters 3 --chunkservers 4 --block-servers 2 \
    --block-managers 1 --frontends 1
export CRATON_CLUSTER=$cluster
endpoint=$(tr -d ' \n' <"$cluster/cluster.json" | sed 's/.*"nbd":"\([^"]*\)".*/\1/')

say "A volume of 2 GiB, exported over NBD"
"$craton" volume create disk --size 2GiB
"$craton" volume info disk
nbdinfo "$endpoint/disk"

say "Attached to this host, with an ext4 file system on it, and a database"
loop=$("$craton" volume attach disk)
echo "$loop"
mkfs.ext4 -q -F "$loop"
mount "$loop" "$work/mnt"
database="$work/mnt/demo.db"
sqlite3 "$database" 'PRAGMA journal_mode=WAL; CREATE TABLE rows(id INTEGER PRIMARY KEY, text TEXT);' >/dev/null

say "Committing rows; a block server and a chunkserver are killed meanwhile"
commits=400
(
    slowest=0
    for number in $(seq $commits); do
        before=$(date +%s%N)
        sqlite3 "$database" "PRAGMA synchronous=FULL; INSERT INTO rows VALUES($number, hex(randomblob(500)));" || exit 1
        took=$((($(date +%s%N) - before) / 1000000))
        [ $took -le $slowest ] || slowest=$took
        echo "$number $slowest" >"$work/committed.new"
        mv "$work/committed.new" "$work/committed"
    done
) &
load=$!
pid_of() { # role and id -> pid
    tr -d ' \n' <"$cluster/cluster.json" | sed 's/{/\n{/g' | grep "\"role\":\"$1\",\"id\":\"$2\"" |
        sed 's/.*"pid":\([0-9]*\).*/\1/'
}
sleep 2
victim=$(pid_of block-server bs1)
kill -9 "$victim" && echo "kill -9 $victim (block server bs1) after $(cut -d' ' -f1 "$work/committed") commits"
sleep 2
victim=$(pid_of chunkserver cs2)
kill -9 "$victim" && echo "kill -9 $victim (chunkserver cs2) after $(cut -d' ' -f1 "$work/committed") commits"
wait "$load" || die "a commit failed"
load=""
read -r done_count slowest <"$work/committed"
echo "$done_count commits, the slowest took $slowest ms"
"$craton" volume info disk

say "Checking database and file system, after a detach and an attach"
before=$(sha256sum <"$database")
detach
loop=$("$craton" volume attach disk)
fsck.ext4 -f -n "$loop"
mount "$loop" "$work/mnt"
[ "$(sha256sum <"$database")" = "$before" ] || die "the database reads different after the attach"
[ "$(sqlite3 "$database" 'PRAGMA integrity_check;')" = ok ] || die "the database is damaged"
rows=$(sqlite3 "$database" 'SELECT count(*) FROM rows;')
[ "$rows" = "$commits" ] || die "$rows rows of $commits committed"
echo "integrity_check: ok, $rows rows of $commits committed"
detach

say "Done: nothing was lost"
