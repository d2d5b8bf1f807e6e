"""The blocks of the pages, and the terminals that they are run in."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx

from topics.client import Client, Record

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs" / "recipes.md"
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
ANOTHER = "# another terminal\n"
SERVES = re.compile(r"topics serve --port \$\{(\w+):-\d+\}")
"""A daemon of the page's own, whose port the tests choose."""
LONG_S = 60


@dataclass(frozen=True)
class Block:
    """What stands between two fences."""

    language: str
    text: str

    @property
    def file(self) -> str:
        """The name that Python gives itself."""
        named = re.match(r"# (\w+\.py)\n", self.text)
        assert named is not None, self.text
        return named[1]


def blocks_of(text: str) -> list[Block]:
    """The fenced blocks of a page or of a part of one, in order."""
    return [Block(*found) for found in FENCE.findall(text)]


def recipes() -> dict[str, list[Block]]:
    """The blocks below each heading of the page of recipes."""
    _, *parts = re.split(r"^## (.+)\n", PAGE.read_text(), flags=re.MULTILINE)
    return {title: blocks_of(text) for title, text in zip(parts[::2], parts[1::2], strict=True)}


RECIPES = recipes()
README: Final = "README"
TOUR: Final = "tour"
WHOLE: Final = {README: (ROOT / "README.md").read_text(), TOUR: (ROOT / "docs" / "tour.md").read_text()}
"""Pages that are run from the first line to the last."""
BLOCKS = RECIPES | {title: blocks_of(text) for title, text in WHOLE.items()}
INDENTED = re.compile(r"(?:^    .*\n(?:\n(?=    ))?)+", re.MULTILINE)
STREAMED = re.compile(r"    (?:retry|id|event|data): ")
"""How a line begins that a stream of server-sent events prints."""


class Terminal:
    """A shell that somebody types into: what one block exports is there in the next one."""

    def __init__(self, place: Path, environ: dict[str, str]) -> None:
        self._block = place / ".block"
        self._log = (place / "terminal.log").open("ab")
        self._shell = subprocess.Popen(
            ["bash"],
            cwd=place,
            env=environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            start_new_session=True,
        )

    def run(self, text: str) -> tuple[int, str]:
        """Type it in and wait for its end: the last exit code, and what was printed."""
        assert self._shell.stdin is not None
        assert self._shell.stdout is not None
        self._block.write_text(text)
        guard = threading.Timer(LONG_S, self.close)
        guard.start()
        try:
            self._shell.stdin.write(b". ./.block < /dev/null; printf '\\0%d\\n' $?\n")
            self._shell.stdin.flush()
            printed = b""
            while b"\0" not in printed:
                line = self._shell.stdout.readline()
                assert line, f"{text} has not ended in {LONG_S} s"
                printed += line
        finally:
            guard.cancel()
        said, _, code = printed.rpartition(b"\0")
        return int(code), said.decode()

    def close(self) -> None:
        """End the shell and what it has started."""
        os.killpg(self._shell.pid, signal.SIGKILL)
        self._shell.wait(10)


class Place:
    """The directory of one recipe, with its terminals. What runs in it ends with it."""

    def __init__(self, root: Path, title: str, **environ: str) -> None:
        self.root = root
        self.blocks = BLOCKS[title]
        # Without buffers a line that is printed is many writes, and who is killed leaves half of one.
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith("TOPICS_") and name != "PYTHONUNBUFFERED"
        }
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        self.environ = kept | {"PATH": path, "TOPICS_MIN_FREE_BYTES": "0"} | environ
        self._first: Terminal | None = None
        self._jobs: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Place:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            while self._jobs:
                self.kill(self._jobs[-1])
        finally:
            if self._first is not None:
                self._first.close()

    def walk(self) -> None:
        """Do what the page says, from the first block to the last, and find what it shows."""
        code, printed, last = 0, "", ""
        for block in self.blocks:
            if block.language == "":
                self._becomes(last, printed, block.text)
                code = 0
                continue
            assert code == 0, (last, code, self.log())
            if block.language == "python":
                self.write(block)
            elif block.text.startswith(ANOTHER):
                self.start(block.text)
                if (serves := SERVES.search(block.text)) is not None:
                    url = f"http://127.0.0.1:{self.environ[serves[1]]}"
                    self.until(lambda url=url: answers(url))  # type: ignore[misc]
            else:
                code, printed = self.type(block.text)
                last = block.text
        assert code == 0, (last, self.log())

    def _becomes(self, typed: str, printed: str, shown: str) -> None:
        """What is printed is what is shown; what goes on in other terminals may take a while."""
        (*_, last_line) = typed.strip().splitlines()

        def is_shown() -> bool:
            nonlocal printed
            if not is_like(printed, shown):
                _, printed = self.type(last_line)
            return is_like(printed, shown)

        try:
            self.until(is_shown, every_s=1)  # each look is a process
        except AssertionError:
            raise AssertionError(f"{typed}prints\n{printed}not\n{shown}\n{self.log()}") from None

    def type(self, text: str) -> tuple[int, str]:
        """Type something into the first terminal."""
        if self._first is None:
            self._first = Terminal(self.root, self.environ)
        return self._first.run(text)

    def write(self, block: Block) -> None:
        (self.root / block.file).write_text(block.text)

    def write_all(self) -> None:
        """Every Python file of the recipe."""
        for block in self.blocks:
            if block.language == "python":
                self.write(block)

    def start(self, text: str, **environ: str) -> subprocess.Popen[bytes]:
        """Run something in another terminal."""
        with (self.root / "terminal.log").open("ab") as log, (self.root / "printed").open("ab") as printed:
            job = subprocess.Popen(
                # It has an end of its own: if the tests are killed, nobody else ends it.
                ["timeout", "--signal=KILL", f"{10 * LONG_S}", "bash", "-c", text],
                cwd=self.root,
                env=self.environ | environ,
                stdin=subprocess.DEVNULL,
                stdout=printed,
                stderr=log,
                start_new_session=True,
            )
        self._jobs.append(job)
        return job

    def kill(self, job: subprocess.Popen[bytes]) -> None:
        """SIGKILL, for all that the terminal has running."""
        self._jobs.remove(job)
        with suppress(ProcessLookupError):  # it has ended by itself
            os.killpg(job.pid, signal.SIGKILL)
        job.wait(10)

    def until(self, condition: Callable[[], bool], every_s: float = 0.05) -> None:
        """Wait for something; if it does not come to pass, what was said on stderr tells why."""
        deadline = time.monotonic() + LONG_S
        while not condition():
            assert time.monotonic() < deadline, f"it has not come to pass: {self.log()}"
            time.sleep(every_s)

    def sh(self, *mentioned: str) -> str:
        """The block of the page that has this in it."""
        (found,) = [
            block.text
            for block in self.blocks
            if block.language == "sh" and all(word in block.text for word in mentioned)
        ]
        return found

    def printed(self) -> list[str]:
        """What other terminals have printed, by lines."""
        found = self.root / "printed"
        return found.read_text().splitlines() if found.exists() else []

    def log(self) -> str:
        """The end of what was said on stderr, for who looks for the reason."""
        found = self.root / "terminal.log"
        return found.read_text()[-3000:] if found.exists() else ""


def is_like(printed: str, shown: str) -> bool:
    """Whether something is as it is shown: the same text, or an answer of the daemon that differs only in what is
    different each time."""
    if printed == shown:
        return True
    try:
        return bool(lasting(json.loads(printed)) == lasting(json.loads(shown)))
    except ValueError:
        return False


def indented(title: str) -> list[str]:
    """The indented blocks of a page outside of fences."""
    return INDENTED.findall(FENCE.sub("", WHOLE[title]))


def streamed(title: str) -> list[str]:
    """The lines that a page shows as the output of a stream, in order."""
    blocks = [text for text in indented(title) if STREAMED.match(text)]
    return [line.strip() for text in blocks for line in text.splitlines() if line.strip()]


def is_streamed_line(printed: str, shown: str) -> bool:
    """Return True if the lines are equal but for times, epochs and names of leases within their data."""
    data = "data: "
    if printed.startswith(data) and shown.startswith(data):
        return is_like(printed.removeprefix(data), shown.removeprefix(data))
    return printed == shown


def lasting(value: Any) -> Any:
    """JSON without times, epochs, the names of leases and the time that was taken."""
    if isinstance(value, list):
        return [lasting(item) for item in value]
    if isinstance(value, dict):
        passing = ("performance", "$ts", "epoch", "lease_id", "deadline")
        return {name: lasting(item) for name, item in value.items() if name not in passing}
    return value


def answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/v0/ready", timeout=5, trust_env=False).status_code == 200
    except httpx.TransportError:
        return False


def data_of(client: Client, topic: str) -> list[Any]:
    """The data of all records, none of which may be missing."""
    items = list(client.read(topic))
    assert all(isinstance(item, Record) for item in items), items
    return [item.data for item in items if isinstance(item, Record)]
