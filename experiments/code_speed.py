#!/usr/bin/env python3
"""Encoding and decoding beside a copy of the same bytes, on one core (C18, C19).

    python3 experiments/code_speed.py [ROUNDS]

Runs `codec_speed` in a release build: each kernel of the erasure codes, and each codec of blocks. Rates are of
data bytes, in 10^9 a second for codes and 10^6 for blocks; the ratio is to a copy in memory in the same round.
The papers say of their library only that it is 2.5 to 3 times as fast as another.
"""

import subprocess
import sys

import lab


def rows_of(part, rounds):
    command = ["cargo", "run", "--release", "--offline", "-q", "-p", "codec", "--example", "codec_speed", "--", part, rounds]
    said = subprocess.run(command, cwd=lab.ROOT, capture_output=True, text=True, check=True).stdout
    lines = [line.split() for line in said.splitlines() if line.strip()]
    return lines[0], lines[1:]


def main():
    rounds = sys.argv[1] if len(sys.argv) > 1 else "60"
    rows, groups = [], []
    head, lines = rows_of("ec", rounds)
    for line in lines:
        kernel, code, kib, *work, rate, copy, ratio = line
        work = " ".join(work)
        rows.append({"what": f"{kernel} {code} {work}", "kib": kib, "rate": rate, "copy": copy, "ratio": ratio})
        if kib == "64" and work == "encode":
            groups.append((f"{kernel} {code}", {"encode": float(rate)}))
    head, lines = rows_of("blocks", rounds)
    for codec, kib, data, pack, unpack, copy, stored in lines:
        for work, rate in (("pack", pack), ("unpack", unpack)):
            ratio = round(float(rate) / float(copy), 2)
            rows.append({"what": f"{codec} {work} {data}", "kib": kib, "rate": rate, "copy": copy, "ratio": ratio})
    lab.table("code_speed", rows)
    lab.bars("code_speed", "Erasure codes, 64 KiB fragments", "10^9 data bytes a second on one core", groups, ["encode"])


if __name__ == "__main__":
    main()
