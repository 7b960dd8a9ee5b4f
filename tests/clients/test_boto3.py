"""boto3, the SDK for Python, against the server."""

import base64
import datetime
import hashlib
import io
import socket
import tempfile
import threading
import time
import unittest.mock
import urllib.error
import urllib.parse
import urllib.request
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import boto3
import botocore.awsrequest
from boto3.s3.transfer import TransferConfig
from botocore.exceptions import ClientError

import server
from cases import ODD_KEYS, SIZES, Case, body_of, client, md5, resource

# A file that clients send in parts by default.
LARGE = 20 << 20
# Parts are switched off: no file of the tests is as large.
IN_ONE_PUT = TransferConfig(multipart_threshold=64 << 20)
# Keys of a page at most, and of a bulk delete.
PAGE_MAX = 1000


def base64_of(raw):
    return base64.b64encode(raw).decode()


def crc(body, polynomial, bits):
    """A reflected CRC whose start and final value are all ones, as big-endian bytes."""
    ones = (1 << bits) - 1
    value = ones
    for byte in body:
        value ^= byte
        for _ in range(8):
            value = (value >> 1) ^ (polynomial if value & 1 else 0)
    return (value ^ ones).to_bytes(bits // 8, "big")


# A name of a checksum, and its value.
CHECKSUMS = {
    "CRC32": lambda body: zlib.crc32(body).to_bytes(4, "big"),
    "CRC32C": lambda body: crc(body, 0x82F63B78, 32),
    "CRC64NVME": lambda body: crc(body, 0x9A6C9329AC4BC9B5, 64),
    "SHA1": lambda body: hashlib.sha1(body).digest(),
    "SHA256": lambda body: hashlib.sha256(body).digest(),
}
# Those that boto3 computes without further packages. Of the others it sends what it is given.
COMPUTED = ["CRC32", "SHA1", "SHA256"]


class Buckets(Case):
    def test_new_bucket_is_headed_listed_and_has_the_first_region(self):
        bucket = self.new_bucket()
        self.s3.head_bucket(Bucket=bucket)
        listed = {entry["Name"]: entry for entry in self.s3.list_buckets()["Buckets"]}
        age = datetime.datetime.now(datetime.timezone.utc) - listed[bucket]["CreationDate"]
        self.assertLess(abs(age.total_seconds()), 60)
        self.assertIsNone(self.s3.get_bucket_location(Bucket=bucket)["LocationConstraint"])

    def test_list_of_buckets_is_sorted_and_goes_on_page_by_page(self):
        made = {self.new_bucket() for _ in range(5)}
        pages = self.s3.get_paginator("list_buckets").paginate(
            Prefix="bucket-", PaginationConfig={"PageSize": 2}
        )
        pages = [[entry["Name"] for entry in page["Buckets"]] for page in pages]
        names = [name for page in pages for name in page]
        self.assertLessEqual(max(map(len, pages)), 2)
        self.assertEqual(sorted(names), names)
        self.assertLessEqual(made, set(names))

    def test_bucket_made_again_by_its_owner_is_no_error(self):
        self.s3.create_bucket(Bucket=self.new_bucket())

    def test_bucket_with_a_location_is_made(self):
        other = client(region="eu-central-1")
        bucket = self.new_bucket() + "-eu"
        location = {"LocationConstraint": "eu-central-1"}
        other.create_bucket(Bucket=bucket, CreateBucketConfiguration=location)
        self.s3.head_bucket(Bucket=bucket)

    def test_bucket_with_an_illegal_name_is_refused(self):
        for name in ["Upper", "under_score", "ab", "a" * 64, "a..b", "-a-b", "10.0.0.1"]:
            with self.subTest(name=name):
                self.refused("InvalidBucketName", 400, self.s3.create_bucket, Bucket=name)

    def test_missing_bucket_is_reported(self):
        name = "no-such-bucket"
        self.refused("404", 404, self.s3.head_bucket, Bucket=name)
        for call in [self.s3.delete_bucket, self.s3.list_objects, self.s3.list_objects_v2]:
            answer = self.refused("NoSuchBucket", 404, call, Bucket=name)
            self.assertEqual(name, answer["Error"]["BucketName"])
        self.refused("NoSuchBucket", 404, self.s3.get_object, Bucket=name, Key="k")
        self.refused("NoSuchBucket", 404, self.s3.put_object, Bucket=name, Key="k", Body=b"x")
        self.refused("NoSuchBucket", 404, self.s3.delete_object, Bucket=name, Key="k")

    def test_bucket_with_an_object_is_not_deleted_an_empty_one_is(self):
        bucket = self.new_bucket()
        self.s3.put_object(Bucket=bucket, Key="k", Body=b"x")
        self.refused("BucketNotEmpty", 409, self.s3.delete_bucket, Bucket=bucket)
        self.assertEqual(b"x", self.body(bucket, "k"))
        self.s3.delete_object(Bucket=bucket, Key="k")
        self.s3.delete_bucket(Bucket=bucket)
        self.refused("404", 404, self.s3.head_bucket, Bucket=bucket)
        self.assertNotIn(bucket, [b["Name"] for b in self.s3.list_buckets()["Buckets"]])

    def test_bucket_made_after_its_deletion_is_empty(self):
        bucket = self.new_bucket()
        self.s3.put_object(Bucket=bucket, Key="k", Body=b"x")
        self.s3.delete_object(Bucket=bucket, Key="k")
        self.s3.delete_bucket(Bucket=bucket)
        self.s3.create_bucket(Bucket=bucket)
        self.assertEqual([], self.keys(bucket))
        self.refused("NoSuchKey", 404, self.s3.get_object, Bucket=bucket, Key="k")

    def test_bucket_of_the_resource_interface_is_emptied_and_deleted(self):
        s3 = resource()
        bucket = s3.Bucket(self.new_bucket())
        for number in range(12):
            bucket.put_object(Key=f"k{number}", Body=b"x")
        bucket.objects.all().delete()
        bucket.delete()
        self.refused("404", 404, self.s3.head_bucket, Bucket=bucket.name)

    def test_settings_that_a_new_bucket_lacks_are_reported_so(self):
        bucket = self.new_bucket()
        self.assertNotIn("Status", self.s3.get_bucket_versioning(Bucket=bucket))
        self.refused("NoSuchBucketPolicy", 404, self.s3.get_bucket_policy, Bucket=bucket)
        self.refused("NoSuchCORSConfiguration", 404, self.s3.get_bucket_cors, Bucket=bucket)
        self.refused("NoSuchTagSet", 404, self.s3.get_bucket_tagging, Bucket=bucket)
        grants = self.s3.get_bucket_acl(Bucket=bucket)["Grants"]
        self.assertEqual(["FULL_CONTROL"], [grant["Permission"] for grant in grants])


class Objects(Case):
    def test_object_of_each_size_comes_back_equal_with_its_headers(self):
        bucket = self.new_bucket()
        headers = {
            "ContentType": "text/x-own; charset=utf-8",
            "CacheControl": "max-age=60, private",
            "ContentDisposition": 'attachment; filename="a b.txt"',
            "ContentEncoding": "gzip",
            "ContentLanguage": "de, en",
        }
        expires = datetime.datetime(2040, 1, 2, 3, 4, 5, tzinfo=datetime.timezone.utc)
        metadata = {"name": "value", "two-words": "a  b; c=d, e", "empty": ""}
        for size in SIZES:
            with self.subTest(size=size):
                body = body_of(size)
                put = self.s3.put_object(
                    Bucket=bucket, Key=f"k{size}", Body=body, Metadata=metadata, Expires=expires,
                    **headers,
                )  # fmt: skip
                get = self.s3.get_object(Bucket=bucket, Key=f"k{size}")
                head = self.s3.head_object(Bucket=bucket, Key=f"k{size}")
                self.assertTrue(get["Body"].read() == body, "the bytes differ")
                self.assertEqual(f'"{md5(body)}"', put["ETag"])
                for answer in [get, head]:
                    self.assertEqual(size, answer["ContentLength"])
                    self.assertEqual(put["ETag"], answer["ETag"])
                    self.assertEqual(metadata, answer["Metadata"])
                    self.assertEqual("bytes", answer["AcceptRanges"])
                    self.assertEqual("Mon, 02 Jan 2040 03:04:05 GMT", answer["ExpiresString"])
                    self.assertEqual(headers, {name: answer[name] for name in headers})
                    now = datetime.datetime.now(datetime.timezone.utc)
                    self.assertLess(abs((now - answer["LastModified"]).total_seconds()), 60)

    def test_object_without_a_type_has_that_of_bytes(self):
        bucket = self.new_bucket()
        self.s3.put_object(Bucket=bucket, Key="k", Body=b"x")
        head = self.s3.head_object(Bucket=bucket, Key="k")
        self.assertEqual("binary/octet-stream", head["ContentType"])
        self.assertEqual({}, head["Metadata"])

    def test_file_of_20_mib_in_one_put_comes_back_equal(self):
        bucket = self.new_bucket()
        body = body_of(LARGE)
        with tempfile.TemporaryDirectory() as folder:
            up, down = Path(folder, "up"), Path(folder, "down")
            up.write_bytes(body)
            self.s3.upload_file(str(up), bucket, "large", Config=IN_ONE_PUT)
            # Ranges of 8 MiB, at once.
            self.s3.download_file(bucket, "large", str(down))
            self.assertTrue(down.read_bytes() == body, "the bytes differ")
        got = io.BytesIO()
        self.s3.download_fileobj(bucket, "large", got, Config=IN_ONE_PUT)
        self.assertTrue(got.getvalue() == body, "the bytes differ")

    def test_object_put_again_is_replaced_with_its_headers(self):
        bucket = self.new_bucket()
        for size in [5000, 3, (1 << 20) + 7, 0]:
            body = body_of(size)
            self.s3.put_object(Bucket=bucket, Key="k", Body=body, Metadata={f"m{size}": "x"})
            self.assertTrue(self.body(bucket, "k") == body, "the bytes differ")
            head = self.s3.head_object(Bucket=bucket, Key="k")
            self.assertEqual({f"m{size}": "x"}, head["Metadata"])
        self.assertEqual(["k"], self.keys(bucket))

    def test_objects_put_at_once_are_all_there(self):
        bucket = self.new_bucket()
        bodies = {f"k{number:02}": body_of(40_000, number) for number in range(32)}
        with ThreadPoolExecutor(8) as pool:
            puts = [
                pool.submit(self.s3.put_object, Bucket=bucket, Key=key, Body=body)
                for key, body in bodies.items()
            ]
            [put.result() for put in puts]
            got = dict(zip(bodies, pool.map(lambda key: self.body(bucket, key), bodies)))
        self.assertTrue(got == bodies, "the bytes differ")
        self.assertEqual(sorted(bodies), self.keys(bucket))

    def test_key_of_odd_characters_has_its_own_object(self):
        bucket = self.new_bucket()
        for key in ODD_KEYS:
            self.s3.put_object(Bucket=bucket, Key=key, Body=key.encode())
        for key in ODD_KEYS:
            with self.subTest(key=key):
                self.assertEqual(key.encode(), self.body(bucket, key))
                head = self.s3.head_object(Bucket=bucket, Key=key)
                self.assertEqual(len(key.encode()), head["ContentLength"])
        self.assertEqual(ODD_KEYS, self.keys(bucket))
        self.s3.delete_object(Bucket=bucket, Key="..")
        self.assertEqual([key for key in ODD_KEYS if key != ".."], self.keys(bucket))

    def test_key_that_is_too_long_is_refused(self):
        bucket = self.new_bucket()
        longest = "\u00fc" * 512
        self.s3.put_object(Bucket=bucket, Key=longest, Body=b"x")
        self.assertEqual([longest], self.keys(bucket))
        self.refused(
            "KeyTooLongError", 400, self.s3.put_object, Bucket=bucket, Key="k" * 1025, Body=b"x"
        )
        self.assertEqual([longest], self.keys(bucket))

    def test_missing_key_is_reported(self):
        bucket = self.new_bucket()
        self.s3.put_object(Bucket=bucket, Key="key", Body=b"x")
        for key in ["ke", "key/", "keys", "a/b &<c>+\u00fc%2F\r"]:
            answer = self.refused("NoSuchKey", 404, self.s3.get_object, Bucket=bucket, Key=key)
            self.assertEqual(key, answer["Error"]["Key"])
            self.refused("404", 404, self.s3.head_object, Bucket=bucket, Key=key)

    def test_answer_is_served_with_the_headers_that_are_asked_for(self):
        bucket = self.new_bucket()
        self.s3.put_object(Bucket=bucket, Key="k", Body=b"x", ContentType="text/plain")
        answer = self.s3.get_object(
            Bucket=bucket,
            Key="k",
            ResponseContentType="image/png",
            ResponseContentDisposition="attachment",
            ResponseCacheControl="no-store",
        )
        self.assertEqual("image/png", answer["ContentType"])
        self.assertEqual("attachment", answer["ContentDisposition"])
        self.assertEqual("no-store", answer["CacheControl"])

    def test_metadata_of_more_than_2_kib_is_refused(self):
        bucket = self.new_bucket()
        put = {"Bucket": bucket, "Key": "k", "Body": b"x"}
        self.s3.put_object(Metadata={"m": "v" * 2000}, **put)
        self.refused(
            "MetadataTooLarge", 400, self.s3.put_object, Metadata={"n": "v" * 2048}, **put
        )
        self.assertEqual({"m"}, set(self.s3.head_object(Bucket=bucket, Key="k")["Metadata"]))

    def test_wish_that_is_not_met_is_refused_and_stores_nothing(self):
        bucket = self.new_bucket()
        for code, status, wish in [
            ("AccessControlListNotSupported", 400, {"ACL": "public-read"}),
            ("InvalidStorageClass", 400, {"StorageClass": "GLACIER"}),
            ("NotImplemented", 501, {"ServerSideEncryption": "aws:kms:dsse"}),
            ("InvalidArgument", 400, {"Tagging": "a=b&a=c"}),
            ("NotImplemented", 501, {"WebsiteRedirectLocation": "/x"}),
        ]:
            with self.subTest(wish=wish):
                put = {"Bucket": bucket, "Key": "k", "Body": b"x"}
                self.refused(code, status, self.s3.put_object, **put, **wish)
        self.assertEqual([], self.keys(bucket))


class Ranges(Case):
    SIZE = (5 << 20) + 1

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.bucket = cls.new_bucket()
        cls.whole = body_of(cls.SIZE)
        cls.s3.put_object(Bucket=cls.bucket, Key="k", Body=cls.whole)
        cls.s3.put_object(Bucket=cls.bucket, Key="empty", Body=b"")

    def test_range_of_an_object_is_served_as_such(self):
        size = self.SIZE
        for text, first, last in [
            ("bytes=0-0", 0, 0),
            ("bytes=0-599", 0, 599),
            ("bytes=1000-1999", 1000, 1999),
            (f"bytes={(1 << 20) - 3}-{(1 << 20) + 3}", (1 << 20) - 3, (1 << 20) + 3),
            ("bytes=4095-3000000", 4095, 3_000_000),
            (f"bytes={size - 1}-", size - 1, size - 1),
            ("bytes=5000000-", 5_000_000, size - 1),
            ("bytes=-1", size - 1, size - 1),
            ("bytes=-70000", size - 70_000, size - 1),
            (f"bytes=-{size + 5}", 0, size - 1),
            (f"bytes=10-{size + 100}", 10, size - 1),
        ]:
            with self.subTest(range=text):
                answer = self.s3.get_object(Bucket=self.bucket, Key="k", Range=text)
                self.assertEqual(206, answer["ResponseMetadata"]["HTTPStatusCode"])
                self.assertEqual(f"bytes {first}-{last}/{size}", answer["ContentRange"])
                self.assertEqual(last - first + 1, answer["ContentLength"])
                self.assertTrue(answer["Body"].read() == self.whole[first : last + 1])

    def test_range_of_a_head_is_its_length(self):
        head = self.s3.head_object(Bucket=self.bucket, Key="k", Range="bytes=10-29")
        self.assertEqual(20, head["ContentLength"])
        self.assertEqual(206, head["ResponseMetadata"]["HTTPStatusCode"])

    def test_range_beyond_the_end_is_refused(self):
        for key, text in [
            ("k", f"bytes={self.SIZE}-"),
            ("k", f"bytes={self.SIZE + 10}-{self.SIZE + 20}"),
            ("empty", "bytes=0-0"),
            ("k", "bytes=-0"),
        ]:
            with self.subTest(key=key, range=text):
                self.refused(
                    "InvalidRange", 416, self.s3.get_object, Bucket=self.bucket, Key=key, Range=text
                )

    def test_range_that_is_none_is_refused(self):
        # S3 passes it over and answers with the whole object (docs/s3.md names the difference).
        for text in ["bytes=9-3", "lines=1-2", "bytes=abc"]:
            with self.subTest(range=text):
                self.refused(
                    "InvalidArgument", 400, self.s3.get_object, Bucket=self.bucket, Key="k", Range=text
                )

    def test_first_part_is_the_whole_object(self):
        answer = self.s3.get_object(Bucket=self.bucket, Key="k", PartNumber=1)
        self.assertTrue(answer["Body"].read() == self.whole)
        self.refused(
            "InvalidPartNumber", 416, self.s3.get_object, Bucket=self.bucket, Key="k", PartNumber=2
        )


class LossyProxy:
    """An endpoint before the server's that closes the first connection in place of its answer."""

    def __init__(self, endpoint):
        url = urllib.parse.urlparse(endpoint)
        self.server = (url.hostname, url.port)
        self.lost = 0

    def __enter__(self):
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.endpoint = "http://127.0.0.1:%d" % self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.listener.close()

    def accept(self):
        while True:
            try:
                near = self.listener.accept()[0]
            except OSError:
                return
            far = socket.create_connection(self.server)
            for pair in [(near, far), (far, near)]:
                threading.Thread(target=self.carry, args=pair, daemon=True).start()

    def carry(self, source, sink):
        is_answer = source.getpeername() == self.server
        try:
            while data := source.recv(1 << 16):
                # "100 Continue" asks for the body, and decides nothing.
                if is_answer and not self.lost and not data.startswith(b"HTTP/1.1 100"):
                    self.lost += 1
                    break
                sink.sendall(data)
        except OSError:
            pass
        for end in (source, sink):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass


class Conditions(Case):
    def setUp(self):
        self.bucket = self.new_bucket()
        self.put = {"Bucket": self.bucket, "Key": "k"}

    def test_put_if_none_is_there_creates_and_never_replaces(self):
        self.s3.put_object(Body=b"one", IfNoneMatch="*", **self.put)
        self.refused(
            "PreconditionFailed", 412, self.s3.put_object, Body=b"two", IfNoneMatch="*", **self.put
        )
        self.assertEqual(b"one", self.body(self.bucket, "k"))
        self.s3.delete_object(**self.put)
        self.s3.put_object(Body=b"three", IfNoneMatch="*", **self.put)
        self.assertEqual(b"three", self.body(self.bucket, "k"))

    def test_put_if_none_is_there_at_once_has_one_winner(self):
        start = threading.Barrier(8)

        def put(number):
            start.wait()
            try:
                self.s3.put_object(Body=b"%d" % number, IfNoneMatch="*", **self.put)
                return number
            except ClientError as error:
                # Of puts at once the later ones fail, or conflict.
                code = error.response["Error"]["Code"]
                self.assertIn(code, ["PreconditionFailed", "ConditionalRequestConflict"])
                return None

        with ThreadPoolExecutor(8) as pool:
            winners = [number for number in pool.map(put, range(8)) if number is not None]
        self.assertEqual(1, len(winners))
        self.assertEqual(b"%d" % winners[0], self.body(self.bucket, "k"))

    def test_call_whose_answer_is_lost_does_not_lose_to_itself(self):
        self.s3.put_object(Body=b"zero", Key="swapped", Bucket=self.bucket)
        source = f"{self.bucket}/swapped"
        for key, call in [
            ("created", lambda s3, put: s3.put_object(Body=b"one", IfNoneMatch="*", **put)),
            ("large", lambda s3, put: s3.put_object(Body=body_of(1 << 20), IfNoneMatch="*", **put)),
            ("swapped", lambda s3, put: s3.put_object(Body=b"one", IfMatch=md5(b"zero"), **put)),
            ("copied", lambda s3, put: s3.copy_object(CopySource=source, IfNoneMatch="*", **put)),
        ]:
            put = {"Bucket": self.bucket, "Key": key}
            with self.subTest(key=key), LossyProxy(server.server.access["endpoint"]) as proxy:
                call(client(endpoint=proxy.endpoint, attempts=3), put)
                self.assertEqual(1, proxy.lost)
                # Another call is another one, also of the same content.
                self.refused("PreconditionFailed", 412, lambda: call(self.s3, put))

    def test_put_if_match_replaces_that_object_only(self):
        self.refused(
            "NoSuchKey", 404, self.s3.put_object, Body=b"x", IfMatch=md5(b"x"), **self.put
        )
        first = self.s3.put_object(Body=b"one", **self.put)["ETag"]
        self.s3.put_object(Body=b"two", IfMatch=first, **self.put)
        self.refused(
            "PreconditionFailed", 412, self.s3.put_object, Body=b"three", IfMatch=first, **self.put
        )
        self.assertEqual(b"two", self.body(self.bucket, "k"))

    def test_counter_swapped_by_many_loses_no_step(self):
        self.s3.put_object(Body=b"0", **self.put)

        def add(_):
            for _ in range(200):
                got = self.s3.get_object(**self.put)
                value = int(got["Body"].read())
                try:
                    self.s3.put_object(Body=b"%d" % (value + 1), IfMatch=got["ETag"], **self.put)
                    return
                except ClientError as error:
                    code = error.response["Error"]["Code"]
                    self.assertIn(code, ["PreconditionFailed", "ConditionalRequestConflict"])
            self.fail("200 swaps failed")

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(add, range(16)))
        self.assertEqual(b"16", self.body(self.bucket, "k"))

    def test_delete_if_match_deletes_that_object_only(self):
        first = self.s3.put_object(Body=b"one", **self.put)["ETag"]
        second = self.s3.put_object(Body=b"two", **self.put)["ETag"]
        self.refused("PreconditionFailed", 412, self.s3.delete_object, IfMatch=first, **self.put)
        self.assertEqual(b"two", self.body(self.bucket, "k"))
        self.s3.delete_object(IfMatch=second, **self.put)
        self.assertEqual([], self.keys(self.bucket))

    def test_read_under_a_condition_is_answered_by_it(self):
        etag = self.s3.put_object(Body=b"one", **self.put)["ETag"]
        now = datetime.datetime.now(datetime.timezone.utc)
        before, after = now - datetime.timedelta(hours=1), now + datetime.timedelta(hours=1)
        # 200, 304 or 412 for each condition. A time that is yet to come is no condition.
        for expected, condition in [
            (200, {"IfMatch": etag}),
            (200, {"IfMatch": "*"}),
            (412, {"IfMatch": '"other"'}),
            (200, {"IfNoneMatch": '"other"'}),
            (304, {"IfNoneMatch": etag}),
            (304, {"IfNoneMatch": "*"}),
            (200, {"IfModifiedSince": before}),
            (200, {"IfUnmodifiedSince": after}),
            (412, {"IfUnmodifiedSince": before}),
            # The tag decides where there are both.
            (200, {"IfMatch": etag, "IfUnmodifiedSince": before}),
            (304, {"IfNoneMatch": etag, "IfModifiedSince": before}),
            (200, {"IfNoneMatch": '"other"', "IfModifiedSince": after}),
            (412, {"IfMatch": '"other"', "IfNoneMatch": etag}),
        ]:
            for call in [self.s3.get_object, self.s3.head_object]:
                with self.subTest(condition=condition, call=call.__name__):
                    try:
                        answer = call(**self.put, **condition)
                    except ClientError as error:
                        answer = error.response
                    status = answer["ResponseMetadata"]["HTTPStatusCode"]
                    self.assertEqual(expected, status)
                    if expected == 200 and call == self.s3.get_object:
                        self.assertEqual(b"one", answer["Body"].read())

    def test_read_of_an_object_not_modified_since_its_time_is_304(self):
        self.s3.put_object(Body=b"one", **self.put)
        modified = self.s3.head_object(**self.put)["LastModified"]
        time.sleep(1.1)  # Until then its time is yet to come, to the second.
        self.refused("304", 304, self.s3.get_object, IfModifiedSince=modified, **self.put)
        self.assertEqual(
            b"one", self.body(self.bucket, "k", IfUnmodifiedSince=modified)
        )


def listing(keys, prefix="", delimiter="", after="", limit=PAGE_MAX):
    """What S3 answers: a page of keys and common prefixes in one order, and whether more follow."""
    entries = []
    for key in sorted(keys, key=lambda key: key.encode()):
        if not key.startswith(prefix):
            continue
        end = key.find(delimiter, len(prefix)) if delimiter else -1
        entry = (key, False) if end < 0 else (key[: end + len(delimiter)], True)
        if entry[0].encode() > after.encode() and entry not in entries:
            entries.append(entry)
    page = entries[:limit]
    return (
        [name for name, is_prefix in page if not is_prefix],
        [name for name, is_prefix in page if is_prefix],
        len(entries) > limit > 0,
    )


class Listing(Case):
    KEYS = sorted(
        {f"year/{y}/{m:02}/d{d}" for y in (2024, 2025) for m in (1, 2, 11) for d in range(3)}
        | {"year", "year/", "year.txt", "yearly/x", "a/", "z--1--2", "z--1--3", "zz"}
        | set(ODD_KEYS),
        key=lambda key: key.encode(),
    )
    ASKED = [
        {},
        {"prefix": "year"},
        {"prefix": "year/"},
        {"prefix": "none"},
        {"prefix": "a%"},
        {"prefix": "a+"},
        {"prefix": "\u65e5"},
        {"delimiter": "/"},
        {"prefix": "year/", "delimiter": "/"},
        {"prefix": "year/2024/", "delimiter": "/"},
        {"prefix": "a/", "delimiter": "/"},
        {"prefix": "/", "delimiter": "/"},
        {"prefix": "year/2025/1", "delimiter": "1/"},
        {"prefix": "z", "delimiter": "--"},
        {"delimiter": "%"},
        {"delimiter": " "},
        {"delimiter": "&"},
        {"after": "year/2024/11/d1"},
        {"after": "year/2024/1"},
        {"after": "zzz"},
        {"after": "a b", "prefix": "a"},
        {"after": "year/2024/", "prefix": "year/", "delimiter": "/"},
        {"after": "year/2024/02/d0", "prefix": "year/", "delimiter": "/"},
        {"limit": 1},
        {"limit": 7, "delimiter": "/"},
        {"limit": 3, "prefix": "year/"},
        {"limit": 1000, "prefix": "year/"},
        {"limit": 5000},
        {"limit": 0},
    ]

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.bucket = cls.new_bucket()
        for key in cls.KEYS:
            cls.s3.put_object(Bucket=cls.bucket, Key=key, Body=key.encode())

    def asked(self, after_name, prefix="", delimiter="", after="", limit=None):
        arguments = {
            "Prefix": prefix,
            "Delimiter": delimiter,
            after_name: after,
        }
        arguments = {name: value for name, value in arguments.items() if value}
        if limit is not None:
            arguments["MaxKeys"] = limit
        return {"Bucket": self.bucket, **arguments}

    @staticmethod
    def found(answer):
        return (
            [entry["Key"] for entry in answer.get("Contents", [])],
            [entry["Prefix"] for entry in answer.get("CommonPrefixes", [])],
            answer["IsTruncated"],
        )

    def test_first_page_of_both_versions_is_as_the_model_says(self):
        for asked in self.ASKED:
            with self.subTest(version=1, asked=asked):
                answer = self.s3.list_objects(**self.asked("Marker", **asked))
                self.assertEqual(listing(self.KEYS, **asked), self.found(answer))
            with self.subTest(version=2, asked=asked):
                answer = self.s3.list_objects_v2(**self.asked("StartAfter", **asked))
                self.assertEqual(listing(self.KEYS, **asked), self.found(answer))
                count = len(answer.get("Contents", [])) + len(answer.get("CommonPrefixes", []))
                self.assertEqual(count, answer["KeyCount"])

    def test_pages_of_both_versions_have_each_name_once(self):
        for version, after_name in [("list_objects", "Marker"), ("list_objects_v2", "StartAfter")]:
            for asked in self.ASKED:
                if "limit" in asked:
                    continue
                for size in [1, 4]:
                    with self.subTest(version=version, asked=asked, size=size):
                        pages = self.s3.get_paginator(version).paginate(
                            **self.asked(after_name, **asked),
                            PaginationConfig={"PageSize": size},
                        )
                        keys, prefixes = [], []
                        for page in pages:
                            found = self.found(page)
                            self.assertLessEqual(len(found[0]) + len(found[1]), size)
                            keys += found[0]
                            prefixes += found[1]
                        self.assertEqual(listing(self.KEYS, **asked)[:2], (keys, prefixes))

    def test_entry_has_the_objects_facts(self):
        answer = self.s3.list_objects_v2(
            Bucket=self.bucket, Prefix="year/2024/01/d1", FetchOwner=True
        )
        (entry,) = answer["Contents"]
        head = self.s3.head_object(Bucket=self.bucket, Key="year/2024/01/d1")
        self.assertEqual(len("year/2024/01/d1"), entry["Size"])
        self.assertEqual(head["ETag"], entry["ETag"])
        self.assertEqual("STANDARD", entry["StorageClass"])
        self.assertEqual(["CRC32"], entry["ChecksumAlgorithm"])
        seconds = (entry["LastModified"] - head["LastModified"]).total_seconds()
        self.assertTrue(0 <= seconds < 1, seconds)
        self.assertTrue(entry["Owner"]["ID"])

    def test_wrong_argument_is_refused(self):
        for arguments in [
            {"MaxKeys": -1},
            {"ContinuationToken": "no token"},
            {"EncodingType": "base64"},
        ]:
            with self.subTest(arguments=arguments):
                self.refused(
                    "InvalidArgument", 400, self.s3.list_objects_v2, Bucket=self.bucket, **arguments
                )

    def test_more_than_1000_objects_are_listed_in_pages_and_deleted_in_bulk(self):
        bucket = self.new_bucket()
        keys = [f"k{number:04}" for number in range(PAGE_MAX + 5)]
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda key: self.s3.put_object(Bucket=bucket, Key=key, Body=b""), keys))
        page = self.s3.list_objects_v2(Bucket=bucket)
        self.assertEqual((PAGE_MAX, True), (page["KeyCount"], page["IsTruncated"]))
        self.assertEqual(keys, self.keys(bucket))
        objects = [{"Key": key} for key in keys]
        self.refused(
            "MalformedXML", 400, self.s3.delete_objects, Bucket=bucket, Delete={"Objects": objects}
        )
        self.assertEqual(keys, self.keys(bucket))
        answer = self.s3.delete_objects(Bucket=bucket, Delete={"Objects": objects[:PAGE_MAX]})
        self.assertEqual(keys[:PAGE_MAX], [entry["Key"] for entry in answer["Deleted"]])
        self.assertEqual(keys[PAGE_MAX:], self.keys(bucket))


class Deletes(Case):
    def test_deleted_object_is_gone_and_its_deletion_repeatable(self):
        bucket = self.new_bucket()
        self.s3.put_object(Bucket=bucket, Key="k", Body=b"x")
        for _ in range(2):
            answer = self.s3.delete_object(Bucket=bucket, Key="k")
            self.assertEqual(204, answer["ResponseMetadata"]["HTTPStatusCode"])
            self.refused("NoSuchKey", 404, self.s3.get_object, Bucket=bucket, Key="k")
            self.assertEqual([], self.keys(bucket))

    def test_bulk_delete_of_odd_and_missing_keys_names_each(self):
        bucket = self.new_bucket()
        for key in ODD_KEYS + ["kept"]:
            self.s3.put_object(Bucket=bucket, Key=key, Body=b"x")
        asked = ODD_KEYS + ["missing"]
        answer = self.s3.delete_objects(
            Bucket=bucket, Delete={"Objects": [{"Key": key} for key in asked]}
        )
        self.assertNotIn("Errors", answer)
        self.assertEqual(asked, [entry["Key"] for entry in answer["Deleted"]])
        self.assertEqual(["kept"], self.keys(bucket))

    def test_quiet_bulk_delete_names_errors_only(self):
        bucket = self.new_bucket()
        for key in ["a", "b"]:
            self.s3.put_object(Bucket=bucket, Key=key, Body=b"x")
        objects = [{"Key": "a"}, {"Key": "b", "ETag": md5(b"other")}]
        answer = self.s3.delete_objects(Bucket=bucket, Delete={"Objects": objects, "Quiet": True})
        self.assertNotIn("Deleted", answer)
        errors = [(entry["Key"], entry["Code"]) for entry in answer["Errors"]]
        self.assertEqual([("b", "PreconditionFailed")], errors)
        self.assertEqual(["b"], self.keys(bucket))


class Checksums(Case):
    def setUp(self):
        self.bucket = self.new_bucket()
        self.put = {"Bucket": self.bucket, "Key": "k"}

    def stored(self):
        """The object's checksums, by name."""
        head = self.s3.head_object(ChecksumMode="ENABLED", **self.put)
        names = [name for name in head if name.startswith("Checksum") and name != "ChecksumType"]
        return {name.removeprefix("Checksum"): head[name] for name in names}

    def test_checksum_by_default_is_kept_and_verified(self):
        body = body_of(100_000)
        put = self.s3.put_object(Body=body, **self.put)
        expected = base64_of(CHECKSUMS["CRC32"](body))
        self.assertEqual(expected, put["ChecksumCRC32"])
        self.assertEqual("FULL_OBJECT", put["ChecksumType"])
        self.assertEqual({"CRC32": expected}, self.stored())
        got = self.s3.get_object(**self.put)
        # boto3 compares it while it reads.
        self.assertEqual(expected, got["ChecksumCRC32"])
        self.assertTrue(got["Body"].read() == body)

    def test_checksum_that_boto3_computes_is_kept(self):
        for name in COMPUTED:
            for size in [0, 600, 3_000_000]:
                with self.subTest(name=name, size=size):
                    body = body_of(size)
                    self.s3.put_object(Body=body, ChecksumAlgorithm=name, **self.put)
                    self.assertEqual({name: base64_of(CHECKSUMS[name](body))}, self.stored())
                    self.assertTrue(self.body(self.bucket, "k") == body)

    def test_checksum_that_is_given_is_kept(self):
        body = body_of(5000)
        for name, value_of in CHECKSUMS.items():
            with self.subTest(name=name):
                value = base64_of(value_of(body))
                put = self.s3.put_object(Body=body, **{f"Checksum{name}": value}, **self.put)
                self.assertEqual(value, put[f"Checksum{name}"])
                self.assertEqual({name: value}, self.stored())

    def test_wrong_checksum_stores_nothing(self):
        for name, value_of in CHECKSUMS.items():
            with self.subTest(name=name):
                wrong = {f"Checksum{name}": base64_of(value_of(b"other"))}
                self.refused("BadDigest", 400, self.s3.put_object, Body=b"x", **wrong, **self.put)
                self.assertEqual([], self.keys(self.bucket))

    def test_malformed_checksum_stores_nothing(self):
        for name in CHECKSUMS:
            with self.subTest(name=name):
                wrong = {f"Checksum{name}": "AAA="}
                put = {"Body": b"x", **wrong, **self.put}
                self.refused("InvalidRequest", 400, self.s3.put_object, **put)
                self.assertEqual([], self.keys(self.bucket))

    def test_md5_that_is_right_is_taken_a_wrong_one_stores_nothing(self):
        for body in [b"x", body_of(2_000_000)]:
            right = base64_of(hashlib.md5(body).digest())
            wrong = base64_of(hashlib.md5(b"other").digest())
            put = {"Body": body, **self.put}
            self.refused("BadDigest", 400, self.s3.put_object, ContentMD5=wrong, **put)
            self.assertEqual([], self.keys(self.bucket))
            for invalid in ["!", "AAAA", "d41d8cd98f00b204e9800998ecf8427e"]:
                self.refused("InvalidDigest", 400, self.s3.put_object, ContentMD5=invalid, **put)
            self.assertEqual([], self.keys(self.bucket))
            self.s3.put_object(ContentMD5=right, **put)
            self.assertTrue(self.body(self.bucket, "k") == body)
            self.s3.delete_object(**self.put)

    def test_wrong_checksum_leaves_the_object_that_was_there(self):
        self.s3.put_object(Body=b"one", **self.put)
        wrong = base64_of(hashlib.md5(b"other").digest())
        put = {"Body": b"two", "ContentMD5": wrong, **self.put}
        self.refused("BadDigest", 400, self.s3.put_object, **put)
        self.assertEqual(b"one", self.body(self.bucket, "k"))

    def test_object_without_a_checksum_gets_the_servers(self):
        body = body_of(5000)
        older = client(request_checksum_calculation="when_required")
        older.put_object(Body=body, **self.put)
        self.assertEqual({"CRC64NVME": base64_of(CHECKSUMS["CRC64NVME"](body))}, self.stored())
        older.delete_objects(Bucket=self.bucket, Delete={"Objects": [{"Key": "k"}]})
        self.assertEqual([], self.keys(self.bucket))

    def test_body_that_is_not_what_was_signed_stores_nothing(self):
        signed = client(s3={"payload_signing_enabled": True})

        def change(request, **_):
            request.body = b"other"

        signed.meta.events.register("before-send.s3.PutObject", change)
        # As large as what was signed, and without a checksum beside the signature's.
        put = {"Body": b"tothe", **self.put}
        self.refused("XAmzContentSHA256Mismatch", 400, signed.put_object, **put)
        self.assertEqual([], self.keys(self.bucket))


class Signatures(Case):
    def setUp(self):
        self.bucket = self.new_bucket()
        self.put = {"Bucket": self.bucket, "Key": "k"}
        self.s3.put_object(Body=b"x", **self.put)

    def refused_all(self, code, s3):
        """Every call is refused, before and after the bucket is found."""
        self.refused(code, 403, s3.list_buckets)
        self.refused(code, 403, s3.list_objects_v2, Bucket=self.bucket)
        self.refused(code, 403, s3.get_object, **self.put)
        self.refused(code, 403, s3.put_object, Body=b"y", **self.put)
        self.refused(code, 403, s3.put_object, Body=body_of(200_000), **self.put)
        self.refused(code, 403, s3.delete_object, **self.put)
        delete = {"Objects": [{"Key": "k"}]}
        self.refused(code, 403, s3.delete_objects, Bucket=self.bucket, Delete=delete)
        self.refused(code, 403, s3.delete_bucket, Bucket=self.bucket)
        self.refused(code, 403, s3.create_bucket, Bucket=self.bucket + "-new")
        self.assertEqual(b"x", self.body(self.bucket, "k"))

    def test_wrong_secret_is_refused(self):
        self.refused_all("SignatureDoesNotMatch", client(secret_key="A" * 40))

    def test_unknown_key_is_refused(self):
        self.refused_all("InvalidAccessKeyId", client(access_key="CRAAAAAAAAAAAAAAAAAA"))

    def test_anonymous_request_is_refused(self):
        self.refused_all("AccessDenied", client(signature_version=botocore.UNSIGNED))

    def test_request_of_another_region_is_served(self):
        for region in ["eu-central-1", "ap-south-1"]:
            s3 = client(region=region)
            s3.put_object(Body=region.encode(), **self.put)
            self.assertEqual(region.encode(), s3.get_object(**self.put)["Body"].read())

    def test_clock_that_is_wrong_by_an_hour_is_refused(self):
        for hours in [-1, 1]:
            now = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(hours=hours)
            clock = lambda **_: now.replace(tzinfo=None)  # noqa: E731
            with (
                self.subTest(hours=hours),
                unittest.mock.patch("botocore.auth.get_current_datetime", clock),
            ):
                self.refused("RequestTimeTooSkewed", 403, self.s3.get_object, **self.put)

    def test_another_owner_that_is_expected_is_refused(self):
        self.refused(
            "AccessDenied", 403, self.s3.get_object, ExpectedBucketOwner="0" * 12, **self.put
        )


class Presigned(Case):
    def setUp(self):
        self.s3 = client(signature_version="s3v4")
        self.bucket = self.new_bucket()

    def url(self, call, key, seconds=60, **arguments):
        arguments = {"Bucket": self.bucket, "Key": key, **arguments}
        return self.s3.generate_presigned_url(call, Params=arguments, ExpiresIn=seconds)

    def fetch(self, url, method="GET", body=None, headers=None):
        """Status, headers and body of an answer, without any client of S3."""
        request = urllib.request.Request(url, data=body, method=method, headers=headers or {})
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return answer.status, answer.headers, answer.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.headers, error.read()

    def test_presigned_get_of_odd_keys_is_served(self):
        for key in ODD_KEYS:
            with self.subTest(key=key):
                self.s3.put_object(Bucket=self.bucket, Key=key, Body=key.encode())
                status, _, body = self.fetch(self.url("get_object", key))
                self.assertEqual((200, key.encode()), (status, body))

    def test_presigned_get_serves_ranges_and_other_headers(self):
        self.s3.put_object(Bucket=self.bucket, Key="k", Body=b"0123456789")
        url = self.url("get_object", "k", ResponseContentType="text/x-own")
        status, headers, body = self.fetch(url, headers={"Range": "bytes=2-4"})
        self.assertEqual((206, b"234"), (status, body))
        self.assertEqual("text/x-own", headers["Content-Type"])
        status, headers, body = self.fetch(self.url("head_object", "k"), method="HEAD")
        self.assertEqual((200, "10", b""), (status, headers["Content-Length"], body))

    def test_presigned_put_stores(self):
        body = body_of(200_000)
        url = self.url("put_object", "k", ContentType="text/x-own")
        headers = {"Content-Type": "text/x-own"}
        status, _, text = self.fetch(url, "PUT", body, headers)
        self.assertEqual(200, status, text)
        self.assertTrue(self.body(self.bucket, "k") == body)

    def test_presigned_url_that_was_changed_is_refused(self):
        for key in ["k", "other"]:
            self.s3.put_object(Bucket=self.bucket, Key=key, Body=b"x")
        url = self.url("get_object", "k")
        for changed, method in [
            (url.replace("/k?", "/other?"), "GET"),
            (url.replace("X-Amz-Expires=60", "X-Amz-Expires=6000"), "GET"),
            (url + "&response-content-type=text%2Fhtml", "GET"),
            (url, "PUT"),
            (url, "DELETE"),
        ]:
            with self.subTest(method=method, changed=changed):
                body = b"y" if method == "PUT" else None
                status, _, text = self.fetch(changed, method, body)
                self.assertEqual(403, status, text)
                self.assertIn(b"<Code>SignatureDoesNotMatch</Code>", text)
        self.assertEqual(b"x", self.body(self.bucket, "k"))

    def test_presigned_url_that_is_over_or_too_long_is_refused(self):
        self.s3.put_object(Bucket=self.bucket, Key="k", Body=b"x")
        url = self.url("get_object", "k", seconds=1)
        time.sleep(2.1)
        status, _, text = self.fetch(url)
        self.assertEqual(403, status, text)
        self.assertIn(b"<Code>AccessDenied</Code>", text)
        status, _, text = self.fetch(self.url("get_object", "k", seconds=7 * 86_400 + 1))
        self.assertEqual(400, status, text)
        self.assertIn(b"<Code>AuthorizationQueryParametersError</Code>", text)


    def test_presigned_url_of_version_2_is_refused(self):
        # boto3 makes it by default in the first region.
        older = client(signature_version="s3")
        params = {"Bucket": self.bucket, "Key": "k"}
        url = older.generate_presigned_url("get_object", Params=params, ExpiresIn=60)
        self.assertIn("AWSAccessKeyId=", url)
        status, _, text = self.fetch(url)
        self.assertEqual((400, True), (status, b"<Code>InvalidRequest</Code>" in text), text)


class Connections(Case):
    """Connections that clients keep for their next request."""

    def test_empty_body_that_waits_is_asked_for_or_its_connection_ends(self):
        # The aws command takes a connection wrongly for its next request when the answer before
        # came without "100 Continue": it then waits for the answer until its time is over.
        bucket = self.new_bucket()
        seen = []
        wait = botocore.awsrequest.AWSConnection._is_100_continue_status

        def see(connection, line):
            seen.append(line)
            return wait(connection, line)

        method = "botocore.awsrequest.AWSConnection._is_100_continue_status"
        with unittest.mock.patch(method, see):
            put = self.s3.put_object(Bucket=bucket, Key="k", Body=io.BytesIO(b""))
        headers = put["ResponseMetadata"]["HTTPHeaders"]
        is_asked_for = [line.split()[1] for line in seen] == [b"100"]
        self.assertTrue(is_asked_for or headers.get("connection") == "close", (seen, headers))

    def test_connection_that_ends_after_a_refused_put_is_announced_as_such(self):
        # boto3 waits for "100 Continue" before it sends a body. When a refusal comes instead, it
        # takes the same connection for its next request, unless the answer has "close".
        place = urllib.parse.urlsplit(server.server.access["endpoint"])
        bucket = self.new_bucket()
        head = f"PUT /{bucket}/k HTTP/1.1\r\nHost: {place.netloc}\r\nContent-Length: 1\r\n"
        with socket.create_connection((place.hostname, place.port), timeout=30) as connection:
            connection.sendall(f"{head}Expect: 100-continue\r\n\r\n".encode())
            answer = connection.recv(65536)
            self.assertIn(b" 403 ", answer)
            if b"\r\nconnection: close\r\n" in answer.lower():
                return
            connection.settimeout(1)
            with self.assertRaises(TimeoutError, msg="it is closed without an announcement"):
                connection.recv(1)


class VirtualHosts(Case):
    """Names below localhost are resolved here: not every machine does."""

    def test_bucket_in_the_hosts_name_is_found(self):
        bucket = self.new_bucket()
        port = urllib.parse.urlsplit(server.server.access["endpoint"]).port
        resolve, hosts = socket.getaddrinfo, set()

        def resolve_localhost(host, *arguments, **named):
            name = host.decode() if isinstance(host, bytes) else host
            if name == "localhost" or name.endswith(".localhost"):
                hosts.add(name)
                host = "127.0.0.1"
            return resolve(host, *arguments, **named)

        with unittest.mock.patch("socket.getaddrinfo", resolve_localhost):
            s3 = client(f"http://localhost:{port}", s3={"addressing_style": "virtual"})
            other = bucket + ".dotted"
            s3.create_bucket(Bucket=other)
            for key in ODD_KEYS + ["_craton/ready"]:
                with self.subTest(key=key):
                    s3.put_object(Bucket=bucket, Key=key, Body=key.encode())
                    got = s3.get_object(Bucket=bucket, Key=key)["Body"].read()
                    self.assertEqual(key.encode(), got)
            pages = s3.get_paginator("list_objects_v2").paginate(Bucket=bucket)
            listed = [entry["Key"] for page in pages for entry in page["Contents"]]
            self.assertEqual(set(ODD_KEYS + ["_craton/ready"]), set(listed))
            s3.put_object(Bucket=other, Key="k", Body=b"x")
            self.assertEqual(b"x", s3.get_object(Bucket=other, Key="k")["Body"].read())
            names = [entry["Name"] for entry in s3.list_buckets()["Buckets"]]
            self.assertLessEqual({bucket, other}, set(names))
            s3.delete_object(Bucket=other, Key="k")
            s3.delete_bucket(Bucket=other)
        self.assertIn(f"{bucket}.localhost", hosts)
        # By the path it is the same bucket.
        self.assertEqual(set(listed), set(self.keys(bucket)))
