"""The virtual environment with the clients, in target/clients; then the suite, run by its Python.

It is made again when requirements.txt or the Python that made it changes.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
REQUIREMENTS = HERE / "requirements.txt"
TARGET = ROOT / "target" / "clients"
# Written last: an environment without it was left half-made.
STAMP = TARGET / "stamp"

# What pip prints when a connection to the package index fails, and nothing of what was asked for
# came. A hash that differs or a version that the index lacks is a failure of the run.
UNREACHABLE = "connection broken by"
# Seconds for a connection to the index, and tries.
CONNECT_S = 15
TRIES = 3
# Seconds for all packages, 21 MB.
INSTALL_S_MAX = 300


def wanted():
    """What the environment must have been made from."""
    digest = hashlib.sha256(REQUIREMENTS.read_bytes()).hexdigest()
    return f"{digest}\n{sys.version}\n{os.path.realpath(sys.executable)}\n"


def is_made():
    return STAMP.is_file() and STAMP.read_text() == wanted()


def make():
    """Makes the environment; ends the run when that fails."""
    shutil.rmtree(TARGET, ignore_errors=True)
    venv.create(TARGET, with_pip=True)
    command = [
        TARGET / "bin" / "python", "-m", "pip", "install", "--quiet", "--require-hashes",
        "--disable-pip-version-check", "--no-input", "--timeout", str(CONNECT_S),
        "--retries", str(TRIES - 1), "--requirement", REQUIREMENTS,
    ]  # fmt: skip
    try:
        pip = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            errors="replace", timeout=INSTALL_S_MAX,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        sys.exit(f"S3 clients: pip did not end within {INSTALL_S_MAX} s")
    if pip.returncode == 0:
        STAMP.write_text(wanted())
        return
    if UNREACHABLE in pip.stdout and "DO NOT MATCH" not in pip.stdout:
        print("skipped: S3 clients: pip reaches no package index to install them from")
        sys.exit(0)
    sys.exit(f"S3 clients: pip cannot install tests/clients/requirements.txt:\n{pip.stdout}")


def main():
    if not is_made():
        print("S3 clients are installed into target/clients", flush=True)
        make()
    python = TARGET / "bin" / "python"
    # Without what may change the meaning of a test: settings of clients, proxies, other modules.
    kept = ("PATH", "TMPDIR", "LANG", "LC_ALL", "CRATON_BINARY")
    env = {name: os.environ[name] for name in kept if name in os.environ}
    # There are no settings of clients below it.
    env["HOME"] = str(TARGET)
    os.execve(python, [python, "-B", "-I", HERE / "suite.py", *sys.argv[1:]], env)


main()
