"""Quotas of buckets and users, and what 'craton bucket info' counts, with boto3."""

import itertools
import json
import os
import time

from cases import Case, client
from test_users import craton, new_user

_names = itertools.count(1)
MIB = 1 << 20


def info(bucket):
    return json.loads(craton("bucket", "info", bucket, "--json"))


class Quotas(Case):
    def bucket_of(self, s3):
        name = f"quota-{next(_names)}-{os.getpid()}"
        s3.create_bucket(Bucket=name)
        return name

    def within(self, seconds, call, code="QuotaExceeded"):
        """Calls until it is refused, in this time."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            try:
                call()
            except Exception as error:  # boto3 makes its classes at run time.
                self.assertEqual(error.response["Error"]["Code"], code)
                return
            time.sleep(0.1)
        self.fail(f"not refused within {seconds} s")

    def test_what_a_bucket_holds_is_counted(self):
        s3 = client()
        bucket = self.bucket_of(s3)
        s3.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
        for body in [b"one", b"three"]:
            s3.put_object(Bucket=bucket, Key="a", Body=body)
        s3.put_object(Bucket=bucket, Key="b", Body=b"x" * MIB)
        s3.delete_object(Bucket=bucket, Key="b")
        upload = s3.create_multipart_upload(Bucket=bucket, Key="c")["UploadId"]
        s3.upload_part(Bucket=bucket, Key="c", UploadId=upload, PartNumber=1, Body=b"y" * MIB)
        shown = info(bucket)
        counted = ("objects", "versions", "delete_markers", "bytes", "uploads", "upload_bytes")
        self.assertEqual([shown[name] for name in counted], [1, 2, 1, MIB + 8, 1, MIB])
        self.assertIsNone(shown["quota"])
        s3.abort_multipart_upload(Bucket=bucket, Key="c", UploadId=upload)
        self.assertEqual([info(bucket)[name] for name in counted[4:]], [0, 0])
        self.assertIn("older versions: 2", craton("bucket", "info", bucket))

    def test_bucket_is_held_to_its_quota(self):
        s3 = client()
        bucket = self.bucket_of(s3)
        put = lambda key, size: s3.put_object(Bucket=bucket, Key=key, Body=b"z" * size)
        put("first", MIB)
        set_to = json.loads(craton("bucket", "quota", bucket, "--bytes", "3M", "--json"))
        self.assertEqual(set_to, {"objects": None, "bytes": 3 * MIB})
        self.assertEqual(info(bucket)["quota"], {"objects": None, "bytes": 3 * MIB})
        time.sleep(2)
        # At once, by its length; nothing of it is stored.
        self.refused("QuotaExceeded", 403, lambda: put("large", 2 * MIB + 1))
        self.within(5, lambda: put(f"k{next(_names)}", MIB // 4))
        self.refused("QuotaExceeded", 403, s3.copy_object, Bucket=bucket, Key="copy",
                     CopySource={"Bucket": bucket, "Key": "first"})  # fmt: skip
        # More than the quota may be there: what came between two looks.
        for listed in s3.list_objects_v2(Bucket=bucket)["Contents"]:
            s3.delete_object(Bucket=bucket, Key=listed["Key"])
        time.sleep(2)
        put("again", MIB // 4)
        craton("bucket", "quota", bucket, "--objects", "1")
        time.sleep(2)
        self.refused("QuotaExceeded", 403, lambda: put("empty", 0))
        self.assertIn("none", craton("bucket", "quota", bucket, "--clear"))
        time.sleep(2)
        put("large", 4 * MIB)

    def test_buckets_of_a_user_share_its_quota(self):
        made, s3 = new_user()
        one, other = self.bucket_of(s3), self.bucket_of(s3)
        s3.put_object(Bucket=one, Key="k", Body=b"x" * MIB)
        craton("bucket", "quota", "--user", made["user"], "--bytes", "2M")
        shown = json.loads(craton("user", "info", made["user"], "--json"))
        self.assertEqual(shown["quota"], {"objects": None, "bytes": 2 * MIB})
        time.sleep(2)
        self.refused("QuotaExceeded", 403, s3.put_object, Bucket=other, Key="k",
                     Body=b"y" * (MIB + 1))  # fmt: skip
        s3.put_object(Bucket=other, Key="k", Body=b"y" * MIB)
        self.within(5, lambda: s3.put_object(Bucket=one, Key="l", Body=b"y"))
        # Others are not under it.
        client().put_object(Bucket=self.bucket_of(client()), Key="k", Body=b"x" * MIB)

    def test_wrong_quotas_are_refused(self):
        bucket = self.bucket_of(client())
        for wrong in [["--bytes", "ten"], ["--objects", "-1"], ["--bytes", "1", "--clear"]]:
            self.assertIn("error", craton("bucket", "quota", bucket, *wrong, code=2))
        self.assertIn("required", craton("bucket", "quota", code=2))
        self.assertIn("no such user", craton("bucket", "quota", "--user", "none", code=1))
