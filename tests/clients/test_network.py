"""boto3 against a cluster in a network of its own, in which packets to or of one process are lost."""

import ctypes
import itertools
import os
import shutil
import subprocess
import time
import unittest
from pathlib import Path

from test_cluster import PAUSE_S, SLOW_S
from test_faults import Loaded

# Seconds for which packets are lost.
CUT_S = 10
# Seconds until what was sent in that time arrives at a gateway: TCP repeats it ever less often. SDKs wait longer
# than that for an answer: an attempt of which they despair may still arrive, and be done behind later calls.
ARRIVED_S = 3 * CUT_S
CLONE_NEWNET = 0x40000000
LIBC = ctypes.CDLL(None, use_errno=True)


def groups():
    """Where control groups of version 2 are made; nft asks for their names below this directory."""
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, place, kind, *_ = line.split()
        if kind == "cgroup2" and place.startswith("/sys/fs/cgroup"):
            return Path(place)
    return None


class Cut(Loaded):
    @classmethod
    def setUpClass(cls):
        parent = groups()
        for tool in ["nft", "ip"]:
            if shutil.which(tool) is None:
                raise RuntimeError(f"{tool} is not installed: run scripts/prepare.sh")
        if os.geteuid() != 0 or parent is None:
            raise unittest.SkipTest("packets are dropped by root, per control group")
        # This thread and what it starts, threads too, have the network until the end of the tests.
        before = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        cls.addClassCleanup(os.close, before)
        if LIBC.unshare(CLONE_NEWNET) != 0:
            raise unittest.SkipTest(f"no network of its own: {os.strerror(ctypes.get_errno())}")
        cls.addClassCleanup(LIBC.setns, before, CLONE_NEWNET)
        subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
        for hook in ["input", "output"]:
            cls.nft(f"add table ip cut; add chain ip cut {hook} {{ type filter hook {hook} priority 0; }}")
        cls.group = parent / f"craton-{os.getpid()}"
        cls.addClassCleanup(cls.remove_groups)
        super().setUpClass()

    @classmethod
    def remove_groups(cls):
        for group in [*cls.group.glob("*/"), cls.group]:
            if group.exists():
                group.rmdir()

    @staticmethod
    def nft(rules):
        subprocess.run(["nft", rules], check=True)

    def lose(self, name, hooks, match=""):
        """Packets of a process are lost for a while."""
        path = (self.group / name).relative_to("/sys/fs/cgroup")
        level = len((self.group / name).relative_to(groups()).parts)
        for hook in hooks:
            self.nft(f'add rule ip cut {hook} socket cgroupv2 level {level} "{path}" {match} drop')
        try:
            time.sleep(CUT_S)
        finally:
            self.nft("flush table ip cut")

    def group_each(self):
        """Each process in a group of its own, by which its packets are known: gateways share a port."""
        for process in self.book()["processes"]:
            group = self.group / process["id"]
            group.mkdir(parents=True)
            join = lambda group=group: (group / "cgroup.procs").write_text(str(os.getpid()))
            self.restart(process["id"], preexec_fn=join)

    def test_no_call_fails_when_packets_are_lost(self):
        self.group_each()
        roles, slow = ["object-server", "object-manager", "chunkserver", "master", "gateway"], {}
        with self.load() as load:
            for role, what in itertools.product(roles, ["to", "of"]):
                time.sleep(PAUSE_S)
                name = self.one(role)
                ports = [self.process(name)["addr"], self.book()["endpoints"]["s3"]]
                ports = ", ".join(addr.rsplit(":", 1)[1] for addr in ports)
                if what == "to":
                    cut = lambda: self.lose(name, ["input"], f"tcp dport {{ {ports} }}")
                else:
                    cut = lambda: self.lose(name, ["input", "output"])
                slow[role, what] = self.under(load, f"packets {what} {role} {name} lost", cut)
                if load.failed:
                    break
        # Connections to a gateway wait for the network.
        self.assertLess(max(slow.pop(("gateway", what)) for what in ["to", "of"]), ARRIVED_S)
        self.assertEqual({}, {fault: took for fault, took in slow.items() if took > SLOW_S}, "slow calls")
        deadline = time.monotonic() + CUT_S
        while set(self.states().values()) != {"good"}:
            self.assertLess(time.monotonic(), deadline, self.states())
            time.sleep(0.2)
