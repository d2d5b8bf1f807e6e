"""Copies of the checkout, each of them broken for one trial at a time.

Responsible for what is in a copy, for its being what Python imports (an editable install of the checkout itself must
not win), for breaking and mending its files, and for ending all processes that a command in it has started. `trial`
chooses the commands and judges their exit codes.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple

import trio

from mutating.mutation import Mutation

REPOSITORY: Final = Path(__file__).resolve().parents[2]

OUTPUT_BYTES: Final = 64 << 10
"""Of what a command prints, the end."""

MEMORY_KIB: Final = 8 << 20
"""Addresses that a command may take up: what is broken may well gather more and more."""

_SHELL: Final = 'ulimit -v "$0" && exec "$@"'


class Ended(NamedTuple):
    """How a command ended: its exit code, None if it was ended when its time was over; and what it has printed last."""

    code: int | None
    output: str
    seconds: float


class Foreign(Exception):
    """Python imports something else than the copy."""


class Copy:
    """A copy of the checkout in a directory of its own."""

    def __init__(self, directory: Path) -> None:
        self.root = directory / "checkout"
        self._scratch = directory / "scratch"
        self._scratch.mkdir()
        for name in _files():
            target = self.root / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(REPOSITORY / name, target)

    @contextmanager
    def broken(self, mutation: Mutation) -> Iterator[None]:
        """The copy is broken like this while the context lasts. Raises ValueError if the mutation does not fit."""
        path = self.root / mutation.file
        whole = path.read_text()
        try:
            _write(path, mutation.applied(whole))
            yield
        finally:
            _write(path, whole)

    async def check_imports(self, module: str) -> str | None:
        """None if a module of the copy can be imported, and the daemon; else why not. Raises Foreign."""
        lines = f"import topics, topics.daemon, {module}\nprint(topics.__file__)"
        ended = await self.run([sys.executable, "-c", lines], 60)
        if ended.code != 0:
            return ended.output.strip().splitlines()[-1] if ended.output.strip() else "it does not end"
        found = Path(ended.output.splitlines()[-1])
        if not found.is_relative_to(self.root):
            raise Foreign(f"{found} is imported instead of {self.root / 'topics'}")
        return None

    async def run(self, command: Sequence[str], timeout_s: float) -> Ended:
        """Run a command in the copy. It and what it has started is ended when its time is over, and on cancellation."""
        began = trio.current_time()
        code: int | None = None
        with tempfile.TemporaryFile(dir=self._scratch) as output:
            with trio.move_on_after(timeout_s):
                process = await trio.run_process(
                    ["sh", "-c", _SHELL, str(MEMORY_KIB), *command],
                    stdin=subprocess.DEVNULL,
                    stdout=output.fileno(),
                    stderr=subprocess.STDOUT,
                    check=False,
                    cwd=self.root,
                    env=self._environment(),
                    start_new_session=True,
                    deliver_cancel=_end_group,
                )
                code = process.returncode
            output.seek(max(output.seek(0, os.SEEK_END) - OUTPUT_BYTES, 0))
            text = output.read().decode("utf-8", "replace")
        self._sweep_scratch()
        return Ended(code, text, trio.current_time() - began)

    def _environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("TOPICS_", "PYTEST_"))}
        paths = os.pathsep.join(str(path) for path in (self.root, self.root / "scripts"))
        return {**kept, "PYTHONPATH": paths, "PYTHONHASHSEED": "0", "TMPDIR": str(self._scratch)}

    def _sweep_scratch(self) -> None:
        for left in self._scratch.iterdir():
            if left.is_dir() and not left.is_symlink():
                shutil.rmtree(left, ignore_errors=True)
            else:
                left.unlink(missing_ok=True)


@contextmanager
def copies(n: int) -> Iterator[list[Copy]]:
    """So many copies of the checkout as it is now, for as long as the context lasts."""
    with tempfile.TemporaryDirectory(prefix="topics-mutate-", ignore_cleanup_errors=True) as directory:
        made = []
        for i in range(n):
            place = Path(directory) / str(i)
            place.mkdir()
            made.append(Copy(place))
        yield made


def _files() -> list[str]:
    """The files of the checkout: those that git knows, and new ones that it does not ignore."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=REPOSITORY, check=True, stdout=subprocess.PIPE, timeout=60).stdout
    names = sorted({name for name in listed.decode().split("\0") if name})
    return [name for name in names if (REPOSITORY / name).is_file()]


def _write(path: Path, text: str) -> None:
    """Write a module, without what was compiled of it before: its time and size may be the same."""
    path.write_text(text)
    for compiled in path.parent.glob(f"__pycache__/{path.stem}.*.pyc"):
        compiled.unlink()


async def _end_group(process: trio.Process) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
