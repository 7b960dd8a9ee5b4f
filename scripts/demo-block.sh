#!/usr/bin/env bash
# The demo of block volumes: builds Craton, starts a cluster with block servers here, puts an ext4
# file system and a database on a volume, takes a snapshot and kills a block server and a
# chunkserver while rows are committed; then clones the snapshot, and checks database and file
# system of both. Needs root, for the loop devices.
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
mkdir -p "$work"
cluster="$work/cluster"
export CRATON_RUN_DIR="$work/run"
attached=""
load=""
attach() { # VOLUME: $device is it on this host
    device=$("$craton" volume attach "$1")
    attached="$1 $attached"
    echo "$device"
}
mount_at() { # VOLUME: at $work/VOLUME
    mkdir -p "$work/$1"
    mount "$device" "$work/$1"
}
detach() { # VOLUME
    ! mountpoint -q "$work/$1" || umount "$work/$1"
    "$craton" volume detach "$1"
    attached=${attached/"$1 "/}
}
finish() {
    code=$?
    [ -z "$load" ] || kill "$load" 2>/dev/null || true
    for volume in $attached; do detach "$volume" || true; done
    "$craton" cluster down --dir "$cluster" >/dev/null 2>&1 || true
    [ -n "${CRATON_DEMO_DIR:-}" ] || rm -rf "$work"
    [ "$code" = 0 ] || printf '\ndemo-block: FAILED (exit code %s)\n' "$code" >&2
}
trap finish EXIT
ask() { sqlite3 "$database" "$1"; }
committed() { cut -d' ' -f1 "$work/committed"; }

say "Starting 3 masters, 4 chunkservers, 2 block servers, a block manager and a front end"
"$craton" cluster up --dir "$cluster" --masters 3 --chunkservers 4 --block-servers 2 \
    --block-managers 1 --frontends 1 --object-servers 0
export CRATON_CLUSTER=$cluster
endpoint=$(tr -d ' \n' <"$cluster/cluster.json" | sed 's/.*"nbd":"\([^"]*\)".*/\1/')

say "A volume of 2 GiB, exported over NBD"
"$craton" volume create disk --size 2GiB
"$craton" volume info disk
nbdinfo "$endpoint/disk"

say "Attached to this host, with an ext4 file system on it, and a database"
attach disk
mkfs.ext4 -q -F "$device"
mount_at disk
database="$work/disk/demo.db"
ask 'PRAGMA journal_mode=WAL; CREATE TABLE rows(id INTEGER PRIMARY KEY, text TEXT);' >/dev/null

say "Committing rows; a snapshot is taken, a block server and a chunkserver are killed during that"
commits=400
echo "0 0" >"$work/committed"
(
    slowest=0
    for number in $(seq $commits); do
        before=$(date +%s%N)
        ask "PRAGMA synchronous=FULL; INSERT INTO rows VALUES($number, hex(randomblob(500)));" || exit 1
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
until [ "$(committed)" -ge 20 ]; do
    kill -0 "$load" 2>/dev/null || die "a commit failed"
    sleep 0.1
done
before_cut=$(committed)
"$craton" volume snapshot create disk cut
after_cut=$(($(committed) + 1)) # One may be under way.
echo "$before_cut commits before the snapshot, $after_cut begun when it was there"
[ "$after_cut" -lt $commits ] || die "the snapshot came after the load"
sleep 1
victim=$(pid_of block-server bs1)
kill -9 "$victim" && echo "kill -9 $victim (block server bs1) after $(committed) commits"
sleep 2
victim=$(pid_of chunkserver cs2)
kill -9 "$victim" && echo "kill -9 $victim (chunkserver cs2) after $(committed) commits"
wait "$load" || die "a commit failed"
load=""
read -r done_count slowest <"$work/committed"
echo "$done_count commits, the slowest took $slowest ms"
"$craton" volume info disk

# Of the database of $1, which must have $2 to $3 rows, the first ones without a gap.
check_database() {
    [ "$(ask 'PRAGMA integrity_check;')" = ok ] || die "the database of $1 is damaged"
    rows=$(ask 'SELECT count(*) FROM rows;')
    [ "$rows" -ge "$2" ] && [ "$rows" -le "$3" ] || die "$1 has $rows rows, not $2 to $3"
    [ "$(ask 'SELECT max(id) FROM rows;')" = "$rows" ] || die "$1 has gaps in its rows"
    echo "integrity_check: ok, $rows rows"
}

say "A clone of the snapshot: as if this host had lost its power at the cut"
sum_before=$(sha256sum <"$database")
"$craton" volume clone disk@cut copy
attach copy
mount_at copy # Replays the file system's journal; the database replays its own.
database="$work/copy/demo.db"
check_database copy "$before_cut" "$after_cut"
ask "DELETE FROM rows; INSERT INTO rows VALUES(0, 'only in the copy');"
echo "its rows are deleted, another is written"
umount "$work/copy"
fsck.ext4 -f -n "$device"
mount_at copy
[ "$(ask 'SELECT text FROM rows;')" = "only in the copy" ] || die "the copy has lost what was written"

say "Checking database and file system of the volume, after a detach and an attach"
detach disk
attach disk
fsck.ext4 -f -n "$device"
mount_at disk
database="$work/disk/demo.db"
[ "$(sha256sum <"$database")" = "$sum_before" ] || die "the database reads different after the attach"
check_database disk "$commits" "$commits"

say "Removing clone and snapshot, and verifying all that the volume has"
detach copy
! "$craton" volume snapshot rm disk cut 2>"$work/refused" || die "a snapshot with a clone was removed"
cat "$work/refused"
"$craton" volume rm copy
"$craton" volume snapshot rm disk cut
"$craton" volume snapshot ls disk
detach disk
"$craton" volume check disk

say "Done: nothing was lost"
