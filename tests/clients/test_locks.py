"""Object lock with boto3, and 'craton bucket': buckets, retention, legal hold, and what they keep."""

import json
import time
from datetime import datetime, timedelta, timezone

from cases import Case, client
from test_users import allow, craton, new_user

# Seconds of a short retention: long enough for the calls that it must refuse.
SHORT_S = 4
# And what the clocks of gateway, owner and manager may add to it.
LATE_S = 15


def after(**time):
    """A time from now on, in whole seconds as boto3 sends them."""
    return datetime.now(timezone.utc).replace(microsecond=0) + timedelta(**time)


class Locks(Case):
    def setUp(self):
        super().setUp()
        self.s3 = client()
        self.bucket = f"locks-{time.time_ns()}"
        self.s3.create_bucket(Bucket=self.bucket, ObjectLockEnabledForBucket=True)
        self.addCleanup(self.let_go)

    def let_go(self):
        """Removes what can be removed: short retentions have ended then."""
        for version in self.s3.list_object_versions(Bucket=self.bucket).get("Versions", []):
            at = self.at(version["Key"], version["VersionId"])
            self.s3.put_object_legal_hold(**at, LegalHold={"Status": "OFF"})
            try:
                self.s3.delete_object(**at, BypassGovernanceRetention=True)
            except self.s3.exceptions.ClientError:
                pass  # Retained under compliance.

    def at(self, key, version):
        return {"Bucket": self.bucket, "Key": key, "VersionId": version}

    def put(self, key, **lock):
        return self.s3.put_object(Bucket=self.bucket, Key=key, Body=b"content", **lock)["VersionId"]

    def locked(self, key, version, **arguments):
        self.refused("AccessDenied", 403, self.s3.delete_object, **self.at(key, version), **arguments)

    def removed_late(self, key, version):
        """A version is removed once its retention has ended: which needs the manager's clock."""
        end = time.monotonic() + LATE_S
        while True:
            try:
                return self.s3.delete_object(**self.at(key, version))
            except self.s3.exceptions.ClientError:
                if time.monotonic() > end:
                    raise
                time.sleep(0.5)

    def test_bucket_has_object_lock_for_good(self):
        shown = self.s3.get_object_lock_configuration(Bucket=self.bucket)
        self.assertEqual({"ObjectLockEnabled": "Enabled"}, shown["ObjectLockConfiguration"])
        versioning = self.s3.get_bucket_versioning(Bucket=self.bucket)
        self.assertEqual("Enabled", versioning["Status"])
        self.refused("InvalidBucketState", 409, self.s3.put_bucket_versioning, Bucket=self.bucket,
                     VersioningConfiguration={"Status": "Suspended"})  # fmt: skip
        for default in ({"Mode": "GOVERNANCE", "Days": 1}, {"Mode": "COMPLIANCE", "Years": 2}):
            conf = {"ObjectLockEnabled": "Enabled", "Rule": {"DefaultRetention": default}}
            self.s3.put_object_lock_configuration(
                Bucket=self.bucket, ObjectLockConfiguration=conf
            )
            shown = self.s3.get_object_lock_configuration(Bucket=self.bucket)
            self.assertEqual(conf, shown["ObjectLockConfiguration"])
        for default, code in (
            ({"Mode": "GOVERNANCE", "Days": 0}, "InvalidRetentionPeriod"),
            ({"Mode": "GOVERNANCE", "Years": -1}, "InvalidRetentionPeriod"),
            ({"Mode": "GOVERNANCE", "Days": 1, "Years": 1}, "MalformedXML"),
            ({"Mode": "governance", "Days": 1}, "MalformedXML"),
        ):
            conf = {"ObjectLockEnabled": "Enabled", "Rule": {"DefaultRetention": default}}
            self.refused(code, 400, self.s3.put_object_lock_configuration, Bucket=self.bucket,
                         ObjectLockConfiguration=conf)  # fmt: skip
        plain = f"{self.bucket}-plain"
        self.s3.create_bucket(Bucket=plain)
        self.addCleanup(self.s3.delete_bucket, Bucket=plain)
        self.refused("ObjectLockConfigurationNotFoundError", 404,
                     self.s3.get_object_lock_configuration, Bucket=plain)  # fmt: skip
        conf = {"ObjectLockEnabled": "Enabled"}
        self.refused("InvalidBucketState", 409, self.s3.put_object_lock_configuration,
                     Bucket=plain, ObjectLockConfiguration=conf)  # fmt: skip
        self.refused("InvalidRequest", 400, self.s3.put_object, Bucket=plain, Key="k", Body=b"x",
                     ObjectLockLegalHoldStatus="ON")  # fmt: skip
        enabled = {"Status": "Enabled"}
        self.s3.put_bucket_versioning(Bucket=plain, VersioningConfiguration=enabled)
        self.s3.put_object_lock_configuration(Bucket=plain, ObjectLockConfiguration=conf)

    def test_retention_ends(self):
        """Under compliance no caller removes a version before, and any that may delete does behind it."""
        until = after(seconds=SHORT_S)
        version = self.put("k", ObjectLockMode="COMPLIANCE", ObjectLockRetainUntilDate=until)
        shown = self.s3.get_object_retention(**self.at("k", version))["Retention"]
        self.assertEqual({"Mode": "COMPLIANCE", "RetainUntilDate": until}, shown)
        self.locked("k", version, BypassGovernanceRetention=True)
        earlier = {"Mode": "COMPLIANCE", "RetainUntilDate": until - timedelta(seconds=1)}
        self.refused("AccessDenied", 403, self.s3.put_object_retention, **self.at("k", version),
                     Retention=earlier, BypassGovernanceRetention=True)  # fmt: skip
        # A deletion is a marker, above the version that stays.
        self.s3.delete_object(Bucket=self.bucket, Key="k")
        body = self.s3.get_object(**self.at("k", version))["Body"].read()
        self.assertEqual(b"content", body)
        self.removed_late("k", version)
        self.refused("NoSuchVersion", 404, self.s3.get_object, **self.at("k", version))

    def test_governance_yields_to_a_bypass(self):
        far = {"Mode": "GOVERNANCE", "RetainUntilDate": after(days=365)}
        near = {"Mode": "GOVERNANCE", "RetainUntilDate": after(days=1)}
        version = self.put("k")
        at = self.at("k", version)
        self.refused("NoSuchObjectLockConfiguration", 404, self.s3.get_object_retention, **at)
        self.s3.put_object_retention(**at, Retention=near)
        self.s3.put_object_retention(**at, Retention=far)
        self.refused("AccessDenied", 403, self.s3.put_object_retention, **at, Retention=near)
        self.locked("k", version)
        self.s3.put_object_retention(**at, Retention=near, BypassGovernanceRetention=True)
        head = self.s3.head_object(**at)
        self.assertEqual(("GOVERNANCE", near["RetainUntilDate"]),
                         (head["ObjectLockMode"], head["ObjectLockRetainUntilDate"]))  # fmt: skip
        free = self.put("free")
        entries = [{"Key": "k", "VersionId": version}, {"Key": "free", "VersionId": free}]
        done = self.s3.delete_objects(Bucket=self.bucket, Delete={"Objects": entries})
        self.assertEqual([free], [entry["VersionId"] for entry in done["Deleted"]])
        self.assertEqual(["AccessDenied"], [entry["Code"] for entry in done["Errors"]])
        done = self.s3.delete_objects(Bucket=self.bucket, Delete={"Objects": entries[:1]},
                                      BypassGovernanceRetention=True)  # fmt: skip
        self.assertNotIn("Errors", done)
        past = {"Mode": "GOVERNANCE", "RetainUntilDate": after(days=-1)}
        other = self.at("other", self.put("other"))
        self.refused("InvalidArgument", 400, self.s3.put_object_retention, **other, Retention=past)
        odd = {"Mode": "abc", "RetainUntilDate": after(days=1)}
        self.refused("MalformedXML", 400, self.s3.put_object_retention, **other, Retention=odd)

    def test_held_version_stays_until_its_hold_is_taken_off(self):
        version = self.put("k", ObjectLockLegalHoldStatus="ON")
        at = self.at("k", version)
        self.assertEqual("ON", self.s3.head_object(**at)["ObjectLockLegalHoldStatus"])
        self.locked("k", version, BypassGovernanceRetention=True)
        self.s3.put_object_legal_hold(**at, LegalHold={"Status": "OFF"})
        self.assertEqual({"Status": "OFF"}, self.s3.get_object_legal_hold(**at)["LegalHold"])
        self.refused("MalformedXML", 400, self.s3.put_object_legal_hold, **at,
                     LegalHold={"Status": "abc"})  # fmt: skip
        self.s3.delete_object(**at)
        never = self.at("never", self.put("never"))
        self.refused("NoSuchObjectLockConfiguration", 404, self.s3.get_object_legal_hold, **never)

    def test_uploads_copies_and_defaults_lock_their_objects(self):
        rule = {"DefaultRetention": {"Mode": "GOVERNANCE", "Days": 2}}
        conf = {"ObjectLockEnabled": "Enabled", "Rule": rule}
        self.s3.put_object_lock_configuration(Bucket=self.bucket, ObjectLockConfiguration=conf)
        begun = self.s3.create_multipart_upload(Bucket=self.bucket, Key="parts",
                                                ObjectLockLegalHoldStatus="ON")  # fmt: skip
        at = {"Bucket": self.bucket, "Key": "parts", "UploadId": begun["UploadId"]}
        part = self.s3.upload_part(**at, PartNumber=1, Body=b"content")
        parts = [{"PartNumber": 1, "ETag": part["ETag"]}]
        self.s3.complete_multipart_upload(**at, MultipartUpload={"Parts": parts})
        source = {"Bucket": self.bucket, "Key": "parts"}
        self.s3.copy_object(Bucket=self.bucket, Key="copy", CopySource=source)
        self.put("plain")
        for key, hold in (("parts", "ON"), ("copy", None), ("plain", None)):
            head = self.s3.head_object(Bucket=self.bucket, Key=key)
            self.assertEqual("GOVERNANCE", head["ObjectLockMode"], key)
            self.assertEqual(hold, head.get("ObjectLockLegalHoldStatus"), key)
            left = head["ObjectLockRetainUntilDate"] - datetime.now(timezone.utc)
            self.assertTrue(timedelta(days=1, hours=23) < left < timedelta(days=2, minutes=5), key)
            self.locked(key, head["VersionId"])

    def test_another_user_needs_the_rights(self):
        made, s3 = new_user()
        name = made["user"]
        version = self.put("k", ObjectLockMode="GOVERNANCE",
                           ObjectLockRetainUntilDate=after(days=1))  # fmt: skip
        at = self.at("k", version)
        who = {"AWS": f"arn:aws:iam:::user/{name}"}

        def may(*actions):
            policy = allow(list(actions), f"arn:aws:s3:::{self.bucket}/*", who)
            self.s3.put_bucket_policy(Bucket=self.bucket, Policy=json.dumps(policy))

        may("s3:GetObjectVersion", "s3:DeleteObjectVersion")
        self.assertNotIn("ObjectLockMode", s3.head_object(**at))
        self.refused("AccessDenied", 403, s3.get_object_retention, **at)
        self.refused("AccessDenied", 403, s3.delete_object, **at, BypassGovernanceRetention=True)
        may("s3:GetObjectVersion", "s3:GetObjectRetention", "s3:DeleteObjectVersion",
            "s3:BypassGovernanceRetention")  # fmt: skip
        self.assertEqual("GOVERNANCE", s3.head_object(**at)["ObjectLockMode"])
        s3.delete_object(**at, BypassGovernanceRetention=True)

    def test_command_makes_shows_and_keeps(self):
        name = f"{self.bucket}-cli"
        craton("bucket", "create", name, "--lock")
        shown = json.loads(craton("bucket", "info", name, "--json"))
        self.assertEqual(("enabled", "enabled", None),
                         (shown["versioning"], shown["lock"], shown["lock_default"]))  # fmt: skip
        rule = {"DefaultRetention": {"Mode": "GOVERNANCE", "Days": 3}}
        conf = {"ObjectLockEnabled": "Enabled", "Rule": rule}
        self.s3.put_object_lock_configuration(Bucket=name, ObjectLockConfiguration=conf)
        shown = json.loads(craton("bucket", "info", name, "--json"))
        self.assertEqual({"mode": "GOVERNANCE", "days": 3}, shown["lock_default"])
        self.assertIn("lock: enabled; new versions are retained under GOVERNANCE for 3 days",
                      craton("bucket", "info", name))  # fmt: skip
        version = self.s3.put_object(Bucket=name, Key="b", Body=b"x")["VersionId"]
        self.s3.delete_object(Bucket=name, Key="a")
        said = craton("bucket", "rm", name, "--force", code=1)
        self.assertIn(f"version {version} of 'b' is retained under governance until", said)
        self.assertIn("--bypass-governance-retention", said)
        self.assertIn("Nothing was deleted", said)
        listed = self.s3.list_object_versions(Bucket=name)
        self.assertEqual((1, 1), (len(listed["Versions"]), len(listed["DeleteMarkers"])))
        at = {"Bucket": name, "Key": "b", "VersionId": version}
        self.s3.put_object_legal_hold(**at, LegalHold={"Status": "ON"})
        self.assertIn("is held: 'aws s3api put-object-legal-hold", craton(
            "bucket", "rm", name, "--force", code=1))  # fmt: skip
        self.s3.put_object_legal_hold(**at, LegalHold={"Status": "OFF"})
        self.s3.delete_object(**at, BypassGovernanceRetention=True)
        craton("bucket", "rm", name, "--force")
        craton("bucket", "create", name)
        self.assertEqual("off", json.loads(craton("bucket", "info", name, "--json"))["lock"])
        craton("bucket", "rm", name)
