"""Clusters, loads, tables and plots of the experiments. Nothing but Python's own library is needed.

The program is `CRATON_BINARY`, else `target/release/craton`. A cluster's directory is temporary, and is
removed with it.
"""

import csv
import datetime
import hashlib
import hmac
import http.client
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from urllib.parse import quote, urlsplit

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
MIB = 1 << 20


def binary():
    path = Path(os.environ.get("CRATON_BINARY", ROOT / "target" / "release" / "craton"))
    if not path.exists():
        sys.exit(f"{path} is missing: build it with 'cargo build --release', or set CRATON_BINARY")
    return str(path.resolve())


class Cluster:
    """A cluster of processes on this machine, while the block runs."""

    def __init__(self, *flags):
        self.root = Path(tempfile.mkdtemp(prefix="craton-experiment-"))
        self.dir = self.root / "cluster"
        self.binary = binary()
        self.flags = flags

    def __enter__(self):
        try:
            self.run("cluster", "up", "--dir", self.dir, *self.flags, cluster=False)
        except BaseException:
            self.remove()
            raise
        return self

    def __exit__(self, *_):
        self.remove()

    def remove(self):
        if (self.dir / "cluster.json").exists():
            subprocess.run([self.binary, "cluster", "down", "--dir", str(self.dir)], capture_output=True, check=False)
        shutil.rmtree(self.root, ignore_errors=True)

    def run(self, *args, cluster=True):
        """Output of a command, which must succeed."""
        words = [self.binary, *map(str, args)] + (["--cluster", str(self.dir)] if cluster else [])
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            sys.exit(f"{' '.join(words[1:])}: {done.stderr.strip()}")
        return done.stdout

    def json(self, *args):
        return json.loads(self.run(*args, "--json"))

    def processes(self):
        return json.loads((self.dir / "cluster.json").read_text())["processes"]

    def restart(self, role, name):
        self.run("cluster", "restart", "--dir", self.dir, role, name, cluster=False)

    def stages(self):
        """Bytes of each stage until now, by name. Disks show their counters a second later."""
        time.sleep(1.5)
        figures = self.json("amplification")
        if figures["errors"]:
            sys.exit(f"not all processes answer: {figures['errors']}")
        stages = {stage["stage"]: stage["bytes"] for stage in figures["stages"]}
        return {**stages, "user": figures["user"]["total"], "used": figures["space"]["used_bytes"]}

    def files_below(self, path):
        """Paths of the files of a service below a directory."""
        for entry in self.json("fs", "ls", path, "--services"):
            below = f"{path.rstrip('/')}/{entry['name']}"
            if entry["type"] in ("dir", "directory"):
                yield from self.files_below(below)
            elif entry["type"] == "file":
                yield below

    def s3(self):
        return S3(json.loads((self.dir / "s3.json").read_text()))


class S3:
    """As much of S3 as it takes to put an object."""

    def __init__(self, access):
        self.endpoint = urlsplit(access["endpoint"])
        self.region, self.key, self.secret = access["region"], access["access_key"], access["secret_key"]

    def put(self, path, body=b""):
        now = datetime.datetime.now(datetime.timezone.utc)
        stamp, day = now.strftime("%Y%m%dT%H%M%SZ"), now.strftime("%Y%m%d")
        digest = hashlib.sha256(body).hexdigest()
        headers = {"host": self.endpoint.netloc, "x-amz-content-sha256": digest, "x-amz-date": stamp}
        names = ";".join(sorted(headers))
        lines = "".join(f"{name}:{headers[name]}\n" for name in sorted(headers))
        request = "\n".join(["PUT", quote(path), "", lines, names, digest])
        scope = f"{day}/{self.region}/s3/aws4_request"
        signed = "\n".join(["AWS4-HMAC-SHA256", stamp, scope, hashlib.sha256(request.encode()).hexdigest()])
        key = ("AWS4" + self.secret).encode()
        for word in scope.split("/"):
            key = hmac.new(key, word.encode(), hashlib.sha256).digest()
        signature = hmac.new(key, signed.encode(), hashlib.sha256).hexdigest()
        headers["authorization"] = (
            f"AWS4-HMAC-SHA256 Credential={self.key}/{scope}, SignedHeaders={names}, Signature={signature}"
        )
        connection = http.client.HTTPConnection(self.endpoint.netloc, timeout=60)
        connection.request("PUT", quote(path), body, headers)
        answer = connection.getresponse()
        text = answer.read().decode()
        connection.close()
        if answer.status != 200:
            sys.exit(f"PUT {path}: {answer.status} {text}")


def since(after, before):
    """What was counted in between."""
    return {name: value - before.get(name, 0) for name, value in after.items()}


def content(size, kind, seed=1):
    """Bytes of a kind: `noise` packs nowhere, of `half` each block of 4 KiB packs to half, `text` is a log."""
    draw = random.Random(seed)
    if kind == "noise":
        return b"".join(draw.randbytes(min(MIB, size - at)) for at in range(0, size, MIB))
    if kind == "half":
        return b"".join(draw.randbytes(2048) + bytes(2048) for _ in range(0, size, 4096))[:size]
    if kind == "text":
        words = [draw.randbytes(draw.randint(2, 9)).hex() for _ in range(900)]
        lines, length = [], 0
        while length < size:
            line = f"2026-11-29T{len(lines) % 86400:05d} INFO {' '.join(draw.choices(words, k=9))}\n"
            lines.append(line)
            length += len(line)
        return "".join(lines).encode()[:size]
    raise ValueError(kind)


def wait(what, done, seconds=300):
    end = time.monotonic() + seconds
    while not done():
        if time.monotonic() > end:
            sys.exit(f"{what}: not within {seconds} s")
        time.sleep(0.5)


def commit():
    """The program's commit, as it says it."""
    said = subprocess.run([binary(), "--version"], capture_output=True, text=True, check=True).stdout
    return said.partition("commit ")[2].strip(" )\n") or "unknown"


def table(name, rows):
    """Writes the rows, dictionaries with the same keys, and prints them."""
    path = HERE / f"{name}.csv"
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    widths = {key: max(len(str(key)), *(len(str(row[key])) for row in rows)) for key in rows[0]}
    for row in [dict(zip(rows[0], rows[0])), *rows]:
        print("  ".join(str(row[key]).ljust(widths[key]) for key in rows[0]).rstrip())
    print(f"written: {path.relative_to(ROOT)}")


COLOURS = ["#0a58ca", "#c2410c", "#15803d", "#7e22ce", "#b45309", "#0f766e"]


def bars(name, title, unit, groups, parts):
    """A plot of stacked bars: `groups` are (label, {part: value}), drawn in their order from the top."""
    left, width, step = 250, 430, 34
    top = max(sum(values.get(part, 0) for part in parts) for _, values in groups)
    height = 70 + step * len(groups) + 40
    scale = width / (top * 1.12)
    out = [
        f"<svg xmlns='http://www.w3.org/2000/svg' width='{left + width + 40}' height='{height}' "
        "font-family='sans-serif' font-size='12'>",
        f"<rect width='{left + width + 40}' height='{height}' fill='white'/>",
        f"<text x='12' y='20' font-size='14'>{title}</text>",
    ]
    at = 12
    for part, colour in zip(parts, COLOURS):
        out.append(f"<rect x='{at}' y='32' width='10' height='10' fill='{colour}'/>")
        out.append(f"<text x='{at + 14}' y='41'>{part}</text>")
        at += 30 + 7 * len(part)
    for row, (label, values) in enumerate(groups):
        x, y = float(left), 56 + row * step
        out.append(f"<text x='{left - 8}' y='{y + 15}' text-anchor='end'>{label}</text>")
        for part, colour in zip(parts, COLOURS):
            length = values.get(part, 0) * scale
            if length > 0:
                out.append(f"<rect x='{x:.1f}' y='{y}' width='{length:.1f}' height='20' fill='{colour}'/>")
            x += length
        total = sum(values.get(part, 0) for part in parts)
        out.append(f"<text x='{x + 6:.1f}' y='{y + 15}'>{total:.2f}</text>")
    out.append(f"<text x='{left}' y='{height - 12}'>{unit}</text></svg>\n")
    path = HERE / f"{name}.svg"
    path.write_text("\n".join(out))
    print(f"written: {path.relative_to(ROOT)}")
