"""boto3 against a cluster of separate processes of which each kind is killed and stopped under load."""

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


class Faults(Processes):
    """Each kind of process is killed and stands still under a load of SDKs that try again: no call fails."""

    MASTERS = 3
    CHUNKSERVERS = 4
    SHAPE = ["--object-managers", 2, "--object-servers", 2, "--gateways", 2]

    def one(self, role):
        """A process of a role: the one that leads, or that has the range of the load."""
        status = json.loads(self.craton("status", "--json", "--cluster", self.dir))
        if role == "master":
            return next(one["id"] for one in status["masters"] if "st0" in one["leads"])
        if role == "object-manager":
            return next(one["id"] for one in status["object_managers"] if one["leader"])
        if role == "object-server":
            info = json.loads(self.craton("bucket", "info", "load", "--json", "--cluster", self.dir))
            return info["ranges"][0]["server"]
        return next(one["id"] for one in self.book()["processes"] if one["role"] == role)

    def harm(self, name, is_killed):
        process = next(one for one in self.book()["processes"] if one["id"] == name)
        if is_killed:
            os.kill(process["pid"], signal.SIGKILL)
            time.sleep(PAUSE_S)
            self.craton("cluster", "restart", "--dir", self.dir, process["role"], name)
            return
        os.kill(process["pid"], signal.SIGSTOP)
        try:
            time.sleep(PAUSE_S)
        finally:
            os.kill(process["pid"], signal.SIGCONT)

    def test_no_call_fails_whatever_is_killed_or_stands_still(self):
        self.client().create_bucket(Bucket="load")
        self.client().put_object(Bucket="load", Key="counter", Body="0")
        load = Load([self.client() for _ in range(CLIENTS)])
        roles = ["object-server", "object-manager", "chunkserver", "master"]
        faults = [(role, True) for role in [*roles, "gateway"]] + [(role, False) for role in roles]
        try:
            for role, is_killed in faults:
                time.sleep(PAUSE_S)
                name, began = self.one(role), time.monotonic()
                self.harm(name, is_killed)
                time.sleep(PAUSE_S)
                took, what = load.slowest(began, time.monotonic())
                done = "killed" if is_killed else "stopped"
                print(f"{role} {name} {done}: the slowest operation was a {what} of {took:.2f} s")
                if load.failed:
                    break
        finally:
            load.end()
        self.assertEqual([], load.failed)
        self.assertLess(max(took for _, took, _ in load.calls), SLOW_S, "the slowest call")
        s3 = self.client()
        counter = int(s3.get_object(Bucket="load", Key="counter")["Body"].read())
        self.assertEqual(sum(load.swaps), counter, "swaps that were answered are there, once")
        for stored in load.stored:
            for key, body in stored.items():
                got = s3.get_object(Bucket="load", Key=key)["Body"].read()
                self.assertTrue(got == body, key)
