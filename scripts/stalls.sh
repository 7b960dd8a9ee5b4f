#!/bin/sh
# Longest write of a volume while one of five chunkservers is killed, or stands still for 10 s:
# 4 KiB random writes at depth 8 over NBD, for 20 s, by fio.
#
#   scripts/stalls.sh POLICY none|kill|stop [CRATON]
#
# Prints one line: policy, fault, writes a second, and the longest, in ms. Compare only lines of one
# run of the machine, with 'none' among them.
set -eu
policy=${1:?a policy, such as rep3}
fault=${2:?none, kill or stop}
craton=${3:-target/shipped/craton}
scratch=$(mktemp -d)
trap '"$craton" cluster down --dir "$scratch/cluster" >/dev/null 2>&1 || true; rm -rf "$scratch"' EXIT
"$craton" cluster up --dir "$scratch/cluster" --chunkservers 5 >/dev/null 2>&1
"$craton" volume create v --size 1GiB --policy "$policy" --cluster "$scratch/cluster" >/dev/null
field() {
    python3 -c "import json, sys; book = json.load(open('$scratch/cluster/cluster.json')); print($1)"
}
uri=$(field "book['endpoints']['nbd']")
pid=$(field "[one['pid'] for one in book['processes'] if one['id'] == 'cs2'][0]")
fio --name=writes --ioengine=nbd --uri="$uri/v" --rw=randwrite --bs=4k --iodepth=8 --size=1G \
    --time_based --runtime=20 --output-format=json --output="$scratch/fio.json" >/dev/null 2>&1 &
load=$!
sleep 6
case $fault in
    kill) kill -9 "$pid" ;;
    stop) kill -STOP "$pid" && sleep 10 && kill -CONT "$pid" ;;
esac
wait "$load"
python3 - "$policy" "$fault" "$scratch/fio.json" <<'END'
import json, sys
policy, fault, path = sys.argv[1:]
write = json.load(open(path))["jobs"][0]["write"]
longest = write["clat_ns"]["max"] / 1e6
print(f"{policy} {fault}: {write['iops']:.0f} writes a second, the longest {longest:.1f} ms")
END
