"""Encryption, through boto3: keys of clients, keys of the service and named ones, defaults of buckets."""

import base64
import hashlib
import io
import json
import os
import subprocess
import urllib.request

from boto3.s3.transfer import TransferConfig

import server
from cases import SIZES, Case, body_of, client, md5

IN_PARTS = TransferConfig(multipart_threshold=5 << 20, multipart_chunksize=5 << 20)
MIB = 1 << 20


def customer(name):
    """Arguments with the key of a client, made of a name. With an MD5, botocore sends the key as it is."""
    key = hashlib.sha256(name.encode()).digest()
    return {
        "SSECustomerAlgorithm": "AES256",
        "SSECustomerKey": base64.b64encode(key).decode(),
        "SSECustomerKeyMD5": base64.b64encode(hashlib.md5(key).digest()).decode(),
    }


def source(arguments):
    """The same for the source of a copy."""
    return {f"CopySource{name}": value for name, value in arguments.items()}


OURS, OTHERS = customer("ours"), customer("others")
S3 = {"ServerSideEncryption": "AES256"}
KMS = {"ServerSideEncryption": "aws:kms", "SSEKMSKeyId": "team"}
# How an object is written, and what a read of it needs.
KINDS = {"plain": ({}, {}), "s3": (S3, {}), "kms": (KMS, {}), "customer": (OURS, OURS)}


def craton(*words):
    """A command on the server's cluster; answers what it prints."""
    command = [server.server.binary, *words, "--cluster", str(server.server.dir)]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout


class Encryption(Case):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        known = {key["key"] for key in json.loads(craton("kms", "ls", "--json"))}
        if "team" not in known:
            craton("kms", "create", "team")

    def new_bucket(self):
        """A bucket that takes keys of clients."""
        bucket = super().new_bucket()
        self.default(bucket, BlockedEncryptionTypes={"EncryptionType": ["NONE"]})
        return bucket

    def default(self, bucket, algorithm=None, key=None, **rule):
        if algorithm:
            rule["ApplyServerSideEncryptionByDefault"] = {"SSEAlgorithm": algorithm}
            if key:
                rule["ApplyServerSideEncryptionByDefault"]["KMSMasterKeyID"] = key
        self.s3.put_bucket_encryption(
            Bucket=bucket, ServerSideEncryptionConfiguration={"Rules": [rule]}
        )

    def rule(self, bucket):
        answer = self.s3.get_bucket_encryption(Bucket=bucket)
        [rule] = answer["ServerSideEncryptionConfiguration"]["Rules"]
        return rule

    def shows(self, kind, answer):
        """The answer says that the object is of that kind."""
        wanted = {
            "plain": (None, None, None),
            "s3": ("AES256", None, None),
            "kms": ("aws:kms", "team", None),
            "customer": (None, None, OURS["SSECustomerKeyMD5"]),
        }[kind]
        names = ("ServerSideEncryption", "SSEKMSKeyId", "SSECustomerKeyMD5")
        self.assertEqual(wanted, tuple(answer.get(name) for name in names), kind)

    def test_object_of_each_kind_and_size_comes_back(self):
        bucket = self.new_bucket()
        for kind, (write, read) in KINDS.items():
            for size in SIZES + [64 << 10, (64 << 10) + 1]:
                body = body_of(size)
                put = self.s3.put_object(
                    Bucket=bucket, Key="k", Body=body, Metadata={"a": "b"}, **write
                )
                self.shows(kind, put)
                # The MD5 is not shown where a key is the client's, or has a name of its own.
                self.assertEqual(kind in ("plain", "s3"), put["ETag"] == f'"{md5(body)}"')
                head = self.s3.head_object(Bucket=bucket, Key="k", **read)
                self.shows(kind, head)
                self.assertEqual(
                    (size, put["ETag"], {"a": "b"}),
                    (head["ContentLength"], head["ETag"], head["Metadata"]),
                )
                got = self.s3.get_object(Bucket=bucket, Key="k", ChecksumMode="ENABLED", **read)
                self.assertTrue(body == got["Body"].read(), f"{kind} {size}")
                [entry] = self.s3.list_objects_v2(Bucket=bucket)["Contents"]
                self.assertEqual((size, put["ETag"]), (entry["Size"], entry["ETag"]))

    def test_range_of_each_kind_is_that_of_the_plain_text(self):
        bucket = self.new_bucket()
        body = body_of(3 * MIB + 5)
        for kind, (write, read) in KINDS.items():
            self.s3.put_object(Bucket=bucket, Key="k", Body=body, **write)
            for start, end in [(0, 0), (65535, 65536), (100, 2 * MIB), (3 * MIB, 3 * MIB + 4)]:
                part = self.body(bucket, "k", Range=f"bytes={start}-{end}", **read)
                self.assertTrue(body[start : end + 1] == part, f"{kind} {start}")
            self.assertEqual(body[-9:], self.body(bucket, "k", Range="bytes=-9", **read))

    def test_object_of_parts_of_each_kind_comes_back(self):
        bucket = self.new_bucket()
        body = body_of(11 * MIB + 7)
        for kind, (write, read) in KINDS.items():
            self.s3.upload_fileobj(io.BytesIO(body), bucket, "k", Config=IN_PARTS, ExtraArgs=write)
            head = self.s3.head_object(Bucket=bucket, Key="k", **read)
            self.shows(kind, head)
            self.assertEqual(len(body), head["ContentLength"])
            found = io.BytesIO()
            self.s3.download_fileobj(bucket, "k", found, Config=IN_PARTS, ExtraArgs=read)
            self.assertTrue(body == found.getvalue(), kind)
            part = self.s3.get_object(Bucket=bucket, Key="k", PartNumber=2, **read)
            self.assertEqual(3, part["PartsCount"])
            self.assertTrue(body[5 * MIB : 10 * MIB] == part["Body"].read(), kind)
            across = self.body(bucket, "k", Range=f"bytes={5 * MIB - 9}-{10 * MIB + 9}", **read)
            self.assertTrue(body[5 * MIB - 9 : 10 * MIB + 10] == across, kind)
            # Listings know the bytes of the content too, by the parts.
            listed = self.s3.list_objects_v2(Bucket=bucket)["Contents"]
            versions = self.s3.list_object_versions(Bucket=bucket)["Versions"]
            sizes = [entry["Size"] for entry in listed + versions]
            self.assertEqual([len(body)] * 2, sizes, kind)

    def test_parts_need_the_key_of_their_upload(self):
        bucket = self.new_bucket()
        upload = self.s3.create_multipart_upload(Bucket=bucket, Key="k", **OURS)
        self.shows("customer", upload)
        part = {
            "Bucket": bucket,
            "Key": "k",
            "UploadId": upload["UploadId"],
            "PartNumber": 1,
            "Body": b"part",
        }
        self.refused("InvalidRequest", 400, self.s3.upload_part, **part)
        self.refused("InvalidRequest", 400, self.s3.upload_part, **part, **OTHERS)
        wrong = {**OURS, "SSECustomerKeyMD5": OTHERS["SSECustomerKeyMD5"]}
        self.refused("InvalidArgument", 400, self.s3.upload_part, **part, **wrong)
        sent = self.s3.upload_part(**part, **OURS)
        self.s3.complete_multipart_upload(
            Bucket=bucket,
            Key="k",
            UploadId=upload["UploadId"],
            MultipartUpload={"Parts": [{"PartNumber": 1, "ETag": sent["ETag"]}]},
        )
        self.refused("AccessDenied", 403, self.s3.get_object, Bucket=bucket, Key="k", **OTHERS)
        self.assertEqual(b"part", self.body(bucket, "k", **OURS))

    def test_key_of_a_client_is_needed_and_is_checked(self):
        bucket = self.new_bucket()
        of = {"Bucket": bucket, "Key": "k"}
        self.s3.put_object(**of, Body=b"secret", **OURS)
        self.refused("InvalidRequest", 400, self.s3.get_object, **of)
        self.refused("400", 400, self.s3.head_object, **of)
        self.refused("AccessDenied", 403, self.s3.get_object, **of, **OTHERS)
        self.refused("403", 403, self.s3.head_object, **of, **OTHERS)
        self.s3.put_object(Bucket=bucket, Key="plain", Body=b"x")
        self.refused("InvalidRequest", 400, self.s3.get_object, Bucket=bucket, Key="plain", **OURS)
        for flawed, code in [
            ({"SSECustomerKeyMD5": OTHERS["SSECustomerKeyMD5"]}, "InvalidArgument"),
            ({"SSECustomerAlgorithm": "AES192"}, "InvalidEncryptionAlgorithmError"),
            ({"SSECustomerKey": "c2hvcnQ="}, "InvalidArgument"),
        ]:
            self.refused(code, 400, self.s3.put_object, **of, Body=b"x", **{**OURS, **flawed})
        self.s3.delete_object(**of)

    def test_named_key_is_of_the_key_file(self):
        bucket = self.new_bucket()
        of = {"Bucket": bucket, "Key": "k", "Body": b"x", "ServerSideEncryption": "aws:kms"}
        self.refused("KMS.NotFoundException", 400, self.s3.put_object, **of, SSEKMSKeyId="none")
        self.assertEqual("aws/s3", self.s3.put_object(**of)["SSEKMSKeyId"])
        # One that is made, or gets another version, is used at once; what is there can be read.
        name = f"made-{os.getpid()}"
        craton("kms", "create", name)
        self.s3.put_object(**{**of, "Body": b"first"}, SSEKMSKeyId=name)
        craton("kms", "rotate", name)
        self.s3.put_object(**{**of, "Key": "k2", "Body": b"second"}, SSEKMSKeyId=name)
        self.assertEqual(b"first", self.body(bucket, "k"))
        self.assertEqual(b"second", self.body(bucket, "k2"))
        head = self.s3.head_object(Bucket=bucket, Key="k2")
        self.assertEqual(("aws:kms", name), (head["ServerSideEncryption"], head["SSEKMSKeyId"]))

    def test_copy_from_each_kind_to_each_kind(self):
        bucket = self.new_bucket()
        body = body_of(200_000)
        for from_kind, (write, read) in KINDS.items():
            self.s3.put_object(Bucket=bucket, Key="from", Body=body, **write)
            for kind, (wanted, needed) in KINDS.items():
                copied = self.s3.copy_object(
                    Bucket=bucket,
                    Key="to",
                    CopySource={"Bucket": bucket, "Key": "from"},
                    **wanted,
                    **source(read),
                )
                self.shows(kind, copied)
                self.shows(kind, self.s3.head_object(Bucket=bucket, Key="to", **needed))
                self.assertTrue(body == self.body(bucket, "to", **needed), f"{from_kind} {kind}")
        self.refused(
            "InvalidRequest",
            400,
            self.s3.copy_object,
            Bucket=bucket,
            Key="to",
            CopySource={"Bucket": bucket, "Key": "from"},
        )

    def test_part_is_copied_from_each_kind(self):
        bucket = self.new_bucket()
        body = body_of(5 * MIB + 300)
        for _, (write, read) in KINDS.items():
            self.s3.put_object(Bucket=bucket, Key="from", Body=body, **write)
            upload = self.s3.create_multipart_upload(Bucket=bucket, Key="to", **KMS)
            part = self.s3.upload_part_copy(
                Bucket=bucket,
                Key="to",
                UploadId=upload["UploadId"],
                PartNumber=1,
                CopySource={"Bucket": bucket, "Key": "from"},
                CopySourceRange=f"bytes=100-{5 * MIB + 199}",
                **source(read),
            )
            self.s3.complete_multipart_upload(
                Bucket=bucket,
                Key="to",
                UploadId=upload["UploadId"],
                MultipartUpload={
                    "Parts": [{"PartNumber": 1, "ETag": part["CopyPartResult"]["ETag"]}]
                },
            )
            self.assertTrue(body[100 : 5 * MIB + 200] == self.body(bucket, "to"))

    def test_bucket_encrypts_by_default(self):
        bucket = super().new_bucket()
        none = "ServerSideEncryptionConfigurationNotFoundError"
        self.refused(none, 404, self.s3.get_bucket_encryption, Bucket=bucket)
        self.shows("plain", self.s3.put_object(Bucket=bucket, Key="k", Body=b"x"))
        self.default(bucket, "AES256")
        rule = self.rule(bucket)
        self.assertEqual("AES256", rule["ApplyServerSideEncryptionByDefault"]["SSEAlgorithm"])
        self.assertEqual(["SSE-C"], rule["BlockedEncryptionTypes"]["EncryptionType"])
        self.shows("s3", self.s3.put_object(Bucket=bucket, Key="k", Body=b"x"))
        self.default(bucket, "aws:kms", "team", BucketKeyEnabled=True)
        rule = self.rule(bucket)
        self.assertEqual(
            {"SSEAlgorithm": "aws:kms", "KMSMasterKeyID": "team"},
            rule["ApplyServerSideEncryptionByDefault"],
        )
        self.assertTrue(rule["BucketKeyEnabled"])
        put = self.s3.put_object(Bucket=bucket, Key="k", Body=b"x")
        self.shows("kms", put)
        self.assertTrue(put["BucketKeyEnabled"])
        self.s3.upload_fileobj(io.BytesIO(body_of(6 * MIB)), bucket, "parts", Config=IN_PARTS)
        self.shows("kms", self.s3.head_object(Bucket=bucket, Key="parts"))
        self.s3.delete_bucket_encryption(Bucket=bucket)
        self.refused(none, 404, self.s3.get_bucket_encryption, Bucket=bucket)
        self.shows("plain", self.s3.put_object(Bucket=bucket, Key="k", Body=b"x"))

    def test_new_bucket_blocks_keys_of_clients_until_that_is_allowed(self):
        bucket = super().new_bucket()
        of = {"Bucket": bucket, "Key": "k", "Body": b"x"}
        self.refused("AccessDenied", 403, self.s3.put_object, **of, **OURS)
        self.refused(
            "AccessDenied", 403, self.s3.create_multipart_upload, Bucket=bucket, Key="k", **OURS
        )
        craton("bucket", "set", bucket, "--sse-c", "allow")
        self.s3.put_object(**of, **OURS)
        self.assertEqual(["NONE"], self.rule(bucket)["BlockedEncryptionTypes"]["EncryptionType"])
        craton("bucket", "set", bucket, "--sse-c", "block")
        self.refused("AccessDenied", 403, self.s3.put_object, **of, **OURS)
        self.assertEqual(b"x", self.body(bucket, "k", **OURS))

    def test_policy_demands_encryption(self):
        bucket = self.new_bucket()
        name = "s3:x-amz-server-side-encryption"
        statement = {
            "Effect": "Deny",
            "Principal": "*",
            "Action": "s3:PutObject",
            "Resource": f"arn:aws:s3:::{bucket}/*",
        }
        for condition, may in [
            ({"Null": {name: "true"}}, {"s3", "kms"}),
            ({"StringNotEquals": {name: "AES256"}}, {"s3"}),
            ({"StringNotEquals": {f"{name}-aws-kms-key-id": "team"}}, {"kms"}),
            ({"Null": {f"{name}-customer-algorithm": "true"}}, {"customer"}),
        ]:
            policy = {"Statement": [{**statement, "Condition": condition}]}
            self.s3.put_bucket_policy(Bucket=bucket, Policy=json.dumps(policy))
            for kind, (write, _) in KINDS.items():
                of = {"Bucket": bucket, "Key": "k", "Body": b"x", **write}
                if kind in may:
                    self.shows(kind, self.s3.put_object(**of))
                else:
                    self.refused("AccessDenied", 403, self.s3.put_object, **of)

    def test_form_encrypts_its_file(self):
        bucket, signer = self.new_bucket(), client(signature_version="s3v4")
        name = "x-amz-server-side-encryption"
        key = OURS["SSECustomerKey"]
        for kind, fields in [
            ("s3", {name: "AES256"}),
            ("kms", {name: "aws:kms", f"{name}-aws-kms-key-id": "team"}),
            (
                "customer",
                {
                    f"{name}-customer-algorithm": "AES256",
                    f"{name}-customer-key": key,
                    f"{name}-customer-key-MD5": OURS["SSECustomerKeyMD5"],
                },
            ),
        ]:
            conditions = [{field: value} for field, value in fields.items()]
            post = signer.generate_presigned_post(
                bucket, "k", Fields=dict(fields), Conditions=conditions
            )
            parts = [
                f'--line\r\nContent-Disposition: form-data; name="{field}"\r\n\r\n{value}\r\n'
                for field, value in post["fields"].items()
            ]
            file = '--line\r\nContent-Disposition: form-data; name="file"; filename="f"\r\n\r\n'
            body = "".join(parts) + file + "content\r\n--line--\r\n"
            request = urllib.request.Request(
                post["url"],
                body.encode(),
                {"Content-Type": "multipart/form-data; boundary=line"},
                method="POST",
            )
            opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
            with opener.open(request, timeout=30) as answer:
                self.assertEqual(204, answer.status)
            read = KINDS[kind][1]
            got = self.s3.get_object(Bucket=bucket, Key="k", **read)
            self.shows(kind, got)
            self.assertEqual(b"content", got["Body"].read())

    def test_presigned_url_encrypts(self):
        bucket, signer = self.new_bucket(), client(signature_version="s3v4")
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        for kind in ("s3", "kms"):
            write = KINDS[kind][0]
            url = signer.generate_presigned_url(
                "put_object", Params={"Bucket": bucket, "Key": "k", **write}
            )
            names = {
                "ServerSideEncryption": "x-amz-server-side-encryption",
                "SSEKMSKeyId": "x-amz-server-side-encryption-aws-kms-key-id",
            }
            headers = {names[name]: value for name, value in write.items()}
            request = urllib.request.Request(url, b"signed", headers, method="PUT")
            with opener.open(request, timeout=30) as answer:
                self.assertEqual(200, answer.status)
            got = self.s3.get_object(Bucket=bucket, Key="k")
            self.shows(kind, got)
            self.assertEqual(b"signed", got["Body"].read())

    def test_versions_are_each_of_their_kind(self):
        bucket = self.new_bucket()
        self.s3.put_bucket_versioning(
            Bucket=bucket, VersioningConfiguration={"Status": "Enabled"}
        )
        ids = {}
        for kind, (write, _) in KINDS.items():
            put = self.s3.put_object(Bucket=bucket, Key="k", Body=kind.encode(), **write)
            ids[kind] = put["VersionId"]
        for kind, version in ids.items():
            read = KINDS[kind][1]
            got = self.s3.get_object(Bucket=bucket, Key="k", VersionId=version, **read)
            self.shows(kind, got)
            self.assertEqual(kind.encode(), got["Body"].read())
        listed = self.s3.list_object_versions(Bucket=bucket)["Versions"]
        self.assertEqual(sorted(len(kind) for kind in ids), sorted(one["Size"] for one in listed))

    def test_create_that_fails_stores_nothing(self):
        bucket = self.new_bucket()
        of = {"Bucket": bucket, "Key": "k", "Body": b"x", **KMS, "IfNoneMatch": "*"}
        first = self.s3.put_object(**of)
        self.refused("PreconditionFailed", 412, self.s3.put_object, **of)
        swap = {**of, "Body": b"y", "IfMatch": first["ETag"]}
        del swap["IfNoneMatch"]
        self.s3.put_object(**swap)
        self.refused("PreconditionFailed", 412, self.s3.put_object, **swap)
        self.assertEqual(b"y", self.body(bucket, "k"))
