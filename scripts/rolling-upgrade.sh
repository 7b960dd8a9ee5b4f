#!/bin/sh
# A cluster of an older program becomes one of this program while it is written to and read: all masters,
# then chunkservers, then block managers, block servers and front ends, then clients.
#
#   scripts/rolling-upgrade.sh [COMMIT [CRATON]]
#
# COMMIT (936b8bb: rep3 was 3/3, there were no codes and no rows) is built once into target/former, which takes
# some minutes; a path to a program in its place is taken as it is. CRATON (target/shipped/craton) is the newer
# one. Exit 1: an operation of a client failed or took 10 s, a process logged an error, a file has other bytes;
# a chunkserver of the older program does not start on a disk that has no row of the newer one yet, or does on
# one that has: it is to refuse that by name (`docs/formats/chunkstore.md`).
set -eu
former=${1:-936b8bb}
new=${2:-target/shipped/craton}
root=$(cd "$(dirname "$0")/.." && pwd)
[ -x "$new" ] || { echo "$new is not there: build it with 'cargo xtask shipped'" >&2; exit 2; }
if [ -x "$former" ] && [ -f "$former" ]; then
    old=$former
else
    old=$root/target/former/$former/craton
    if [ ! -x "$old" ]; then
        source=$root/target/former/$former/source
        mkdir -p "$(dirname "$old")"
        rm -rf "$source"
        git -C "$root" worktree prune
        git -C "$root" worktree add --detach "$source" "$former" >&2
        (cd "$source" && CARGO_INCREMENTAL=0 CARGO_TARGET_DIR="$source/target" \
            cargo build -p craton --locked --config 'profile.dev.debug=0' >&2)
        cp "$source/target/debug/craton" "$old"
        git -C "$root" worktree remove --force "$source"
    fi
fi

scratch=$(mktemp -d)
dir=$scratch/cluster
run=$scratch/run
errors=$scratch/errors
: > "$errors"
end() {
    rm -f "$run"
    wait
    "$new" cluster down --dir "$dir" > /dev/null 2>&1 || true
    rm -rf "$scratch"
}
trap end EXIT INT TERM

# Stores files and reads them back, for as long as the file "$run" is there.
load() {
    count=0
    while [ -e "$run" ]; do
        count=$((count + 1))
        file=$scratch/$2-$count
        head -c $((count * 7919 % 600000 + 1)) /dev/urandom > "$file"
        rm -f "$file.back"
        timeout 10 "$1" fs put --cluster "$dir" "$file" "/load/$2-$count" > "$scratch/said-$2" 2>&1 &&
            timeout 10 "$1" fs get --cluster "$dir" "/load/$2-$count" "$file.back" >> "$scratch/said-$2" 2>&1 &&
            cmp "$file" "$file.back" >> "$scratch/said-$2" 2>&1 ||
            { echo "file $count of the $2 program: $(tail -n 1 "$scratch/said-$2")" >> "$errors"; }
        rm -f "$file.back"
        [ "$count" -le 100 ] || rm -f "$file"
    done
    echo "$count" > "$scratch/count-$2"
}

restart() {
    "$1" cluster restart --dir "$dir" "$2" "$3"
    sleep 3
}

fail() {
    echo "rolling upgrade: $1" >&2
    exit 1
}

"$old" cluster up --dir "$dir" --masters 3 --chunkservers 5 --block-servers 2 --block-managers 1 --frontends 1
"$old" fs mkdir --cluster "$dir" /load
touch "$run"
load "$old" older &
sleep 3
for master in m1 m2 m3; do restart "$new" master $master; done
restart "$new" chunkserver cs1
# Nothing that it does not know is on its disk yet.
restart "$old" chunkserver cs1 || fail "an older chunkserver does not start on a disk without rows"
for server in cs1 cs2 cs3 cs4 cs5; do restart "$new" chunkserver $server; done
restart "$new" block-manager bm1
for server in bs1 bs2; do restart "$new" block-server $server; done
restart "$new" frontend f1
load "$new" newer &
sleep 5

# What only the newer program has, beside a client that is older still.
head -c 100000000 /dev/urandom > "$scratch/large"
"$new" fs policy set --cluster "$dir" /load ec2+1
"$new" fs put --cluster "$dir" "$scratch/large" /load/large
for number in 1 2 3 4 5 6 7 8; do
    "$new" fs policy set --cluster "$dir" "/load/older-$number" ec2+1 --compression lz4
done
"$new" convert --cluster "$dir" /load
rm "$run"
wait
[ ! -s "$errors" ] || { cat "$errors" >&2; fail "operations of clients failed"; }
# A member that ends says so to openraft's own log.
if grep -h '"ERROR"' "$dir"/*/log/craton.jsonl | grep -v '"target":"openraft' >&2; then
    fail "a process logged an error"
fi
if refused=$("$old" cluster restart --dir "$dir" chunkserver cs1 2>&1); then
    fail "an older chunkserver serves a disk with rows"
fi
case $refused in
*"format version"*) echo "the older program: $refused" ;;
*) fail "the older chunkserver does not name the format: $refused" ;;
esac
restart "$new" chunkserver cs1
for file in large older-1 older-2 older-8 newer-1 newer-2; do
    "$new" fs get --cluster "$dir" "/load/$file" "$scratch/back"
    cmp "$scratch/$file" "$scratch/back" || fail "/load/$file has other bytes"
    rm "$scratch/back"
done
echo "rolling upgrade: $(cat "$scratch/count-older") files of the older program and" \
    "$(cat "$scratch/count-newer") of the newer were stored and read back; none failed"
