#!/bin/sh
# Checks what the tests need, and installs what the system's packages have when it may. With '--long' also
# what the long tests need.
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
# Tools that some tests drive: installed here, or the run ends with what to install.
missing=""
packages=""
# Some lie where the paths of root alone lead.
PATH="$PATH:/usr/sbin:/sbin"
# need TOOL PACKAGE
need() {
    if ! command -v "$1" >/dev/null 2>&1; then
        missing="$missing $1"
        packages="$packages $2"
    fi
}
need ip iproute2
need nbdinfo libnbd-bin
need nbdcopy libnbd-bin
need qemu-io qemu-utils
need fio fio
need nbdfuse libnbd-bin
need fusermount3 fuse3
need openssl openssl
need curl curl
need nft nftables
need faketime faketime
need setpriv util-linux
need unshare util-linux
need prlimit util-linux
need blockdev util-linux
need losetup mount
need mount mount
need umount mount
need hostname hostname
if [ -n "$missing" ]; then
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
        # One word each.
        apt-get update -q
        # shellcheck disable=SC2086
        apt-get install -y -q --no-install-recommends $packages
    else
        echo "missing:$missing; install the packages:$packages" >&2
        exit 1
    fi
    for tool in $missing; do
        if ! command -v "$tool" >/dev/null 2>&1; then
            echo "$tool is still missing after its package was installed" >&2
            exit 1
        fi
    done
fi
if ! fio --enghelp | grep -q nbd; then
    echo "fio has no engine nbd: install one that is built with libnbd" >&2
    exit 1
fi
# The browser of S3's long tests. Without it they are skipped, and say so.
if [ "${1:-}" = --long ] && ! command -v chromium-headless-shell >/dev/null 2>&1 && ! command -v chromium >/dev/null 2>&1; then
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
        apt-get update -q || true
        apt-get install -y -q --no-install-recommends chromium-headless-shell ||
            apt-get install -y -q --no-install-recommends chromium || true
    fi
fi
# What S3's clients run in.
if ! python3 -c 'import ensurepip, venv' 2>/dev/null; then
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
        # What is missing then is named below.
        apt-get update -q || true
        apt-get install -y -q --no-install-recommends python3 python3-venv || true
    fi
    if ! python3 -c 'import ensurepip, venv' 2>/dev/null; then
        echo "python3 with venv and pip is missing; install the packages: python3 python3-venv" >&2
        exit 1
    fi
fi
# What S3's tests drive is installed here, so that the time of their stage is that of the tests.
"$(dirname "$0")/../tests/clients/run.sh" --make
