#!/bin/sh
# What an idle `craton up` costs: share of a core, wakes and written bytes a second.
# usage: scripts/idle.sh [SECONDS]   (after `cargo build --release`)
set -eu
seconds=${1:-30}
craton=${CRATON:-target/release/craton}
[ -x "$craton" ] || { echo "idle: $craton is not there: run 'cargo build --release' first" >&2; exit 1; }
dir=$(mktemp -d)
"$craton" up --dir "$dir/up" >"$dir/out" 2>&1 &
pid=$!
trap 'kill -INT $pid 2>/dev/null; wait $pid || true; rm -rf "$dir"' EXIT
tries=0
until grep -q CRATON_CLUSTER "$dir/out"; do
    tries=$((tries + 1))
    [ $tries -lt 300 ] || { cat "$dir/out" >&2; echo "idle: 'craton up' did not start in 30 s" >&2; exit 1; }
    sleep 0.1
done
sleep 5

# Ticks of 10 ms, user and system; the name in field 2 has no spaces.
ticks() { awk '{ print $14 + $15 }' "/proc/$pid/stat"; }
wakes() { cat /proc/$pid/task/*/status | awk '/^voluntary/ { sum += $2 } END { print sum }'; }
written() { awk '/^write_bytes/ { print $2 }' "/proc/$pid/io"; }

t=$(ticks) w=$(wakes) b=$(written)
sleep "$seconds"
t=$(($(ticks) - t)) w=$(($(wakes) - w)) b=$(($(written) - b))
awk -v t=$t -v w=$w -v b=$b -v s="$seconds" \
    'BEGIN { printf "idle: %.2f %% of a core, %.0f wakes/s, %.1f KiB/s written\n", t / s, w / s, b / s / 1024 }'
