"""The first five minutes of S3, as the README has them: its block is copied out of it, and run by a shell."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import server
from cases import Case

README = server.ROOT / "README.md"
# The directory that the README names. The test's own takes its place.
DIRECTORY = "/tmp/o1"
# Seconds for all of it; about 15.
ALL_S_MAX = 120


class Readme(Case):
    def test_first_five_minutes_do_what_the_readme_says(self):
        text = README.read_text().split("### Objects (S3)")[1]
        block = re.search(r"```\n(.*?)```", text, re.DOTALL)[1]
        self.assertIn(f"craton up --dir {DIRECTORY} &", block)
        root = Path(tempfile.mkdtemp(prefix="craton-readme-", dir=server.server.root))
        self.addCleanup(shutil.rmtree, root, ignore_errors=True)
        block = block.replace(DIRECTORY, str(root / "o1"))
        # The shell ends what it has started.
        script = f"set -e\ntrap 'kill %1; wait %1' EXIT\n{block}"
        binaries = root / "bin"
        binaries.mkdir()
        (binaries / "craton").symlink_to(Path(server.server.binary).resolve())
        aws = Path(sys.executable).with_name("aws")
        (binaries / "aws").write_text(f'#!/bin/sh\nexec {sys.executable} {aws} "$@"\n')
        (binaries / "aws").chmod(0o755)
        done = subprocess.run(
            ["bash", "-c", script], cwd=root, capture_output=True, timeout=ALL_S_MAX,
            env={"PATH": f"{binaries}:{os.environ['PATH']}", "HOME": str(root), "LC_ALL": "C.UTF-8"},
        )  # fmt: skip
        self.assertEqual(0, done.returncode, (done.stdout + done.stderr).decode(errors="replace"))
        services = Path("/etc/services").read_bytes()
        # Once by its key, once by a URL that is signed; between them it is listed.
        self.assertEqual(2, done.stdout.count(services), done.stdout[-2000:])
        self.assertIn(f"{len(services)} etc/services\n".encode(), done.stdout)
        self.assertEqual([], server.error_lines_below(root)[:8], "errors are logged")
