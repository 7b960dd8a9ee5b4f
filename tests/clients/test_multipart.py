"""Multipart uploads and copies by boto3, against the server."""

import hashlib
import io
import random
import tempfile
import threading
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from boto3.s3.transfer import TransferConfig

from cases import ODD_KEYS, Case, body_of, client, md5

# The least that a part has, but for the last.
PART = 5 << 20
# More than a transfer sends in one put by default, and no multiple of its parts.
LARGE = (20 << 20) + 12_345
# Parts of one size.
SMALL_PARTS = TransferConfig(multipart_threshold=PART, multipart_chunksize=PART)


def etag_of(*parts):
    digest = hashlib.md5(b"".join(hashlib.md5(part).digest() for part in parts)).hexdigest()
    return f'"{digest}-{len(parts)}"'


class Uploads(Case):
    def setUp(self):
        self.bucket = self.new_bucket()
        self.of_k = {"Bucket": self.bucket, "Key": "k"}

    def begin(self, **arguments):
        return self.s3.create_multipart_upload(**self.of_k, **arguments)["UploadId"]

    def part(self, upload, number, body, **arguments):
        answer = self.s3.upload_part(
            **self.of_k, UploadId=upload, PartNumber=number, Body=body, **arguments
        )
        return {"PartNumber": number, "ETag": answer["ETag"]}

    def complete(self, upload, parts, **arguments):
        return self.s3.complete_multipart_upload(
            **self.of_k, UploadId=upload, MultipartUpload={"Parts": parts}, **arguments
        )

    def uploads(self, **arguments):
        pages = self.s3.get_paginator("list_multipart_uploads")
        pages = pages.paginate(Bucket=self.bucket, **arguments)
        return [upload for page in pages for upload in page.get("Uploads", [])]

    def test_file_is_sent_in_parts_by_default_and_comes_back_equal(self):
        body = body_of(LARGE)
        with tempfile.TemporaryDirectory() as folder:
            up, down = Path(folder, "up"), Path(folder, "down")
            up.write_bytes(body)
            extra = {"ContentType": "text/x-own", "Metadata": {"a": "b"}}
            self.s3.upload_file(str(up), self.bucket, "k", ExtraArgs=extra)
            self.s3.download_file(self.bucket, "k", str(down))
            self.assertTrue(down.read_bytes() == body, "the bytes differ")
        head = self.s3.head_object(**self.of_k, ChecksumMode="ENABLED")
        self.assertEqual((LARGE, "text/x-own"), (head["ContentLength"], head["ContentType"]))
        self.assertEqual({"a": "b"}, head["Metadata"])
        parts = [body[at : at + (8 << 20)] for at in range(0, LARGE, 8 << 20)]
        self.assertEqual(etag_of(*parts), head["ETag"])
        self.assertIn("ChecksumCRC32", head)
        self.assertEqual([], self.uploads())

    def test_object_of_100_mib_in_parts_is_read_by_ranges(self):
        body = body_of(100 << 20)
        self.s3.upload_fileobj(io.BytesIO(body), self.bucket, "k", Config=SMALL_PARTS)
        got = io.BytesIO()
        self.s3.download_fileobj(self.bucket, "k", got)
        self.assertTrue(got.getvalue() == body, "the bytes differ")
        draw = random.Random(1)
        for _ in range(20):
            first = draw.randrange(len(body))
            last = min(first + draw.choice([0, 100, 1 << 20, 12 << 20]), len(body) - 1)
            part = self.body(self.bucket, "k", Range=f"bytes={first}-{last}")
            self.assertTrue(part == body[first : last + 1], (first, last))

    def test_parts_by_hand_sparse_resent_and_out_of_order(self):
        upload = self.begin(Metadata={"a": "b"})
        bodies = {2: body_of(PART, 2), 7: body_of(PART + 1, 7), 10_000: body_of(100)}
        self.part(upload, 7, b"replaced")
        parts = [self.part(upload, number, bodies[number]) for number in [10_000, 2, 7]]
        self.part(upload, 9, b"not named")
        shown = self.s3.list_parts(**self.of_k, UploadId=upload)
        self.assertEqual([2, 7, 9, 10_000], [part["PartNumber"] for part in shown["Parts"]])
        self.assertEqual(PART + 1, shown["Parts"][1]["Size"])
        self.assertEqual([upload], [one["UploadId"] for one in self.uploads()])
        parts.sort(key=lambda part: part["PartNumber"])
        done = self.complete(upload, parts)
        whole = b"".join(bodies[number] for number in sorted(bodies))
        self.assertEqual(etag_of(*(bodies[number] for number in sorted(bodies))), done["ETag"])
        self.assertTrue(self.body(self.bucket, "k") == whole, "the bytes differ")
        self.assertEqual({"a": "b"}, self.s3.head_object(**self.of_k)["Metadata"])
        part = self.s3.get_object(**self.of_k, PartNumber=7)
        self.assertEqual((206, 3), (part["ResponseMetadata"]["HTTPStatusCode"], part["PartsCount"]))
        self.assertTrue(part["Body"].read() == bodies[7])
        # A client that got no answer asks again.
        self.assertEqual(done["ETag"], self.complete(upload, parts)["ETag"])
        self.refused("NoSuchUpload", 404, self.part, upload=upload, number=1, body=b"late")
        self.refused(
            "NoSuchUpload", 404, self.s3.abort_multipart_upload, **self.of_k, UploadId=upload
        )
        self.assertTrue(self.body(self.bucket, "k") == whole, "the bytes differ")

    def test_small_or_missing_parts_are_refused_and_change_nothing(self):
        self.s3.put_object(**self.of_k, Body=b"there")
        upload = self.begin()
        small, last = self.part(upload, 1, b"small"), self.part(upload, 2, b"last")
        for code, parts in [
            ("EntityTooSmall", [small, last]),
            ("InvalidPartOrder", [last, small]),
            ("InvalidPart", [{**small, "ETag": last["ETag"]}]),
            ("InvalidPart", [{**small, "PartNumber": 3}]),
        ]:
            with self.subTest(code=code):
                self.refused(code, 400, self.complete, upload=upload, parts=parts)
        self.refused(
            "PreconditionFailed", 412, self.complete, upload=upload, parts=[last], IfNoneMatch="*"
        )
        self.refused("NoSuchUpload", 404, self.complete, upload="0" * 32, parts=[last])
        self.assertEqual(b"there", self.body(self.bucket, "k"))
        self.complete(upload, [last], IfMatch=f'"{md5(b"there")}"')
        self.assertEqual(b"last", self.body(self.bucket, "k"))

    def test_aborted_upload_is_gone(self):
        upload = self.begin()
        self.part(upload, 1, body_of(PART))
        self.s3.abort_multipart_upload(**self.of_k, UploadId=upload)
        self.refused("NoSuchUpload", 404, self.s3.list_parts, **self.of_k, UploadId=upload)
        self.refused("NoSuchUpload", 404, self.part, upload=upload, number=1, body=b"x")
        self.assertEqual(([], []), (self.uploads(), self.keys(self.bucket)))

    def test_bucket_with_an_upload_only_is_deleted(self):
        upload = self.begin()
        self.part(upload, 1, b"x")
        self.s3.delete_bucket(Bucket=self.bucket)
        self.s3.create_bucket(Bucket=self.bucket)
        self.assertEqual([], self.uploads())

    def test_uploads_of_odd_keys_are_listed_in_pages(self):
        for key in ODD_KEYS:
            self.s3.create_multipart_upload(Bucket=self.bucket, Key=key)
        for size in [1, 4, 1000]:
            shown = self.uploads(PaginationConfig={"PageSize": size})
            self.assertEqual(ODD_KEYS, [one["Key"] for one in shown], size)
        page = self.s3.list_multipart_uploads(Bucket=self.bucket, Delimiter="/", Prefix="a/")
        self.assertEqual(["a/b"], [one["Key"] for one in page["Uploads"]])
        prefixes = [one["Prefix"] for one in page["CommonPrefixes"]]
        self.assertEqual(["a/../", "a//"], prefixes)

    def test_checksums_of_all_kinds_are_computed(self):
        bodies = [body_of(PART, 1), body_of(1000, 2)]
        for algorithm, kind in [
            ("CRC32", "COMPOSITE"),
            ("CRC32", "FULL_OBJECT"),
            ("SHA1", "COMPOSITE"),
            ("SHA256", "COMPOSITE"),
        ]:
            with self.subTest(algorithm=algorithm, kind=kind):
                upload = self.begin(ChecksumAlgorithm=algorithm, ChecksumType=kind)
                parts = []
                for number, body in enumerate(bodies, 1):
                    answer = self.s3.upload_part(
                        **self.of_k, UploadId=upload, PartNumber=number, Body=body,
                        ChecksumAlgorithm=algorithm,
                    )  # fmt: skip
                    name = f"Checksum{algorithm}"
                    parts.append(
                        {"PartNumber": number, "ETag": answer["ETag"], name: answer[name]}
                    )
                done = self.complete(upload, parts)
                self.assertEqual(kind == "COMPOSITE", done[name].endswith("-2"), done[name])
                # boto3 verifies what is of the whole content.
                got = self.s3.get_object(**self.of_k, ChecksumMode="ENABLED")
                self.assertTrue(got["Body"].read() == b"".join(bodies))
                self.assertEqual((done[name], kind), (got[name], got["ChecksumType"]))
        wrong = self.begin(ChecksumAlgorithm="CRC32")
        self.refused(
            "InvalidRequest", 400, self.part, upload=wrong, number=1, body=b"x",
            ChecksumAlgorithm="SHA256",
        )  # fmt: skip

    def test_parts_of_many_clients_at_once_are_all_there(self):
        upload, bodies = self.begin(), [body_of(PART, seed) for seed in range(12)]
        with ThreadPoolExecutor(6) as pool:
            parts = list(
                pool.map(lambda at: self.part(upload, at + 1, bodies[at]), range(len(bodies)))
            )
        self.complete(upload, parts)
        self.assertTrue(self.body(self.bucket, "k") == b"".join(bodies))

    def test_of_two_completions_at_once_with_a_condition_one_wins(self):
        uploads = [self.begin() for _ in range(6)]
        parts = [[self.part(one, 1, b"of %d" % at)] for at, one in enumerate(uploads)]
        barrier, codes = threading.Barrier(len(uploads)), []

        def complete(at):
            barrier.wait()
            try:
                self.complete(uploads[at], parts[at], IfNoneMatch="*")
                codes.append(at)
            except self.s3.exceptions.ClientError as error:
                codes.append(error.response["Error"]["Code"])

        with ThreadPoolExecutor(len(uploads)) as pool:
            list(pool.map(complete, range(len(uploads))))
        winners = [code for code in codes if isinstance(code, int)]
        self.assertEqual(5, codes.count("PreconditionFailed"), codes)
        self.assertEqual(b"of %d" % winners[0], self.body(self.bucket, "k"))

    def test_presigned_part_is_stored(self):
        upload, body = self.begin(), body_of(1000)
        s3 = client(signature_version="s3v4")
        arguments = {**self.of_k, "UploadId": upload, "PartNumber": 1}
        url = s3.generate_presigned_url("upload_part", Params=arguments, ExpiresIn=60)
        request = urllib.request.Request(url, data=body, method="PUT")
        with urllib.request.urlopen(request, timeout=30) as answer:
            etag = answer.headers["ETag"]
        self.complete(upload, [{"PartNumber": 1, "ETag": etag}])
        self.assertTrue(self.body(self.bucket, "k") == body)

    def test_read_of_a_replaced_object_in_parts_ends_as_it_began(self):
        body = body_of(40 << 20)
        self.s3.upload_fileobj(io.BytesIO(body), self.bucket, "k", Config=SMALL_PARTS)
        content = self.s3.get_object(**self.of_k)["Body"]
        first = content.read(1 << 20)
        self.s3.put_object(**self.of_k, Body=b"new")
        self.assertTrue(first + content.read() == body, "the bytes differ")
        self.assertEqual(b"new", self.body(self.bucket, "k"))


class Copies(Case):
    def setUp(self):
        self.bucket = self.new_bucket()

    def copy(self, source, target, **arguments):
        return self.s3.copy_object(
            Bucket=self.bucket, Key=target,
            CopySource={"Bucket": self.bucket, "Key": source}, **arguments,
        )  # fmt: skip

    def test_object_of_each_odd_key_is_copied(self):
        other = self.new_bucket()
        for at, key in enumerate(ODD_KEYS):
            with self.subTest(key=key):
                self.s3.put_object(Bucket=self.bucket, Key=key, Body=key.encode())
                self.s3.copy_object(
                    Bucket=other, Key=f"{at}", CopySource={"Bucket": self.bucket, "Key": key}
                )
                self.assertEqual(key.encode(), self.body(other, f"{at}"))

    def test_copy_keeps_or_replaces_headers(self):
        body = body_of(3 << 20)
        self.s3.put_object(
            Bucket=self.bucket, Key="k", Body=body, Metadata={"a": "b"}, ContentType="text/x-own"
        )
        answer = self.copy("k", "c")
        self.assertEqual(f'"{md5(body)}"', answer["CopyObjectResult"]["ETag"])
        head = self.s3.head_object(Bucket=self.bucket, Key="c")
        self.assertEqual(("text/x-own", {"a": "b"}), (head["ContentType"], head["Metadata"]))
        self.copy("k", "k", MetadataDirective="REPLACE", Metadata={"c": "d"})
        head = self.s3.head_object(Bucket=self.bucket, Key="k")
        self.assertEqual({"c": "d"}, head["Metadata"])
        self.assertTrue(self.body(self.bucket, "k") == body)
        self.refused("InvalidRequest", 400, self.copy, source="k", target="k")
        self.refused("NoSuchKey", 404, self.copy, source="none", target="x")
        self.refused(
            "PreconditionFailed", 412, self.copy, source="k", target="x",
            CopySourceIfMatch='"other"',
        )  # fmt: skip
        self.assertEqual(["c", "k"], self.keys(self.bucket))

    def test_transfer_copies_a_large_object_by_parts(self):
        body = body_of(LARGE)
        self.s3.upload_fileobj(io.BytesIO(body), self.bucket, "k", Config=SMALL_PARTS)
        source = {"Bucket": self.bucket, "Key": "k"}
        self.s3.copy(source, self.bucket, "c", Config=SMALL_PARTS)
        self.s3.copy(source, self.bucket, "d", Config=TransferConfig(multipart_threshold=1 << 30))
        for key in ["c", "d"]:
            self.assertTrue(self.body(self.bucket, key) == body, key)
        head = self.s3.head_object(Bucket=self.bucket, Key="d")
        self.assertEqual(f'"{md5(body)}"', head["ETag"])
