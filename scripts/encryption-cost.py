#!/usr/bin/env python3
"""CPU of `craton up` for objects of 4 MiB, plain and encrypted, in turns in one run.

    CRATON_BINARY=target/shipped/craton target/clients/bin/python scripts/encryption-cost.py [OBJECTS]

Prints for put and get: microseconds of the server's CPU a MiB, and the ratio to plain.
"""

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "clients"))

import cases  # noqa: E402
import server  # noqa: E402

SIZE_MIB = 4
ROUNDS = 5
KINDS = {"plain": {}, "SSE-S3": {"ServerSideEncryption": "AES256"}}


def cpu_s(pid):
    """Seconds of CPU that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main():
    objects = int(sys.argv[1]) if len(sys.argv) > 1 else 16
    server.server = server.Server()
    try:
        server.server.start()
        s3 = cases.client()
        s3.create_bucket(Bucket="cost")
        body = cases.body_of(SIZE_MIB << 20)
        used = {(kind, op): 0.0 for kind in KINDS for op in ("put", "get")}
        for number in range(ROUNDS):
            for kind, arguments in KINDS.items():
                begun = cpu_s(server.server.process.pid)
                for at in range(objects):
                    s3.put_object(Bucket="cost", Key=f"{kind}-{at}", Body=body, **arguments)
                put = cpu_s(server.server.process.pid)
                for at in range(objects):
                    got = s3.get_object(Bucket="cost", Key=f"{kind}-{at}")["Body"].read()
                    assert got == body
                end = cpu_s(server.server.process.pid)
                if number > 0:  # The first round fills caches.
                    used[kind, "put"] += put - begun
                    used[kind, "get"] += end - put
        mib = (ROUNDS - 1) * objects * SIZE_MIB
        for op in ("put", "get"):
            plain = used["plain", op]
            for kind in KINDS:
                took = used[kind, op]
                print(f"{op} {kind}: {took / mib * 1e6:.0f} us a MiB, {took / plain:.2f}")
    finally:
        server.server.remove()


main()
