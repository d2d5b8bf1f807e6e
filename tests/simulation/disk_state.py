"""The content of a simulated disk: files and names, what is durable of them, and what is pending.

Files and directories are nodes. `DiskState` has all of them, with the changes of names in the order in which they were
made, and says what a crash of the machine leaves.
"""

from __future__ import annotations

import posixpath
import random
from collections.abc import Callable, Iterator
from typing import Any, Literal, NamedTuple

SECTOR = 512
"""The unit in which a disk writes, in bytes; a write may end anywhere between and inside sectors."""

CrashKind = Literal["drop", "keep", "tear", "reorder", "garble"]
"""What a machine crash does to pending changes.

- drop: none survives
- keep: all survive, names too
- tear: of each file a prefix, its last write cut anywhere; of the names a random part
- reorder: of each file random sectors of its pending writes, in any order; of the names a random part
- garble: as reorder, and what survived of a write may be garbage
"""
CRASH_KINDS: tuple[CrashKind, ...] = ("drop", "keep", "tear", "reorder", "garble")


# ----------------------------------------------------------------- content of a file


class Write(NamedTuple):
    offset: int
    data: bytes

    @property
    def end(self) -> int:
        return self.offset + len(self.data)


class Truncate(NamedTuple):
    length: int


class Extend(NamedTuple):
    length: int


Change = Write | Truncate | Extend


def _apply(content: bytearray, change: Change) -> None:
    """Make one change to `content`. A gap reads as zeros."""
    match change:
        case Write(offset, data):
            if offset > len(content):
                content.extend(bytes(offset - len(content)))
            content[offset : offset + len(data)] = data
        case Truncate(length):
            del content[length:]
            content.extend(bytes(length - len(content)))
        case Extend(length):
            content.extend(bytes(max(0, length - len(content))))


def _survivors(durable: bytes | bytearray, pending: list[Change], kind: CrashKind, rng: random.Random) -> bytearray:
    """What a file holds after a crash of the machine."""
    content = bytearray(durable)
    match kind:
        case "drop":
            pass
        case "keep":
            for change in pending:
                _apply(content, change)
        case "tear":
            whole = rng.randint(0, len(pending))
            for change in pending[:whole]:
                _apply(content, change)
            if whole < len(pending) and isinstance(torn := pending[whole], Write):
                _apply(content, Write(torn.offset, torn.data[: _cut(torn, rng)]))
        case "reorder" | "garble":
            _scatter(content, pending, rng, garble=kind == "garble")
    return content


def _cut(torn: Write, rng: random.Random) -> int:
    """Where a write ends that did not end: at a byte or at the end of a sector, not at its own end."""
    if rng.random() < 0.5:
        return rng.randrange(len(torn.data))
    boundaries = range(SECTOR - torn.offset % SECTOR, len(torn.data), SECTOR)
    return rng.choice(boundaries) if boundaries else 0


def _scatter(content: bytearray, pending: list[Change], rng: random.Random, *, garble: bool) -> None:
    """Apply a random part of `pending`: sectors of writes in any order, but not across a change of size."""
    share = rng.choice((0.1, 0.5, 0.9))
    sectors: list[Write] = []

    def flush() -> None:
        survivors = [sector for sector in sectors if rng.random() < share]
        rng.shuffle(survivors)
        for offset, data in survivors:
            _apply(content, Write(offset, rng.randbytes(len(data)) if garble and rng.random() < 0.25 else data))
        if sectors and rng.random() < 0.25:  # the size came through and the bytes did not
            _apply(content, Extend(rng.choice(sectors).end))
        sectors.clear()

    for change in pending:
        if isinstance(change, Write):
            sectors.extend(_sectors(change))
            continue
        flush()
        if rng.random() < share:
            _apply(content, change)
    flush()


def _sectors(write: Write) -> Iterator[Write]:
    start = write.offset
    while start < write.end:
        end = min(start - start % SECTOR + SECTOR, write.end)
        yield Write(start, write.data[start - write.offset : end - write.offset])
        start = end


# ----------------------------------------------------------------- the tree


class WriteErrors:
    """The writes that have failed, of a file or of a file system, and up to which of them somebody has been told."""

    __slots__ = ("count", "told")

    def __init__(self, count: int = 0, told: int = 0) -> None:
        self.count = count
        self.told = told

    def heard(self, since: int) -> bool:
        """Whether a descriptor that knows of the first `since` has another one to hear of; it is told by that."""
        if since < self.count:
            self.told = self.count
            return True
        return False


class FileNode:
    """An inode: its content visible and durable, and what is between the two."""

    __slots__ = ("durable", "errors", "handles", "inode", "path", "pending", "visible")

    def __init__(self, inode: int, path: str, content: bytes | bytearray = b"") -> None:
        self.inode = inode
        self.path = path
        self.visible = bytearray(content)
        self.durable = bytearray(content)
        self.pending: list[Change] = []
        self.errors = WriteErrors()
        self.handles = 0
        """How many descriptors are open."""

    def __deepcopy__(self, memo: dict[int, Any]) -> FileNode:
        twin = FileNode(self.inode, self.path)
        twin.visible = self.visible[:]
        twin.durable = self.durable[:]
        twin.pending = self.pending[:]
        return twin  # the process had it open, if anybody had: it may leave the cache now

    def close(self) -> None:
        """A descriptor is closed. Without any the inode may leave the cache, and its errors with it."""
        self.handles -= 1
        if not self.handles:
            self.errors.told = self.errors.count

    def change(self, change: Change) -> None:
        _apply(self.visible, change)
        self.pending.append(change)

    def sync(self) -> None:
        for change in self.pending:
            _apply(self.durable, change)
        self.pending.clear()

    def lose(self, rng: random.Random | None) -> None:
        """A write back that failed: all is clean, and durable is nothing of it, or with `rng` a random part."""
        if rng is not None:
            _scatter(self.durable, self.pending, rng, garble=False)
        self.pending.clear()
        self.errors.count += 1
        if not self.handles:
            self.errors.told = self.errors.count

    def is_durable(self, start: int, end: int) -> bool:
        return (
            end <= len(self.durable)
            and memoryview(self.visible)[start:end] == memoryview(self.durable)[start:end]
            and not any(_touches(change, start, end) for change in self.pending)
        )


def _touches(change: Change, start: int, end: int) -> bool:
    """Whether a pending change could alter bytes in [start, end) if it survived."""
    match change:
        case Write(offset, data):
            return offset < end and start < offset + len(data)
        case Truncate(length):
            return length < end
        case Extend():
            return False


class DirNode:
    """A directory: its names, visible and durable. What is between the two is in `DiskState.changes`."""

    __slots__ = ("durable", "inode", "path", "visible")

    def __init__(self, inode: int, path: str) -> None:
        self.inode = inode
        self.path = path
        self.visible: dict[str, Node] = {}
        self.durable: dict[str, Node] = {}


Node = FileNode | DirNode


class NameChange:
    """One atomic change of names: what each of them is from then on (None: gone), and which directories to sync."""

    __slots__ = ("names", "stuck", "unsynced")

    def __init__(self, *names: tuple[DirNode, str, Node | None]) -> None:
        self.names = names
        self.unsynced = [directory for directory, _, _ in names]
        self.stuck = False
        """Lost by a sync that failed: no later sync makes it durable, unless one of the same name does."""

    def keys(self) -> set[tuple[int, str]]:
        return {(directory.inode, name) for directory, name, _ in self.names}


class DiskState:
    """All that a process kill leaves."""

    def __init__(self) -> None:
        self.next_inode = 2
        self.root = DirNode(1, "/")
        self.changes: list[NameChange] = []
        self.errors = WriteErrors()
        """Of all files."""

    def new_inode(self) -> int:
        self.next_inode += 1
        return self.next_inode

    def files(self) -> list[FileNode]:
        """Every file that has a name, visible or durable."""
        seen: dict[int, Node] = {}
        todo: list[Node] = [self.root]
        while todo:
            node = todo.pop()
            if node.inode not in seen:
                seen[node.inode] = node
                if isinstance(node, DirNode):
                    todo += [*node.visible.values(), *node.durable.values()]
        return [node for _, node in sorted(seen.items()) if isinstance(node, FileNode)]

    def commit_names(self, ready: Callable[[NameChange], bool]) -> None:
        """Make the changes that are `ready` durable, and with each of them the earlier ones of the same names."""
        needed: set[tuple[int, str]] = set()
        committed: list[NameChange] = []
        waiting: list[NameChange] = []
        for change in reversed(self.changes):
            if ready(change) or needed & change.keys():
                needed |= change.keys()
                committed.append(change)
            else:
                waiting.append(change)
        for change in reversed(committed):
            for directory, name, node in change.names:
                put(directory.durable, name, node)
        self.changes = waiting[::-1]

    def after_machine_crash(self, kind: CrashKind, rng: random.Random) -> DiskState:
        survived = DiskState()
        survived.next_inode = self.next_inode
        names = self._surviving_names(kind, rng)

        def rebuild(old: DirNode, new: DirNode) -> None:
            for name, node in sorted(names.get(old.inode, old.durable).items()):
                path = posixpath.join(new.path, name)
                twin: Node
                if isinstance(node, FileNode):
                    twin = FileNode(node.inode, path, _survivors(node.durable, node.pending, kind, rng))
                else:
                    twin = DirNode(node.inode, path)
                    rebuild(node, twin)
                new.visible[name] = new.durable[name] = twin

        rebuild(self.root, survived.root)
        return survived

    def _surviving_names(self, kind: CrashKind, rng: random.Random) -> dict[int, dict[str, Node]]:
        """The names in each directory that has changes pending; a change needs the earlier ones of the same names."""
        share = {"drop": 0.0, "keep": 1.0}[kind] if kind in ("drop", "keep") else rng.choice((0.1, 0.5, 0.9))
        names: dict[int, dict[str, Node]] = {}
        lost: set[tuple[int, str]] = set()
        for change in self.changes:
            if lost & change.keys() or rng.random() >= share:
                lost |= change.keys()
                continue
            for directory, name, node in change.names:
                put(names.setdefault(directory.inode, dict(directory.durable)), name, node)
        return names


def put(names: dict[str, Node], name: str, node: Node | None) -> None:
    if node is None:
        names.pop(name, None)
    else:
        names[name] = node


def move(node: Node, path: str) -> None:
    """Tell a node, and what is below it, its new name."""
    node.path = path
    if isinstance(node, DirNode):
        for name, below in node.visible.items():
            move(below, posixpath.join(path, name))
