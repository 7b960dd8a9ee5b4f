"""The SDKs that npm, Go and Maven install, in target/clients-sdks: by package-lock.json, go.sum and
jars.sha256, which have the hash of each file. Answers why one cannot be made where a tool is missing or
no registry is reached.
"""

import hashlib
import re
import shutil
import subprocess
from pathlib import Path

HERE = Path(__file__).resolve().parent
TARGET = HERE.parent.parent / "target" / "clients-sdks"
FILES = {
    "js": ["package.json", "package-lock.json", "worker.mjs"],
    "go": ["go.mod", "go.sum", "main.go"],
    "java": ["pom.xml", "jars.sha256", "Worker.java"],
    "hadoop": ["pom.xml", "jars.sha256", "Worker.java"],
}
NEEDS = {"js": ["npm"], "go": ["go"], "java": ["mvn", "javac"], "hadoop": ["mvn", "javac"]}
MAVEN = [
    "mvn", "--batch-mode", "--quiet", "--strict-checksums", f"-Dmaven.repo.local={TARGET}/maven",
    "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies",
    "-DincludeScope=runtime", "-DoutputDirectory=lib",
]  # fmt: skip
# Hadoop 3.5 wants it.
JAVA_MIN = 17
# What Maven prints when no registry answers, and what npm and go print.
UNREACHABLE = [
    "ENOTFOUND", "ECONNREFUSED", "EAI_AGAIN", "dial tcp", "no such host",
    "Unknown host", "Name or service not known", "Temporary failure in name resolution",
    "Connection refused", "Connect to", "Connect timed out", "Network is unreachable",
]  # fmt: skip
# Seconds for one command, with its downloads. All of npm take about 10 here, of Go 40, of Maven 15.
INSTALL_S_MAX = 600


def make(name):
    """Makes one; a reason why it is not there, or None."""
    missing = [command for command in NEEDS[name] if shutil.which(command) is None]
    if missing:
        return f"{missing[0]} is missing"
    source, folder = HERE / "workers" / name, TARGET / name
    texts = [(source / file).read_bytes() for file in FILES[name]]
    wanted = hashlib.sha256(b"\0".join(texts)).hexdigest()
    # Written last: a folder without it was left half-made.
    stamp = folder / "stamp"
    if stamp.is_file() and stamp.read_text() == wanted:
        return None
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for file, text in zip(FILES[name], texts):
        (folder / file).write_bytes(text)
    reason = INSTALLS[name](folder)
    if reason is None:
        stamp.write_text(wanted)
    return reason


def run(folder, *command):
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=INSTALL_S_MAX
    )
    if done.returncode == 0:
        return None
    said = done.stdout + done.stderr
    if any(sign in said for sign in UNREACHABLE):
        return f"{command[0]} reaches no registry"
    raise SystemExit(f"S3 clients: {command} failed:\n{said}")


def npm(folder):
    return run(folder, "npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts")


def go(folder):
    return run(folder, "go", "build", "-o", "worker", ".")


def maven(folder):
    """Compares hashes itself before a jar is used: Maven has no list of what it is to get."""
    said = subprocess.run(["javac", "-version"], capture_output=True, text=True)
    version = re.search(r"javac (\d+)", said.stdout + said.stderr)
    if version is None or int(version[1]) < JAVA_MIN:
        return f"javac is older than {JAVA_MIN}"
    if reason := run(folder, *MAVEN):
        return reason
    listed = (folder / "jars.sha256").read_text().splitlines()
    found = [
        f"{hashlib.sha256(jar.read_bytes()).hexdigest()}  {jar.name}"
        for jar in sorted((folder / "lib").iterdir())
    ]
    differ = sorted(set(listed) ^ set(found))
    if differ:
        said = "\n".join(f"{'listed' if line in listed else 'found'} {line}" for line in differ)
        raise SystemExit(f"S3 clients: {folder}/lib is not what jars.sha256 lists:\n{said}")
    return run(folder, "javac", "-cp", "lib/*", "-d", "classes", "Worker.java")


INSTALLS = {"js": npm, "go": go, "java": maven, "hadoop": maven}
