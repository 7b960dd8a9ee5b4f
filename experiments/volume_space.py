#!/usr/bin/env python3
"""Bytes on disks for each byte of a volume, before and after collection (B3; the EBS paper, section 3.3).

    python3 experiments/volume_space.py [MIB]

A volume is written once in three copies, and nothing of it is overwritten; then its policy is set, and garbage
collection rewrites what takes less room in the new form. The paper has 3 before, 0.69 behind collection with
EC(8,3) and LZ4, and 1.29 on average over its volumes, whose newest part is in copies.
"""

import sys
import time

import lab

CLUSTER = ("--masters", "1", "--chunkservers", "11", "--block-servers", "1")


def measure(size, kind, policy):
    with lab.Cluster(*CLUSTER) as cluster:
        image = cluster.root / "image"
        image.write_bytes(lab.content(size, kind))
        cluster.run("volume", "create", "v", "--size", "4GiB", "--segments", "1", "--policy", "rep3")
        cluster.run("volume", "import", "v", image)
        space = lambda: cluster.json("volume", "info", "v")["space"]
        written = space()["physical_bytes"] / size
        # The next owner closes the file that was written to, and collects.
        cluster.restart("block-server", "bs1")
        lab.wait("served", lambda: cluster.json("volume", "ls")[0]["state"] == "served")
        cluster.run("volume", "set", "v", "--policy", policy)
        former, same = None, 0
        while same < 6:
            now = space()["physical_bytes"]
            former, same = now, same + 1 if now == former else 0
            time.sleep(1)
        cluster.run("volume", "check", "v")
        return written, former / size


def main():
    size = (int(sys.argv[1]) if len(sys.argv) > 1 else 256) * lab.MIB
    rows, groups = [], []
    cases = [(kind, policy) for kind in ("noise", "half", "text") for policy in ("rep3", "ec4+2", "ec8+3")]
    for kind, policy in cases:
        written, collected = measure(size, kind, policy)
        rows.append(
            {
                "data": kind,
                "policy": policy,
                "written": round(written, 3),
                "collected": round(collected, 3),
                "paper": {("half", "ec8+3"): 0.69}.get((kind, policy), ""),
                "commit": lab.commit(),
            }
        )
        groups.append((f"{kind}, {policy}", {"collected": collected}))
    groups.append(("paper: EC(8,3) + LZ4", {"collected": 0.69}))
    lab.table("volume_space", rows)
    title = "Bytes on disks for each byte of a volume, once collected (3.05 before)"
    lab.bars("volume_space", title, "bytes on disks for each byte", groups, ["collected"])


if __name__ == "__main__":
    main()
