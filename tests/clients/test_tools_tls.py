"""The questions of test_tools over TLS, to a server whose certificate an authority of the operator has
signed: each tool trusts it as its users have it do (docs/s3.md)."""

import tempfile
import unittest
from pathlib import Path

import server
import test_tls
import test_tools
import tools
from cases import Case, body_of

# The server of this module, and what a client needs of it.
served = None
access = None


def setUpModule():
    global served, access
    test_tools.setUpModule()
    folder = tempfile.TemporaryDirectory(prefix="craton-tls-")
    unittest.addModuleCleanup(folder.cleanup)
    test_tls.certificate_of_authority(folder.name)
    served = server.Server("--s3-tls", folder.name, authority=Path(folder.name, "authority.pem"))
    unittest.addModuleCleanup(served.remove)
    served.start()
    # By its address, tools use path style by themselves.
    access = served.access | {"endpoint": served.access["endpoint"].replace("localhost", "127.0.0.1")}
    assert access["endpoint"].startswith("https://127.0.0.1:"), access


def tearDownModule():
    code, lines = served.stop(), served.error_lines()
    assert code == 0 and not lines, f"it ended with {code}, and has logged {lines[:8]}"


class OverTls:
    @classmethod
    def setUpClass(cls):
        cls.s3 = test_tls.client_of(access, served.authority)


class Aws(OverTls, Case):
    def test_objects_come_back_and_an_unknown_authority_is_refused(self):
        bucket, body = self.new_bucket(), body_of(test_tools.PARTED)
        with tempfile.TemporaryDirectory() as folder:
            sent, back = Path(folder, "sent"), Path(folder, "back")
            sent.write_bytes(body)
            aws = tools.Aws(folder, served.authority, **access)
            aws.put(bucket, "k", sent)
            aws.get(bucket, "k", back)
            self.assertTrue(body == back.read_bytes(), "the bytes differ")
            with self.assertRaisesRegex(tools.Failed, "SSL validation failed"):
                tools.Aws(folder, **access).get(bucket, "k", back)


class OfTools(OverTls):
    # What it says of a certificate whose authority it does not know.
    untrusted = None

    def opened(self, **changed):
        return super().opened(authority=served.authority, **(access | changed))

    def test_server_of_an_unknown_authority_is_refused(self):
        stranger = self.kind(self.folder, **access)
        self.addCleanup(stranger.close)
        with self.assertRaisesRegex(tools.Failed, self.untrusted):
            stranger.list(self.bucket, "")


class S5cmd(OfTools, test_tools.S5cmd, Case):
    untrusted = "certificate signed by unknown authority"


class S3cmd(OfTools, test_tools.S3cmd, Case):
    untrusted = "SSL certificate verification failure"


class Rclone(OfTools, test_tools.Rclone, Case):
    untrusted = "certificate signed by unknown authority"


class S3fs(OfTools, test_tools.S3fs, Case):
    untrusted = "CERTIFICATE_VERIFY_FAILED"


class Pyarrow(OfTools, test_tools.Pyarrow, Case):
    untrusted = "SSL peer certificate or SSH remote key was not OK"


class Tables(OverTls, test_tools.Tables):
    def setUp(self):
        self.access, self.trust = access, {"SSL_CERT_FILE": str(served.authority)}

    def test_server_of_an_unknown_authority_is_refused(self):
        self.trust = {}
        for library, said in [("duckdb", "SSL peer certificate"), ("deltalake", "UnknownIssuer")]:
            with self.subTest(library=library):
                done = self.made_by(library)
                self.assertNotEqual(0, done.returncode)
                self.assertIn(said, done.stderr)
