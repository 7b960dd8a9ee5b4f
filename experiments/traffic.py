#!/usr/bin/env python3
"""Traffic for each byte that programs write, by stage (C29; Pangu 2.0, section 5.1).

    python3 experiments/traffic.py [MIB]

The paper's three cases, and ours, measured by `craton amplification` on a cluster of 11 chunkservers: (a) from
the program to the service, (b) appends in the foreground, (c) what is read to be rewritten, (d) appends of that
in EC(8,3). Volumes rewrite by garbage collection; objects that lie in a code already are rewritten by
`craton convert`, whose chunkservers read (c) and lay out (d).
"""

import sys

import lab

CLUSTER = ("--masters", "1", "--chunkservers", "11", "--block-servers", "1", "--object-servers", "1", "--gateways", "1")
OBJECT = 8 * lab.MIB
PARTS = ["(a) to the service", "(b) foreground", "(c) read", "(d) rewritten"]
PAPER = {
    "three copies, then EC(8,3)": (1, 3, 1, 1.375),
    "EC(4,2), then EC(8,3)": (1, 1.5, 1, 1.375),
    "EC(4,2) + LZ4, then EC(8,3)": (1, 0.75, 0.5, 0.6875),
}


def volume(size, kind):
    """A volume that is written in three copies and collected into EC(8,3)."""
    with lab.Cluster(*CLUSTER) as cluster:
        image = cluster.root / "image"
        image.write_bytes(lab.content(size, kind))
        cluster.run("volume", "create", "v", "--size", "1GiB", "--segments", "1", "--policy", "rep3-strict")
        before = cluster.stages()
        cluster.run("volume", "import", "v", image)
        written = lab.since(cluster.stages(), before)
        # The next owner closes the file that was written to, and collects.
        cluster.restart("block-server", "bs1")
        lab.wait("served", lambda: cluster.json("volume", "ls")[0]["state"] == "served")
        before = cluster.stages()
        cluster.run("volume", "set", "v", "--policy", "ec8+3")
        done = lambda: cluster.json("volume", "info", "v")["space"]["physical_bytes"] < 1.6 * size
        lab.wait("collected", done)
        collected = lab.since(cluster.stages(), before)
        return for_each(written, (collected["collection reads"], collected["collection"]))


def objects(size, kind, durability, *compression):
    """Objects in a bucket of this durability, whose files are converted to EC(8,3)."""
    with lab.Cluster(*CLUSTER) as cluster:
        s3 = cluster.s3()
        s3.put("/traffic")
        cluster.run("bucket", "set", "traffic", "--durability", durability, *compression)
        before = cluster.stages()
        for number in range(size // OBJECT):
            s3.put(f"/traffic/{number}", lab.content(OBJECT, kind, number))
        written = lab.since(cluster.stages(), before)
        # The next owner ends the files of bodies.
        cluster.restart("object-server", "os1")
        cluster.restart("gateway", "gw1")
        lab.wait("objects are served", lambda: cluster.json("status")["object_ranges"]["unserved"] == 0)
        wanted = lambda: [
            file for file in cluster.files_below("/.craton/object") if of_bodies(cluster, file, durability)
        ]
        # Only chunks that have ended are converted.
        lab.wait("files of bodies have ended", lambda: wanted() and all(has_ended(cluster, file) for file in wanted()))
        before = cluster.stages()
        for file in wanted():
            words = ("fs", "policy", "set", file, "ec8+3", "--services")
            cluster.run(*words, *compression)
        cluster.run("convert", "/.craton/object", "--services")
        converted = lab.since(cluster.stages(), before)
        if converted["conversion"] == 0:
            sys.exit("nothing was converted")
        return for_each(written, (converted["copies"], converted["conversion"]))


def for_each(written, rewritten):
    """The four parts, for each byte that the program wrote."""
    return tuple(part / written["user"] for part in (written["services"], written["data"], *rewritten))


def of_bodies(cluster, file, durability):
    stat = cluster.json("fs", "stat", file, "--services")
    return stat["policy"] == durability and stat["len"] > 0


def has_ended(cluster, file):
    chunks = cluster.json("fs", "stat", file, "--services")["chunks"]
    return all(chunk["state"] == "sealed" for chunk in chunks)


def main():
    size = (int(sys.argv[1]) if len(sys.argv) > 1 else 192) * lab.MIB
    measured = {
        "three copies, then EC(8,3)": volume(size, "noise"),
        "the same, of data that halves": volume(size, "half"),
        "EC(4,2), then EC(8,3)": objects(size, "noise", "ec4+2"),
        "EC(4,2) + LZ4, then EC(8,3)": objects(size, "half", "ec4+2", "--compression", "lz4"),
    }
    rows, groups = [], []
    for case, values in measured.items():
        for source, values in (("measured", values), ("paper", PAPER.get(case))):
            if values is None:
                continue
            cells = {part: round(value, 3) for part, value in zip(PARTS, values)}
            rows.append({"case": case, "source": source, **cells, "sum": round(sum(values), 3), "commit": lab.commit()})
            groups.append((f"{case} ({source})" if source == "paper" else case, dict(zip(PARTS, values))))
    lab.table("traffic", rows)
    lab.bars("traffic", "Traffic for each byte written", "bytes on the network for each byte that programs write", groups, PARTS)


if __name__ == "__main__":
    main()
