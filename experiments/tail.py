#!/usr/bin/env python3
"""Latencies of a volume while one chunkserver is slow, stopped or grey (C14, C16, C17; Pangu 2.0, section 3.3).

    python3 experiments/tail.py [SECONDS]

4 KiB at random, depth 8, by fio over NBD; a cluster of 3 masters and 5 chunkservers for each line. One chunkserver
runs for a fifth or a fiftieth of the time (it is stopped and continued each 10 ms), stands still, or gets no
packet while its own connections stay (grey; needs root: a network namespace of its own). `rep3` chases: two of
three copies acknowledge; `rep3-strict` does not: all three do. Reads have backup reads and lists of slow servers
in both.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time

import lab

FAULTS = ("healthy", "x5", "x50", "stopped", "grey")
PERIOD = 0.01
OWN_NETWORK = "CRATON_EXPERIMENT_NETWORK"
PARTS = ["p50", "p99.9"]


def slow(pid, times, end):
    """Lets a process run for one part of so many."""
    run = PERIOD / times if times <= 10 else 0.001
    pause = PERIOD - run if times <= 10 else run * (times - 1)
    while time.monotonic() < end:
        os.kill(pid, signal.SIGSTOP)
        time.sleep(pause)
        os.kill(pid, signal.SIGCONT)
        time.sleep(run)


def harm(fault, process, seconds):
    """Does it for so long, and ends it."""
    end = time.monotonic() + seconds
    port = process["addr"].rpartition(":")[2]
    rule = ["pref", "10", "ipproto", "tcp", "dport", port, "blackhole"]
    if fault in ("x5", "x50"):
        slow(process["pid"], int(fault[1:]), end)
    elif fault == "stopped":
        os.kill(process["pid"], signal.SIGSTOP)
        time.sleep(seconds)
        os.kill(process["pid"], signal.SIGCONT)
    elif fault == "grey":
        subprocess.run(["ip", "rule", "add", *rule], check=True)
        time.sleep(seconds)
        subprocess.run(["ip", "rule", "del", *rule], check=True)


def fio(uri, work, seconds, out):
    command = [
        "fio", "--name=load", "--ioengine=nbd", f"--uri={uri}", f"--rw={work}", "--bs=4k", "--size=256M",
        "--time_based", f"--runtime={seconds}", "--iodepth=8", "--output-format=json", f"--output={out}",
        "--percentile_list=50:99:99.9:99.99",
    ]  # fmt: skip
    subprocess.run(command, check=True, capture_output=True)
    job = json.loads(out.read_text())["jobs"][0]
    side = job["write" if work == "randwrite" else "read"]
    at = {float(key): value / 1e6 for key, value in side["clat_ns"]["percentile"].items()}
    return {
        "per_s": round(side["iops"]),
        **{f"p{share:g}_ms": round(at[share], 2) for share in (50, 99, 99.9, 99.99)},
        "longest_ms": round(side["clat_ns"]["max"] / 1e6, 1),
    }


def measure(policy, work, fault, seconds):
    flags = ("--masters", "3", "--chunkservers", "5", "--block-servers", "2", "--object-servers", "0", "--gateways", "0")
    with lab.Cluster(*flags) as cluster:
        cluster.run("volume", "create", "v", "--size", "1GiB", "--policy", policy)
        book = json.loads((cluster.dir / "cluster.json").read_text())
        uri, out = f"{book['endpoints']['nbd']}/v", cluster.root / "fio.json"
        if work == "randread":
            image = cluster.root / "image"
            image.write_bytes(lab.content(256 * lab.MIB, "noise"))
            cluster.run("volume", "import", "v", image)
        process = next(one for one in book["processes"] if one["id"] == "cs2")
        begun = threading.Timer(1.0, harm, (fault, process, seconds - 1.0))
        begun.start()
        found = fio(uri, work, seconds, out)
        begun.join()
        return found


def main():
    if os.geteuid() == 0 and OWN_NETWORK not in os.environ:
        environment = {**os.environ, OWN_NETWORK: "own"}
        os.execvpe("unshare", ["unshare", "--net", sys.executable, *sys.argv], environment)
    if OWN_NETWORK in os.environ:
        # A rule behind which nothing comes drops what goes to a port.
        for words in ("link set lo up", "rule add pref 100 lookup local", "rule del pref 0"):
            subprocess.run(["ip", *words.split()], check=True)
    if shutil.which("fio") is None:
        sys.exit("fio is missing: scripts/prepare.sh installs it")
    seconds = int(sys.argv[1]) if len(sys.argv) > 1 else 12
    rows, groups = [], []
    for work in ("randwrite", "randread"):
        for policy in ("rep3", "rep3-strict"):
            for fault in FAULTS:
                if fault == "grey" and OWN_NETWORK not in os.environ:
                    continue
                found = measure(policy, work, fault, seconds)
                rows.append({"work": work, "policy": policy, "chunkserver": fault, **found, "commit": lab.commit()})
                groups.append((f"{work[4:]} {policy}, {fault}", {"p50": found["p50_ms"], "p99.9": found["p99.9_ms"] - found["p50_ms"]}))
                print(rows[-1], flush=True)
    lab.table("tail", rows)
    lab.bars("tail", "4 KiB with one chunkserver slow, p50 and p99.9", "ms", groups, PARTS)


if __name__ == "__main__":
    main()
