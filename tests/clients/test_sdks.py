"""All questions to all tools and SDKs, those too that npm, Go and Maven install, and 100 MiB with each:
'make test-long' runs it (README.md)."""

import json
import tempfile
import unittest
import urllib.request
import uuid
from pathlib import Path

import sdks
import server
import test_tls
import test_tools
import tools
from cases import Case, body_of, md5

LARGE = 100 << 20


def setUpModule():
    test_tools.setUpModule()


class Installed:
    """Of what sdks.py makes: `made` is its name there."""

    made = None

    @classmethod
    def setUpClass(cls):
        if reason := sdks.make(cls.made):
            raise unittest.SkipTest(f"it is not there: {reason}")
        super().setUpClass()


class OfWorkers(Installed, test_tools.Questions, test_tools.Ranges):
    sizes = (0, 600, test_tools.PARTED, LARGE)

    def test_create_does_not_replace(self):
        self.tool.call("create", bucket=self.bucket, key="k", text="first")
        with self.assertRaisesRegex(tools.Failed, "PreconditionFailed"):
            self.tool.call("create", bucket=self.bucket, key="k", text="second")
        self.assertEqual(b"first", self.body(self.bucket, "k"))

    def test_virtual_hosts_are_reached(self):
        port = server.server.access["endpoint"].rsplit(":", 1)[1]
        host = self.opened(endpoint=f"http://localhost:{port}")
        host.put(self.bucket, "k", self.planted(b"hosted"))
        self.assertEqual(b"hosted", self.body(self.bucket, "k"))
        self.assertEqual(["k"], host.list(self.bucket, ""))


class OfSdks(OfWorkers):
    def test_checksums_are_sent_by_default(self):
        for size in (600, test_tools.PARTED):
            self.tool.put(self.bucket, "k", self.planted(body_of(size)))
            head = self.s3.head_object(Bucket=self.bucket, Key="k", ChecksumMode="ENABLED")
            # Where none is sent, Craton computes another one.
            self.assertIn("ChecksumCRC32", head)

    def test_presigned_url_reads(self):
        self.s3.put_object(Bucket=self.bucket, Key="a b+c", Body=b"signed")
        url = self.tool.call("presign", bucket=self.bucket, key="a b+c")
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(url, timeout=10) as answer:
            self.assertEqual(b"signed", answer.read())
        port = server.server.access["endpoint"].rsplit(":", 1)[1]
        host = self.opened(endpoint=f"http://localhost:{port}")
        url = host.call("presign", bucket=self.bucket, key="k")
        self.assertIn(f"//{self.bucket}.localhost:{port}/k?", url)


class JavaScript(OfSdks, Case):
    kind, made = tools.JavaScript, "js"

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
    kind, made = tools.Go, "go"


class Java(OfSdks, Case):
    kind, made = tools.Java, "java"

    def test_unknown_length_is_sent_in_parts(self):
        for size in (0, 600, test_tools.PARTED):
            with self.subTest(size=size):
                path = self.planted(body_of(size))
                self.tool.call("stream", bucket=self.bucket, key="k", path=str(path))
                self.assertEqual(md5(body_of(size)), self.md5_of("k"))

    def test_replace_needs_the_tag_that_is_there(self):
        first = self.s3.put_object(Bucket=self.bucket, Key="k", Body=b"first")["ETag"]
        ask = {"bucket": self.bucket, "key": "k", "etag": first}
        second = self.tool.call("replace", **ask, text="second")
        self.assertNotEqual(first, second)
        with self.assertRaisesRegex(tools.Failed, "PreconditionFailed"):
            self.tool.call("replace", **ask, text="third")
        self.assertEqual(b"second", self.body(self.bucket, "k"))

    def test_unsigned_put_is_taken_where_all_may_put(self):
        def put(body):
            path = str(self.planted(body))
            self.tool.call("put_unsigned", bucket=self.bucket, key="k", path=path)

        with self.assertRaisesRegex(tools.Failed, "AccessDenied"):
            put(b"not yet")
        allow = {
            "Effect": "Allow",
            "Principal": "*",
            "Action": "s3:PutObject",
            "Resource": f"arn:aws:s3:::{self.bucket}/*",
        }
        policy = json.dumps({"Version": "2012-10-17", "Statement": [allow]})
        self.s3.delete_public_access_block(Bucket=self.bucket)
        self.s3.put_bucket_policy(Bucket=self.bucket, Policy=policy)
        for size in (0, 600, 300_000):
            with self.subTest(size=size):
                put(body_of(size))
                self.assertEqual(md5(body_of(size)), self.md5_of("k"))
                head = self.s3.head_object(Bucket=self.bucket, Key="k", ChecksumMode="ENABLED")
                self.assertIn("ChecksumCRC32", head)
                self.assertNotIn("ContentEncoding", head)

    def test_copies_are_made_whole_and_in_parts(self):
        for size in (600, 3 * test_tools.PARTED):
            with self.subTest(size=size):
                self.s3.put_object(Bucket=self.bucket, Key="from", Body=body_of(size))
                self.tool.call("copy", bucket=self.bucket, key="from", to="a b+c")
                self.assertEqual(md5(body_of(size)), self.md5_of("a b+c"))
                tag = self.s3.head_object(Bucket=self.bucket, Key="a b+c")["ETag"]
                self.assertEqual(size > test_tools.PARTED, "-" in tag, tag)

    def test_directories_are_sent_and_come_back(self):
        sent, back = self.folder / "tree", self.folder / "returned"
        bodies = {f"{n % 3}/{n}": body_of(n << 10, n) for n in range(40)}
        for name, body in bodies.items():
            (sent / name).parent.mkdir(parents=True, exist_ok=True)
            (sent / name).write_bytes(body)
        ask = {"bucket": self.bucket, "key": "tree/"}
        self.assertEqual([], self.tool.call("put_directory", **ask, path=str(sent)))
        self.assertEqual(sorted(f"tree/{name}" for name in bodies), self.keys(self.bucket))
        self.assertEqual([], self.tool.call("get_directory", **ask, path=str(back)))
        found = [path for path in back.rglob("*") if path.is_file()]
        self.assertEqual(
            bodies, {str(path.relative_to(back)): path.read_bytes() for path in found}
        )


class Hadoop(OfWorkers, Case):
    kind, made = tools.Hadoop, "hadoop"
    # It takes keys for paths, but those that begin with "..".
    unsent = test_tools.NO_PATHS - {"..", "../above"}
    leaves_folders = True

    def test_ranges_are_read_side_by_side(self):
        body = body_of(test_tools.PARTED)
        self.s3.put_object(Bucket=self.bucket, Key="k", Body=body)
        # The first two are near enough for one request.
        ranges = [(0, 99), (200, 70_000), (5 << 20, 6 << 20), (len(body) - 1, len(body) - 1)]
        wanted = [md5(body[first : last + 1]) for first, last in ranges]
        ask = {"bucket": self.bucket, "key": "k", "ranges": ranges}
        for way in [{}, {"input": "classic"}]:
            found = self.tool.call("vectored", **ask, **way)
            self.assertEqual(wanted, [md5(bytes.fromhex(part)) for part in found], way)

    def test_directory_is_renamed_and_removed(self):
        bodies = {f"{n % 3}/{n} \u00fc": body_of(n << 10, n) for n in range(40)}
        bodies["large"] = body_of(test_tools.PARTED)
        for name, body in bodies.items():
            self.tool.put(self.bucket, f"old/{name}", self.planted(body))
        ask = {"bucket": self.bucket, "key": "old"}
        self.assertTrue(self.tool.call("rename", **ask, to="whole"))
        tag = self.s3.head_object(Bucket=self.bucket, Key="whole/large")["ETag"]
        self.assertNotIn("-", tag, "it was copied in parts")
        with self.assertRaisesRegex(tools.Failed, "FileNotFoundException"):
            self.tool.call("rename", **ask, to="again")
        ask = {"bucket": self.bucket, "key": "whole", "to": "new", "input": "classic"}
        self.assertTrue(self.tool.call("rename", **ask))
        self.assertEqual(sorted(f"new/{name}" for name in bodies), self.keys(self.bucket))
        for name, body in bodies.items():
            self.assertEqual(md5(body), self.md5_of(f"new/{name}"), name)
        tag = self.s3.head_object(Bucket=self.bucket, Key="new/large")["ETag"]
        self.assertIn("-", tag, "it was not copied in parts")
        self.assertTrue(self.tool.call("remove", bucket=self.bucket, key="new"))
        self.assertEqual([], self.keys(self.bucket))

    def files(self, prefix):
        keys = self.keys(self.bucket, Prefix=prefix)
        return [key for key in keys if key[-1] != "/"]

    def test_jobs_commit_what_they_wrote_and_nothing_else(self):
        for name, text in [("one", "a b a\n"), ("two", "a c\nb\n")]:
            self.s3.put_object(Bucket=self.bucket, Key=f"in/{name}", Body=text.encode())
        self.s3.put_object(Bucket=self.bucket, Key="bad/one", Body=b"a b fail zzz\n")
        for committer in ["magic", "directory", "partitioned"]:
            ask = {"bucket": self.bucket, "committer": committer}
            with self.subTest(committer=committer):
                self.assertTrue(self.tool.call("job", **ask, key="in", to=committer))
                found = self.files(f"{committer}/")
                self.assertEqual(f"{committer}/_SUCCESS", found.pop(0))
                # Behind a part's number some have the job's ID.
                numbers = [part.removeprefix(f"{committer}/part-r-")[:5] for part in found]
                self.assertEqual(["00000", "00001"], numbers)
                lines = b"".join(self.body(self.bucket, part) for part in found).splitlines()
                self.assertEqual([b"a\t3", b"b\t2", b"c\t1"], sorted(lines))
                success = json.loads(self.body(self.bucket, f"{committer}/_SUCCESS"))
                self.assertEqual(committer, success["committer"])
                self.assertEqual([f"/{part}" for part in found], sorted(success["filenames"]))
                # It was an upload, which the end of the job has completed.
                tag = self.s3.head_object(Bucket=self.bucket, Key=found[0])["ETag"]
                self.assertIn("-", tag)
            # The reducer of "a" comes before the one that fails: its upload waits for the job's end.
            with self.subTest(committer=committer, fails=True):
                to = f"failed-{committer}"
                self.assertFalse(self.tool.call("job", **ask, key="bad", to=to))
                self.assertEqual([], self.files(f"{to}/"))
            uploads = self.s3.list_multipart_uploads(Bucket=self.bucket)
            self.assertEqual([], uploads.get("Uploads", []))


class OverTls(test_tls.Served):
    """All of them against a server whose certificate an authority of the operator has signed."""

    def setUp(self):
        super().setUp()
        test_tls.certificate_of_authority(self.certificates)

    def check(self, made, kind, untrusted):
        if reason := sdks.make(made):
            self.skipTest(f"it is not there: {reason}")
        access = self.up("--s3-tls", self.certificates, "--s3-domain", "s3.localhost")
        port = access["endpoint"].rsplit(":", 1)[1]
        authority = self.certificates / "authority.pem"
        sent, back = self.root / "sent", self.root / "back"
        sent.write_bytes(body_of(test_tools.PARTED))
        # By path style, and by virtual hosts.
        for host in ["127.0.0.1", "s3.localhost"]:
            access["endpoint"] = f"https://{host}:{port}"
            with self.subTest(host=host):
                tool = kind(self.root, authority=authority, **access)
                self.addCleanup(tool.close)
                stranger = kind(self.root, **access)
                self.addCleanup(stranger.close)
                if host == "127.0.0.1":
                    test_tls.client_of(access, authority).create_bucket(Bucket="tls")
                tool.put("tls", host, sent)
                tool.get("tls", host, back)
                self.assertEqual(md5(sent.read_bytes()), md5(back.read_bytes()))
                self.assertIn(host, tool.list("tls", ""))
                with self.assertRaisesRegex(tools.Failed, untrusted):
                    stranger.put("tls", "k", sent)

    def test_java(self):
        self.check("java", tools.Java, "unable to find valid certification path")

    def test_hadoop(self):
        self.check("hadoop", tools.Hadoop, "unable to find valid certification path")

    def test_go(self):
        self.check("go", tools.Go, "certificate signed by unknown authority")

    def test_javascript(self):
        self.check("js", tools.JavaScript, "unable to verify the first certificate")


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
