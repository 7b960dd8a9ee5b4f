#!/bin/sh
# Checks what the tests need, and installs what the system's packages have when it may.
set -eu

if ! command -v cargo >/dev/null 2>&1; then
    echo "cargo is missing: install Rust (https://rustup.rs), the toolchain is pinned in rust-toolchain.toml" >&2
    exit 1
fi
if ! command -v cc >/dev/null 2>&1; then
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
        apt-get update -q && apt-get install -y -q --no-install-recommends gcc libc6-dev
    else
        echo "a C linker is missing: install gcc" >&2
        exit 1
    fi
fi
# Tools that some tests drive. A missing one skips those tests, and the summary says so.
missing=""
for tool in ip; do
    command -v "$tool" >/dev/null 2>&1 || missing="$missing $tool"
done
if [ -n "$missing" ]; then
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
        (apt-get update -q && apt-get install -y -q --no-install-recommends iproute2) ||
            echo "could not install:$missing; tests that need them are skipped"
    else
        echo "not found:$missing; tests that need them are skipped"
    fi
fi
