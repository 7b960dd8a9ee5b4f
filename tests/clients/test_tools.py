"""Stock tools against the server, those that pip installs: one short test of each, seconds in all.

test_sdks asks each of them, and SDKs that need npm, Go or Maven, all questions that are here, for 'make
test-long'.
"""

import hashlib
import subprocess
import tempfile
from pathlib import Path

import tools
from cases import ODD_KEYS, Case, body_of, md5

# Above it a tool sends parts: the largest of their own sizes, s3cmd's, is 15 MiB.
SINGLE_MAX = 15 << 20
# Above the sizes of the parts of most.
PARTED = 9 << 20
# A key that URLs write in another way, and that all tools send as it is.
ODD_KEY = "a%20b+c d/\u00fc.txt"
# Keys that are no paths of files. Who takes keys for paths does not send them as they are.
NO_PATHS = {".", "..", "../above", "./here", "/", "/first", "a/../b", "a//b", "dir/", "dir//"}


def setUpModule():
    if not (tools.TOOLS / "s3cmd").exists():
        raise RuntimeError("target/clients-tools is not there: run scripts/prepare.sh")


class Questions:
    """What each tool is asked. `kind` is its class in tools.py."""

    kind = None
    # Keys that it does not send as they are given, by its own rules; README.md has the reasons.
    unsent = set()
    # It puts empty keys with a slash at their end, for folders that it has emptied.
    leaves_folders = False
    # What it says when the secret is wrong.
    wrong_secret = "SignatureDoesNotMatch"
    # Sizes that are put and compared.
    sizes = (0, 600, PARTED)

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.bucket = self.new_bucket()
        self.tool = self.opened()

    def opened(self, **changed):
        tool = self.kind(self.folder, **changed)
        self.addCleanup(tool.close)
        return tool

    def planted(self, body):
        path = self.folder / "sent"
        path.write_bytes(body)
        return path

    def test_objects_come_back_as_they_were_sent_and_have_a_checksum(self):
        for size in self.sizes:
            with self.subTest(size=size):
                body, key = body_of(size), f"size/{size}"
                self.tool.put(self.bucket, key, self.planted(body))
                head = self.s3.head_object(Bucket=self.bucket, Key=key, ChecksumMode="ENABLED")
                self.assertEqual(size, head["ContentLength"])
                if size > SINGLE_MAX:
                    self.assertIn("-", head["ETag"], "it was not sent in parts")
                self.assertTrue([name for name in head if name.startswith("Checksum")], head)
                self.assertEqual(md5(body), self.md5_of(key))
                self.tool.get(self.bucket, key, self.folder / "back")
                self.assertEqual(md5(body), md5((self.folder / "back").read_bytes()))
        listed = self.tool.list(self.bucket, "size/")
        self.assertEqual(sorted(f"size/{size}" for size in self.sizes), sorted(listed))

    def md5_of(self, key):
        digest = hashlib.md5()
        for part in self.s3.get_object(Bucket=self.bucket, Key=key)["Body"].iter_chunks(1 << 20):
            digest.update(part)
        return digest.hexdigest()

    def test_odd_keys_are_sent_listed_read_and_removed(self):
        path = self.planted(b"odd")
        keys = [key for key in ODD_KEYS if key not in self.unsent]
        for key in keys:
            with self.subTest(key=key):
                self.tool.put(self.bucket, key, path)
                self.assertEqual(b"odd", self.body(self.bucket, key))
                self.tool.get(self.bucket, key, self.folder / "back")
                self.assertEqual(b"odd", (self.folder / "back").read_bytes())
        self.assertEqual(keys, self.keys(self.bucket))
        self.assertEqual(sorted(keys), sorted(self.tool.list(self.bucket, "")))
        for key in keys:
            self.tool.remove(self.bucket, key)
        left = self.keys(self.bucket)
        self.assertEqual([], [key for key in left if not self.leaves_folders or key[-1] != "/"])

    def test_wrong_secret_and_missing_key_are_named(self):
        with self.assertRaisesRegex(tools.Failed, self.wrong_secret):
            self.opened(secret_key="wrong").put(self.bucket, "k", self.planted(b"x"))
        self.assertEqual([], self.keys(self.bucket))
        with self.assertRaises(tools.Failed):
            self.tool.get(self.bucket, "none", self.folder / "back")


class Ranges:
    """Of the tools that read ranges."""

    def test_ranges_are_read(self):
        body = body_of(PARTED)
        self.s3.put_object(Bucket=self.bucket, Key="k", Body=body)
        middle, end = PARTED // 2, PARTED - 1
        for first, last in [(0, 0), (5, 99), (middle, middle + 70_000), (end, end)]:
            found = self.tool.range(self.bucket, "k", first, last)
            self.assertEqual(md5(body[first : last + 1]), md5(found), (first, last))


class S5cmd(Questions):
    kind = tools.S5cmd
    # A slash at the end is a folder to it, a star or question mark a pattern. It lists lines.
    unsent = {"line\nbreak", "/", "dir/", "dir//", "?query=1&more", ";:@=$,!*()~"}


class S3cmd(Questions):
    kind = tools.S3cmd
    # Behind a slash at the end it puts the file's name. It lists lines.
    unsent = {"line\nbreak", "/", "dir/", "dir//"}


class Rclone(Questions, Ranges):
    kind = tools.Rclone
    # It writes control characters as signs for them.
    unsent = NO_PATHS | {"line\nbreak", "tab\tstop"}
    # It asks by HEAD first, whose answer has no code.
    wrong_secret = "StatusCode: 403"

    def test_bucket_is_copied_with_metadata_as_the_page_on_migration_says(self):
        given = {"Metadata": {"from": "elsewhere"}, "ContentType": "text/x-old"}
        for key, size in [("a/b", 600), ("large", PARTED)]:
            self.s3.put_object(Bucket=self.bucket, Key=key, Body=body_of(size), **given)
        old, new = f"REMOTE:{self.bucket}", f"REMOTE:{self.bucket}-new"
        # Copies within one server would need no reading and writing.
        self.tool.run("copy", "--metadata", "--checksum", "--disable", "copy", old, new)
        self.tool.run("check", "--checksum", old, new)
        for key, size in [("a/b", 600), ("large", PARTED)]:
            found = self.s3.get_object(Bucket=f"{self.bucket}-new", Key=key)
            self.assertEqual(md5(body_of(size)), md5(found["Body"].read()))
            self.assertEqual("text/x-old", found["ContentType"])
            self.assertEqual("elsewhere", found["Metadata"]["from"])


class S3fs(Questions, Ranges):
    kind = tools.S3fs
    unsent = {"/"}
    # It shows messages without their code.
    wrong_secret = "request signature we calculated does not match"


class Pyarrow(Questions, Ranges):
    kind = tools.Pyarrow
    # Its library has dots taken out of a URL that it has signed, and passes over a listed key of spaces.
    unsent = NO_PATHS | {" "}
    leaves_folders = True
    wrong_secret = "SIGNATURE_DOES_NOT_MATCH"


class Tools(Case):
    def test_each_tool_puts_lists_reads_and_removes_and_needs_its_secret(self):
        for asked in [S5cmd, S3cmd, Rclone, S3fs, Pyarrow]:
            with self.subTest(tool=asked.__name__), tempfile.TemporaryDirectory() as folder:
                bucket, body, back = self.new_bucket(), body_of(600), Path(folder) / "back"
                sent = Path(folder) / "sent"
                sent.write_bytes(body)
                tool, other = asked.kind(folder), asked.kind(folder, secret_key="wrong")
                try:
                    tool.put(bucket, ODD_KEY, sent)
                    self.assertEqual(body, self.body(bucket, ODD_KEY))
                    tool.get(bucket, ODD_KEY, back)
                    self.assertEqual(body, back.read_bytes())
                    self.assertEqual([ODD_KEY], tool.list(bucket, ""))
                    with self.assertRaisesRegex(tools.Failed, asked.wrong_secret):
                        other.put(bucket, "k", sent)
                    tool.remove(bucket, ODD_KEY)
                    self.assertNotIn(ODD_KEY, self.keys(bucket))
                finally:
                    tool.close()
                    other.close()


class Tables(Case):
    """Tables of many objects: listings, ranges at the ends of files, creates that must not replace."""

    rows = 1000
    # Of another server, and the environment in which its certificate is good.
    access, trust = {}, {}

    def made_by(self, library):
        """The worker of this library, when it has ended."""
        command = [tools.TOOLS / "python", "-B", tools.HERE / "workers" / "tables.py", library]
        with tempfile.TemporaryDirectory() as folder:
            return subprocess.run(
                [*map(str, command), self.new_bucket(), str(self.rows), "wrong"],
                env=tools.settings(folder, **self.access) | self.trust, cwd=folder,
                capture_output=True, text=True, timeout=tools.CALL_S_MAX,
            )  # fmt: skip

    def test_duckdb_and_deltalake_read_what_they_wrote(self):
        for library in ["duckdb", "deltalake"]:
            with self.subTest(library=library):
                done = self.made_by(library)
                self.assertEqual(0, done.returncode, done.stdout + done.stderr)
