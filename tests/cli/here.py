"""The command in this process, against a real daemon: for what needs no process of its own, at a tenth of the time."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from typing import Any

import pytest

from topics.cli.app import run


class Here:
    """As `tests.cli.command_line.CommandLine`."""

    def __init__(self, url: str, capture: pytest.CaptureFixture[bytes]) -> None:
        self._url = url
        self._capture = capture

    def __call__(self, *arguments: str, input: str | bytes = b"") -> subprocess.CompletedProcess[str]:
        """Run it with `input` on its standard input, as a file."""
        self._capture.readouterr()
        before = os.dup(0)
        try:
            with tempfile.TemporaryFile() as file:
                file.write(input.encode() if isinstance(input, str) else input)
                file.seek(0)
                os.dup2(file.fileno(), 0)
                code = run([*arguments[:1], "--url", self._url, *arguments[1:]])
        finally:
            os.dup2(before, 0)
            os.close(before)
        out, err = self._capture.readouterr()
        return subprocess.CompletedProcess(arguments, code, out.decode(), err.decode())

    def json(self, *arguments: str, input: str | bytes = b"") -> Any:
        """The document that a command prints which succeeds."""
        done = self(*arguments, "--json", input=input)
        assert (done.returncode, done.stderr) == (0, ""), done.stderr
        return json.loads(done.stdout)
