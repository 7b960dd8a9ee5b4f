"""The server is killed or stopped, and started again on what it stored. These tests run last."""

import threading
import time

from botocore.exceptions import BotoCoreError, ClientError

import cases
import server
from cases import ODD_KEYS, SIZES, Case, body_of

# Bytes of the objects that are put while the server is killed; some are small, some in files.
LOAD_SIZES = [100, 700_000, 40_000]
# Puts before the kill.
LOAD_PUTS = 30
# Seconds for them.
LOAD_S_MAX = 30


class Restart(Case):
    def fill(self, bucket):
        """Objects of all sizes and odd keys; answers what a reader must find."""
        stored = {}
        for key, body in [(f"size-{size}", body_of(size)) for size in SIZES] + [
            (key, key.encode()) for key in ODD_KEYS
        ]:
            self.s3.put_object(Bucket=bucket, Key=key, Body=body, Metadata={"len": str(len(body))})
            stored[key] = body
        for size in SIZES:
            self.s3.put_object(
                Bucket=bucket,
                Key=f"encrypted-{size}",
                Body=body_of(size),
                Metadata={"len": str(size)},
                ServerSideEncryption="AES256",
            )
            stored[f"encrypted-{size}"] = body_of(size)
        # The last put of a key counts, and what was deleted stays so.
        self.s3.put_object(Bucket=bucket, Key="size-600", Body=b"later", Metadata={"len": "5"})
        stored["size-600"] = b"later"
        self.s3.put_object(Bucket=bucket, Key="deleted", Body=b"x")
        self.s3.delete_object(Bucket=bucket, Key="deleted")
        return stored

    def check(self, bucket, stored):
        self.assertEqual(sorted(stored, key=lambda key: key.encode()), self.keys(bucket))
        for key, body in stored.items():
            got = self.s3.get_object(Bucket=bucket, Key=key)
            self.assertTrue(got["Body"].read() == body, f"{key!r} differs")
            self.assertEqual({"len": str(len(body))}, got["Metadata"])

    def restarted(self):
        """Starts the server again; endpoint and keys are the same."""
        before = server.server.access
        server.server.start()
        self.assertEqual(before, server.server.access)

    def setUp(self):
        # A client whose connections are of this life of the server.
        type(self).s3 = cases.client()
        if server.server.process is None:
            server.server.start()

    def test_server_that_is_killed_has_all_objects_after_its_start(self):
        bucket, gone = self.new_bucket(), self.new_bucket()
        self.s3.delete_bucket(Bucket=gone)
        stored = self.fill(bucket)
        server.server.kill()
        self.restarted()
        self.check(bucket, stored)
        self.refused("404", 404, self.s3.head_bucket, Bucket=gone)
        # It works on.
        self.s3.put_object(Bucket=bucket, Key="new", Body=b"x", Metadata={"len": "1"})
        self.check(bucket, {**stored, "new": b"x"})

    def test_server_that_is_killed_under_puts_has_each_that_it_acknowledged(self):
        bucket = self.new_bucket()
        sent, acknowledged, lock = {}, [], threading.Lock()

        def put(number):
            s3 = cases.client()
            for turn in range(10_000):
                key = f"{number}-{turn}"
                body = body_of(LOAD_SIZES[turn % len(LOAD_SIZES)], turn)
                with lock:
                    sent[key] = body
                try:
                    s3.put_object(Bucket=bucket, Key=key, Body=body)
                except (BotoCoreError, ClientError):
                    return
                with lock:
                    acknowledged.append(key)

        threads = [threading.Thread(target=put, args=(number,)) for number in range(4)]
        [thread.start() for thread in threads]
        end = time.monotonic() + LOAD_S_MAX
        while len(acknowledged) < LOAD_PUTS and time.monotonic() < end:
            time.sleep(0.005)
        server.server.kill()
        [thread.join() for thread in threads]
        self.restarted()
        self.assertGreaterEqual(len(acknowledged), LOAD_PUTS)
        found = self.keys(bucket)
        self.assertLessEqual(set(acknowledged), set(found))
        # One that was not acknowledged is whole or absent.
        self.assertLessEqual(set(found), set(sent))
        for key in found:
            self.assertTrue(self.body(bucket, key) == sent[key], f"{key} differs")

    def test_upload_that_is_under_way_when_the_server_is_killed_goes_on(self):
        bucket = self.new_bucket()
        at = {"Bucket": bucket, "Key": "k"}
        first, last = body_of(5 << 20), body_of(1000)
        done, going, aborted = (self.s3.create_multipart_upload(**at)["UploadId"] for _ in range(3))

        def send(upload, number, body):
            part = self.s3.upload_part(UploadId=upload, PartNumber=number, Body=body, **at)
            return {"PartNumber": number, "ETag": part["ETag"]}

        def complete(upload, parts):
            parts = {"Parts": parts}
            return self.s3.complete_multipart_upload(UploadId=upload, MultipartUpload=parts, **at)

        parts = [send(done, 1, last)]
        made = complete(done, parts)
        begun = [send(going, 4, first), send(going, 7, b"sent again below")]
        send(aborted, 1, last)
        self.s3.abort_multipart_upload(UploadId=aborted, **at)
        server.server.kill()
        self.restarted()
        type(self).s3 = cases.client()
        self.assertTrue(self.body(bucket, "k") == last)
        # An answer that was lost is asked for again.
        self.assertEqual(made["ETag"], complete(done, parts)["ETag"])
        listed = self.s3.list_parts(UploadId=going, **at)["Parts"]
        self.assertEqual(begun, [{name: part[name] for name in begun[0]} for part in listed])
        uploads = self.s3.list_multipart_uploads(Bucket=bucket)["Uploads"]
        self.assertEqual([going], [upload["UploadId"] for upload in uploads])
        complete(going, [begun[0], send(going, 7, last)])
        self.assertTrue(self.body(bucket, "k") == first + last, "the bytes differ")
        self.assertTrue(self.body(bucket, "k", PartNumber=7) == last)
        self.refused("NoSuchUpload", 404, self.s3.list_parts, UploadId=aborted, **at)

    def test_server_that_is_stopped_ends_with_code_0_and_has_all_objects_after_its_start(self):
        bucket = self.new_bucket()
        stored = self.fill(bucket)
        self.assertEqual(0, server.server.stop())
        self.restarted()
        self.check(bucket, stored)


