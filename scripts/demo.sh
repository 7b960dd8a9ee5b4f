#!/usr/bin/env bash
# The demo: builds Craton, starts a cluster of processes here, stores a real directory tree,
# kills a chunkserver and the leading master while it is written, reads everything back and
# compares checksums.
#
#   CRATON_DEMO_SOURCE   the tree to store (default /usr/share/doc, or /usr/include)
#   CRATON_DEMO_DIR      where the cluster lives (default: a temporary directory, removed)
#   CRATON_DEMO_KEEP=1   leave the cluster running at the end
set -euo pipefail
cd "$(dirname "$0")/.."

say() { printf '\n\033[1m== %s\033[0m\n' "$*"; }
die() { printf 'demo: %s\n' "$*" >&2; exit 1; }

command -v cargo >/dev/null || die "cargo is missing: install Rust (https://rustup.rs)"
say "Building (release)"
cargo build --release --locked -p craton
craton="$PWD/target/release/craton"

work=${CRATON_DEMO_DIR:-$(mktemp -d "${TMPDIR:-/tmp}/craton-demo.XXXXXX")}
mkdir -p "$work"
cluster="$work/cluster"
put=""
finish() {
    code=$?
    [ -z "$put" ] || kill "$put" 2>/dev/null || true
    if [ "${CRATON_DEMO_KEEP:-0}" = 1 ]; then
        printf '\nThe cluster runs on: %s status --cluster %s\n' "$craton" "$cluster"
    else
        "$craton" cluster down --dir "$cluster" >/dev/null 2>&1 || true
        [ -n "${CRATON_DEMO_DIR:-}" ] || rm -rf "$work"
    fi
    [ "$code" = 0 ] || printf '\ndemo: FAILED (exit code %s)\n' "$code" >&2
}
trap finish EXIT

source=${CRATON_DEMO_SOURCE:-/usr/share/doc}
[ -d "$source" ] || source=/usr/include
[ -d "$source" ] || die "no tree to store: set CRATON_DEMO_SOURCE"

# Each byte is stored three times and read back once; small files round up to whole units.
free_kib=$(df -Pk "$work" | awk 'NR==2 {print $4}')
need_kib=$(($(du -sk "$source" | cut -f1) * 8 + 2 * 1024 * 1024))
tree="$work/tree"
mkdir -p "$tree"
if [ "$free_kib" -lt "$need_kib" ]; then
    say "Little disk is free ($((free_kib / 1024)) MiB): storing a subset of $source"
    budget=$(((free_kib - 1024 * 1024) / 12))
    [ "$budget" -gt 1024 ] || die "too little disk is free on $work: 2 GiB are needed"
    used=0
    for entry in "$source"/*; do
        size=$(du -sk "$entry" | cut -f1)
        [ $((used + size)) -le "$budget" ] || continue
        cp -a "$entry" "$tree/" && used=$((used + size))
    done
else
    cp -a "$source/." "$tree/"
fi
files=$(find "$tree" -type f | wc -l)
kib=$(du -sk --apparent-size "$tree" | cut -f1)

say "Starting 3 masters and 6 chunkservers in $cluster"
"$craton" cluster up --dir "$cluster" --masters 3 --chunkservers 6
export CRATON_CLUSTER=$cluster
"$craton" status

pid_of() { # role and id -> pid
    tr -d ' \n' <"$cluster/cluster.json" | sed 's/{/\n{/g' | grep "\"role\":\"$1\",\"id\":\"$2\"" |
        sed 's/.*"pid":\([0-9]*\).*/\1/'
}

say "Storing $files files ($((kib / 1024)) MiB) from $source; chunkserver cs2 and the leading master are killed during that"
started=$(date +%s.%N)
"$craton" fs put -r "$tree" /tree &
put=$!
sleep 1
victim=$(pid_of chunkserver cs2)
[ -n "$victim" ] || die "cs2 has no pid in cluster.json"
kill -9 "$victim" && echo "kill -9 $victim (chunkserver cs2)"
sleep 0.5
"$craton" status || true
leader=$("$craton" status --json | sed 's/{/\n{/g' | grep '"leads":\[[^]]*"st0"' | sed 's/.*"id":"\([^"]*\)".*/\1/')
victim=$(pid_of master "$leader")
kill -9 "$victim" && echo "kill -9 $victim (master $leader, which led the stream service)"
wait "$put" || die "storing the tree failed"
put=""
ended=$(date +%s.%N)
awk -v a="$started" -v b="$ended" -v k="$kib" -v f="$files" \
    'BEGIN { t = b - a; printf "stored in %.1f s: %.1f MiB/s, %.0f files/s\n", t, k / 1024 / t, f / t }'
"$craton" cluster restart --dir "$cluster" master "$leader"

say "Waiting for full redundancy (cs2 stays dead)"
for _ in $(seq 120); do
    "$craton" status --json | grep -q '"under_replicated":[ ]*0' && break
    sleep 1
done
"$craton" status
"$craton" status --json | grep -q '"under_replicated":[ ]*0' || die "redundancy did not come back"

say "Reading everything back"
started=$(date +%s.%N)
"$craton" fs get -r /tree "$work/back"
ended=$(date +%s.%N)
awk -v a="$started" -v b="$ended" -v k="$kib" -v f="$files" \
    'BEGIN { t = b - a; printf "read in %.1f s: %.1f MiB/s, %.0f files/s\n", t, k / 1024 / t, f / t }'
sums() { (cd "$1" && find . -type f -print0 | LC_ALL=C sort -z | xargs -0 sha256sum && find . -type l -printf '%p -> %l\n' | LC_ALL=C sort); }
sums "$tree" >"$work/sums.before"
sums "$work/back" >"$work/sums.after"
cmp "$work/sums.before" "$work/sums.after" || die "the trees differ"
echo "$(wc -l <"$work/sums.before") files and links compared: all equal"

say "Latency of 4 KiB durable appends, three replicas, beside the floor of this machine"
"$craton" bench append

say "Done: nothing was lost"
