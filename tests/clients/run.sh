#!/bin/sh
# Runs S3 clients against a server of its own: 'tests/clients/run.sh [--long] [TEST ...]', where TEST is
# part of a test's name. '--make' installs the clients only. README.md has the rest.
set -eu
cd "$(dirname "$0")/../.."

# The run counts it as one test that has failed.
fail() {
    echo "S3 clients: $1: run scripts/prepare.sh" >&2
    exit 1
}
if ! command -v python3 >/dev/null 2>&1; then
    fail "python3 is not installed"
fi
if ! python3 -c 'import sys; sys.exit(sys.version_info < (3, 10))'; then
    fail "python3 is older than 3.10, which the clients need"
fi
if ! python3 -c 'import ensurepip, venv' 2>/dev/null; then
    fail "python3 has no venv or no pip"
fi
exec python3 -B tests/clients/environment.py "$@"
