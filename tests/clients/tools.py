"""Stock tools and SDKs, each behind the same few calls: what test_tools.py asks of all of them."""

import contextlib
import json
import os
import socket
import subprocess
import sys
import urllib.parse
from pathlib import Path

import server

HERE = Path(__file__).resolve().parent
# Where environment.py and sdks.py put them.
TOOLS = server.ROOT / "target" / "clients-tools" / "bin"
AWS = Path(sys.executable).with_name("aws")
SDKS = server.ROOT / "target" / "clients-sdks"
# Seconds for one call.
CALL_S_MAX = 120


class Failed(Exception):
    """A call that failed, with what the tool said."""


def settings(folder, **changed):
    """The environment of a tool: what 'craton user env' prints, and no settings of this machine."""
    access = server.server.access | changed
    return {
        "PATH": os.environ["PATH"],
        "LC_ALL": "C.UTF-8",
        "HOME": str(folder),
        "AWS_ENDPOINT_URL": access["endpoint"],
        "AWS_REGION": access["region"],
        "AWS_DEFAULT_REGION": access["region"],
        "AWS_ACCESS_KEY_ID": access["access_key"],
        "AWS_SECRET_ACCESS_KEY": access["secret_key"],
        "AWS_EC2_METADATA_DISABLED": "true",
    }


class Command:
    """A tool that is a command: each call runs it."""

    def __init__(self, folder, authority=None, **changed):
        self.folder = Path(folder)
        self.env = settings(folder, **changed)
        self.access = server.server.access | changed
        self.authority = authority
        if authority:
            self.env |= self.trust(authority)

    def trust(self, authority):
        """The environment in which the certificates of an authority are good."""
        raise NotImplementedError

    def close(self):
        pass

    def run(self, *words):
        command = [TOOLS / words[0], *map(str, words[1:])]
        done = subprocess.run(
            command, capture_output=True, env=self.env, cwd=self.folder, timeout=CALL_S_MAX
        )
        if done.returncode != 0:
            raise Failed(f"{command}: {(done.stdout + done.stderr).decode(errors='replace')}")
        return done.stdout


class Aws(Command):
    """Some of what test_awscli.py asks."""

    def __init__(self, folder, authority=None, **changed):
        super().__init__(folder, authority, **changed)
        self.env["AWS_MAX_ATTEMPTS"] = "1"

    def trust(self, authority):
        return {"AWS_CA_BUNDLE": str(authority)}

    def put(self, bucket, key, path):
        self.run(AWS, "s3", "cp", path, f"s3://{bucket}/{key}")

    def get(self, bucket, key, path):
        self.run(AWS, "s3", "cp", f"s3://{bucket}/{key}", path)


class S5cmd(Command):
    def trust(self, authority):
        # It does not read SSL_CERT_FILE.
        return {"AWS_CA_BUNDLE": str(authority)}

    def run(self, *words):
        # It looks for AWS itself without this.
        return super().run("s5cmd", "-r", "0", "--endpoint-url", self.access["endpoint"], *words)

    def put(self, bucket, key, path):
        self.run("cp", path, f"s3://{bucket}/{key}")

    def get(self, bucket, key, path):
        self.run("cp", "--raw", f"s3://{bucket}/{key}", path)

    def list(self, bucket, prefix):
        lines = self.run("--json", "ls", f"s3://{bucket}/{prefix}*")
        keys = [json.loads(line)["key"] for line in lines.splitlines()]
        return [key.removeprefix(f"s3://{bucket}/") for key in keys]

    def remove(self, bucket, key):
        self.run("rm", "--raw", f"s3://{bucket}/{key}")


class S3cmd(Command):
    def trust(self, authority):
        return {}  # Its file names the authority.

    def run(self, *words):
        scheme, host = self.access["endpoint"].split("://")
        path = self.folder / "s3cfg"
        path.write_text(
            f"[default]\naccess_key = {self.access['access_key']}\n"
            f"secret_key = {self.access['secret_key']}\nhost_base = {host}\nhost_bucket = {host}\n"
            f"use_https = {scheme == 'https'}\nbucket_location = {self.access['region']}\n"
            + (f"ca_certs_file = {self.authority}\n" if self.authority else "")
        )
        return super().run("s3cmd", "--config", path, "--no-progress", *words)

    def put(self, bucket, key, path):
        self.run("put", path, f"s3://{bucket}/{key}")

    def get(self, bucket, key, path):
        self.run("get", "--force", f"s3://{bucket}/{key}", path)

    def list(self, bucket, prefix):
        text = self.run("ls", "--recursive", f"s3://{bucket}/{prefix}").decode()
        return [line.split(f"s3://{bucket}/", 1)[1] for line in text.splitlines()]

    def remove(self, bucket, key):
        self.run("del", f"s3://{bucket}/{key}")


class Rclone(Command):
    def trust(self, authority):
        # Its option --ca-cert. It does not read AWS_CA_BUNDLE.
        return {"RCLONE_CA_CERT": str(authority)}

    def run(self, *words):
        remote = ":s3,provider=Other,env_auth=true,force_path_style=true"
        remote += f",endpoint='{self.access['endpoint']}',region={self.access['region']}:"
        words = [word.replace("REMOTE:", remote) for word in map(str, words)]
        return super().run("rclone", "--config", "", "--retries", 1, "--low-level-retries", 1, *words)

    def put(self, bucket, key, path):
        self.run("copyto", "--s3-upload-cutoff", "16M", path, f"REMOTE:{bucket}/{key}")

    def get(self, bucket, key, path):
        # A key that is missing would be an empty folder.
        self.run("copyto", "--error-on-no-transfer", "--ignore-times", f"REMOTE:{bucket}/{key}", path)

    def range(self, bucket, key, first, last):
        count = last + 1 - first
        return self.run("cat", "--offset", first, "--count", count, f"REMOTE:{bucket}/{key}")

    def list(self, bucket, prefix):
        text = self.run("lsf", "--recursive", "--files-only", f"REMOTE:{bucket}").decode()
        return [key for key in text.splitlines() if key.startswith(prefix)]

    def remove(self, bucket, key):
        self.run("deletefile", f"REMOTE:{bucket}/{key}")


class Worker:
    """A library in a process of its own: a line of JSON asks for a call, a line answers it."""

    command = ()

    def __init__(self, folder, authority=None, **changed):
        env = settings(folder, **changed)
        if authority:
            env |= self.trust(folder, authority)
        self.process = subprocess.Popen(
            list(map(str, self.command)), env=env, cwd=folder, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=open(Path(folder) / "said", "w"),
        )  # fmt: skip
        self.said = Path(folder) / "said"

    def trust(self, folder, authority):
        """The environment in which the certificates of an authority are good."""
        raise NotImplementedError

    def close(self):
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        self.process.wait(CALL_S_MAX)
        self.process.stdout.close()

    def call(self, call, **arguments):
        self.process.stdin.write(json.dumps({"call": call, **arguments}) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise AssertionError(f"{self.command} has ended: {self.said.read_text()}")
        answer = json.loads(line)
        if answer.get("error"):
            raise Failed(answer["error"])
        return answer["value"]

    def put(self, bucket, key, path):
        self.call("put", bucket=bucket, key=key, path=str(path))

    def get(self, bucket, key, path):
        self.call("get", bucket=bucket, key=key, path=str(path))

    def range(self, bucket, key, first, last):
        return bytes.fromhex(self.call("range", bucket=bucket, key=key, first=first, last=last))

    def list(self, bucket, prefix):
        return self.call("list", bucket=bucket, prefix=prefix)

    def remove(self, bucket, key):
        self.call("remove", bucket=bucket, key=key)


class S3fs(Worker):
    command = (TOOLS / "python", "-B", HERE / "workers" / "libraries.py", "s3fs")

    def trust(self, folder, authority):
        return {"AWS_CA_BUNDLE": str(authority)}


class Pyarrow(Worker):
    command = (TOOLS / "python", "-B", HERE / "workers" / "libraries.py", "pyarrow")

    def trust(self, folder, authority):
        # The worker gives it as an argument: pyarrow itself does not read this name.
        return {"AWS_CA_BUNDLE": str(authority)}


class JavaScript(Worker):
    command = ("node", SDKS / "js" / "worker.mjs")

    def trust(self, folder, authority):
        return {"NODE_EXTRA_CA_CERTS": str(authority)}


class Go(Worker):
    command = (SDKS / "go" / "worker",)

    def trust(self, folder, authority):
        return {"SSL_CERT_FILE": str(authority)}


class Jvm(Worker):
    # Where sdks.py puts it.
    home = None

    def __init__(self, folder, **changed):
        self.hosts = Path(folder) / "hosts"
        self.command = (
            # The first of two compilers alone, as it runs for seconds.
            "java", "-XX:TieredStopAtLevel=1", "-Xmx1g",
            # It looks for names of hosts there alone.
            f"-Djdk.net.hosts.file={self.hosts}",
            "-cp", f"{self.home}/lib/*:{self.home}/classes", "Worker",
        )  # fmt: skip
        endpoint = (server.server.access | changed)["endpoint"]
        self.host = urllib.parse.urlsplit(endpoint).hostname
        super().__init__(folder, **changed)

    def call(self, call, **arguments):
        # Names below localhost are this machine, which not every resolver knows.
        host, bucket = self.host, arguments["bucket"]
        self.hosts.write_text(f"127.0.0.1 {host} {bucket}.{host} {socket.gethostname()}\n")
        return super().call(call, **arguments)

    def trust(self, folder, authority):
        store = Path(folder) / "trusted.p12"
        store.unlink(missing_ok=True)
        subprocess.run(
            ["keytool", "-importcert", "-noprompt", "-alias", "authority", "-file", authority,
             "-keystore", store, "-storepass", "changeit"],
            check=True, capture_output=True, timeout=CALL_S_MAX,
        )  # fmt: skip
        options = f"-Djavax.net.ssl.trustStore={store} -Djavax.net.ssl.trustStorePassword=changeit"
        return {"JAVA_TOOL_OPTIONS": options}


class Java(Jvm):
    home = SDKS / "java"


class Hadoop(Jvm):
    home = SDKS / "hadoop"
