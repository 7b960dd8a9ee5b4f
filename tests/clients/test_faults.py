"""boto3 against a cluster of separate processes of which each kind is killed and stopped under load."""

import contextlib
import json
import os
import signal
import threading
import time

from botocore.exceptions import ClientError

from cases import body_of
from test_cluster import CLIENTS, PAUSE_S, SIZES, SLOW_S, Processes


class Load:
    """Clients that put, read, list and delete objects of theirs, and swap one counter, through all gateways."""

    def __init__(self, clients):
        self.stop = threading.Event()
        self.failed, self.calls, self.swaps = [], [], [0] * len(clients)
        self.stored = [{} for _ in clients]
        self.workers = [
            threading.Thread(target=self.work, args=(number, s3)) for number, s3 in enumerate(clients)
        ]
        for worker in self.workers:
            worker.start()

    def end(self):
        self.stop.set()
        for worker in self.workers:
            worker.join()

    def call(self, what, operation, **words):
        """An operation, which must not fail; when it began and how long it took is noted."""
        began = time.monotonic()
        try:
            return operation(Bucket="load", **words)
        except ClientError as error:
            if error.response["ResponseMetadata"]["HTTPStatusCode"] == 412:
                return None
            self.failed.append(f"{what} {words.get('Key', '')}: {error!r}")
        except Exception as error:  # Whatever it is, it fails the test.
            self.failed.append(f"{what} {words.get('Key', '')}: {error!r}")
        finally:
            self.calls.append((began, time.monotonic() - began, what))
        return None

    def work(self, number, s3):
        count, mine = 0, self.stored[number]
        while not self.stop.is_set() and len(self.failed) < 20:
            count += 1
            key, body = f"{number}/{count % 20}", body_of(SIZES[count % 3], count)
            if self.call("put", s3.put_object, Key=key, Body=body) is not None:
                mine[key] = body
            got = self.call("get", s3.get_object, Key=key)
            if got is not None and got["Body"].read() != mine[key]:
                self.failed.append(f"{key} differs")
            if count % 7 == 0 and mine:
                gone = sorted(mine)[0]
                if self.call("delete", s3.delete_object, Key=gone) is not None:
                    del mine[gone]
            if count % 5 == 0:
                listed = self.call("list", s3.list_objects_v2, Prefix=f"{number}/")
                if listed is not None:
                    keys = [one["Key"] for one in listed.get("Contents", [])]
                    if keys != sorted(mine):
                        self.failed.append(f"listed {keys}, and there are {sorted(mine)}")
            if count % 3 == 0:
                self.swap(number, s3)

    def swap(self, number, s3):
        """Adds one to the counter if no other client has since it was read."""
        read = self.call("get", s3.get_object, Key="counter")
        if read is not None:
            value = int(read["Body"].read())
            swapped = self.call(
                "swap", s3.put_object, Key="counter", Body=str(value + 1), IfMatch=read["ETag"]
            )
            self.swaps[number] += swapped is not None

    def slowest(self, since, until):
        """The longest operation of those that were under way within a time."""
        within = [
            (took, what) for began, took, what in self.calls if began < until and began + took > since
        ]
        return max(within, default=(0, "none"))


class Loaded(Processes):
    """A cluster for a load of SDKs that try again."""

    MASTERS = 3
    CHUNKSERVERS = 4
    SHAPE = ["--object-managers", 2, "--object-servers", 2, "--gateways", 2]

    def one(self, role):
        """A process of a role: the one that leads, or that has the range of the load."""
        status = self.status()
        if role == "master":
            return next(one["id"] for one in status["masters"] if "st0" in one["leads"])
        if role == "object-manager":
            return next(one["id"] for one in status["object_managers"] if one["leader"])
        if role == "object-server":
            info = json.loads(self.craton("bucket", "info", "load", "--json", "--cluster", self.dir))
            return info["ranges"][0]["server"]
        if role == "gateway":
            return max(status["gateways"], key=lambda one: one["connections"])["id"]
        return next(one["id"] for one in self.book()["processes"] if one["role"] == role)

    @contextlib.contextmanager
    def load(self):
        """A load, and behind it a look whether no call has failed and all that was answered is there."""
        self.client().create_bucket(Bucket="load")
        self.client().put_object(Bucket="load", Key="counter", Body="0")
        load = Load([self.client() for _ in range(CLIENTS)])
        try:
            yield load
        finally:
            load.end()
        self.assertEqual([], load.failed)
        s3 = self.client()
        counter = int(s3.get_object(Bucket="load", Key="counter")["Body"].read())
        self.assertEqual(sum(load.swaps), counter, "swaps that were answered are there, once")
        for stored in load.stored:
            for key, body in stored.items():
                got = s3.get_object(Bucket="load", Key=key)["Body"].read()
                self.assertTrue(got == body, key)

    def under(self, load, what, harm):
        """Does harm under the load; answers how long the slowest operation took during it."""
        began = time.monotonic()
        harm()
        time.sleep(PAUSE_S)
        took, slowest = load.slowest(began, time.monotonic())
        print(f"{what}: the slowest operation was a {slowest} of {took:.2f} s", flush=True)
        return took


class Faults(Loaded):
    """Each kind of process is killed and stands still under the load: no call fails."""

    def harm(self, name, is_killed):
        os.kill(self.process(name)["pid"], signal.SIGKILL if is_killed else signal.SIGSTOP)
        try:
            time.sleep(PAUSE_S)
        finally:
            if is_killed:
                self.restart(name)
            else:
                os.kill(self.process(name)["pid"], signal.SIGCONT)

    def test_no_call_fails_whatever_is_killed_or_stands_still(self):
        roles = ["object-server", "object-manager", "chunkserver", "master"]
        faults = [(role, True) for role in [*roles, "gateway"]] + [(role, False) for role in roles]
        with self.load() as load:
            for role, is_killed in faults:
                time.sleep(PAUSE_S)
                name, done = self.one(role), "killed" if is_killed else "stopped"
                self.under(load, f"{role} {name} {done}", lambda: self.harm(name, is_killed))
                if load.failed:
                    break
        self.assertLess(max(took for _, took, _ in load.calls), SLOW_S, "the slowest call")
