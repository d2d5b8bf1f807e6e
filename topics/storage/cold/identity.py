"""Which data directory a cold directory belongs to: identity files in both roots, and a lock on the cold one
(`docs/design/cold_store.md`).

`IDENTITY` in the data directory is one line of JSON, `{"id": ..., "cold": ...}`, and in the cold one `{"id": ...,
"data": ...}`: 32 hex digits each, the id of its own root and that of the other one. Two data directories number their
topics alike, so without them the second one to be started on a cold directory would take the first one's topics for
leftovers, and delete them. Everything here blocks.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Mapping
from typing import Annotated, Final, Literal, NamedTuple

import msgspec

from topics.storage.files.datadir import DataDir, DataDirError, parse_topic_name, shown_bytes
from topics.storage.files.fs import Fs, LockHandle, LockHeld, join, write_atomic
from topics.storage.snapshots.snapshot import SnapshotDamaged, decode_manifest
from topics.telemetry.logs import get_logger

log = get_logger(__name__)

IDENTITY: Final = "IDENTITY"

NO_DIRECTORY_LOCKS: Final = frozenset({errno.EBADF, errno.EINVAL, errno.ENOLCK, errno.ENOTSUP, errno.EISDIR})
"""Errors by which a file system says that it cannot lock a directory (NFS)."""

SHOWN: Final = 5
"""Examples in a message."""

State = Literal["unknown", "new", "ours", "foreign"]
"""unknown: not examined yet; nothing is read or changed. new: it has no identity; it is read, and becomes ours when its
content is known. foreign: it belongs to another data directory, or is missing; nothing is read or changed."""


_Id = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{32}$")]


class ColdIdentity(msgspec.Struct, frozen=True, omit_defaults=True):
    """The content of one of the two files."""

    id: _Id
    data: _Id | None = None
    cold: _Id | None = None
    pending: bool = False
    """True in the data directory while it is being joined with `cold`, whose file may not exist yet."""

    def line(self) -> bytes:
        """Return the content of the file."""
        return msgspec.json.encode(self) + b"\n"


class ExpectedIdentity(NamedTuple):
    """The content of the cold directory as the data directory knows it."""

    names: Mapping[int, str]
    """Its topics by id."""
    cold_topics: frozenset[int]
    """Ids of its topics with cold segments."""
    others: frozenset[int]
    """Ids of deleted topics whose files are still needed."""


def read_data_identity(fs: Fs, root: str, cold_root: str | None) -> ColdIdentity | None:
    """Return the identity of a data directory; None if it has none. If it is damaged, `cold_root` is read to tell its
    right content.

    Raises DataDirError if the file is damaged, OSError.
    """
    found = _read(fs, root)
    if isinstance(found, bytes):
        its = _read(fs, cold_root) if cold_root is not None else None
        wanted = ColdIdentity(its.data, cold=its.id) if isinstance(its, ColdIdentity) and its.data is not None else None
        raise _damaged(root, found, wanted, '{"id":"<its id>","cold":"<the id of the cold directory>"}')
    return found


def read_cold_identity(fs: Fs, root: str, data_root: str) -> ColdIdentity | None:
    """Return the identity of a cold directory; None if it has none. If it is damaged, `data_root` is read to tell its
    right content.

    Raises DataDirError if the file is damaged, OSError.
    """
    found = _read(fs, root)
    if isinstance(found, ColdIdentity) and found.data is None:
        found = found.line()
    if isinstance(found, bytes):
        mine = _read(fs, data_root)
        wanted = (
            ColdIdentity(mine.cold, data=mine.id) if isinstance(mine, ColdIdentity) and mine.cold is not None else None
        )
        raise _damaged(root, found, wanted, '{"id":"<its id>","data":"<the id of the data directory>"}')
    return found


def _read(fs: Fs, root: str) -> ColdIdentity | bytes | None:
    """Return the identity of a root, None if it has none, or its bytes if they are malformed. Raises OSError."""
    try:
        content = fs.read(join(root, IDENTITY))
    except FileNotFoundError:
        return None
    try:
        return msgspec.json.decode(content, type=ColdIdentity)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return content


def _damaged(root: str, found: bytes, wanted: ColdIdentity | None, form: str) -> DataDirError:
    """Return the message about a damaged file. `wanted` is its right content, None if unknown."""
    path = join(root, IDENTITY)
    if wanted is None:
        return DataDirError(
            f"{path} is damaged: it should hold a line {form} with ids of 32 hex digits, and {shown_bytes(found)} was "
            f"found: restore it from a copy of {root}"
        )
    return DataDirError(
        f"{path} is damaged: it should hold the line {wanted.line().decode().strip()} if the cold directory is the one "
        f"of this data directory, and {shown_bytes(found)} was found: restore it from a copy of {root}, or write that "
        f"line into it"
    )


class ColdRoot:
    """The cold directory of a data directory, and the facts about its owner. The `Admission` of its store.

    `look` and `join` are called one after the other; the other methods from any thread.
    """

    def __init__(self, fs: Fs, data_root: str, root: str, *, adopt: bool) -> None:
        self.root = root
        self.state: State = "unknown"
        self.problem = "it has not been examined yet"
        """Why it is not used, for the operator."""
        self._fs = fs
        self._data_root = data_root
        self._adopt = adopt
        self._line = b""
        self._lock: LockHandle | None = None
        self._one = threading.Lock()
        """Held by a look. One that was given up because the store hangs may still run when the next one begins."""

    # -- admission ---------------------------------------------------------------------------------------------------

    def may_read(self) -> None:
        """Raise OSError unless it is ours, or may be."""
        if self.state not in ("ours", "new"):
            raise OSError(errno.EAGAIN, f"the cold directory is not used: {self.problem}")

    def may_change(self) -> None:
        """Raise OSError unless it is ours, and still at its place: a mount may have gone since."""
        if self.state != "ours":
            raise OSError(errno.EAGAIN, f"the cold directory is not used: {self.problem}")
        try:
            line = self._fs.read(join(self.root, IDENTITY))
        except FileNotFoundError:
            line = b""
        if line != self._line:
            raise OSError(
                errno.EAGAIN, f"{self.root} is not the directory any more that it was: is its volume mounted?"
            )

    # -- looking -----------------------------------------------------------------------------------------------------

    def look(self) -> None:
        """Call `_look`. Raises OSError if an earlier one has not returned."""
        if not self._one.acquire(blocking=False):
            raise OSError(errno.EBUSY, "an earlier look at the cold directory has not returned")
        try:
            self._look()
        finally:
            self._one.release()

    def join(self, expected: ExpectedIdentity, new_ids: tuple[str, str]) -> None:
        """Call `_join`. Raises OSError if an earlier look has not returned."""
        if not self._one.acquire(blocking=False):
            raise OSError(errno.EBUSY, "an earlier look at the cold directory has not returned")
        try:
            self._join(expected, new_ids)
        finally:
            self._one.release()

    def _look(self) -> None:
        """Lock the root, and find out to which data directory it belongs: `state` is "ours" or "new" when this returns.

        Raises DataDirError, a sentence for the operator, if it is neither (`state` is "foreign" then), and OSError if
        it cannot be read. Changes nothing but the lock in a directory that is not ours.
        """
        fs, root = self._fs, self.root
        mine, its = read_data_identity(fs, self._data_root, root), read_cold_identity(fs, root, self._data_root)
        if its is not None:
            if mine is None or its.data != mine.id or mine.cold not in (None, its.id):
                raise self._refusal(
                    f"the cold directory {root} belongs to the data directory with the id {its.data}, and "
                    f"{self._data_root} has "
                    + (f"the id {mine.id} and the cold directory {mine.cold}" if mine is not None else "no id yet")
                    + ": set TOPICS_COLD_DIR to the directory that belongs to it, or to an empty one if it has none"
                )
        elif mine is not None and mine.cold is not None and not mine.pending and not self._adopt:
            there = "has lost its IDENTITY." if self._has_content() else "is empty or not there: is its volume mounted?"
            raise self._refusal(
                f"the cold directory {root} {there} It should have the id {mine.cold}. Mount it, or restore its "
                "IDENTITY; to start without it (cold records answer 503 not_ready), unset TOPICS_COLD_DIR; if what "
                "was in it is lost for good, or it is complete but for that file, start once with TOPICS_COLD_ADOPT=1"
            )
        self._take_lock()
        if its is not None and mine is not None:
            if mine != (wanted := ColdIdentity(mine.id, cold=its.id)):
                fs.sync_all(root)  # its file may be visible but not on disk, if the joining process was killed
                write_atomic(fs, join(self._data_root, IDENTITY), wanted.line())
            self._is_ours(its)
        else:
            self.state, self.problem = "new", "it has no identity yet"

    def _join(self, expected: ExpectedIdentity, new_ids: tuple[str, str]) -> None:
        """Make a root without identity ours, unless its content is another's. `new_ids` are for the data directory, if
        it has none, and for the cold one: 32 hex digits each.

        Raises DataDirError if its content is unknown, and OSError.
        """
        assert self.state == "new"
        fs = self._fs
        if not self._adopt:
            self._check_content(expected)
        mine = read_data_identity(fs, self._data_root, self.root)
        data_id = mine.id if mine is not None else new_ids[0]
        its = ColdIdentity(new_ids[1], data=data_id)
        if mine is not None and mine.pending and mine.cold is not None:
            its = ColdIdentity(mine.cold, data=data_id)
        path = join(self._data_root, IDENTITY)
        # The data directory first notes which directory it will be joined with, so a crash in between does no harm.
        write_atomic(fs, path, ColdIdentity(data_id, cold=its.id, pending=True).line())
        fs.mkdir(self.root)
        fs.sync_all(self.root)
        self._take_lock()
        write_atomic(fs, join(self.root, IDENTITY), its.line())
        write_atomic(fs, path, ColdIdentity(data_id, cold=its.id).line())
        self._is_ours(its)
        log.info("cold_directory_joined", cold=self.root, id=its.id, data_id=data_id)

    def release(self) -> None:
        """Release the lock."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def _is_ours(self, its: ColdIdentity) -> None:
        self._line = self._fs.read(join(self.root, IDENTITY))
        self.state, self.problem = "ours", ""

    def _refusal(self, problem: str) -> DataDirError:
        self.state, self.problem = "foreign", problem
        return DataDirError(problem)

    def _take_lock(self) -> None:
        """Lock the root until `release`. A root that does not exist is locked once it has been made."""
        fs = self._fs
        if self._lock is not None or not fs.exists(self.root):
            return
        try:
            try:
                self._lock = fs.lock_dir(self.root)
            except OSError as error:
                if error.errno not in NO_DIRECTORY_LOCKS:
                    raise
                self._lock = fs.lock(join(self.root, "LOCK"), self._data_root)
        except LockHeld:
            raise self._refusal(
                f"the cold directory {self.root} is in use by another daemon: two data directories, a copy and its "
                "original too, must not have the same TOPICS_COLD_DIR"
            ) from None

    # -- content -----------------------------------------------------------------------------------------------------

    def _topics(self) -> list[int]:
        names = self._fs.listdir(DataDir(self.root).topics_dir)
        return [topic_id for name in names if (topic_id := parse_topic_name(name)) is not None]

    def _has_content(self) -> bool:
        return bool(self._fs.listdir(DataDir(self.root).topics_dir))

    def _check_content(self, expected: ExpectedIdentity) -> None:
        """Accept content of a version without identities if every topic in it is one of ours."""
        there = self._topics()
        unknown = [topic_id for topic_id in there if not self._is_known(topic_id, expected)]
        if unknown:
            shown = ", ".join(f"{topic_id:016x}" for topic_id in unknown[:SHOWN])
            raise self._refusal(
                f"the cold directory {self.root} has no IDENTITY, and {len(unknown)} topics in it are not those of "
                f"{self._data_root} (topics/{shown}): it belongs to another data directory, or these are left from "
                "topics that were deleted. Set TOPICS_COLD_DIR to an empty directory; or, if it is this one's, start "
                "once with TOPICS_COLD_ADOPT=1, which removes the unknown topics"
            )
        if expected.cold_topics and not there:
            raise self._refusal(
                f"the cold directory {self.root} is empty or not there, and {len(expected.cold_topics)} topics have "
                "segments in it: is its volume mounted? To start without it (cold records answer 503 not_ready), "
                "unset TOPICS_COLD_DIR; if it is lost for good, start once with TOPICS_COLD_ADOPT=1"
            )

    def _is_known(self, topic_id: int, expected: ExpectedIdentity) -> bool:
        name = expected.names.get(topic_id)
        if name is None:
            return topic_id in expected.others
        try:
            part = decode_manifest(self._fs.read(DataDir(self.root).manifest_path(topic_id)))
        except (FileNotFoundError, SnapshotDamaged):
            return True  # left by an interrupted relocation
        return part.id == topic_id and part.name == name
