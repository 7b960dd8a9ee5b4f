#!/bin/sh
# Runs S3 clients against a server of its own: 'tests/clients/run.sh [--long] [TEST ...]', where TEST is
# part of a test's name. '--make' installs the clients only. README.md has the rest.
set -eu
cd "$(dirname "$0")/../.."

# The run counts this line as one skipped test.
skip() {
    echo "skipped: S3 clients: $1"
    exit 0
}
if ! command -v python3 >/dev/null 2>&1; then
    skip "there is no python3; install Python 3.10 or later with venv and pip"
fi
if ! python3 -c 'import sys; sys.exit(sys.version_info < (3, 10))'; then
    skip "python3 is older than 3.10, which the clients need; install a later one"
fi
if ! python3 -c 'import ensurepip, venv' 2>/dev/null; then
    skip "python3 has no venv or no pip; install the package python3-venv"
fi
exec python3 -B tests/clients/environment.py "$@"
