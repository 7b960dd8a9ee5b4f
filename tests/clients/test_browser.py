"""Chromium: a page of another site does with S3 what web programs do, by scripts under a bucket's rules
of CORS, and by forms with a policy."""

import contextlib
import http.server
import json
import os
import queue
import shutil
import signal
import subprocess
import tempfile
import threading
import time
import unittest
import urllib.parse
from pathlib import Path

from cases import Case, client
from test_users import allow

BROWSERS = ["chromium-headless-shell", "chromium", "chromium-browser", "google-chrome"]
BROWSER = next(filter(None, map(shutil.which, BROWSERS)), None)
PAGE = Path(__file__).resolve().parent / "workers" / "page.html"
# What files are made of, with bytes that part the fields of a form, and how many make a large one.
PART = bytes(range(256)) + b"\r\n--\r\n"
LARGE = 40_000
# Seconds for the start of a browser and all steps of a page; they take about 1.
BROWSE_S_MAX = 60
# Seconds that it has to end.
END_S_MAX = 20


def file(times, name="k"):
    """A file of the page."""
    return {"name": name, "type": "text/plain", "bytes": list(PART), "times": times}


def setUpModule():
    if BROWSER is None:
        said = "no Chromium is installed; scripts/prepare.sh --long does that where apt has one"
        raise unittest.SkipTest(said)


class Site(http.server.ThreadingHTTPServer):
    """The site of the page: it has the steps, and takes what came of them."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Pages)
        self.steps, self.answers = [], queue.Queue()
        self.thread = threading.Thread(target=self.serve_forever, daemon=True)
        self.thread.start()

    def origin(self, host="127.0.0.1"):
        return f"http://{host}:{self.server_port}"

    def close(self):
        self.shutdown()
        self.thread.join()
        self.server_close()


class Pages(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        name = urllib.parse.urlsplit(self.path).path
        if name == "/steps":
            self.answer("application/json", json.dumps(self.server.steps).encode())
        else:
            self.answer("text/html", PAGE.read_bytes() if name == "/" else b"It is done.")

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.answer("text/plain", b"")
        self.server.answers.put(json.loads(body))

    def answer(self, kind, body):
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


class Browser(Case):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="craton-browser-")
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.site = Site()
        self.addCleanup(self.site.close)
        self.bucket = self.new_bucket()
        # As with forms, botocore presigns with version 2 by default.
        self.signer = client(signature_version="s3v4")

    def browse(self, *steps, host="127.0.0.1"):
        """What came of each step, on the page by this name of its host."""
        self.site.steps = steps
        # Its debugger reads descriptor 3: when that is closed, the browser ends all its processes.
        command = [
            "sh", "-c", 'exec "$@" 3<&0 4>/dev/null', "sh", BROWSER, "--remote-debugging-pipe",
            "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-breakpad",
            "--disable-background-networking", "--no-first-run", "--no-proxy-server",
            f"--user-data-dir={self.folder}/profile", self.site.origin(host),
        ]  # fmt: skip
        process = subprocess.Popen(
            command, env={"PATH": os.environ["PATH"], "HOME": str(self.folder)}, start_new_session=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        answers, end = None, time.monotonic() + BROWSE_S_MAX
        while answers is None and process.poll() is None and time.monotonic() < end:
            with contextlib.suppress(queue.Empty):
                answers = self.site.answers.get(timeout=1)
        try:
            # The last of its processes closes the output.
            said, _ = process.communicate(timeout=END_S_MAX)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate(timeout=END_S_MAX)
            raise
        self.assertIsNotNone(answers, f"no answer came: {said.decode(errors='replace')}")
        return answers

    def presigned(self, call, key, **more):
        wanted = {"Bucket": self.bucket, "Key": key, **more}
        return self.signer.generate_presigned_url(call, Params=wanted)

    def allow_scripts(self):
        rule = {
            "AllowedOrigins": [self.site.origin()], "AllowedMethods": ["GET", "PUT", "POST"],
            "AllowedHeaders": ["content-type", "x-amz-meta-*"], "ExposeHeaders": ["ETag"],
        }  # fmt: skip
        self.s3.put_bucket_cors(Bucket=self.bucket, CORSConfiguration={"CORSRules": [rule]})

    def public(self, key, body):
        """The URL and tag of an object that all may read."""
        self.s3.delete_public_access_block(Bucket=self.bucket)
        policy = allow("s3:GetObject", f"arn:aws:s3:::{self.bucket}/{key}", "*")
        self.s3.put_bucket_policy(Bucket=self.bucket, Policy=json.dumps(policy))
        tag = self.s3.put_object(Bucket=self.bucket, Key=key, Body=body)["ETag"]
        return f"{self.s3.meta.endpoint_url}/{self.bucket}/{key}", tag


class Scripts(Browser):
    def test_script_reads_and_puts_what_the_rules_allow(self):
        self.allow_scripts()
        url, tag = self.public("k", b"all may read it")
        sent = {"Content-Type": "text/plain", "x-amz-meta-from": "a page"}
        put = self.presigned(
            "put_object", "a b+c", ContentType="text/plain", Metadata={"from": "a page"}
        )
        read, known, part, missing, stored = self.browse(
            {"url": url},
            {"url": url, "credentials": "include"},
            {"url": url, "headers": {"Range": "bytes=4-6"}},
            {"url": self.presigned("get_object", "none")},
            {"url": put, "method": "PUT", "headers": sent, "body": file(LARGE)},
        )
        self.assertEqual((200, "all may read it"), (read["status"], read["text"]))
        self.assertEqual(tag, read["headers"]["etag"])
        self.assertNotIn("x-amz-request-id", read["headers"], "no rule exposes it")
        self.assertEqual(200, known["status"])
        self.assertEqual((206, "may"), (part["status"], part["text"]))
        self.assertEqual(404, missing["status"])
        self.assertIn("<Code>NoSuchKey</Code>", missing["text"])
        self.assertEqual(200, stored["status"], stored)
        found = self.s3.get_object(Bucket=self.bucket, Key="a b+c")
        self.assertTrue(LARGE * PART == found["Body"].read(), "the bytes differ")
        self.assertEqual(found["ETag"], stored["headers"]["etag"])
        self.assertEqual(("text/plain", {"from": "a page"}), (found["ContentType"], found["Metadata"]))

    def test_script_is_refused_what_no_rule_allows(self):
        url, _ = self.public("k", b"x")
        read = {"url": url}
        put = {"url": self.presigned("put_object", "new"), "method": "PUT", "body": file(1)}
        tagged = {
            **put, "url": self.presigned("put_object", "new", Tagging="a=b"),
            "headers": {"x-amz-tagging": "a=b"},
        }  # fmt: skip
        delete = {"url": self.presigned("delete_object", "k"), "method": "DELETE"}
        refused = {"failed": "TypeError: Failed to fetch"}
        self.assertEqual([refused] * 2, self.browse(read, put), "there are no rules")
        self.allow_scripts()
        self.assertEqual([refused] * 2, self.browse(tagged, delete), "a header, a method")
        self.assertEqual([refused] * 2, self.browse(read, put, host="localhost"), "another site")
        self.assertEqual(["k"], self.keys(self.bucket))
        # Of the same site, with a header and a method of the rules, it is done.
        self.assertEqual(200, self.browse(put)[0]["status"])


class Forms(Browser):
    def form(self, **fields):
        """A form for what lies below in/, of 100 bytes to 16 MiB."""
        fields = {"Content-Type": "text/plain", "x-amz-meta-from": "a page", **fields}
        conditions = [{name: value} for name, value in fields.items()]
        conditions += [["content-length-range", 100, 16 << 20], ["starts-with", "$key", "in/"]]
        key = "in/${filename}"
        form = self.signer.generate_presigned_post(self.bucket, key, fields, conditions)
        return form["url"], form["fields"]

    def test_form_puts_what_its_policy_allows(self):
        self.allow_scripts()
        landing = f"{self.site.origin()}/landed?by=form"
        to, fields = self.form(success_action_redirect=landing)
        url, created = self.form(success_action_status="201")
        bare, rest = self.form()
        redirected, _, answered, plain = self.browse(
            {"press": to, "fields": fields, "body": file(LARGE, "\u00fc b+c.txt")},
            {"press": url, "fields": created, "body": file(1, "pressed")},
            {"post": url, "fields": created, "body": file(1, "posted")},
            {"post": bare, "fields": rest, "body": file(1, "plain")},
        )
        names = ["plain", "posted", "pressed", "\u00fc b+c.txt"]
        self.assertEqual([f"in/{name}" for name in names], self.keys(self.bucket))
        found = {name: self.s3.get_object(Bucket=self.bucket, Key=f"in/{name}") for name in names}
        for name, times in zip(names, [1, 1, 1, LARGE]):
            self.assertTrue(PART * times == found[name]["Body"].read(), name)
            self.assertEqual("text/plain", found[name]["ContentType"])
            self.assertEqual({"from": "a page"}, found[name]["Metadata"])
        # The browser has gone where the form says, and that site learns what was stored.
        query = urllib.parse.urlsplit(redirected["shown"]).query
        named = {"bucket": self.bucket, "key": f"in/{names[3]}", "etag": found[names[3]]["ETag"]}
        self.assertEqual({"by": "form", **named}, dict(urllib.parse.parse_qsl(query)))
        self.assertEqual(201, answered["status"], answered)
        self.assertEqual(found["posted"]["ETag"], answered["headers"]["etag"])
        self.assertIn("<Key>in/posted</Key>", answered["text"])
        self.assertEqual((204, ""), (plain["status"], plain["text"]))

    def test_form_is_refused_what_its_policy_does_not_allow(self):
        self.allow_scripts()
        url, fields = self.form(success_action_redirect=f"{self.site.origin()}/landed")
        # The second is refused by its fields, while its file is on the way.
        refused = [
            (fields, file(1) | {"bytes": [0] * 99}, 400, "EntityTooSmall"),
            ({**fields, "key": "out/k"}, file(LARGE), 403, "AccessDenied"),
            ({**fields, "x-amz-meta-more": "x"}, file(1), 403, "AccessDenied"),
            (fields, file(2 * LARGE), 400, "EntityTooLarge"),
        ]
        forms = [{"fields": fields, "body": body} for fields, body, *_ in refused]
        pressed = self.browse(*({"press": url, **form} for form in forms))
        self.assertEqual([{"shown": "another site's"}] * len(forms), pressed)
        posted = self.browse(*({"post": url, **form} for form in forms))
        for answer, (*_, status, code) in zip(posted, refused, strict=True):
            self.assertEqual(status, answer.get("status"), answer)
            self.assertIn(f"<Code>{code}</Code>", answer["text"])
        self.assertEqual([], self.keys(self.bucket))
