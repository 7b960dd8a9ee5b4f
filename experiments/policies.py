#!/usr/bin/env python3
"""Space and CPU of each policy on three kinds of data (C18, C19; Pangu 2.0, section 5.1).

    python3 experiments/policies.py [MIB]

A file is stored with `craton fs put` under each policy. Space is what its replicas take on disks; CPU is
that of the command, which lays out, compresses and codes, and of all chunkservers and masters, per MiB of the
file, less what the same command takes for an empty file.
"""

import os
import resource
import sys
import time
from pathlib import Path

import lab

CLUSTER = ("--masters", "1", "--chunkservers", "11", "--block-servers", "0", "--object-servers", "0", "--gateways", "0")
POLICIES = [
    (policy, compression)
    for policy in ("rep2", "rep3", "ec4+2", "ec8+3")
    for compression in ("none", "lz4", "zstd")
]
PARTS = ["client", "servers"]


def servers_cpu(cluster):
    total = 0.0
    for process in cluster.processes():
        fields = Path(f"/proc/{process['pid']}/stat").read_text().rpartition(")")[2].split()
        total += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return total


def commands_cpu():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def put(cluster, source, path):
    """CPU seconds of the command and of the servers."""
    servers, command = servers_cpu(cluster), commands_cpu()
    cluster.run("fs", "put", source, path)
    command = commands_cpu() - command
    time.sleep(0.5)
    return command, servers_cpu(cluster) - servers


def main():
    size = (int(sys.argv[1]) if len(sys.argv) > 1 else 64) * lab.MIB
    rows, space, cost = [], [], []
    with lab.Cluster(*CLUSTER) as cluster:
        sources = {}
        for kind in ("noise", "half", "text"):
            sources[kind] = cluster.root / kind
            sources[kind].write_bytes(lab.content(size, kind))
        empty = cluster.root / "empty"
        empty.write_bytes(b"")
        put(cluster, empty, "/first")
        least = put(cluster, empty, "/second")
        for policy, compression in POLICIES:
            for kind, source in sources.items():
                folder = f"/{policy}-{compression}-{kind}"
                cluster.run("fs", "mkdir", folder)
                cluster.run("fs", "policy", "set", folder, policy, "--compression", compression)
                took = put(cluster, source, f"{folder}/file")
                used = cluster.json("fs", "stat", f"{folder}/file")["stored_bytes"]
                each = [max(0.0, one - floor) / (size / lab.MIB) * 1000 for one, floor in zip(took, least)]
                name = policy if compression == "none" else f"{policy} {compression}"
                rows.append(
                    {
                        "policy": name,
                        "data": kind,
                        "bytes_per_byte": round(used / size, 3),
                        "client_cpu_ms_per_mib": round(each[0], 2),
                        "servers_cpu_ms_per_mib": round(each[1], 2),
                        "commit": lab.commit(),
                    }
                )
                if kind == "half":
                    space.append((name, {"bytes on disks": used / size}))
                    cost.append((name, dict(zip(PARTS, each))))
    lab.table("policies", rows)
    lab.bars("policies", "Bytes on disks for each byte, of data that halves", "bytes for each byte", space, ["bytes on disks"])
    lab.bars("policies_cpu", "CPU of a put, of data that halves", "ms for each MiB", cost, PARTS)


if __name__ == "__main__":
    main()
