"""Lifecycle with boto3: rules on the suite's server, and short days on one of its own."""

import datetime
import itertools
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
import unittest.mock
from pathlib import Path

import boto3
import server
from cases import Case, client
from test_users import allow, craton, new_user

_names = itertools.count(1)
# Seconds of a day of the server with short days, as its flag says it.
DAY_S = 2


def rule(name, **more):
    return {"ID": name, "Status": "Enabled", **more}


def days(count):
    return {"Expiration": {"Days": count}}


class Rules(Case):
    """What is set, shown and refused; nothing expires, as days have 24 hours."""

    def bucket_of(self, s3):
        name = f"lifecycle-{next(_names)}-{os.getpid()}"
        s3.create_bucket(Bucket=name)
        return name

    def setUp(self):
        self.s3 = client()
        self.bucket = self.bucket_of(self.s3)

    def set(self, *rules, s3=None, bucket=None):
        rules = {"Rules": list(rules)}
        return (s3 or self.s3).put_bucket_lifecycle_configuration(
            Bucket=bucket or self.bucket, LifecycleConfiguration=rules
        )

    def shown(self):
        return self.s3.get_bucket_lifecycle_configuration(Bucket=self.bucket)["Rules"]

    def test_rules_are_shown_as_they_were_put(self):
        get = self.s3.get_bucket_lifecycle_configuration
        self.refused("NoSuchLifecycleConfiguration", 404, get, Bucket=self.bucket)
        old = [
            rule("r1", Prefix="a/", **days(31)),
            {"ID": "r2", "Status": "Disabled", "Prefix": "", **days(120)},
        ]
        self.set(*old)
        self.assertEqual(self.shown(), old)
        tags = [{"Key": "k", "Value": "v"}, {"Key": "l", "Value": ""}]
        new = [
            rule("prefix", Filter={"Prefix": "logs/"}, **days(1)),
            rule("all", Filter={}, NoncurrentVersionExpiration={"NoncurrentDays": 3}),
            rule("tag", Filter={"Tag": tags[0]}, **days(2)),
            rule("large", Filter={"ObjectSizeGreaterThan": 500}, **days(3)),
            rule("and", Filter={"And": {"Prefix": "x", "Tags": tags, "ObjectSizeLessThan": 9}},
                 **days(4)),
            rule("marker", Filter={"Prefix": "m"}, Expiration={"ExpiredObjectDeleteMarker": True}),
            rule("date", Filter={"Prefix": "d"}, Expiration={
                "Date": datetime.datetime(2035, 1, 1, tzinfo=datetime.timezone.utc)}),
            rule("versions", Filter={"Prefix": "v"}, NoncurrentVersionExpiration={
                "NoncurrentDays": 30, "NewerNoncurrentVersions": 5}),
            rule("uploads", Filter={"Prefix": "u"},
                 AbortIncompleteMultipartUpload={"DaysAfterInitiation": 7}),
        ]  # fmt: skip
        answer = self.set(*new)
        self.assertEqual(answer["TransitionDefaultMinimumObjectSize"], "all_storage_classes_128K")
        self.assertEqual(self.shown(), new)
        lifecycle = json.loads(craton("bucket", "info", self.bucket, "--json"))["lifecycle"]
        self.assertEqual((lifecycle["rules"], lifecycle["removed"], lifecycle["behind_s"]), (9, 0, 0))
        for _ in range(2):
            self.s3.delete_bucket_lifecycle(Bucket=self.bucket)
            self.refused("NoSuchLifecycleConfiguration", 404, get, Bucket=self.bucket)
        self.assertIsNone(json.loads(craton("bucket", "info", self.bucket, "--json"))["lifecycle"])

    def test_rules_without_an_id_get_one(self):
        self.set(*[{"Status": "Enabled", "Prefix": prefix, **days(1)} for prefix in "ab"])
        self.assertEqual(len({shown["ID"] for shown in self.shown()}), 2)

    def test_wrong_rules_are_refused(self):
        glacier = {"Days": 1, "StorageClass": "GLACIER"}
        tag = {"Key": "k", "Value": "v"}
        abort = {"AbortIncompleteMultipartUpload": {"DaysAfterInitiation": 1}}
        noon = datetime.datetime(2035, 1, 1, 12, tzinfo=datetime.timezone.utc)
        self.set(rule("kept", Filter={}, **days(1)))
        for code, status, rules in [
            ("InvalidArgument", 400, [rule("i" * 256, Prefix="", **days(1))]),
            ("InvalidArgument", 400, [rule("a", Prefix=prefix, **days(1)) for prefix in "ab"]),
            ("MalformedXML", 400, [{"ID": "a", "Status": "enabled", "Prefix": "", **days(1)}]),
            ("InvalidArgument", 400, [rule("a", Prefix="", **days(0))]),
            ("InvalidArgument", 400, [rule("a", Prefix="", Expiration={"Date": noon})]),
            ("InvalidArgument", 400, [rule("a", Prefix="", Expiration={"Date": "20200101"})]),
            ("InvalidRequest", 400, [rule("a", Filter={"Tag": tag}, **abort)]),
            ("InvalidRequest", 400, [rule("a", Filter={})]),
            ("MalformedXML", 400, [rule("a", Filter={"Prefix": "a", "Tag": tag}, **days(1))]),
            ("MalformedXML", 400, [rule(f"{n}", Prefix="", **days(1)) for n in range(1001)]),
            ("NotImplemented", 501, [rule("a", Prefix="", Transitions=[glacier])]),
        ]:  # fmt: skip
            with self.subTest(code=code, rule=str(rules[0])[:200]):
                self.refused(code, status, lambda rules=rules: self.set(*rules))
        self.assertEqual([shown["ID"] for shown in self.shown()], ["kept"])

    def test_a_thousand_rules_are_taken(self):
        self.set(*[rule(f"r{n}", Filter={"Prefix": f"p{n}/"}, **days(1)) for n in range(1000)])
        self.assertEqual(len(self.shown()), 1000)

    def test_answers_say_when_objects_expire_and_uploads_are_aborted(self):
        expires = rule("by prefix", Filter={"Prefix": "a"}, **days(1))
        uploads = {"DaysAfterInitiation": 2}
        self.set({**expires, "AbortIncompleteMultipartUpload": uploads})
        now = datetime.datetime.now(datetime.timezone.utc)
        put = self.s3.put_object(Bucket=self.bucket, Key="a", Body=b"x")["Expiration"]
        self.assertRegex(put, r'^expiry-date="\w{3}, .* 00:00:00 GMT", rule-id="by%20prefix"$')
        date = datetime.datetime.strptime(put.split('"')[1], "%a, %d %b %Y %H:%M:%S %Z")
        self.assertEqual((date.replace(tzinfo=datetime.timezone.utc) - now).days, 1)
        for asked in [self.s3.head_object, self.s3.get_object]:
            self.assertEqual(asked(Bucket=self.bucket, Key="a")["Expiration"], put)
        self.assertNotIn("Expiration", self.s3.put_object(Bucket=self.bucket, Key="b", Body=b"x"))
        source = {"Bucket": self.bucket, "Key": "b"}
        copied = self.s3.copy_object(Bucket=self.bucket, Key="a2", CopySource=source)
        self.assertIn("by%20prefix", copied["Expiration"])
        begun = self.s3.create_multipart_upload(Bucket=self.bucket, Key="a3")
        self.assertEqual(begun["AbortRuleId"], "by%20prefix")
        self.assertEqual((begun["AbortDate"] - now).days, 2)
        upload = {"Bucket": self.bucket, "Key": "a3", "UploadId": begun["UploadId"]}
        self.assertEqual(self.s3.list_parts(**upload)["AbortDate"], begun["AbortDate"])
        part = self.s3.upload_part(**upload, PartNumber=1, Body=b"x")["ETag"]
        parts = {"Parts": [{"PartNumber": 1, "ETag": part}]}
        done = self.s3.complete_multipart_upload(**upload, MultipartUpload=parts)
        self.assertIn("by%20prefix", done["Expiration"])

    def test_rules_need_rights_of_their_own(self):
        _, other = new_user()
        get = lambda: other.get_bucket_lifecycle_configuration(Bucket=self.bucket)
        put = lambda: self.set(rule("r", Prefix="", **days(1)), s3=other)
        delete = lambda: other.delete_bucket_lifecycle(Bucket=self.bucket)
        for call in [get, put, delete]:
            self.refused("AccessDenied", 403, call)
        document = lambda action: json.dumps(allow(action, f"arn:aws:s3:::{self.bucket}", "*"))
        blocks = {"BlockPublicPolicy": False, "RestrictPublicBuckets": False}
        self.s3.put_public_access_block(
            Bucket=self.bucket, PublicAccessBlockConfiguration=blocks
        )
        self.s3.put_bucket_policy(
            Bucket=self.bucket, Policy=document("s3:PutLifecycleConfiguration")
        )
        put()
        self.refused("AccessDenied", 403, get)
        delete()
        put()
        self.s3.put_bucket_policy(
            Bucket=self.bucket, Policy=document("s3:GetLifecycleConfiguration")
        )
        self.assertEqual(len(get()["Rules"]), 1)
        self.refused("AccessDenied", 403, put)


class ShortDays(Case):
    """Objects expire, on a server whose days have two seconds."""

    @classmethod
    def setUpClass(cls):
        cls.root = Path(tempfile.mkdtemp(prefix="craton-days-", dir=server.server.root))
        cls.start()

    @classmethod
    def start(cls):
        command = [server.server.binary, "up", "--dir", cls.root / "d",
                   "--lifecycle-day", f"{DAY_S}s"]  # fmt: skip
        cls.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        for line in cls.process.stdout:
            if "export CRATON_CLUSTER" in line:
                break
        access = json.loads((cls.root / "d" / "s3.json").read_text())
        cls.s3 = boto3.client(
            "s3", endpoint_url=access["endpoint"], region_name=access["region"],
            aws_access_key_id=access["access_key"], aws_secret_access_key=access["secret_key"],
        )  # fmt: skip

    @classmethod
    def stop(cls):
        cls.process.send_signal(signal.SIGINT)
        cls.process.wait(30)
        cls.process.stdout.close()

    @classmethod
    def tearDownClass(cls):
        cls.stop()
        lines = server.error_lines_below(cls.root)
        shutil.rmtree(cls.root)
        assert not lines, f"it has logged {lines[:8]}"

    def bucket_of(self, versions=False, **more):
        name = f"days-{next(_names)}"
        self.s3.create_bucket(Bucket=name, **more)
        if versions:
            status = {"Status": "Enabled"}
            self.s3.put_bucket_versioning(Bucket=name, VersioningConfiguration=status)
        return name

    def set(self, bucket, *rules):
        self.s3.put_bucket_lifecycle_configuration(
            Bucket=bucket, LifecycleConfiguration={"Rules": list(rules)}
        )

    def keys_of(self, bucket):
        found = self.s3.list_objects_v2(Bucket=bucket).get("Contents", [])
        return [entry["Key"] for entry in found]

    def versions_of(self, bucket):
        found = self.s3.list_object_versions(Bucket=bucket)
        return len(found.get("Versions", [])), len(found.get("DeleteMarkers", []))

    def within(self, wanted, look, day_count=5):
        """Looks until it is so, a few days at most."""
        end = time.monotonic() + day_count * DAY_S
        while (found := look()) != wanted:
            self.assertLess(time.monotonic(), end, found)
            time.sleep(0.1)

    def info(self, bucket):
        with unittest.mock.patch.object(server.server, "dir", self.root / "d"):
            return json.loads(craton("bucket", "info", bucket, "--json"))

    def test_objects_expire_by_prefix_tags_and_size(self):
        bucket = self.bucket_of()
        put = lambda key, size=1, tags="": self.s3.put_object(
            Bucket=bucket, Key=key, Body=b"x" * size, Tagging=tags
        )
        for key in ["d/1", "d/2", "keep/1"]:
            put(key)
        put("t/1", tags="k=v")
        put("t/2", tags="k=w")
        put("s/1", 300_000)
        put("s/2", 200)
        self.set(
            bucket,
            rule("d", Filter={"Prefix": "d/"}, **days(1)),
            rule("t", Filter={"And": {"Prefix": "t/", "Tags": [{"Key": "k", "Value": "v"}]}},
                 **days(1)),
            rule("s", Filter={"And": {"Prefix": "s/", "ObjectSizeGreaterThan": 200}}, **days(1)),
        )  # fmt: skip
        left = ["keep/1", "s/2", "t/2"]
        self.within(left, lambda: self.keys_of(bucket))
        time.sleep(2 * DAY_S)
        self.assertEqual(self.keys_of(bucket), left)
        shown = self.info(bucket)
        self.assertEqual((shown["objects"], shown["lifecycle"]["removed"]), (3, 4))
        self.assertRegex(shown["lifecycle"]["last_pass"], r"^20\d\d-")
        self.assertLessEqual(shown["lifecycle"]["behind_s"], DAY_S)
        # A key that is put again and again never gets old.
        for _ in range(6):
            put("d/3")
            time.sleep(DAY_S / 3)
        self.assertIn("d/3", self.keys_of(bucket))

    def test_older_versions_go_by_days_and_count_and_markers_last(self):
        bucket = self.bucket_of(versions=True)
        for number in range(5):
            self.s3.put_object(Bucket=bucket, Key="k", Body=b"%d" % number)
        self.s3.put_object(Bucket=bucket, Key="gone", Body=b"x")
        self.s3.delete_object(Bucket=bucket, Key="gone")
        noncurrent = {"NoncurrentDays": 1, "NewerNoncurrentVersions": 2}
        self.set(
            bucket,
            rule("k", Filter={"Prefix": "k"}, NoncurrentVersionExpiration=noncurrent),
            rule("g", Filter={"Prefix": "g"}, NoncurrentVersionExpiration={"NoncurrentDays": 1},
                 Expiration={"ExpiredObjectDeleteMarker": True}),
        )  # fmt: skip
        self.within((3, 0), lambda: self.versions_of(bucket))
        time.sleep(2 * DAY_S)
        self.assertEqual(self.versions_of(bucket), (3, 0))
        self.assertEqual(self.s3.get_object(Bucket=bucket, Key="k")["Body"].read(), b"4")

    def test_expired_objects_are_hidden_where_versions_are_kept(self):
        bucket = self.bucket_of(versions=True)
        self.s3.put_object(Bucket=bucket, Key="k", Body=b"x")
        self.set(bucket, rule("all", Filter={}, **days(1)))
        self.within((1, 1), lambda: self.versions_of(bucket))
        self.refused("NoSuchKey", 404, self.s3.get_object, Bucket=bucket, Key="k")

    def test_locked_versions_stay(self):
        bucket = self.bucket_of(ObjectLockEnabledForBucket=True)
        # Requests have whole seconds.
        until = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(seconds=4 * DAY_S)
        until = until.replace(microsecond=0)
        self.s3.put_object(Bucket=bucket, Key="k", Body=b"x", ObjectLockMode="COMPLIANCE",
                           ObjectLockRetainUntilDate=until)  # fmt: skip
        for body in [b"y", b"z"]:
            self.s3.put_object(Bucket=bucket, Key="k", Body=body)
        self.set(bucket, rule("all", Filter={}, NoncurrentVersionExpiration={"NoncurrentDays": 1}))
        self.within((2, 0), lambda: self.versions_of(bucket))
        self.assertLess(datetime.datetime.now(datetime.timezone.utc), until)
        self.within((1, 0), lambda: self.versions_of(bucket), 9)
        self.assertGreater(datetime.datetime.now(datetime.timezone.utc), until)

    def test_uploads_are_aborted(self):
        bucket = self.bucket_of()
        for key in ["a/1", "b/1"]:
            self.s3.create_multipart_upload(Bucket=bucket, Key=key)
        abort = {"DaysAfterInitiation": 1}
        self.set(bucket, rule("a", Filter={"Prefix": "a/"}, AbortIncompleteMultipartUpload=abort))
        uploads = lambda: [
            upload["Key"]
            for upload in self.s3.list_multipart_uploads(Bucket=bucket).get("Uploads", [])
        ]
        self.within(["b/1"], uploads)
        time.sleep(DAY_S)
        self.assertEqual(uploads(), ["b/1"])

    def test_rules_act_behind_a_restart_too(self):
        bucket = self.bucket_of()
        self.set(bucket, rule("all", Filter={}, **days(2)))
        self.s3.put_object(Bucket=bucket, Key="k", Body=b"x")
        self.stop()
        type(self).start()
        self.within([], lambda: self.keys_of(bucket), 6)
        self.assertEqual(self.info(bucket)["lifecycle"]["removed"], 1)

    def test_another_day_than_the_clusters_is_refused(self):
        self.stop()
        command = [server.server.binary, "up", "--dir", self.root / "d", "--lifecycle-day", "1h"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("--lifecycle-day", done.stderr)
        type(self).start()
