"""A consistent copy of the directories of a running daemon: `scripts/copy DATA_DIR DEST` (`docs/operations.md`).

The daemon takes a checkpoint and holds the files that it names. They are copied to `DEST.partial` and synced, and the
directory is renamed to DEST when the daemon says that the hold has lasted all the time: a directory called DEST is
complete. The hold is prolonged while copying goes on, up to `--max-s` seconds. DEST contains `data` and, if the daemon
has a cold directory, `cold`.

Needs only Python (no environment of the daemon), the right to read the files, and a key of the scope `admin`.

Exit codes: 0: done; 1: there is no copy (nothing is left behind), or `--verify` has found damage in it; 2: the command
line is wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, Final, NamedTuple, NoReturn

CHUNK_BYTES: Final = 1 << 20
ANSWER_S: Final = 120.0
"""A checkpoint after a long time without one takes its time (`docs/performance.md`: 20,000 new topics, 36 s)."""

COLD: Final = "cold:"

RESTORED: Final = "RESTORED"
"""The file that tells a daemon, at its first start there, that the directory is a copy."""


class Failure(Exception):
    """There is no copy, and why."""


class Held(NamedTuple):
    """What the daemon answers: the files, and by which snapshots the checkpoint can be told from another."""

    files: list[str]
    snapshots: frozenset[str]


class Daemon:
    """The daemon whose files are copied."""

    def __init__(self, url: str, token: str | None) -> None:
        self._url = url.rstrip("/")
        self._token = token

    def checkpoint(self, hold_ms: int) -> Held:
        """Take a checkpoint and hold its files; while a hold lasts, prolong it. Raises Failure."""
        request = urllib.request.Request(f"{self._url}/v0/admin/checkpoint?hold_ms={hold_ms}", method="POST")
        if self._token:
            request.add_header("Authorization", f"Bearer {self._token}")
        try:
            with urllib.request.urlopen(request, timeout=ANSWER_S) as answer:
                files: list[str] = json.load(answer)["files"]
        except urllib.error.HTTPError as error:
            raise Failure(f"the daemon answers {error.code}: {_message(error)}") from error
        except (OSError, ValueError, KeyError) as error:
            raise Failure(f"no checkpoint from {self._url}: {error}") from error
        return Held(files, frozenset(name for name in files if name.startswith("meta/snapshot.")))


def _message(error: urllib.error.HTTPError) -> str:
    try:
        return str(json.load(error)["error"]["message"])
    except (OSError, ValueError, KeyError, TypeError):
        return str(error.reason)


class Copy:
    """One copy on its way. `sources` are the data directory and the cold one, if there is one."""

    def __init__(
        self, daemon: Daemon, sources: tuple[Path, Path | None], dest: Path, hold_ms: int, max_s: float
    ) -> None:
        self._daemon = daemon
        self._sources = sources
        self._dest = dest
        self._hold_ms = hold_ms
        self._give_up = time.monotonic() + max_s
        self._renew_at = 0.0
        self._held = Held([], frozenset())
        self.bytes = 0

    def take(self) -> int:
        """Copy; the number of files. Raises Failure, OSError."""
        self._held = self._daemon.checkpoint(self._hold_ms)
        self._renew_at = self._half_way()
        pairs = [(self._source_of(name), self._dest / self._place_of(name)) for name in self._held.files]
        self._check_room(source for source, _ in pairs)
        directories = {self._dest, self._dest / "data"}
        if self._sources[1] is not None:
            # Also where it has nothing to copy: segments that nobody needs any more may still be said to be in it.
            _make_directories(self._dest / "cold", self._dest)
            directories.add(self._dest / "cold")
        # A daemon that is started on the copy gives out no seq that was given out since (docs/operations.md 10).
        self._mark(self._dest / "data")
        for source, target in pairs:
            _make_directories(target.parent, self._dest)
            directories.update(parent for parent in target.parents if parent.is_relative_to(self._dest))
            self._copy_file(source, target)
        self._confirm(0)
        for directory in sorted(directories, key=lambda path: len(path.parts), reverse=True):
            _sync(directory)
        return len(pairs)

    def _source_of(self, name: str) -> Path:
        path = PurePosixPath(name.removeprefix(COLD))
        if path.is_absolute() or ".." in path.parts:
            raise Failure(f"the daemon names a file outside of its directories: {name}")
        data, cold = self._sources
        if not name.startswith(COLD):
            return data / path
        if cold is None:
            raise Failure("the daemon has a cold directory: name it with --cold-dir or TOPICS_COLD_DIR")
        return cold / path

    @staticmethod
    def _place_of(name: str) -> str:
        return f"cold/{name.removeprefix(COLD)}" if name.startswith(COLD) else f"data/{name}"

    def _check_room(self, sources: Iterable[Path]) -> None:
        try:
            needed = sum(source.stat().st_size for source in sources)
        except FileNotFoundError as error:
            raise Failure(f"{error.filename} is not there: is that the directory of this daemon?") from error
        free = shutil.disk_usage(self._dest).free
        if needed > free:
            raise Failure(f"the copy takes {needed:,} bytes, and {free:,} are free where it should go")

    def _mark(self, data: Path) -> None:
        _make_directories(data, self._dest)
        with (data / RESTORED).open("xb") as file:
            os.fchmod(file.fileno(), 0o600)
            os.fsync(file.fileno())

    def _copy_file(self, source: Path, target: Path) -> None:
        with source.open("rb", buffering=0) as reader, target.open("xb", buffering=0) as writer:
            os.fchmod(writer.fileno(), 0o600)
            while chunk := reader.read(CHUNK_BYTES):
                writer.write(chunk)
                self.bytes += len(chunk)
                if time.monotonic() >= self._renew_at:
                    self._renew()
            os.fsync(writer.fileno())
        if time.monotonic() >= self._renew_at:
            self._renew()

    def _renew(self) -> None:
        """Prolong the hold, if there is time left for more of it."""
        if time.monotonic() >= self._give_up:
            raise Failure("copying takes longer than --max-s allows")
        self._confirm(self._hold_ms)
        self._renew_at = self._half_way()

    def _half_way(self) -> float:
        """When to prolong the hold that an answer has just told of. It counts from a little before the answer on; the
        call that prolongs it shows whether it has lasted."""
        return time.monotonic() + self._hold_ms / 2000

    def _confirm(self, hold_ms: int) -> None:
        """That the hold has lasted: while it does, answers name the same snapshots; after it this call takes another
        checkpoint, and they name its snapshot."""
        if self._daemon.checkpoint(hold_ms).snapshots != self._held.snapshots:
            raise Failure("the hold was over before the copy was; try again, with a longer --hold-ms")


def _make_directories(path: Path, below: Path) -> None:
    for directory in reversed([path, *path.parents]):
        if directory.is_relative_to(below):
            directory.mkdir(mode=0o700, exist_ok=True)


def _sync(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def main(arguments: Sequence[str] | None = None) -> None:
    """The command. Exits."""
    options = _parse(arguments)
    dest: Path = options.dest
    partial = dest.with_name(dest.name + ".partial")
    if dest.exists():
        _refuse(f"{dest} exists")
    if partial.exists():
        _refuse(f"{partial} exists: another copy is being made, or one was cut short; remove it then")
    began = time.monotonic()
    sources = (options.data_dir, options.cold_dir)
    daemon = Daemon(options.url, os.environ.get("TOPICS_TOKEN"))
    try:
        partial.mkdir(mode=0o700)
        copy = Copy(daemon, sources, partial, hold_ms=options.hold_ms, max_s=options.max_s)
        files = copy.take()
        partial.rename(dest)
        _sync(dest.parent)
    except (Failure, OSError) as error:
        print(f"copy: {error}", file=sys.stderr)
        shutil.rmtree(partial, ignore_errors=True)
        sys.exit(1)
    seconds = time.monotonic() - began
    print(f"{dest}: {files:,} files, {copy.bytes / 1e6:,.1f} MB, {seconds:.1f} s")
    if options.verify:
        command: list[Any] = [sys.executable, "-m", "topics", "verify", dest / "data"]
        if (dest / "cold").exists():
            command += ["--cold-dir", dest / "cold"]
        sys.stdout.flush()
        sys.exit(subprocess.run(command, check=False).returncode)


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    environ = os.environ
    parser = argparse.ArgumentParser(
        prog="copy",
        description="A consistent copy of the directories of a daemon that runs, made on its machine.",
        epilog="TOPICS_TOKEN is a key with the scope admin, where there are keys.",
    )
    parser.add_argument("data_dir", metavar="DATA_DIR", type=Path, help="data directory of the daemon")
    parser.add_argument("dest", metavar="DEST", type=Path, help="directory to make, with data/ and cold/")
    parser.add_argument(
        "--url",
        default=environ.get("TOPICS_URL", "http://127.0.0.1:4000"),
        help="address of the daemon (TOPICS_URL; %(default)s)",
    )
    parser.add_argument(
        "--cold-dir",
        type=Path,
        default=environ.get("TOPICS_COLD_DIR") or None,
        help="cold directory of the daemon, if it has one (TOPICS_COLD_DIR)",
    )
    parser.add_argument(
        "--hold-ms", type=int, default=60_000, help="how long one call holds the files, in ms (%(default)s)"
    )
    parser.add_argument("--max-s", type=float, default=3600.0, help="give up after this time, in seconds (%(default)s)")
    parser.add_argument("--verify", action="store_true", help="run `python -m topics verify` on the copy")
    options = parser.parse_args(arguments)
    if not 1000 <= options.hold_ms <= 600_000:
        parser.error("--hold-ms must be from 1000 to 600000")
    return options


def _refuse(problem: str) -> NoReturn:
    print(f"copy: {problem}", file=sys.stderr)
    sys.exit(2)


if __name__ == "__main__":
    main()
