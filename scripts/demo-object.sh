#!/usr/bin/env bash
# The demo of objects: builds Craton, starts a cluster with two object servers and two gateways here,
# stores a real directory tree with the stock aws client, kills the owner of the objects, a gateway and
# a chunkserver while it does, lists and reads all back and compares checksums.
#
#   CRATON_DEMO_SOURCE   the tree to store (default /usr/share/doc, or /usr/include)
#   CRATON_DEMO_DIR      where the cluster lives (default: a temporary directory, removed)
#   CRATON_DEMO_BINARY   a craton to use instead of building one
#   CRATON_DEMO_AWS      the aws command (default: that of PATH, or one that pip installs into target)
set -euo pipefail
cd "$(dirname "$0")/.."

say() { printf '\n\033[1m== %s\033[0m\n' "$*"; }
die() { printf 'demo-object: %s\n' "$*" >&2; exit 1; }

craton=${CRATON_DEMO_BINARY:-}
if [ -z "$craton" ]; then
    command -v cargo >/dev/null || die "cargo is missing: install Rust (https://rustup.rs)"
    say "Building (release)"
    cargo build --release --locked -p craton
    craton="$PWD/target/release/craton"
fi
aws=${CRATON_DEMO_AWS:-$(command -v aws || true)}
if [ -z "$aws" ]; then
    # The environment of the client tests; no test has that name.
    CRATON_BINARY="$craton" tests/clients/run.sh none-of-them >/dev/null 2>&1 || true
    aws="$PWD/target/clients/bin/aws"
fi
command -v curl >/dev/null || die "curl is missing: install it"
[ -x "$aws" ] || die "there is no aws command: install it, or name it in CRATON_DEMO_AWS"

work=${CRATON_DEMO_DIR:-$(mktemp -d "${TMPDIR:-/tmp}/craton-object.XXXXXX")}
mkdir -p "$work"
cluster="$work/cluster"
sync=""
finish() {
    code=$?
    [ -z "$sync" ] || kill "$sync" 2>/dev/null || true
    "$craton" cluster down --dir "$cluster" >/dev/null 2>&1 || true
    [ -n "${CRATON_DEMO_DIR:-}" ] || rm -rf "$work"
    [ "$code" = 0 ] || printf '\ndemo-object: FAILED (exit code %s)\n' "$code" >&2
}
trap finish EXIT

source=${CRATON_DEMO_SOURCE:-/usr/share/doc}
[ -d "$source" ] || source=/usr/include
[ -d "$source" ] || die "no tree to store: set CRATON_DEMO_SOURCE"
# Objects have no links: files only. And one that clients send in parts.
tree="$work/tree"
mkdir -p "$tree"
(cd "$source" && find . -type f -size -4096k -print0 | LC_ALL=C sort -z | head -z -n 3000 |
    tar -c --null -T - -f -) | tar -x -C "$tree" -f -
head -c 41943047 /dev/urandom >"$tree/in-parts.bin"
files=$(find "$tree" -type f | wc -l)
kib=$(du -sk --apparent-size "$tree" | cut -f1)

say "Starting 3 masters, 4 chunkservers, 2 object managers, 2 object servers and 2 gateways in $cluster"
"$craton" cluster up --dir "$cluster" --masters 3 --chunkservers 4 --block-servers 0 \
    --block-managers 0 --frontends 0 --object-managers 2 --object-servers 2 --gateways 2
export CRATON_CLUSTER=$cluster
access=$("$craton" user env admin)
eval "$access"
# No settings of this machine's user but the version of signatures, which older clients presign with
# otherwise; and all that SDKs do by themselves when a call is cut off.
printf '[default]\ns3 =\n    signature_version = s3v4\n' >"$work/aws.conf"
export AWS_CONFIG_FILE="$work/aws.conf" AWS_SHARED_CREDENTIALS_FILE=/dev/null AWS_MAX_ATTEMPTS=5

pid_of() { # role and id -> pid
    tr -d ' \n' <"$cluster/cluster.json" | sed 's/{/\n{/g' | grep "\"role\":\"$1\",\"id\":\"$2\"" |
        sed 's/.*"pid":\([0-9]*\).*/\1/'
}

say "Storing $files files ($((kib / 1024)) MiB) from $source; object servers, a gateway, a chunkserver and an object manager are killed on the way"
started=$(date +%s.%N)
"$aws" s3 mb s3://tree
"$aws" s3 sync --only-show-errors "$tree" s3://tree/all &
sync=$!
for victim in object-server:os1 gateway:gw1 chunkserver:cs2 object-manager:om1 object-server:os2; do
    sleep 2
    role=${victim%%:*} id=${victim##*:}
    pid=$(pid_of "$role" "$id")
    kill -9 "$pid" && echo "kill -9 $pid ($role $id)"
    # Of the two object servers one is needed.
    [ "$id" != os1 ] || "$craton" cluster restart --dir "$cluster" "$role" "$id"
done
wait "$sync" || die "storing the tree failed"
sync=""
ended=$(date +%s.%N)
awk -v a="$started" -v b="$ended" -v k="$kib" -v f="$files" \
    'BEGIN { t = b - a; printf "stored in %.1f s: %.1f MiB/s, %.0f files/s\n", t, k / 1024 / t, f / t }'
"$craton" health || true
"$craton" status

say "Listing"
"$aws" s3 ls s3://tree/all/ | sed -n 1,5p
listed=$("$aws" s3 ls --recursive s3://tree | wc -l)
[ "$listed" = "$files" ] || die "$listed objects are listed of $files"
echo "$listed objects of $files"

say "Reading everything back, through the gateway that is left"
started=$(date +%s.%N)
"$aws" s3 sync --only-show-errors s3://tree/all "$work/back"
ended=$(date +%s.%N)
awk -v a="$started" -v b="$ended" -v k="$kib" -v f="$files" \
    'BEGIN { t = b - a; printf "read in %.1f s: %.1f MiB/s, %.0f files/s\n", t, k / 1024 / t, f / t }'
sums() { (cd "$1" && find . -type f -print0 | LC_ALL=C sort -z | xargs -0 sha256sum); }
sums "$tree" >"$work/sums.before"
sums "$work/back" >"$work/sums.after"
cmp "$work/sums.before" "$work/sums.after" || die "the trees differ"
echo "$(wc -l <"$work/sums.before") files compared: all equal"

say "A link that anyone may follow for a minute"
link=$("$aws" s3 presign s3://tree/all/in-parts.bin --expires-in 60)
echo "${link%%\?*}?..."
read -r want _ < <(sha256sum "$tree/in-parts.bin")
read -r got _ < <(curl -fsS --noproxy '*' "$link" | sha256sum)
[ "$got" = "$want" ] || die "the link gives other bytes"

say "Done: nothing was lost"
