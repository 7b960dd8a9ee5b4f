"""The SDKs that npm and Go install, in target/clients-sdks: by package-lock.json and go.sum, which have
the hash of each file. Answers why they cannot be made where a tool is missing or no registry is reached.
"""

import hashlib
import shutil
import subprocess
from pathlib import Path

HERE = Path(__file__).resolve().parent
TARGET = HERE.parent.parent / "target" / "clients-sdks"
FILES = {
    "js": ["package.json", "package-lock.json", "worker.mjs"],
    "go": ["go.mod", "go.sum", "main.go"],
}
INSTALLS = {
    "js": ["npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts"],
    "go": ["go", "build", "-o", "worker", "."],
}
# What npm and go print when no registry answers.
UNREACHABLE = ["ENOTFOUND", "ECONNREFUSED", "EAI_AGAIN", "dial tcp", "no such host"]
# Seconds for one of them, with its downloads; about 10 and 40 here.
INSTALL_S_MAX = 600


def make():
    """Makes both; a reason why one is not there, or None."""
    for name, files in FILES.items():
        command = INSTALLS[name]
        if shutil.which(command[0]) is None:
            return f"{command[0]} is missing"
        source, folder = HERE / "workers" / name, TARGET / name
        texts = [(source / file).read_bytes() for file in files]
        wanted = hashlib.sha256(b"\0".join(texts)).hexdigest()
        # Written last: a folder without it was left half-made.
        stamp = folder / "stamp"
        if stamp.is_file() and stamp.read_text() == wanted:
            continue
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        for file, text in zip(files, texts):
            (folder / file).write_bytes(text)
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, timeout=INSTALL_S_MAX
        )
        if done.returncode != 0:
            said = done.stdout + done.stderr
            if any(sign in said for sign in UNREACHABLE):
                return f"{command[0]} reaches no registry"
            raise SystemExit(f"S3 clients: {command} failed:\n{said}")
        stamp.write_text(wanted)
    return None
