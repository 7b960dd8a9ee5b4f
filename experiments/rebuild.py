#!/usr/bin/env python3
"""Time to full redundancy after the loss of one of N servers (C20; protocols-tail 10.14).

    python3 experiments/rebuild.py [MIB]

Measured: 6 chunkservers with files in three copies; one is killed. From the end of the grace (10 s without a
heartbeat) until `craton status` shows no chunk short of a copy, and the bytes that were copied in that time.

Then a model of N servers to 1,000, each with 10 TiB on one disk: chunks of 64 MiB in three copies at random
servers, and repair as masters do it: partitions that share their bounds (decision 116), a copy reads from one disk and writes to
another, and a disk gives to all of its copies together what was measured for one disk here. The line 'before' has
the bounds of before: 64 MiB a second and four copies for each of four partitions.
"""

import heapq
import random
import sys
import time

import lab

CLUSTER = ("--masters", "1", "--chunkservers", "6", "--block-servers", "0", "--object-servers", "0", "--gateways", "0")
GRACE_S = 10
CHUNK = 64 * lab.MIB
TIB = 1 << 40
PARTITIONS = 4


def measured(size):
    """Seconds, and bytes that were copied."""
    with lab.Cluster(*CLUSTER) as cluster:
        source = cluster.root / "source"
        source.write_bytes(lab.content(64 * lab.MIB, "noise"))
        for number in range(size // (64 * lab.MIB)):
            cluster.run("fs", "put", source, f"/file{number}")
        short = lambda: cluster.json("status")["chunks"]["under_replicated"]
        lab.wait("whole at the start", lambda: short() == 0)
        victim = next(one for one in cluster.processes() if one["id"] == "cs3")
        servers = cluster.json("status")["chunkservers"]
        held = next(one["used_bytes"] for one in servers if one["id"] == "cs3")
        lab.os.kill(victim["pid"], 9)
        begun = time.monotonic()
        lab.wait("it is noticed", lambda: short() > 0, 60)
        lab.wait("whole again", lambda: short() == 0, 600)
        return time.monotonic() - begun - GRACE_S, held


def model(servers, disk_rate, grown, seed=1):
    """Seconds until all chunks of one of so many servers have their copies again."""
    draw = random.Random(seed)
    chunks = 10 * TIB // CHUNK
    # A thousandth of the chunks stands for all: each is a thousand times as long.
    scale = max(1, chunks // 20_000)
    count, length = chunks // scale, CHUNK * scale
    width, rate = 4, 64 * lab.MIB
    if grown:
        width = min(512, max(width, 2 * servers // PARTITIONS))
        rate = max(rate, 256 * lab.MIB * servers // PARTITIONS)
    # Copies under way, over all partitions; a disk is free again at a time.
    workers = [0.0] * (width * PARTITIONS)
    heapq.heapify(workers)
    free = [0.0] * (servers - 1)
    paced, end = 0.0, 0.0
    for _ in range(count):
        start = max(heapq.heappop(workers), paced)
        paced = start + length / (rate * PARTITIONS)
        source, target = draw.sample(range(servers - 1), 2)
        begin = max(start, free[source], free[target])
        done = begin + length / disk_rate
        free[source] = free[target] = done
        heapq.heappush(workers, done)
        end = max(end, done)
    return end


def main():
    size = (int(sys.argv[1]) if len(sys.argv) > 1 else 2048) * lab.MIB
    seconds, copied = measured(size)
    rate = copied / seconds
    print(f"measured: {copied / lab.MIB:.0f} MiB in {seconds:.1f} s beyond the grace, {rate / lab.MIB:.0f} MiB a second")
    rows, groups = [], []
    rows.append({"servers": 6, "what": "measured", "tib_per_server": round(copied / TIB, 5), "hours": round(seconds / 3600, 5), "commit": lab.commit()})
    # All five disks that are left are one here: what it gave is what one gives for a copy's two ends.
    for servers in (6, 10, 30, 100, 300, 1000):
        for what, grown in (("before", False), ("model", True)):
            hours = model(servers, rate, grown) / 3600
            rows.append({"servers": servers, "what": what, "tib_per_server": 10, "hours": round(hours, 3), "commit": lab.commit()})
            groups.append((f"{servers} servers, {what}", {"hours": hours}))
    lab.table("rebuild", rows)
    lab.bars("rebuild", "Until 10 TiB of one of N servers are whole again (model)", "hours", groups, ["hours"])


if __name__ == "__main__":
    main()
