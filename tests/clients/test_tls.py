"""S3 over TLS: boto3 and aws against 'craton up --s3-tls'."""

import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import unittest.mock
import urllib.error
import urllib.request
from pathlib import Path

import boto3
import server
from botocore.config import Config
from botocore.exceptions import SSLError
from cases import Case


def certificate(directory, name):
    subprocess.run(
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 "
        f"-keyout server-key.pem -out server-cert.pem -subj /CN={name} "
        "-addext basicConstraints=critical,CA:FALSE "
        "-addext subjectAltName=DNS:localhost,DNS:*.localhost",
        shell=True, check=True, capture_output=True, cwd=directory,
    )  # fmt: skip


def certificate_of_authority(directory):
    """A certificate that an authority has signed, whose own is authority.pem. It names an address, and
    what lies below a domain of two labels, as not all clients take '*.localhost'."""
    new = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 "
    subprocess.run(
        f"{new} -keyout authority-key.pem -out authority.pem -subj /CN=authority && "
        f"{new} -CA authority.pem -CAkey authority-key.pem -keyout server-key.pem "
        "-out server-cert.pem -subj /CN=server -addext basicConstraints=critical,CA:FALSE "
        "-addext subjectAltName=IP:127.0.0.1,DNS:localhost,DNS:s3.localhost,DNS:*.s3.localhost",
        shell=True, check=True, capture_output=True, cwd=directory,
    )  # fmt: skip


_resolve = socket.getaddrinfo


def resolve_localhost(host, *arguments, **more):
    """Names below localhost are this machine, which not every resolver knows."""
    name = "localhost" if host.endswith(".localhost") else host
    return _resolve(name, *arguments, **more)


def client_of(access, verify=None, **more):
    return boto3.client(
        "s3", endpoint_url=access["endpoint"], region_name=access["region"],
        aws_access_key_id=access["access_key"], aws_secret_access_key=access["secret_key"],
        verify=verify and str(verify), **more,
    )  # fmt: skip


class Served(Case):
    """A test with a 'craton up' of its own, and a folder of certificates for it."""

    def setUp(self):
        self.root = Path(tempfile.mkdtemp(prefix="craton-tls-", dir=server.server.root))
        self.certificates = self.root / "tls"
        self.certificates.mkdir()
        certificate(self.certificates, "one")
        self.process = None

    def tearDown(self):
        if self.process is not None:
            self.process.send_signal(signal.SIGINT)
            self.process.wait(30)
        lines = server.error_lines_below(self.root)
        shutil.rmtree(self.root)
        self.assertEqual([], lines[:8], "errors are logged")

    def up(self, *arguments):
        command = [server.server.binary, "up", "--dir", self.root / "d", *arguments]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        for line in self.process.stdout:
            if "export CRATON_CLUSTER" in line:
                break
        return json.loads((self.root / "d" / "s3.json").read_text())


class Tls(Served):
    def test_objects_are_served_over_tls(self):
        access = self.up("--s3-tls", self.certificates, "--s3-region", "eu-1")
        self.assertTrue(access["endpoint"].startswith("https://localhost:"), access)
        self.assertEqual(access["region"], "eu-1")
        book = json.loads((self.root / "d" / "cluster.json").read_text())
        self.assertEqual(book["endpoints"]["s3"], access["endpoint"])
        trusted = str(self.certificates / "server-cert.pem")
        body = os.urandom(9 << 20)
        for style in ["path", "virtual"]:
            s3 = client_of(access, verify=trusted, config=Config(s3={"addressing_style": style}))
            with unittest.mock.patch("socket.getaddrinfo", resolve_localhost):
                s3.create_bucket(Bucket=f"tls-{style}")
                s3.put_object(Bucket=f"tls-{style}", Key="k", Body=body)
                self.assertEqual(s3.get_object(Bucket=f"tls-{style}", Key="k")["Body"].read(), body)
        with self.assertRaises(SSLError):
            client_of(access, config=Config(retries={"max_attempts": 0})).list_buckets()
        plain = access["endpoint"].replace("https:", "http:")
        with self.assertRaises(urllib.error.HTTPError) as refused:
            urllib.request.build_opener(urllib.request.ProxyHandler({})).open(plain, timeout=10)
        self.assertIn(b"use https://", refused.exception.read())

        # Flags that say otherwise are refused; those that say the same are not.
        self.process.send_signal(signal.SIGINT)
        self.process.wait(30)
        for other in [["--s3-plain"], ["--s3-region", "eu-2"], ["--s3-tls", self.root]]:
            command = [server.server.binary, "up", "--dir", self.root / "d", *other]
            done = subprocess.run(command, capture_output=True, text=True, timeout=30)
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertIn(f"leave {other[0]} out", done.stderr)
        again = self.up("--s3-tls", self.certificates, "--s3-region", "eu-1")
        self.assertEqual(again, access)
        # A certificate that was replaced is shown within a minute.
        certificate(self.certificates, "other")
        end = time.monotonic() + 60
        while True:
            try:
                client_of(access, verify=trusted).list_buckets()
                break
            except SSLError:
                self.assertLess(time.monotonic(), end)
                time.sleep(1)

    def test_other_machines_are_served_where_that_is_said(self):
        def refused(*arguments):
            command = [server.server.binary, "up", "--dir", self.root / "d", *arguments]
            done = subprocess.run(command, capture_output=True, text=True, timeout=30)
            self.assertNotEqual(done.returncode, 0)
            return done.stderr

        self.assertIn("give --s3-tls DIR", refused("--s3-listen", "0.0.0.0:0"))
        self.assertIn("server-cert.pem", refused("--s3-tls", self.root))
        (self.certificates / "server-key.pem").write_text("no key")
        self.assertIn("key", refused("--s3-tls", self.certificates))
        self.assertFalse((self.root / "d" / "cluster.json").exists())
        access = self.up("--s3-listen", "0.0.0.0:0", "--s3-plain", "--s3-defaults", "classic")
        self.assertTrue(access["endpoint"].startswith("http://127.0.0.1:"), access)
        s3 = client_of(access)
        s3.create_bucket(Bucket="classic", ACL="public-read")
        grants = s3.get_bucket_acl(Bucket="classic")["Grants"]
        self.assertEqual(len(grants), 2, grants)
