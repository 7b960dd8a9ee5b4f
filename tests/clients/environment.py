"""Two virtual environments: target/clients has what the suite runs in, target/clients-tools the tools
that it drives. Then the suite, run by the Python of the first.

Each is made again when its requirements or the Python that made it change. With '--make' nothing is run:
'make test' has that done before its stages.
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
TOOLS_REQUIREMENTS = HERE / "requirements-tools.txt"
TOOLS = ROOT / "target" / "clients-tools"

# What pip prints when a connection to the package index fails, and nothing of what was asked for
# came. A hash that differs or a version that the index lacks is a failure of the run.
UNREACHABLE = "connection broken by"
# Seconds for a connection to the index, and tries.
CONNECT_S = 15
TRIES = 3
# Seconds for all packages, 21 MB and 180 MB.
INSTALL_S_MAX = 300


def wanted(requirements):
    """What an environment must have been made from."""
    digest = hashlib.sha256(requirements.read_bytes()).hexdigest()
    return f"{digest}\n{sys.version}\n{os.path.realpath(sys.executable)}\n"


def make(target, requirements):
    """Makes an environment, unless it is there; ends the run when that fails."""
    # Written last: an environment without it was left half-made.
    stamp = target / "stamp"
    if stamp.is_file() and stamp.read_text() == wanted(requirements):
        return
    print(f"S3 clients are installed into target/{target.name}", flush=True)
    shutil.rmtree(target, ignore_errors=True)
    venv.create(target, with_pip=True)
    command = [
        target / "bin" / "python", "-m", "pip", "install", "--quiet", "--require-hashes",
        "--disable-pip-version-check", "--no-input", "--timeout", str(CONNECT_S),
        "--retries", str(TRIES - 1), "--requirement", requirements,
    ]  # fmt: skip
    try:
        pip = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            errors="replace", timeout=INSTALL_S_MAX,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        sys.exit(f"S3 clients: pip did not end within {INSTALL_S_MAX} s")
    if pip.returncode == 0:
        stamp.write_text(wanted(requirements))
        return
    if UNREACHABLE in pip.stdout and "DO NOT MATCH" not in pip.stdout:
        sys.exit(
            f"S3 clients: pip reaches no package index for tests/clients/{requirements.name}: run "
            "scripts/prepare.sh where it does, once"
        )
    sys.exit(f"S3 clients: pip cannot install tests/clients/{requirements.name}:\n{pip.stdout}")


def main():
    make(TARGET, REQUIREMENTS)
    make(TOOLS, TOOLS_REQUIREMENTS)
    if sys.argv[1:] == ["--make"]:
        return
    python = TARGET / "bin" / "python"
    # Without what may change the meaning of a test: settings of clients, proxies, other modules.
    kept = ("PATH", "TMPDIR", "LANG", "LC_ALL", "CRATON_BINARY")
    env = {name: os.environ[name] for name in kept if name in os.environ}
    # There are no settings of clients below it.
    env["HOME"] = str(TARGET)
    os.execve(python, [python, "-B", "-I", HERE / "suite.py", *sys.argv[1:]], env)


main()
