"""Runs the suite: starts the server, runs every test, ends the server and removes its directory.

The output is that of cargo's runner, which 'cargo xtask test' counts.
"""

import signal
import sys
import time
import unittest
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import server  # noqa: E402

# In this order: the last one restarts the server.
MODULES = [
    "test_boto3",
    "test_versions",
    "test_multipart",
    "test_awscli",
    "test_users",
    "test_quotas",
    "test_locks",
    "test_encryption",
    "test_lifecycle",
    "test_cluster",
    "test_tls",
    "test_tools",
    "test_readme",
    "test_restart",
]
# With '--long', in their place: minutes, and npm, Go and Maven.
LONG_MODULES = [
    "test_sdks",
    "test_tools_tls",
    "test_browser",
    "test_faults",
    "test_network",
    "test_clocks",
    "test_damage",
]


class Result(unittest.TestResult):
    """Prints a line for each test, and what failed at the end."""

    def __init__(self):
        super().__init__()
        self.passed = 0
        self.bad = []
        self.started = 0.0

    def startTest(self, test):
        super().startTest(test)
        self.started = time.monotonic()

    def _line(self, test, outcome):
        took_ms = (time.monotonic() - self.started) * 1000
        print(f"test {name_of(test)} ... {outcome} ({took_ms:.0f} ms)", flush=True)

    def addSuccess(self, test):
        super().addSuccess(test)
        self.passed += 1
        self._line(test, "ok")

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        print(f"test {name_of(test)} ... ignored, {reason}", flush=True)

    def addFailure(self, test, err):
        super().addFailure(test, err)
        self._bad(test, self.failures[-1][1])

    def addError(self, test, err):
        super().addError(test, err)
        self._bad(test, self.errors[-1][1])

    def addSubTest(self, test, subtest, err):
        super().addSubTest(test, subtest, err)
        if err is not None:
            self._bad(subtest, self._exc_info_to_string(err, subtest))

    def _bad(self, test, text):
        self.bad.append((name_of(test), text))
        self._line(test, "FAILED")


def name_of(test):
    return "::".join(test.id().split(".", 2))


def tests(modules, patterns):
    """All tests whose names have one of the patterns, in the order of the modules."""

    def flat(suite):
        for test in suite:
            if isinstance(test, unittest.TestSuite):
                yield from flat(test)
            else:
                yield test

    loader = unittest.TestLoader()
    found = [test for name in modules for test in flat(loader.loadTestsFromName(name))]
    if loader.errors:
        sys.exit("\n".join(loader.errors))
    wanted = [t for t in found if not patterns or any(p in name_of(t) for p in patterns)]
    return unittest.TestSuite(wanted)


def checked_end(result):
    """The server ends when it is asked to, and has logged no error."""
    name = "server::ends_with_code_0_and_no_error_line_logged"
    causes = []
    try:
        code = server.server.stop()
        if code != 0:
            causes.append(f"its exit code after SIGTERM is {code}")
    except (RuntimeError, AttributeError) as error:
        causes.append(f"it cannot be stopped: {error}")
    lines = server.server.error_lines()
    if lines:
        causes += [f"it has logged {len(lines)} errors, such as", *lines[:: len(lines) // 8 + 1]]
    if causes:
        causes.append(server.server.tail())
        result.bad.append((name, "\n".join(causes)))
    else:
        result.passed += 1
    print(f"test {name} ... {'FAILED' if causes else 'ok'}", flush=True)


def main(patterns):
    # A run that is ended ends its server too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    started = time.monotonic()
    result = Result()
    server.server = server.Server()
    try:
        server.server.start()
        is_long = patterns[:1] == ["--long"]
        modules, patterns = (LONG_MODULES, patterns[1:]) if is_long else (MODULES, patterns)
        tests(modules, patterns).run(result)
        checked_end(result)
    finally:
        server.server.remove()
    if result.bad:
        print("\nfailures:\n")
        for name, text in result.bad:
            print(f"---- {name}\n{text}")
    took_s = time.monotonic() - started
    outcome = "FAILED" if result.bad else "ok"
    print(
        f"test result: {outcome}. {result.passed} passed; {len(result.bad)} failed; "
        f"{len(result.skipped)} ignored; finished in {took_s:.2f}s"
    )
    return 1 if result.bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
