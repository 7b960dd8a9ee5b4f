"""The server that the clients use: 'craton up' on a directory of its own."""

import json
import os
import shutil
import signal
import ssl
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent

# Stores on one disk, each a copy of what is stored.
STORES = 3
# Seconds until the server answers after its start, a recovery included; it takes about 1.
START_S_MAX = 60
# Seconds that it has to end by itself.
STOP_S_MAX = 30
# What the consensus library logs as an error when it ends.
ERRORS_OF_STOP = [
    "recv_msg: error: raft stopped",
    "failed to receive from RaftCore",
    "to RaftCore; when:(send HeartbeatProgress)",
]
# Seconds between two looks whether it is ready.
LOOK_S = 0.05


def error_lines_below(folder, expected=()):
    """ERROR lines of all logs below a folder, without those that have one of the expected texts."""

    def is_error(line):
        texts = [*ERRORS_OF_STOP, *expected]
        return '"level":"ERROR"' in line and not any(part in line for part in texts)

    lines = []
    for path in sorted(Path(folder).glob("**/log/*")):
        if path.is_file():
            text = path.read_text(errors="replace").splitlines()
            lines += [f"{path.relative_to(folder)}: {line}" for line in text if is_error(line)]
    return lines


class Server:
    """One server at a time; it is started again on what it stored."""

    def __init__(self, *arguments, authority=None):
        """With these arguments of 'craton up'. Over TLS, `authority` is the file of the certificate that
        has signed the server's."""
        self.arguments = arguments
        self.authority = authority
        self.binary = os.environ.get("CRATON_BINARY", str(ROOT / "target" / "shipped" / "craton"))
        if not os.access(self.binary, os.X_OK):
            raise SystemExit(f"{self.binary} is missing: run 'cargo xtask shipped'")
        self.root = Path(tempfile.mkdtemp(prefix="craton-clients-"))
        self.dir = self.root / "cluster"
        self.output = self.root / "output.txt"
        self.process = None
        self.access = None

    def start(self):
        """Starts it and waits until it serves."""
        assert self.process is None
        command = [self.binary, "up", "--dir", self.dir, *self.arguments]
        for index in range(STORES):
            store = self.root / f"store-{index}"
            store.mkdir(exist_ok=True)
            command += ["--store", store]
        with open(self.output, "ab") as output:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output
            )
        end = time.monotonic() + START_S_MAX
        while not self._is_ready():
            if self.process.poll() is not None:
                code, self.process = self.process.returncode, None
                raise RuntimeError(f"craton up ended with {code}:\n{self.tail()}")
            if time.monotonic() > end:
                raise RuntimeError(f"craton up is not ready after {START_S_MAX} s:\n{self.tail()}")
            time.sleep(LOOK_S)

    def _is_ready(self):
        try:
            self.access = json.loads((self.dir / "s3.json").read_text())
            opener = urllib.request.build_opener(
                urllib.request.ProxyHandler({}),
                urllib.request.HTTPSHandler(context=ssl.create_default_context(cafile=self.authority)),
            )
            with opener.open(self.access["endpoint"] + "/_craton/ready", timeout=5) as answer:
                return answer.status == 200
        except (FileNotFoundError, urllib.error.URLError, OSError):
            return False

    def kill(self):
        """Ends it at once, as a power cut ends a process."""
        process, self.process = self.process, None
        process.kill()
        process.wait(STOP_S_MAX)

    def stop(self):
        """Asks it to end, and answers its exit code."""
        process, self.process = self.process, None
        process.send_signal(signal.SIGTERM)
        try:
            return process.wait(STOP_S_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(STOP_S_MAX)
            raise RuntimeError(f"craton up does not end within {STOP_S_MAX} s of SIGTERM") from None

    def tail(self):
        """The ends of what it printed and logged."""
        text = ""
        for path in [self.output, *sorted(self.dir.glob("**/log/*"))]:
            if path.is_file():
                lines = path.read_text(errors="replace").splitlines()[-15:]
                text += f"--- {path.name}\n" + "\n".join(lines) + "\n"
        return text

    def error_lines(self):
        """ERROR lines of its logs: no test provokes one."""
        return error_lines_below(self.dir)

    def remove(self):
        """Ends the process that was started here, and removes its directory."""
        if self.process is not None:
            self.kill()
        shutil.rmtree(self.root, ignore_errors=True)


# The server of this run.
server = None
