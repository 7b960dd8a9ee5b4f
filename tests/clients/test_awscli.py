"""The aws command, against the server."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import server
from cases import Case, body_of

# Beside the Python of this environment.
AWS = Path(sys.executable).with_name("aws")
# Seconds for one command; each takes about 1.
COMMAND_S_MAX = 20
# Files of a tree, some with names that URLs write in another way.
TREE = {
    "a.txt": b"alpha",
    "empty": b"",
    "sub/b+c %20.txt": body_of(600),
    "sub/deep/\u00fc\u65e5.bin": body_of(100 << 10),
    "sub/large.bin": body_of((5 << 20) + 1),
}


class Aws(Case):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.bucket = self.new_bucket()
        self.url = f"s3://{self.bucket}"

    def run_aws(self, *words, input=None, code=0, **settings):
        """Runs 'aws WORDS' in the folder; answers what it prints, as bytes."""
        access = server.server.access
        env = {
            "PATH": os.environ["PATH"],
            "LC_ALL": "C.UTF-8",
            "HOME": str(self.folder / "home"),
            "AWS_ENDPOINT_URL": access["endpoint"],
            "AWS_REGION": access["region"],
            "AWS_ACCESS_KEY_ID": access["access_key"],
            "AWS_SECRET_ACCESS_KEY": access["secret_key"],
            "AWS_MAX_ATTEMPTS": "1",
            **settings,
        }
        done = subprocess.run(
            [sys.executable, AWS, *map(str, words)],
            input=input, capture_output=True, cwd=self.folder, env=env, timeout=COMMAND_S_MAX,
        )  # fmt: skip
        output = done.stdout + done.stderr
        self.assertEqual(code, done.returncode, (words, output.decode(errors="replace")))
        return done.stdout if code == 0 else output

    def settings(self, text):
        """A configuration file, as an environment variable."""
        path = self.folder / "config"
        path.write_text(f"[default]\ns3 =\n    {text}\n")
        return {"AWS_CONFIG_FILE": str(path)}

    def plant(self, tree, at):
        for name, body in tree.items():
            path = self.folder / at / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(body)

    def harvest(self, at):
        root = self.folder / at
        files = [path for path in root.rglob("*") if path.is_file()]
        return {str(path.relative_to(root)): path.read_bytes() for path in files}

    def stored(self, prefix=""):
        keys = self.keys(self.bucket, Prefix=prefix)
        return {key.removeprefix(prefix): self.body(self.bucket, key) for key in keys}

    def test_bucket_is_made_listed_and_removed(self):
        url = self.url + "-made"
        self.assertEqual(f"make_bucket: {url[5:]}\n".encode(), self.run_aws("s3", "mb", url))
        names = [line.split()[-1] for line in self.run_aws("s3", "ls").decode().splitlines()]
        self.assertIn(url[5:], names)
        self.run_aws("s3", "rb", url)
        self.refused("404", 404, self.s3.head_bucket, Bucket=url[5:])

    def test_bucket_with_objects_is_removed_by_force_only(self):
        for number in range(3):
            self.s3.put_object(Bucket=self.bucket, Key=f"a b/{number}", Body=b"x")
        output = self.run_aws("s3", "rb", self.url, code=1)
        self.assertIn(b"BucketNotEmpty", output)
        self.assertEqual(3, len(self.keys(self.bucket)))
        self.run_aws("s3", "rb", self.url, "--force")
        self.refused("404", 404, self.s3.head_bucket, Bucket=self.bucket)

    def test_file_is_copied_up_and_down_with_its_type(self):
        body = body_of((5 << 20) + 1)
        self.plant({"page.html": body}, ".")
        self.run_aws("s3", "cp", "page.html", f"{self.url}/x/", "--metadata", "a=b")
        head = self.s3.head_object(Bucket=self.bucket, Key="x/page.html")
        self.assertEqual(("text/html", {"a": "b"}), (head["ContentType"], head["Metadata"]))
        self.run_aws("s3", "cp", f"{self.url}/x/page.html", "back")
        self.assertTrue((self.folder / "back").read_bytes() == body, "the bytes differ")

    def test_file_of_20_mib_in_one_put_is_copied_up_and_down(self):
        body = body_of(20 << 20)
        self.plant({"large": body}, ".")
        settings = self.settings("multipart_threshold = 64MB")
        self.run_aws("s3", "cp", "large", f"{self.url}/large", **settings)
        # Without the settings: by ranges.
        self.run_aws("s3", "cp", f"{self.url}/large", "back")
        self.assertTrue((self.folder / "back").read_bytes() == body, "the bytes differ")

    def test_standard_input_and_output_are_copied(self):
        body = body_of(100_000)
        self.run_aws("s3", "cp", "-", f"{self.url}/piped", input=body)
        self.assertTrue(self.run_aws("s3", "cp", f"{self.url}/piped", "-") == body)

    def test_list_shows_prefixes_or_all_keys(self):
        for key in ["a/1", "a/2", "b c/3", "top"]:
            self.s3.put_object(Bucket=self.bucket, Key=key, Body=b"12345")
        lines = self.run_aws("s3", "ls", self.url).decode().splitlines()
        self.assertEqual(["PRE a/", "PRE b c/"], [line.strip() for line in lines[:2]])
        self.assertEqual(["5", "top"], lines[2].split()[2:])
        lines = self.run_aws("s3", "ls", self.url, "--recursive", "--summarize").decode()
        names = [line.split(maxsplit=3)[3] for line in lines.splitlines() if line[:1] == "2"]
        self.assertEqual(["a/1", "a/2", "b c/3", "top"], names)
        self.assertIn("Total Objects: 4", lines)
        self.assertIn("Total Size: 20", lines)

    def test_tree_is_synced_up_and_down(self):
        self.plant(TREE, "up")
        self.run_aws("s3", "sync", "up", f"{self.url}/tree")
        self.assertTrue(self.stored("tree/") == TREE, "the trees differ")
        self.assertEqual(b"", self.run_aws("s3", "sync", "up", f"{self.url}/tree"))
        self.run_aws("s3", "sync", f"{self.url}/tree", "down")
        self.assertTrue(self.harvest("down") == TREE, "the trees differ")
        self.assertEqual(b"", self.run_aws("s3", "sync", f"{self.url}/tree", "down"))
        # What changed or is gone on one side, with --delete.
        changed = {**TREE, "a.txt": b"alpha and more", "new": b"n"}
        del changed["sub/b+c %20.txt"]
        self.plant(changed, "up")
        (self.folder / "up" / "sub/b+c %20.txt").unlink()
        self.run_aws("s3", "sync", "up", f"{self.url}/tree", "--delete")
        self.assertTrue(self.stored("tree/") == changed, "the trees differ")
        self.run_aws("s3", "sync", f"{self.url}/tree", "down", "--delete")
        self.assertTrue(self.harvest("down") == changed, "the trees differ")

    def test_objects_are_removed(self):
        for key in ["a/1", "a/2", "a/keep", "b c", "z"]:
            self.s3.put_object(Bucket=self.bucket, Key=key, Body=b"x")
        self.run_aws("s3", "rm", f"{self.url}/b c")
        self.assertEqual(["a/1", "a/2", "a/keep", "z"], self.keys(self.bucket))
        self.run_aws("s3", "rm", f"{self.url}/a/", "--recursive", "--exclude", "*keep")
        self.assertEqual(["a/keep", "z"], self.keys(self.bucket))

    def test_calls_of_the_api_answer_json(self):
        self.plant({"body": b"12345"}, ".")
        at = ["--bucket", self.bucket, "--key", "k"]
        put = ["s3api", "put-object", *at, "--body", "body", "--checksum-algorithm", "SHA256"]
        answer = json.loads(self.run_aws(*put))
        self.assertEqual("WZRHGrsBESr8wYFZ9sx0tPURuZgG2lmzyvWpwXPKz8U=", answer["ChecksumSHA256"])
        output = self.run_aws(*put, "--if-none-match", "*", code=255)
        self.assertIn(b"PreconditionFailed", output)
        listed = json.loads(self.run_aws("s3api", "list-objects-v2", "--bucket", self.bucket))
        entries = [(entry["Key"], entry["Size"]) for entry in listed["Contents"]]
        self.assertEqual([("k", 5)], entries)

    def test_wrong_secret_and_missing_object_are_reported(self):
        output = self.run_aws("s3", "ls", self.url, code=255, AWS_SECRET_ACCESS_KEY="A" * 40)
        self.assertIn(b"SignatureDoesNotMatch", output)
        output = self.run_aws("s3", "cp", f"{self.url}/none", "none", code=1)
        self.assertIn(b"404", output)
        self.assertFalse((self.folder / "none").exists())

    def test_file_of_20_mib_in_parts_is_copied_up_and_down(self):
        body = body_of(20 << 20)
        self.plant({"large": body}, ".")
        self.run_aws("s3", "cp", "large", f"{self.url}/large", "--metadata", "a=b")
        head = self.s3.head_object(Bucket=self.bucket, Key="large")
        # 8 MiB each.
        self.assertTrue(head["ETag"].endswith('-3"'), head["ETag"])
        self.assertEqual({"a": "b"}, head["Metadata"])
        self.run_aws("s3", "cp", f"{self.url}/large", "back")
        self.assertTrue((self.folder / "back").read_bytes() == body, "the bytes differ")
        uploads = self.s3.list_multipart_uploads(Bucket=self.bucket)
        self.assertNotIn("Uploads", uploads)

    def test_large_standard_input_is_copied_in_parts(self):
        body = body_of(9 << 20)
        self.run_aws("s3", "cp", "-", f"{self.url}/piped", input=body)
        self.assertTrue(self.run_aws("s3", "cp", f"{self.url}/piped", "-") == body)

    def test_objects_are_copied_and_moved_within_s3(self):
        small, large = body_of(600), body_of(20 << 20)
        self.s3.put_object(
            Bucket=self.bucket, Key="a b+c", Body=small, Metadata={"a": "b"}, ContentType="text/x"
        )
        self.s3.put_object(Bucket=self.bucket, Key="large", Body=large)
        self.run_aws("s3", "cp", f"{self.url}/a b+c", f"{self.url}/copy")
        head = self.s3.head_object(Bucket=self.bucket, Key="copy")
        self.assertEqual(({"a": "b"}, "text/x"), (head["Metadata"], head["ContentType"]))
        # In parts.
        self.run_aws("s3", "cp", f"{self.url}/large", f"{self.url}/large copy")
        self.assertTrue(self.body(self.bucket, "large copy") == large, "the bytes differ")
        self.run_aws("s3", "mv", f"{self.url}/copy", f"{self.url}/moved")
        self.assertEqual(["a b+c", "large", "large copy", "moved"], self.keys(self.bucket))
        self.assertTrue(self.body(self.bucket, "moved") == small, "the bytes differ")
        other = self.new_bucket()
        self.run_aws("s3", "mv", f"{self.url}/large copy", f"s3://{other}/here")
        self.assertTrue(self.body(other, "here") == large, "the bytes differ")
        self.assertEqual(["a b+c", "large", "moved"], self.keys(self.bucket))

    def test_file_is_moved_up_and_down(self):
        body = body_of(9 << 20)
        self.plant({"file": body}, ".")
        self.run_aws("s3", "mv", "file", f"{self.url}/file")
        self.assertFalse((self.folder / "file").exists())
        self.run_aws("s3", "mv", f"{self.url}/file", "back")
        self.assertTrue((self.folder / "back").read_bytes() == body, "the bytes differ")
        self.assertEqual([], self.keys(self.bucket))

    def test_tree_is_synchronized_within_s3(self):
        tree = {**TREE, "parts.bin": body_of(9 << 20)}
        self.plant(tree, "up")
        self.run_aws("s3", "sync", "up", f"{self.url}/one")
        self.run_aws("s3", "sync", f"{self.url}/one", f"{self.url}/two")
        self.assertTrue(self.stored("two/") == tree, "the trees differ")
        self.assertEqual(b"", self.run_aws("s3", "sync", f"{self.url}/one", f"{self.url}/two"))

    def test_uploads_are_listed_and_aborted_by_calls_of_the_api(self):
        at = ["--bucket", self.bucket, "--key", "k"]
        begun = json.loads(self.run_aws("s3api", "create-multipart-upload", *at))
        upload = ["--upload-id", begun["UploadId"]]
        self.plant({"body": b"12345"}, ".")
        part = ["s3api", "upload-part", *at, *upload, "--part-number", "3", "--body", "body"]
        sent = json.loads(self.run_aws(*part))
        listed = json.loads(self.run_aws("s3api", "list-multipart-uploads", *at[:2]))
        uploads = [(entry["Key"], entry["UploadId"]) for entry in listed["Uploads"]]
        self.assertEqual([("k", begun["UploadId"])], uploads)
        listed = json.loads(self.run_aws("s3api", "list-parts", *at, *upload))
        parts = [(entry["PartNumber"], entry["Size"], entry["ETag"]) for entry in listed["Parts"]]
        self.assertEqual([(3, 5, sent["ETag"])], parts)
        self.run_aws("s3api", "abort-multipart-upload", *at, *upload)
        output = self.run_aws("s3api", "list-parts", *at, *upload, code=255)
        self.assertIn(b"NoSuchUpload", output)
