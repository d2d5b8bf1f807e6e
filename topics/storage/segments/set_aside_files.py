"""`SetAsideFiles`: segments out of a former owner's directory, which was set aside in the data directory
(`docs/design/standby.md` section 6).

A standby has its segments in the bucket at first, and brings them home. A file of the former owner that has the length
and the SHA-256 of the object is that object, and nothing has to be read from the bucket. It is looked for by the name
that it has there, topic id and first seq, and counts by its content alone.

A packed `.data` is never changed in place: deletions go to its `.del`, and a rewrite gives a new file the name. So it
gets another name (a hard link), and takes no space. An unpacked one gets delete flags in its bytes, which the directory
that was set aside must not get: it is copied. So is a packed one where the file system has no links.
"""

from __future__ import annotations

import errno
import hashlib
from collections.abc import Iterator
from contextlib import suppress
from typing import Final, Literal

from topics.storage.files.datadir import DIVERGED, DataDir, segment_name
from topics.storage.files.fs import TEMPORARY_SUFFIX, Fs, join, parent
from topics.storage.segments.segment_pointer import PointedFile
from topics.storage.segments.segment_store import SegmentStore
from topics.telemetry.logs import get_logger

log = get_logger(__name__)

READ_BYTES: Final = 4 << 20

LINK_SUFFIX: Final = ".link" + TEMPORARY_SUFFIX
"""Of a link that has not got its name yet. A store writes to a file with the plain suffix, whatever it is: after a
crash that would be the file that was set aside."""

MOST_OTHERS: Final = 10_000
"""Files that are remembered as others. At the bound all are forgotten."""

Brought = Literal["linked", "copied"]


class SetAsideFiles:
    """The files of the directories in one data directory that were set aside. Blocking; calls about one segment come
    one after the other."""

    def __init__(self, fs: Fs, root: str) -> None:
        self._fs = fs
        self._root = root
        self._directories: list[DataDir] | None = None
        self._others: set[tuple[str, bytes]] = set()
        """Files that have not the content with this hash."""

    def bring(
        self, hot: SegmentStore, topic_id: int, first: int, file: PointedFile, *, has_room: bool
    ) -> Brought | None:
        """Have the `.data` of a segment in `hot`, the store of this data directory, from a file with the content of its
        object. Return how; None, and nothing has changed, if there is none, or without room for a copy. Raises OSError
        if it cannot be written."""
        for directory in self._found():
            path = directory.segment_path(topic_id, first, "data")
            if not self._is_object(path, file):
                continue
            name = segment_name(first, "data")
            if file.unpacked and self._link(path, DataDir(self._root).segment_path(topic_id, first, "data")):
                return "linked"
            if has_room:
                hot.put(topic_id, name, self._verified(path, file))
                return "copied"
        return None

    def _found(self) -> list[DataDir]:
        """Return the directories. There are no more of them while a daemon runs."""
        if self._directories is None:
            names = [name for name in self._fs.listdir(self._root) if name.startswith(DIVERGED)]
            self._directories = [DataDir(join(self._root, name)) for name in names]
        return self._directories

    def _is_object(self, path: str, file: PointedFile) -> bool:
        """Return True if a file has the content of an object."""
        if (path, file.hash) in self._others:
            return False
        try:
            with self._fs.open(path, read_only=True) as handle:
                is_same = handle.size() == file.size
            if is_same:
                digest = hashlib.sha256()
                for chunk in self._chunks(path):
                    digest.update(chunk)
                is_same = digest.digest() == file.hash
        except FileNotFoundError:
            return False
        except OSError as error:
            log.warning("set_aside_not_read", path=path, problem=str(error))
            is_same = False
        if not is_same:
            if len(self._others) >= MOST_OTHERS:
                self._others.clear()
            self._others.add((path, file.hash))
        return is_same

    def _verified(self, path: str, file: PointedFile) -> Iterator[bytes]:
        """Yield the content of an object. Raises OSError if the file has been changed since it was compared."""
        digest = hashlib.sha256()
        for chunk in self._chunks(path):
            digest.update(chunk)
            yield chunk
        if digest.digest() != file.hash:
            raise OSError(errno.EIO, "it was changed while it was copied", path)

    def _chunks(self, path: str) -> Iterator[bytes]:
        with self._fs.open(path, read_only=True) as handle:
            for at in range(0, handle.size(), READ_BYTES):
                yield handle.pread(READ_BYTES, at)

    def _link(self, source: str, target: str) -> bool:
        """Give a file another name, durably, its content too. Return False if the file system has no links. Raises
        OSError if the name cannot be made durable."""
        fs, temporary = self._fs, target + LINK_SUFFIX
        with suppress(FileNotFoundError):
            fs.unlink(temporary)
        try:
            fs.link(source, temporary)
        except OSError as error:
            log.debug("set_aside_not_linked", path=source, problem=str(error))
            return False
        with fs.open(temporary) as handle:
            handle.fdatasync()
        fs.rename(temporary, target)
        with suppress(FileNotFoundError):
            fs.unlink(temporary)  # a rename to another name of the same file does nothing
        fs.sync_dir(parent(target))
        return True
