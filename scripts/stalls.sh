#!/bin/sh
# Longest write of a volume while a process is killed, or stands still for 10 s, or gets no packets for
# 10 s ("grey": what others send to it is dropped, its own connections stay): 4 KiB random writes at
# depth 8 over NBD, for 20 s, by fio. A cluster of its own: 3 masters, 5 chunkservers, 2 block managers,
# 3 block servers.
#
#   scripts/stalls.sh POLICY none|kill|stop|grey [PROCESS [CRATON]]
#
# CRATON_STALLS_WHAT says what is measured:
#   writes  the longest write (the default);
#   shared  the same of a shared volume that a second front end has open too, and writes to: then a
#           successor waits for the former owner's lease. The figures are of the first one;
#   attach  the longest attachment of another volume, with its first write, one after the other;
#   move    the longest write, while the block server bs1 is killed half a second after the fault.
#
# CRATON_STALLS_SHARED=1 is the same as CRATON_STALLS_WHAT=shared.
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
what=${CRATON_STALLS_WHAT:-${CRATON_STALLS_SHARED:+shared}}
what=${what:-writes}
if [ "$what" = shared ]; then
    frontends=2
    shared=--shared
fi
scratch=$(mktemp -d)
trap '"$craton" cluster down --dir "$scratch/cluster" >/dev/null 2>&1 || true; rm -rf "$scratch"' EXIT
"$craton" cluster up --dir "$scratch/cluster" --masters 3 --chunkservers 5 --block-managers 2 \
    --block-servers 3 --frontends $frontends --object-servers 0 >/dev/null 2>&1
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
bs1=$(field "[one['pid'] for one in book['processes'] if one['id'] == 'bs1'][0]")
if [ "$what" = attach ]; then
    "$craton" volume create w --size 1GiB --policy "$policy" --cluster "$scratch/cluster" >/dev/null
    python3 - "$uri" 20 >"$scratch/attach" <<'END' &
import socket, struct, sys, time
host, _, port = sys.argv[1].removeprefix("nbd://").rpartition(":")
end = time.monotonic() + float(sys.argv[2])

# NBD, fixed newstyle: an export by its name, one write, a disconnect.
def attach(name):
    with socket.create_connection((host.strip("[]"), int(port)), timeout=20) as nbd:
        def read(count):
            data = b""
            while len(data) < count:
                more = nbd.recv(count - len(data))
                if not more:
                    raise OSError("the connection ended")
                data += more
            return data
        read(18)
        nbd.sendall(struct.pack(">I", 3))
        nbd.sendall(b"IHAVEOPT" + struct.pack(">II", 1, len(name)) + name)
        read(10)
        nbd.sendall(struct.pack(">IHHQQI", 0x25609513, 0, 1, 1, 0, 4096) + bytes(4096))
        if struct.unpack(">IIQ", read(16))[1]:
            raise OSError("the write failed")
        nbd.sendall(struct.pack(">IHHQQI", 0x25609513, 0, 2, 2, 0, 0))

longest = count = 0
while time.monotonic() < end:
    began = time.monotonic()
    while True:
        try:
            attach(b"w")
            break
        except OSError:
            time.sleep(0.01)
    longest, count = max(longest, time.monotonic() - began), count + 1
    time.sleep(0.05)
print(longest * 1000, count)
END
    attached=$!
fi
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
if [ "$what" = move ]; then
    (sleep 0.5 && kill -9 "$bs1") &
fi
drop() {
    ip rule "$1" pref 10 ipproto tcp dport "${addr##*:}" blackhole
}
case $fault in
    kill) kill -9 "$pid" ;;
    stop) kill -STOP "$pid" && sleep 10 && kill -CONT "$pid" ;;
    grey) drop add && sleep 10 && drop del ;;
esac
wait "$load" ${other:-} ${attached:-}
python3 - "$policy${shared:+ shared}" "$fault" "$process" "$scratch/fio.json" "$what" <<'END'
import json, os, sys
policy, fault, process, path, what = sys.argv[1:]
write = json.load(open(path))["jobs"][0]["write"]
longest = write["clat_ns"]["max"] / 1e6
where = "" if fault == "none" else f" {process}"
done = f"{write['iops']:.0f} writes a second"
if what == "attach":
    longest, count = map(float, open(os.path.join(os.path.dirname(path), "attach")).read().split())
    done = f"{count:.0f} attachments"
if what == "move":
    where += ", then bs1 killed"
print(f"{policy} {fault}{where}: {done}, the longest {longest:.1f} ms")
END
