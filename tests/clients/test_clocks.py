"""boto3 against a cluster of which one process's wall clock is set forward or back by hours."""

import contextlib
import datetime
import itertools
import os
import time
import urllib.error
import urllib.request
from pathlib import Path

from botocore.exceptions import ClientError

from test_cluster import SLOW_S
from test_faults import Loaded

# Hours by which a clock is set.
HOURS = 3
# Seconds of a day of lifecycle, and days until objects expire.
DAY_S, DAYS = 2, 3
# Seconds until what is due is done, at most.
DONE_S = 30
# Seconds until others notice that a clock was set, at most, and of one that is wrong under load: longer than
# tokens, leases and what else has an end go on with what they were given before.
SET_S, WRONG_S = 3, 10
# Seconds without a put, and buckets, some in each range.
IDLE_S, BUCKETS = 20, 8
# What shows a time in whole seconds, and a request on its way.
SLACK = datetime.timedelta(seconds=5)
FAKETIME = next(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"), None)


def after(**time):
    return datetime.datetime.now(datetime.timezone.utc).replace(microsecond=0) + datetime.timedelta(**time)


class Clocks(Loaded):
    """A cluster with clocks that can be set while it runs."""

    MASTERS = 3
    CHUNKSERVERS = 3
    SHAPE = ["--object-managers", 1, "--object-servers", 2, "--gateways", 2,
             "--lifecycle-day", f"{DAY_S}s"]  # fmt: skip
    # Processes whose clocks are set; 'gw2' has the right time.
    CLOCKS = ["m1", "m2", "m3", "cs1", "om1", "os1", "os2", "gw1"]

    @classmethod
    def setUpClass(cls):
        if FAKETIME is None:
            raise RuntimeError("libfaketime is not installed: run scripts/prepare.sh")
        super().setUpClass()

    def setUp(self):
        for name in self.CLOCKS:
            self.clock(name).exists() or self.start_with_a_clock(name)
        endpoints = self.book()["endpoints"]["s3_gateways"]
        self.skewed, self.right = [self.client(one, signature_version="s3v4") for one in endpoints]

    def clock(self, name):
        return self.root / f"clock-{name}"

    def start_with_a_clock(self, name, hours=0):
        self.write(name, hours)
        more = {"LD_PRELOAD": str(FAKETIME), "FAKETIME_TIMESTAMP_FILE": str(self.clock(name)),
                "FAKETIME_NO_CACHE": "1", "FAKETIME_DONT_FAKE_MONOTONIC": "1"}  # fmt: skip
        self.restart(name, env={**os.environ, **more})

    def write(self, name, hours):
        new = self.clock(name).with_suffix(".new")
        new.write_text(f"{hours * 3600:+}\n")
        new.replace(self.clock(name))

    def wrong(self, hours, name):
        """A clock is wrong for a while."""
        with self.set(hours, name):
            time.sleep(WRONG_S)

    @contextlib.contextmanager
    def set(self, hours, *names):
        """Clocks are wrong in the block."""
        for name in names:
            self.write(name, hours)
        time.sleep(SET_S)
        try:
            yield
        finally:
            for name in names:
                self.write(name, 0)
            time.sleep(SET_S)

    def bucket_of(self, name, **more):
        self.right.create_bucket(Bucket=name, **more)
        return name

    def refused(self, code, call, **words):
        with self.assertRaises(ClientError) as caught:
            call(**words)
        error = caught.exception.response["Error"]
        self.assertEqual(code, error["Code"], error)
        return error["Message"]

    def set_rule(self, bucket, days):
        rule = {"ID": "r", "Status": "Enabled", "Filter": {}, "Expiration": {"Days": days}}
        self.right.put_bucket_lifecycle_configuration(
            Bucket=bucket, LifecycleConfiguration={"Rules": [rule]}
        )

    def keys_of(self, bucket):
        return [one["Key"] for one in self.right.list_objects_v2(Bucket=bucket).get("Contents", [])]


class UnderLoad(Clocks):
    def test_a_load_does_not_notice_clocks_that_are_set(self):
        slow = {}
        with self.load() as load:
            # A gateway with another time says so, below.
            for name, hours in itertools.product(self.CLOCKS[:-1], [HOURS, -HOURS]):
                what = f"{name} {hours:+} h"
                slow[what] = self.under(load, f"the clock of {what}", lambda: self.wrong(hours, name))
                time.sleep(SET_S)
        self.assertEqual({}, {what: took for what, took in slow.items() if took > SLOW_S}, "slow calls")


class Times(Clocks):
    def test_a_gateway_with_a_wrong_clock_says_so(self):
        bucket = self.bucket_of("signed")
        self.right.put_object(Bucket=bucket, Key="k", Body=b"x")
        words = {"Bucket": bucket, "Key": "k"}
        for hours, expired in [(HOURS, "AccessDenied"), (-HOURS, "RequestTimeTooSkewed")]:
            url = self.skewed.generate_presigned_url("get_object", words, ExpiresIn=3600)
            with self.set(hours, "gw1"):
                for call in [
                    lambda: self.skewed.put_object(**words, Body=b"y"),
                    lambda: self.skewed.get_object(**words),
                    lambda: self.skewed.list_objects_v2(Bucket=bucket),
                ]:
                    said = self.refused("RequestTimeTooSkewed", call)
                    self.assertRegex(said, "request time.* server")
                with self.assertRaises(urllib.error.HTTPError) as caught:
                    urllib.request.urlopen(url, timeout=10)
                self.assertEqual(403, caught.exception.code)
                self.assertIn(f"<Code>{expired}</Code>", caught.exception.read().decode())
                self.assertEqual(b"x", self.right.get_object(**words)["Body"].read())
            self.assertEqual(b"x", self.skewed.get_object(**words)["Body"].read())
            with urllib.request.urlopen(url, timeout=10) as answer:
                self.assertEqual(b"x", answer.read())

    def test_retentions_do_not_end_early(self):
        bucket = self.bucket_of("retained", ObjectLockEnabledForBucket=True)

        def put(until):
            lock = {"ObjectLockMode": "COMPLIANCE", "ObjectLockRetainUntilDate": until}
            put = self.right.put_object(Bucket=bucket, Key="k", Body=b"x", **lock)
            return {"Bucket": bucket, "Key": "k", "VersionId": put["VersionId"]}

        before = put(after(hours=1))
        for names in [["om1"], ["os1"], ["os2"], ["os1", "os2"], ["cs1"], ["m1"], ["gw1"]]:
            for hours in [HOURS, -HOURS]:
                with self.subTest(names=names, hours=hours), self.set(hours, *names):
                    for version in [before, put(after(hours=1))]:
                        self.refused("AccessDenied", self.right.delete_object, **version)
        # With the right time they end.
        ends = after(seconds=2 * SET_S)
        version = put(ends)
        self.refused("AccessDenied", self.right.delete_object, **version)
        deadline = time.monotonic() + DONE_S
        while True:
            try:
                self.right.delete_object(**version)
                break
            except ClientError:
                self.assertLess(time.monotonic(), deadline, "a retention ends")
                time.sleep(0.2)
        self.assertLessEqual(ends, after())

    def test_nothing_expires_early_and_all_in_the_end(self):
        for names in [["om1"], ["os1", "os2"], ["cs1"], ["m1"]]:
            for hours in [HOURS, -HOURS]:
                with self.subTest(names=names, hours=hours):
                    bucket = self.bucket_of(f"days-{names[0]}{hours}")
                    self.set_rule(bucket, DAYS)
                    self.right.put_object(Bucket=bucket, Key="k", Body=b"x")
                    due = time.monotonic() + DAYS * DAY_S
                    with self.set(hours, *names):
                        while (looked := time.monotonic()) < due:
                            if time.monotonic() < due:
                                self.assertEqual(["k"], self.keys_of(bucket), due - looked)
                            time.sleep(0.1)
                    deadline = time.monotonic() + DONE_S
                    while self.keys_of(bucket):
                        self.assertLess(time.monotonic(), deadline, "an object expires")
                        time.sleep(0.2)


class Behind(Clocks):
    """What is put while the clocks of all object servers are behind is retained as long as it is to be."""

    # With days of their usual length an idle range notes nothing.
    SHAPE = Clocks.SHAPE[:-2]

    def test_a_retention_by_rule_that_begins_with_a_clock_behind_is_not_shorter(self):
        rule = {"DefaultRetention": {"Mode": "GOVERNANCE", "Days": 1}}
        buckets = [self.bucket_of(f"kept-{n}", ObjectLockEnabledForBucket=True) for n in range(BUCKETS)]
        for bucket in buckets:
            self.right.put_object_lock_configuration(
                Bucket=bucket, ObjectLockConfiguration={"ObjectLockEnabled": "Enabled", "Rule": rule}
            )
        # No object is older than one that was put before it: so none is put for a while.
        time.sleep(IDLE_S)
        early = {}
        with self.set(-HOURS, "os1", "os2"):
            for bucket in buckets:
                wanted = after(days=1) - SLACK
                self.right.put_object(Bucket=bucket, Key="k", Body=b"x")
                until = self.right.head_object(Bucket=bucket, Key="k")["ObjectLockRetainUntilDate"]
                if until < wanted:
                    early[bucket] = f"{wanted - until} early"
        self.assertEqual({}, early)
