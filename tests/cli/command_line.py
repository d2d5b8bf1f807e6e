"""The command as a subprocess, with pipes for its three streams."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from typing import Any

from tests.processes.forked import PROGRAM, run_command


def environment(**variables: str) -> dict[str, str]:
    """What a command inherits: no settings of the machine but `variables`, and no size of somebody else's terminal."""
    of_others = ("COLUMNS", "LINES")
    inherited = {
        name: text for name, text in os.environ.items() if not name.startswith("TOPICS_") and name not in of_others
    }
    return inherited | variables


class CommandLine:
    """`python -m topics` with `variables` in its environment, each call of it to its end."""

    def __init__(self, **variables: str) -> None:
        self.environ = environment(**variables)

    def __call__(self, *arguments: str, input: str | bytes = b"", **variables: str) -> subprocess.CompletedProcess[str]:
        """Run it with `input` on its standard input. Streams are decoded as UTF-8, strictly."""
        given = input.encode() if isinstance(input, str) else input
        done = run_command(arguments, self.environ | variables, given, 60)
        return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())

    def json(self, *arguments: str, **variables: str) -> Any:
        """The document that a command prints which succeeds."""
        done = self(*arguments, "--json", **variables)
        assert (done.returncode, done.stderr) == (0, ""), done.stderr
        return json.loads(done.stdout)

    def start(self, *arguments: str, **options: Any) -> subprocess.Popen[bytes]:
        """Start it, with pipes unless `options` say otherwise; the caller ends it."""
        pipes: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        process: subprocess.Popen[bytes] = subprocess.Popen(
            [*PROGRAM, *arguments], env=self.environ, **(pipes | options)
        )
        return process


def fields(text: str) -> list[Sequence[str]]:
    """The cells of an aligned table, its titles first."""
    return [line.split() for line in text.splitlines()]
