"""All questions to all tools and SDKs, those too that npm and Go install, and 100 MiB with each: 'make
test-long' runs it (README.md)."""

import tempfile
import unittest
import urllib.request
import uuid
from pathlib import Path

import sdks
import server
import test_tools
import tools
from cases import Case, body_of

LARGE = 100 << 20


def setUpModule():
    test_tools.setUpModule()
    if reason := sdks.make():
        raise unittest.SkipTest(f"the SDKs are not there: {reason}")


class OfSdks(test_tools.Questions, test_tools.Ranges):
    sizes = (0, 600, test_tools.PARTED, LARGE)

    def test_create_does_not_replace(self):
        self.tool.call("create", bucket=self.bucket, key="k", text="first")
        with self.assertRaisesRegex(tools.Failed, "PreconditionFailed"):
            self.tool.call("create", bucket=self.bucket, key="k", text="second")
        self.assertEqual(b"first", self.body(self.bucket, "k"))

    def test_presigned_url_reads(self):
        self.s3.put_object(Bucket=self.bucket, Key="a b+c", Body=b"signed")
        url = self.tool.call("presign", bucket=self.bucket, key="a b+c")
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(url, timeout=10) as answer:
            self.assertEqual(b"signed", answer.read())

    def test_virtual_hosts_are_reached(self):
        port = server.server.access["endpoint"].rsplit(":", 1)[1]
        host = self.opened(endpoint=f"http://localhost:{port}")
        host.put(self.bucket, "k", self.planted(b"hosted"))
        self.assertEqual(b"hosted", self.body(self.bucket, "k"))
        self.assertEqual(["k"], host.list(self.bucket, ""))


class JavaScript(OfSdks, Case):
    kind = tools.JavaScript

    def test_form_puts(self):
        form = self.tool.call("form", bucket=self.bucket, key="form")
        edge = uuid.uuid4().hex
        fields = [*form["fields"].items(), ("file", "by a form")]
        body = "".join(
            f'--{edge}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'
            for name, value in fields
        )
        kind = {"Content-Type": f"multipart/form-data; boundary={edge}"}
        request = urllib.request.Request(form["url"], f"{body}--{edge}--\r\n".encode(), kind)
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request, timeout=10) as answer:
            self.assertEqual(204, answer.status)
        self.assertEqual(b"by a form", self.body(self.bucket, "form"))


class Go(OfSdks, Case):
    kind = tools.Go


class S5cmd(test_tools.S5cmd, Case):
    pass


class S3cmd(test_tools.S3cmd, Case):
    pass


class Rclone(test_tools.Rclone, Case):
    pass


class S3fs(test_tools.S3fs, Case):
    pass


class Pyarrow(test_tools.Pyarrow, Case):
    pass


class Large(Case):
    """100 MiB with the tools of test_tools, and with boto3, all read back with boto3."""

    def test_100_mib_of_each_tool_come_back(self):
        body = body_of(LARGE)
        kinds = [tools.S5cmd, tools.S3cmd, tools.Rclone, tools.S3fs, tools.Pyarrow]
        with tempfile.TemporaryDirectory() as folder:
            sent, back = Path(folder) / "sent", Path(folder) / "back"
            sent.write_bytes(body)
            bucket = self.new_bucket()
            for kind in kinds:
                with self.subTest(kind=kind.__name__):
                    tool = kind(folder)
                    try:
                        tool.put(bucket, kind.__name__, sent)
                        tool.get(bucket, kind.__name__, back)
                    finally:
                        tool.close()
                    self.assertTrue(body == back.read_bytes(), "the bytes differ")
                    head = self.s3.head_object(Bucket=bucket, Key=kind.__name__)
                    self.assertEqual(LARGE, head["ContentLength"])
                    self.assertIn("-", head["ETag"], "it was not sent in parts")


class LargeTables(test_tools.Tables):
    rows = 1_000_000
