"""boto3 against clusters whose disks are full, and against one whose disks give other bytes than were written."""

import json
import os
import random
import shutil
import signal
import socket
import subprocess
import time
import unittest
import urllib.parse

from botocore.exceptions import BotoCoreError, ClientError

from cases import body_of
from test_clocks import Clocks
from test_cluster import Processes

# MiB of a disk: 16 of them are kept for what makes room.
DISK_MIB = 160
# Bodies in rows, in logs, in files.
SIZES = [300, 8000, 200_000, 1_500_000]
# Bodies that fill a cluster in turns.
FILL_SIZES = [1_000_000, 100_000, 8000]
# Seconds of an answer of a full cluster at most.
ANSWER_S = 15
# Seconds until what was deleted is room again, the time in the trash apart: for 65 s there may be rights to
# write where it was.
ROOM_S = 240
# Hours by which clocks are set forward, each so many seconds, for the time in the trash: ten minutes on a full
# cluster, else an hour.
TRASH_HOURS, TRASH_S = 1, 20
# Seconds until copies are good again: a damaged one is deleted when there is no right to it, as above.
REPAIRED_S = 300
# Seconds until all copies of what is put are there, at most.
CHASED_S = 3
# Bytes of a sector of a store, what those begin with that have no data, and the share in which a bit is turned.
SECTOR, OTHERS, TURNED = 4096, (b"CLOG", b"CCKP", b"CHDR", b"CRATONCS"), 0.2


def run(*command):
    if shutil.which(command[0]) is None:
        raise RuntimeError(f"{command[0]} is not installed: run scripts/prepare.sh")
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    if done.returncode != 0:
        raise unittest.SkipTest(f"{command}: {done.stderr}")
    return done.stdout.strip()


class Full(Clocks):
    """A cluster that becomes full, since its stores or what lies below them is small."""

    SHAPE = ["--object-servers", 0]
    CLOCKS = ["os1", "os2"]

    @classmethod
    def setUpClass(cls):
        if os.geteuid() != 0:
            raise unittest.SkipTest("small disks are made by root")
        super().setUpClass()
        cls.craton("cluster", "down", "--dir", cls.dir)
        for number in range(1, cls.CHUNKSERVERS + 1):
            cls.make_small(cls.dir / f"cs{number}")
        cls.craton("cluster", "up", "--dir", cls.dir)
        for role in ["object-manager", "object-server", "object-server", "gateway", "gateway"]:
            cls.craton("cluster", "add", role, "--dir", cls.dir)

    def setUp(self):
        super().setUp()
        # It tries once: the first answer counts.
        self.once = self.client(attempts=1, read_timeout=ANSWER_S, signature_version="s3v4")
        # What was answered, and what was refused: of that it is not always known.
        self.stored, self.refused_keys = {}, set()

    def put(self, key, size, s3=None):
        """What is answered is noted; the code of what is not is answered."""
        body, began = body_of(size, key), time.monotonic()
        try:
            (s3 or self.once).put_object(Bucket="full", Key=key, Body=body)
        except ClientError as error:
            answer = error.response
            self.refused_keys.add(key)
            self.assertLess(time.monotonic() - began, ANSWER_S)
            return answer["Error"]["Code"], answer["ResponseMetadata"]["HTTPStatusCode"]
        self.stored[key] = body
        return None

    def fill(self):
        """Puts until there is no room for any size. The first one that finds none may not know whether it was
        done: an SDK asks again, and gets the answer."""
        self.once.create_bucket(Bucket="full")
        for size in SIZES:
            self.assertIsNone(self.put(f"kept/{size}", size))
        taken = dict.fromkeys(FILL_SIZES, 0)
        while taken:
            for size in list(taken):
                refused = self.put(f"{size}/{taken[size]}", size, self.right)
                taken[size] += 1
                if refused:
                    self.assertEqual(("InsufficientStorage", 507), refused, f"{size} bytes")
                    print(f"full behind {taken.pop(size) - 1} puts of {size} bytes", flush=True)
        return sum(map(len, self.stored.values()))

    def check_full(self):
        """What is a full cluster's: puts are refused before they are sent, all else goes on."""
        for size in SIZES:
            self.assertEqual(("InsufficientStorage", 507), self.put(f"refused/{size}", size), size)
        for size in [8000, 1 << 20, 1 << 26]:
            with self.subTest("a put is refused before its body is sent", size=size):
                took, head = self.head_of_put(size)
                self.assertIn(b" 507 ", head.splitlines()[0], head)
                print(f"a put of {size} bytes is refused without its body in {took:.2f} s", flush=True)
        self.check()

    def head_of_put(self, size):
        """The answer to a put of which the head was sent, and how long it took."""
        words = {"Bucket": "full", "Key": "refused/head"}
        url = urllib.parse.urlsplit(self.once.generate_presigned_url("put_object", words))
        began = time.monotonic()
        with socket.create_connection((url.hostname, url.port), ANSWER_S) as connection:
            connection.sendall(
                f"PUT {url.path}?{url.query} HTTP/1.1\r\nHost: {url.netloc}\r\n"
                f"Content-Length: {size}\r\nExpect: 100-continue\r\n\r\n".encode()
            )
            head = connection.recv(1 << 16)
            return time.monotonic() - began, head

    def check(self):
        """All that was answered can be read, and nothing else is listed."""
        pages = self.right.get_paginator("list_objects_v2").paginate(Bucket="full")
        listed = [one["Key"] for page in pages for one in page.get("Contents", [])]
        unknown = self.refused_keys - self.stored.keys()
        self.assertEqual(sorted(self.stored), [key for key in listed if key not in unknown])
        for key, body in self.stored.items():
            got = self.right.get_object(Bucket="full", Key=key)["Body"].read()
            self.assertTrue(got == body, key)

    def puts_again(self, why, filled):
        """Waits until puts of all sizes are taken, and then most of what had filled the cluster. Clocks go on by
        more than files are in the trash, again and again: what lives in a file is moved before it gets there."""
        began = time.monotonic()
        large = [(f"second/{number}", 1_000_000) for number in range(int(0.8 * filled / 1_000_000))]
        for key, size in [(f"again/{size}", size) for size in SIZES] + large:
            while refused := self.put(key, size):
                self.assertIn(refused[1], [503, 507])
                self.assertLess(time.monotonic() - began, ROOM_S, f"{key}: {refused}")
                for name in self.CLOCKS:
                    self.write(name, TRASH_HOURS * (1 + int((time.monotonic() - began) / TRASH_S)))
                time.sleep(1)
            if size == SIZES[-1]:
                print(f"puts are taken {time.monotonic() - began:.1f} s after {why}", flush=True)
        print(f"what filled it has room {time.monotonic() - began:.1f} s after {why}", flush=True)
        self.check()


class SmallStores(Full):
    @classmethod
    def make_small(cls, place):
        """The store is a device of its own."""
        file = place / "disk"
        run("truncate", "-s", f"{DISK_MIB}M", file)
        device = run("losetup", "--find", "--show", file)
        # The device stays until the cluster, which ends later, closes it; so does the mount below.
        cls.addClassCleanup(run, "losetup", "--detach", device)
        config = place / "chunkserver.toml"
        text = config.read_text()
        cls.craton("store", "format", "--unit-kib", "16", device)
        config.write_text(text.replace(f'path = "{place}/store"', f'path = "{device}"'))

    def test_a_full_cluster_refuses_puts_and_takes_them_when_there_is_room(self):
        filled = self.fill()
        self.check_full()
        for key in [key for key in self.stored if not key.startswith("kept/")]:
            began = time.monotonic()
            self.right.delete_object(Bucket="full", Key=key)
            self.assertLess(time.monotonic() - began, ANSWER_S, key)
            del self.stored[key]
        self.check()
        self.puts_again("deletions and the time in the trash", filled)


class SmallMedia(Full):
    @classmethod
    def make_small(cls, place):
        """A file system in memory below a store that may be larger."""
        store = place / "store"
        run("mount", "-t", "tmpfs", "-o", f"size={DISK_MIB}m", "craton-test", store)
        cls.addClassCleanup(run, "umount", "--lazy", store)
        cls.craton("store", "format", "--unit-kib", "16", store)

    def test_puts_are_taken_again_when_the_medium_below_a_store_grows(self):
        filled = self.fill()
        self.check_full()
        for number in range(1, self.CHUNKSERVERS + 1):
            store = self.dir / f"cs{number}" / "store"
            run("mount", "-o", f"remount,size={2 * DISK_MIB}m", store)
        self.puts_again("the media have grown", filled)


class Rot(Processes):
    """A cluster on whose disks bits turn while it runs."""

    CHUNKSERVERS = 4
    # Of bodies of which all copies are damaged.
    ERRORS = ["an object is damaged", "the data of an object is damaged"]
    SHAPE = ["--object-managers", 1, "--object-servers", 2, "--gateways", 2]

    def setUp(self):
        self.chunkservers = [f"cs{number + 1}" for number in range(self.CHUNKSERVERS)]
        self.client().create_bucket(Bucket="rot")
        self.stored = {}
        for size in SIZES:
            for number in range(10):
                self.put(f"{size}/{number}", body_of(size, number))

    def put(self, key, body):
        self.client().put_object(Bucket="rot", Key=key, Body=body)
        self.stored[key] = body

    def turn(self, names, wanted):
        """Turns a bit in each sector of data that is wanted, while none of these chunkservers writes or copies
        anything; answers how many sectors of each."""
        pids = [self.process(name)["pid"] for name in names]
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        try:
            # What they have asked the kernel for is done.
            time.sleep(0.2)
            return [self.turn_in(self.dir / name / "store" / "store.craton", wanted) for name in names]
        finally:
            for pid in pids:
                os.kill(pid, signal.SIGCONT)

    def turn_in(self, store, wanted):
        chosen, turned, at = random.Random(1), 0, 0
        with open(store, "r+b", buffering=0) as file:
            while (at := self.next_data(file, at)) is not None:
                sector = bytearray(os.pread(file.fileno(), SECTOR, at))
                if any(sector) and not sector.startswith(OTHERS) and wanted(chosen, sector):
                    sector[chosen.randrange(SECTOR)] ^= 1 << chosen.randrange(8)
                    os.pwrite(file.fileno(), sector, at)
                    turned += 1
                at += SECTOR
            os.fsync(file.fileno())
        return turned

    @staticmethod
    def next_data(store, at):
        try:
            return os.lseek(store.fileno(), at, os.SEEK_DATA) // SECTOR * SECTOR
        except OSError:
            return None

    def check(self):
        """Each gateway gives the right bytes, of a part too."""
        for endpoint in self.book()["endpoints"]["s3_gateways"]:
            s3 = self.client(endpoint, attempts=1)
            for key, body in self.stored.items():
                got = s3.get_object(Bucket="rot", Key=key)["Body"].read()
                self.assertTrue(got == body, key)
                got = s3.get_object(Bucket="rot", Key=key, Range="bytes=200-250")["Body"].read()
                self.assertTrue(got == body[200:251], key)

    def scrubbed(self):
        """Damaged copies that a whole pass over all disks has found."""

        def disks():
            shown = self.craton("scrub", "status", "--json", "--cluster", self.dir)
            return json.loads(shown)["disks"]

        before = {one["disk"]: one["passes"] for one in disks()}
        self.craton("scrub", "start", "--cluster", self.dir)
        # One that is under way may have read what was turned before it was.
        deadline = time.monotonic() + REPAIRED_S
        while any(one["passes"] == before[one["disk"]] for one in disks()):
            self.assertLess(time.monotonic(), deadline, disks())
            time.sleep(0.2)
        return sum(one["damaged"] for one in disks())

    def test_bits_that_turn_on_one_disk_are_read_around_and_repaired(self):
        # The one that has most: not all have copies of all large bodies.
        bad = max(self.status()["chunkservers"], key=lambda one: one["used_bytes"])["id"]
        [turned] = self.turn([bad], lambda chosen, _: chosen.random() < TURNED)
        self.assertLess(100, turned)
        for _ in range(3):
            self.check()
        for size in SIZES:
            self.put(f"later/{size}", body_of(size, "later"))
        os.kill(self.process(bad)["pid"], signal.SIGKILL)
        for name in [bad, "os1", "os2", "gw1", "gw2"]:
            self.restart(name)
        self.check()
        began, found = time.monotonic(), []
        while not found or found[-1]:
            self.assertLess(time.monotonic() - began, REPAIRED_S, found)
            found.append(self.scrubbed())
            self.check()
        self.assertLess(0, found[0], "a pass finds damaged copies")
        while (chunks := self.status()["chunks"])["under_replicated"] or self.status()["repair"]["pending"]:
            self.assertLess(time.monotonic() - began, REPAIRED_S, chunks)
            time.sleep(1)
        self.assertEqual(0, chunks["lost"])
        took = time.monotonic() - began
        print(f"bits turned in {turned} sectors; damaged copies by pass: {found}; whole behind {took:.0f} s")
        self.craton("cluster", "down", "--dir", self.dir)
        for name in self.chunkservers:
            seen = self.craton("store", "fsck", "--json", self.dir / name / "store")
            self.assertEqual([], json.loads(seen)["problems"], name)
        self.craton("cluster", "up", "--dir", self.dir)
        self.check()

    def test_when_bits_turn_in_all_copies_there_is_an_error_and_no_other_bytes(self):
        # In a file of bodies; then in a log, without which the range's owner may not begin again.
        for size in [200_000, 8000]:
            word, key = b"Turn me!%08d" % size, f"damaged/{size}"
            self.client().put_object(Bucket="rot", Key=key, Body=word * (size // len(word)))
            # Two copies are acknowledged; the third follows.
            time.sleep(CHASED_S)
            turned = self.turn(self.chunkservers, lambda _, sector: word in sector)
            self.assertLessEqual(3, sum(count > 0 for count in turned), turned)
            for endpoint in self.book()["endpoints"]["s3_gateways"]:
                said = "right bytes"
                try:
                    got = self.client(endpoint, attempts=1).get_object(Bucket="rot", Key=key)
                    self.assertTrue(got["Body"].read() == word * (size // len(word)), "other bytes")
                    self.assertEqual(8000, size, said)
                except (ClientError, BotoCoreError) as error:
                    said = repr(error)
                print(f"all copies of {size} bytes damaged: {said}", flush=True)
            if size == 200_000:
                with self.assertRaisesRegex(RuntimeError, f"damaged: {key}: "):
                    self.craton("bucket", "check", "rot", "--cluster", self.dir)
                self.check()
                self.client().delete_object(Bucket="rot", Key=key)
