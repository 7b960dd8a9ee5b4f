"""boto3 against the server: multipart uploads, their parts, and copies."""

import base64
import hashlib
import io
import random
import tempfile
import threading
import urllib.error
import urllib.request
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from boto3.s3.transfer import TransferConfig

from cases import ODD_KEYS, Case, body_of, client, md5

MIB = 1 << 20
# Bytes of a part at least, but for the last one.
PART = 5 * MIB
# A file that boto3 sends in parts of 8 MiB.
LARGE = 20 * MIB + 1
# Transfers in parts as small as they may be.
SMALL_PARTS = TransferConfig(multipart_threshold=PART, multipart_chunksize=PART)


def tag_of(bodies):
    """The tag of an object of these parts."""
    md5s = b"".join(hashlib.md5(body).digest() for body in bodies)
    return f'"{hashlib.md5(md5s).hexdigest()}-{len(bodies)}"'


def base64_of(raw):
    return base64.b64encode(raw).decode()


def crc32(body):
    return zlib.crc32(body).to_bytes(4, "big")


class Uploads(Case):
    """What tests of uploads of one key share."""

    def setUp(self):
        self.bucket = self.new_bucket()
        self.at = {"Bucket": self.bucket, "Key": "k"}

    def begin(self, **arguments):
        return self.s3.create_multipart_upload(**self.at, **arguments)["UploadId"]

    def send(self, upload, number, body, **arguments):
        """Sends a part; answers it as a completion names it."""
        sent = self.s3.upload_part(
            UploadId=upload, PartNumber=number, Body=body, **self.at, **arguments
        )
        return {"PartNumber": number, "ETag": sent["ETag"]}

    def complete(self, upload, parts, **arguments):
        return self.s3.complete_multipart_upload(
            UploadId=upload, MultipartUpload={"Parts": parts}, **self.at, **arguments
        )

    def refused_completion(self, code, upload, parts, status=400, **arguments):
        self.refused(
            code, status, self.s3.complete_multipart_upload,
            UploadId=upload, MultipartUpload={"Parts": parts}, **self.at, **arguments,
        )  # fmt: skip

    def head(self):
        return self.s3.head_object(ChecksumMode="ENABLED", **self.at)


class Multipart(Uploads):
    def test_file_that_is_sent_in_parts_comes_back_equal(self):
        body = body_of(LARGE)
        with tempfile.TemporaryDirectory() as folder:
            up, down = Path(folder, "up"), Path(folder, "down")
            up.write_bytes(body)
            extra = {"ContentType": "text/x-own", "Metadata": {"a": "b"}}
            self.s3.upload_file(str(up), self.bucket, "k", ExtraArgs=extra)
            self.s3.download_file(self.bucket, "k", str(down))
            self.assertTrue(down.read_bytes() == body, "the bytes differ")
        head = self.head()
        parts = [body[start : start + 8 * MIB] for start in range(0, LARGE, 8 * MIB)]
        self.assertEqual(tag_of(parts), head["ETag"])
        self.assertEqual(("text/x-own", {"a": "b"}), (head["ContentType"], head["Metadata"]))
        # The checksum by default, of the parts' checksums.
        value = base64_of(crc32(b"".join(map(crc32, parts))))
        self.assertEqual(f"{value}-3", head["ChecksumCRC32"])
        self.assertEqual("COMPOSITE", head["ChecksumType"])
        self.assertTrue(self.body(self.bucket, "k") == body, "the bytes differ")

    def test_file_that_is_sent_without_checksums_gets_the_servers(self):
        older = client(request_checksum_calculation="when_required")
        body = body_of(LARGE)
        older.upload_fileobj(io.BytesIO(body), self.bucket, "k", Config=SMALL_PARTS)
        head = self.head()
        self.assertEqual("FULL_OBJECT", head["ChecksumType"])
        self.assertIn("ChecksumCRC64NVME", head)
        self.assertTrue(self.body(self.bucket, "k") == body, "the bytes differ")
        # One put of the same bytes has the same checksum.
        older.put_object(Bucket=self.bucket, Key="once", Body=body)
        once = self.s3.head_object(Bucket=self.bucket, Key="once", ChecksumMode="ENABLED")
        self.assertEqual(once["ChecksumCRC64NVME"], head["ChecksumCRC64NVME"])

    def test_checksum_of_the_whole_object_is_that_of_its_bytes(self):
        bodies = [body_of(PART, 1), body_of(PART + 3, 2), body_of(77, 3)]
        upload = self.begin(ChecksumAlgorithm="CRC32", ChecksumType="FULL_OBJECT")
        parts = [self.send(upload, at + 1, body) for at, body in enumerate(bodies)]
        value = base64_of(crc32(b"".join(bodies)))
        wrong = base64_of(crc32(b"other"))
        self.refused_completion("BadDigest", upload, parts, ChecksumCRC32=wrong)
        made = self.complete(
            upload, parts, ChecksumCRC32=value, ChecksumType="FULL_OBJECT",
            MpuObjectSize=sum(map(len, bodies)),
        )  # fmt: skip
        self.assertEqual((value, "FULL_OBJECT"), (made["ChecksumCRC32"], made["ChecksumType"]))
        self.assertEqual(value, self.head()["ChecksumCRC32"])
        # boto3 compares it while it reads.
        self.assertTrue(self.body(self.bucket, "k") == b"".join(bodies), "the bytes differ")

    def test_checksum_of_a_part_is_kept_and_verified(self):
        for name in ["SHA1", "SHA256"]:
            with self.subTest(name=name):
                body = body_of(1000)
                digest = hashlib.new(name.lower(), body).digest()
                upload = self.begin(ChecksumAlgorithm=name)
                sent = {"UploadId": upload, "PartNumber": 1, "Body": body, **self.at}
                wrong = {f"Checksum{name}": base64_of(hashlib.new(name.lower(), b"").digest())}
                self.refused("BadDigest", 400, self.s3.upload_part, **sent, **wrong)
                other = {"ChecksumAlgorithm": "CRC32"}
                self.refused("InvalidRequest", 400, self.s3.upload_part, **sent, **other)
                part = self.s3.upload_part(ChecksumAlgorithm=name, **sent)
                self.assertEqual(base64_of(digest), part[f"Checksum{name}"])
                named = {"PartNumber": 1, "ETag": part["ETag"]}
                self.refused_completion("InvalidPart", upload, [{**named, **wrong}])
                right = {f"Checksum{name}": base64_of(digest)}
                made = self.complete(upload, [{**named, **right}])
                value = base64_of(hashlib.new(name.lower(), digest).digest())
                self.assertEqual(f"{value}-1", made[f"Checksum{name}"])

    def test_parts_are_put_together_in_order_of_their_numbers(self):
        upload = self.begin(Metadata={"a": "b"})
        bodies = {40: body_of(3, 1), 7: body_of(PART, 2), 12: body_of(PART + 1, 3)}
        parts = {number: self.send(upload, number, body) for number, body in bodies.items()}
        self.send(upload, 41, b"left out")
        made = self.complete(upload, [parts[7], parts[12], parts[40]])
        ordered = [bodies[7], bodies[12], bodies[40]]
        self.assertEqual(tag_of(ordered), made["ETag"])
        self.assertEqual((self.bucket, "k"), (made["Bucket"], made["Key"]))
        self.assertTrue(made["Location"].endswith(f"/{self.bucket}/k"))
        self.assertTrue(self.body(self.bucket, "k") == b"".join(ordered), "the bytes differ")
        self.assertEqual({"a": "b"}, self.head()["Metadata"])
        (entry,) = self.s3.list_objects_v2(Bucket=self.bucket)["Contents"]
        self.assertEqual((made["ETag"], 2 * PART + 4), (entry["ETag"], entry["Size"]))
        for number, body in bodies.items():
            got = self.s3.get_object(PartNumber=number, **self.at)
            self.assertTrue(got["Body"].read() == body, f"part {number} differs")
            self.assertEqual(3, got["PartsCount"])
        self.refused("InvalidPartNumber", 416, self.s3.get_object, PartNumber=1, **self.at)
        both = f"bytes={PART - 2}-{PART + 1}"
        self.assertEqual(
            bodies[7][-2:] + bodies[12][:2], self.body(self.bucket, "k", Range=both)
        )

    def test_parts_that_are_sent_at_once_are_all_there(self):
        bodies = [body_of(PART + at, at) for at in range(6)]
        upload = self.begin()
        with ThreadPoolExecutor(6) as pool:
            parts = list(pool.map(lambda at: self.send(upload, at + 1, bodies[at]), range(6)))
        self.complete(upload, parts)
        self.assertTrue(self.body(self.bucket, "k") == b"".join(bodies), "the bytes differ")

    def test_part_that_is_sent_again_replaces_the_first(self):
        upload = self.begin()
        first, again = self.send(upload, 1, b"first"), self.send(upload, 1, b"again")
        self.refused_completion("InvalidPart", upload, [first])
        self.complete(upload, [again])
        self.assertEqual(b"again", self.body(self.bucket, "k"))

    def test_object_of_parts_is_replaced_and_deleted(self):
        for at in range(2):
            upload = self.begin()
            self.complete(upload, [self.send(upload, 1, body_of(PART, at))])
            self.assertTrue(self.body(self.bucket, "k") == body_of(PART, at))
        self.s3.put_object(Body=b"one put", **self.at)
        self.assertEqual(b"one put", self.body(self.bucket, "k"))
        upload = self.begin()
        self.complete(upload, [self.send(upload, 3, b"parts")])
        self.s3.delete_object(**self.at)
        self.assertEqual([], self.keys(self.bucket))

    def test_list_of_parts_that_is_flawed_makes_no_object(self):
        upload = self.begin()
        large = self.send(upload, 1, body_of(PART))
        small = self.send(upload, 2, b"small")
        last = self.send(upload, 3, b"last")
        other = {"PartNumber": 3, "ETag": f'"{md5(b"other")}"'}
        for code, parts in [
            ("MalformedXML", []),
            ("InvalidPartOrder", [last, large]),
            ("InvalidPartOrder", [large, large]),
            ("InvalidPart", [large, other]),
            ("InvalidPart", [large, {**last, "PartNumber": 4}]),
            ("EntityTooSmall", [large, small, last]),
        ]:
            with self.subTest(code=code):
                self.refused_completion(code, upload, parts)
        self.refused_completion("InvalidRequest", upload, [large, last], MpuObjectSize=7)
        self.assertEqual([], self.keys(self.bucket))
        self.complete(upload, [large, last])

    def test_completion_that_is_repeated_is_answered_alike(self):
        upload = self.begin()
        parts = [self.send(upload, 1, b"x")]
        made = self.complete(upload, parts)
        again = self.complete(upload, parts)
        self.assertEqual(made["ETag"], again["ETag"])
        other = [{"PartNumber": 1, "ETag": f'"{md5(b"other")}"'}]
        self.refused_completion("NoSuchUpload", upload, other, status=404)

    def test_completion_is_held_to_its_conditions(self):
        put = self.s3.put_object(Body=b"there", **self.at)
        upload = self.begin()
        parts = [self.send(upload, 1, b"x")]
        self.refused_completion("PreconditionFailed", upload, parts, 412, IfNoneMatch="*")
        self.refused_completion("PreconditionFailed", upload, parts, 412, IfMatch='"x"')
        self.assertEqual(b"there", self.body(self.bucket, "k"))
        self.complete(upload, parts, IfMatch=put["ETag"])
        self.assertEqual(b"x", self.body(self.bucket, "k"))

    def test_upload_that_is_aborted_is_gone(self):
        upload = self.begin()
        part = self.send(upload, 1, b"x")
        self.s3.abort_multipart_upload(UploadId=upload, **self.at)
        at = {"UploadId": upload, **self.at}
        missing = ("NoSuchUpload", 404)
        self.refused(*missing, self.s3.abort_multipart_upload, **at)
        self.refused(*missing, self.s3.list_parts, **at)
        self.refused(*missing, self.s3.upload_part, PartNumber=1, Body=b"x", **at)
        self.refused_completion("NoSuchUpload", upload, [part], status=404)
        self.assertEqual([], self.keys(self.bucket))
        self.refused(*missing, self.s3.list_parts, **{**at, "UploadId": "none"})

    def test_bad_number_of_a_part_is_refused(self):
        upload = self.begin()
        for number in [0, -1, 10_001]:
            with self.subTest(number=number):
                part = {"UploadId": upload, "PartNumber": number, "Body": b"x", **self.at}
                self.refused("InvalidArgument", 400, self.s3.upload_part, **part)
        self.complete(upload, [self.send(upload, 10_000, b"x")])

    def test_parts_are_listed_page_by_page(self):
        upload = self.begin(ChecksumAlgorithm="SHA256")
        for number in [9, 2, 5, 7, 1]:
            self.send(upload, number, bytes(number), ChecksumAlgorithm="SHA256")
        pages = list(
            self.s3.get_paginator("list_parts").paginate(
                UploadId=upload, PaginationConfig={"PageSize": 2}, **self.at
            )
        )
        numbers = [[part["PartNumber"] for part in page["Parts"]] for page in pages]
        self.assertEqual([[1, 2], [5, 7], [9]], numbers)
        page = pages[0]
        self.assertEqual("STANDARD", page["StorageClass"])
        self.assertEqual(("SHA256", "COMPOSITE"), (page["ChecksumAlgorithm"], page["ChecksumType"]))
        self.assertEqual(page["Owner"]["ID"], page["Initiator"]["ID"])
        part = page["Parts"][1]
        self.assertEqual((2, f'"{md5(bytes(2))}"'), (part["Size"], part["ETag"]))
        self.assertEqual(base64_of(hashlib.sha256(bytes(2)).digest()), part["ChecksumSHA256"])

    def test_uploads_are_listed_page_by_page(self):
        keys = ["a", "b/1", "b/2", "c", "c", "d e"]
        begun = [
            (key, self.s3.create_multipart_upload(Bucket=self.bucket, Key=key)["UploadId"])
            for key in keys
        ]
        for size in [1, 2, 1000]:
            pages = self.s3.get_paginator("list_multipart_uploads").paginate(
                Bucket=self.bucket, PaginationConfig={"PageSize": size}
            )
            found = [
                (upload["Key"], upload["UploadId"])
                for page in pages
                for upload in page.get("Uploads", [])
            ]
            self.assertEqual(begun, found)
        page = self.s3.list_multipart_uploads(Bucket=self.bucket, Delimiter="/")
        self.assertEqual([{"Prefix": "b/"}], page["CommonPrefixes"])
        self.assertEqual(["a", "c", "c", "d e"], [upload["Key"] for upload in page["Uploads"]])
        page = self.s3.list_multipart_uploads(Bucket=self.bucket, Prefix="b/")
        self.assertEqual(begun[1:3], [(u["Key"], u["UploadId"]) for u in page["Uploads"]])
        # They are no objects.
        self.assertEqual([], self.keys(self.bucket))
        for key, upload in begun:
            self.s3.abort_multipart_upload(Bucket=self.bucket, Key=key, UploadId=upload)
        self.assertNotIn("Uploads", self.s3.list_multipart_uploads(Bucket=self.bucket))

    def test_uploads_of_odd_keys_make_their_objects(self):
        for key in ODD_KEYS:
            with self.subTest(key=key):
                self.at = {"Bucket": self.bucket, "Key": key}
                upload = self.begin()
                part = self.send(upload, 1, key.encode())
                listed = self.s3.list_multipart_uploads(Bucket=self.bucket)["Uploads"]
                self.assertEqual([upload], [entry["UploadId"] for entry in listed])
                self.assertEqual(key, self.complete(upload, [part])["Key"])
                self.assertEqual(key.encode(), self.body(self.bucket, key))
        self.assertEqual(ODD_KEYS, self.keys(self.bucket))

    def test_attributes_show_an_objects_parts(self):
        upload = self.begin(ChecksumAlgorithm="CRC32")
        parts = [self.send(upload, 2, body_of(PART)), self.send(upload, 3, b"x")]
        self.complete(upload, parts)
        names = ["ETag", "Checksum", "ObjectParts", "StorageClass", "ObjectSize"]
        got = self.s3.get_object_attributes(ObjectAttributes=names, **self.at)
        self.assertEqual((PART + 1, "STANDARD"), (got["ObjectSize"], got["StorageClass"]))
        self.assertEqual("COMPOSITE", got["Checksum"]["ChecksumType"])
        self.assertEqual(2, got["ObjectParts"]["TotalPartsCount"])
        sizes = [(part["PartNumber"], part["Size"]) for part in got["ObjectParts"]["Parts"]]
        self.assertEqual([(2, PART), (3, 1)], sizes)

    def test_presigned_part_is_stored(self):
        s3 = client(signature_version="s3v4")
        upload = self.begin()
        params = {"UploadId": upload, "PartNumber": 1, **self.at}
        url = s3.generate_presigned_url("upload_part", Params=params, ExpiresIn=60)
        body = body_of(200_000)
        with urllib.request.urlopen(
            urllib.request.Request(url, data=body, method="PUT"), timeout=30
        ) as answer:
            tag = answer.headers["ETag"]
        self.assertEqual(f'"{md5(body)}"', tag)
        other = urllib.request.Request(
            url.replace("partNumber=1", "partNumber=2"), data=body, method="PUT"
        )
        with self.assertRaises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(other, timeout=30)
        with caught.exception as error:
            self.assertEqual(403, error.code)
        self.complete(upload, [{"PartNumber": 1, "ETag": tag}])
        self.assertTrue(self.body(self.bucket, "k") == body, "the bytes differ")


class AtOnce(Case):
    """Uploads that are large, or race with others."""

    def setUp(self):
        self.bucket = self.new_bucket()
        self.of_k = {"Bucket": self.bucket, "Key": "k"}

    def begin(self, **arguments):
        return self.s3.create_multipart_upload(**self.of_k, **arguments)["UploadId"]

    def part(self, upload, number, body):
        answer = self.s3.upload_part(
            **self.of_k, UploadId=upload, PartNumber=number, Body=body
        )
        return {"PartNumber": number, "ETag": answer["ETag"]}

    def complete(self, upload, parts, **arguments):
        return self.s3.complete_multipart_upload(
            **self.of_k, UploadId=upload, MultipartUpload={"Parts": parts}, **arguments
        )

    def uploads(self):
        return self.s3.list_multipart_uploads(Bucket=self.bucket).get("Uploads", [])

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

    def test_bucket_with_an_upload_only_is_deleted(self):
        upload = self.begin()
        self.part(upload, 1, b"x")
        self.s3.delete_bucket(Bucket=self.bucket)
        self.s3.create_bucket(Bucket=self.bucket)
        self.assertEqual([], self.uploads())

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

    def test_read_of_a_replaced_object_in_parts_ends_as_it_began(self):
        body = body_of(40 << 20)
        self.s3.upload_fileobj(io.BytesIO(body), self.bucket, "k", Config=SMALL_PARTS)
        content = self.s3.get_object(**self.of_k)["Body"]
        first = content.read(1 << 20)
        self.s3.put_object(**self.of_k, Body=b"new")
        self.assertTrue(first + content.read() == body, "the bytes differ")
        self.assertEqual(b"new", self.body(self.bucket, "k"))


class Copies(Uploads):
    def copy(self, source, key, **arguments):
        source = {"Bucket": self.bucket, "Key": source}
        return self.s3.copy_object(Bucket=self.bucket, Key=key, CopySource=source, **arguments)

    def test_copy_has_the_bytes_and_headers_of_its_source(self):
        for size in [0, 1, 600, 100 << 10, PART + 1]:
            with self.subTest(size=size):
                body = body_of(size)
                self.s3.put_object(
                    Body=body, ContentType="text/x-own", Metadata={"a": "b"}, **self.at
                )
                result = self.copy("k", "copy")["CopyObjectResult"]
                self.assertEqual(f'"{md5(body)}"', result["ETag"])
                got = self.s3.get_object(Bucket=self.bucket, Key="copy", ChecksumMode="ENABLED")
                self.assertTrue(got["Body"].read() == body, "the bytes differ")
                self.assertEqual(("text/x-own", {"a": "b"}), (got["ContentType"], got["Metadata"]))
                self.assertEqual(base64_of(crc32(body)), got["ChecksumCRC32"])
                # The head has whole seconds.
                copied = result["LastModified"].replace(microsecond=0)
                self.assertEqual(copied, got["LastModified"])

    def test_copy_with_new_metadata_has_that_alone(self):
        self.s3.put_object(Body=b"x", ContentType="text/x-own", Metadata={"a": "b"}, **self.at)
        new = {"Metadata": {"c": "d"}, "MetadataDirective": "REPLACE"}
        for key in ["copy", "k"]:
            self.copy("k", key, **new)
            head = self.s3.head_object(Bucket=self.bucket, Key=key)
            self.assertEqual({"c": "d"}, head["Metadata"])
            self.assertEqual("binary/octet-stream", head["ContentType"])
            self.assertEqual(b"x", self.body(self.bucket, key))

    def test_copy_to_itself_that_changes_nothing_is_refused(self):
        self.s3.put_object(Body=b"x", **self.at)
        self.refused("InvalidRequest", 400, self.copy, source="k", key="k")

    def test_copy_of_odd_keys_is_made(self):
        for key in ODD_KEYS:
            with self.subTest(key=key):
                self.s3.put_object(Bucket=self.bucket, Key=key, Body=key.encode())
                self.copy(key, "copy")
                self.assertEqual(key.encode(), self.body(self.bucket, "copy"))

    def test_copy_of_another_bucket_is_made(self):
        other = self.new_bucket()
        self.s3.put_object(Body=b"x", **self.at)
        self.s3.copy_object(Bucket=other, Key="k", CopySource=f"{self.bucket}/k")
        self.assertEqual(b"x", self.body(other, "k"))

    def test_copy_of_a_source_that_is_missing_is_refused(self):
        self.refused("NoSuchKey", 404, self.copy, source="none", key="k")
        self.refused(
            "NoSuchBucket", 404, self.s3.copy_object, CopySource="no-such-bucket/k", **self.at
        )
        self.assertEqual([], self.keys(self.bucket))

    def test_copy_is_held_to_its_conditions(self):
        tag = self.s3.put_object(Body=b"x", **self.at)["ETag"]
        for arguments in [
            {"CopySourceIfMatch": '"x"'},
            {"CopySourceIfNoneMatch": tag},
        ]:
            with self.subTest(arguments=arguments):
                self.refused(
                    "PreconditionFailed", 412, self.copy, source="k", key="copy", **arguments
                )
        self.assertEqual(["k"], self.keys(self.bucket))
        self.copy("k", "copy", CopySourceIfMatch=tag, CopySourceIfNoneMatch='"x"')
        self.assertEqual(b"x", self.body(self.bucket, "copy"))

    def test_copy_gets_the_checksum_that_is_asked_for(self):
        self.s3.put_object(Body=b"x", **self.at)
        result = self.copy("k", "copy", ChecksumAlgorithm="SHA256")["CopyObjectResult"]
        self.assertEqual(base64_of(hashlib.sha256(b"x").digest()), result["ChecksumSHA256"])

    def test_large_object_is_copied_in_parts(self):
        body = body_of(LARGE)
        self.s3.upload_fileobj(io.BytesIO(body), self.bucket, "k", Config=SMALL_PARTS)
        source = {"Bucket": self.bucket, "Key": "k"}
        self.s3.copy(source, self.bucket, "copy", Config=SMALL_PARTS)
        head = self.s3.head_object(Bucket=self.bucket, Key="copy")
        self.assertTrue(head["ETag"].endswith('-5"'), head["ETag"])
        self.assertTrue(self.body(self.bucket, "copy") == body, "the bytes differ")
        # At once, from parts to one content.
        self.copy("k", "once")
        head = self.s3.head_object(Bucket=self.bucket, Key="once")
        self.assertEqual(f'"{md5(body)}"', head["ETag"])
        self.assertTrue(self.body(self.bucket, "once") == body, "the bytes differ")

    def test_object_is_put_together_of_ranges_of_others(self):
        body = body_of(PART + 1000)
        self.s3.put_object(Bucket=self.bucket, Key="source", Body=body)
        upload = self.begin()
        copied = {"CopySource": f"{self.bucket}/source", "UploadId": upload, **self.at}
        parts = []
        for number, copy_range in [(1, f"bytes=1000-{PART + 999}"), (2, "bytes=0-6")]:
            result = self.s3.upload_part_copy(
                PartNumber=number, CopySourceRange=copy_range, **copied
            )["CopyPartResult"]
            parts.append({"PartNumber": number, "ETag": result["ETag"]})
        self.refused(
            "InvalidRange", 416, self.s3.upload_part_copy,
            PartNumber=3, CopySourceRange=f"bytes=0-{PART + 1000}", **copied,
        )  # fmt: skip
        self.refused(
            "InvalidArgument", 400, self.s3.upload_part_copy,
            PartNumber=3, CopySourceRange="bytes=0-", **copied,
        )  # fmt: skip
        self.complete(upload, parts)
        self.assertTrue(self.body(self.bucket, "k") == body[1000:] + body[:7], "the bytes differ")
