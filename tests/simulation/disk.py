"""`SimFs`: the `Fs` seam in memory, as the most pessimistic disk that `docs/spec/crash.md` allows.

Theory of operation. Everything exists twice: as it is *visible* (the page cache, what every read answers) and as it
is *durable* (what a power cut leaves for certain). Between the two stand *pending* changes, in the order they were
made: writes, truncates and preallocations per file, and changes of names for the whole tree, each of which waits for
the sync of the directories it touches. A sync applies what is pending to what is durable; it never copies what is
visible, so that what a failed sync has lost stays lost however often the next one succeeds.

A run ends in one of two ways, each of which gives a new `SimFs`, as a new start of the daemon sees it:

- `after_process_kill`: what was visible stays visible, what was pending stays pending; the same boot id.
- `after_machine_crash`: of what was pending, the `CrashKind` and a seed decide what is there; a new boot id.
- `after_remount`: the file system was unmounted while its disk refused writes: as after a crash, in the same boot.

A write that fails is told as the kernel tells it (`errseq_t`): once to each descriptor that was open then, and to one
that is opened afterwards only while nobody has been told, and while the file has not left the cache; so also for the
whole file system, to its anchors. What becomes clean by that is gone, for every sync that follows.

What can never happen: a synced byte changes without being written again, a rename is half done, two changes of one name
swap places. What can: everything else that was pending, in any combination.

Every operation is numbered and told to subscribers, can be made to fail (`Fault`), and can be the last (`crash_at`).
One seed and one order of calls give one outcome.
"""

from __future__ import annotations

import copy
import errno
import os
import posixpath
import random
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Self, TypeGuard

from tests.simulation.disk_state import (
    CrashKind,
    DirNode,
    DiskState,
    Extend,
    FileNode,
    NameChange,
    Node,
    Truncate,
    Write,
    move,
    put,
)
from topics.storage.files.fs import File, LockHandle, LockHeld

UNLIMITED = 1 << 40
"""`free_bytes` of a disk without a `capacity`, and what it counts down from."""


class SimCrash(BaseException):
    """The machine is dead: raised by the operation that was to be the last and by every one after it.

    Not an `Exception`, because nothing in the daemon may handle it.
    """


class SimHang(BaseException):
    """A call that never returns: raised by the operation that hangs and by every one behind it in the same call.

    Not an `Exception`, because nothing in the call may handle it: a thread that hangs handles nothing. The offload that
    runs the call (`InlineOffload.attempt`) calls `thaw`; if no code gives such calls up, the exception comes through,
    and the test fails.
    """

    def __init__(self, fs: SimFs, op: str) -> None:
        super().__init__(f"{op} never returns, and nobody gives it up")
        self._fs = fs

    def thaw(self) -> None:
        """The operations from here on are those of other calls."""
        self._fs.frozen = None


@dataclass(frozen=True, slots=True)
class Op:
    """One operation, as recorded and as told to subscribers."""

    index: int
    """Its number in the journal, from 0."""
    name: str
    """The method: "open", "create", "pread", "pwrite", "fdatasync", "rename", ..."""
    path: str
    """What it is about, absolute; of an open file the name it has now."""
    detail: str
    """The target of a rename, "offset+length" of a read or write, the length of a truncate."""
    mutation: int | None
    """Its number among the mutating operations of this `SimFs`, from 0, as `crash_at` counts; None if it is not one."""


@dataclass(slots=True, eq=False)
class Fault:
    """Something that goes wrong with the operations it matches. All given conditions must hold."""

    error: int | None = None
    """The errno of the OSError that the operation raises."""
    short: int | None = None
    """A pwrite takes at most this many bytes; with `error` it takes them and then raises."""
    applied: bool = False
    """With `error`: the operation takes effect all the same, and only its answer is an error."""
    keep_some: bool = False
    """With `error` on a sync: a random part of what was pending has reached the disk, rather than nothing."""
    hangs: bool = False
    """The operation never returns, and has no effect (`SimHang`)."""
    hook: Callable[[Op], None] | None = None
    """Called before the operation takes effect: to count time for a slow disk, or to act in between."""

    at: int | None = None
    """Matches the operation of this `Op.index`."""
    name: str | None = None
    """Matches operations of this `Op.name`."""
    path: str | None = None
    """Matches paths by a shell pattern, in which `*` matches "/" too."""
    when: Callable[[Op], bool] | None = None
    """Matches what it returns True for."""
    nth: int = 0
    """Lets this many matching operations pass first."""
    times: int | None = 1
    """How many operations it hits; None for every one from then on."""

    hits: int = field(default=0, init=False)
    """How many operations it has hit."""

    @property
    def number(self) -> int:
        """`error` of a fault that has one."""
        assert self.error is not None
        return self.error

    def _claims(self, op: Op) -> bool:
        """Whether it hits `op`; counts it."""
        if self.times is not None and self.hits >= self.times:
            return False
        if (
            (self.at is not None and op.index != self.at)
            or (self.name is not None and op.name != self.name)
            or (self.path is not None and not fnmatchcase(op.path, self.path))
            or (self.when is not None and not self.when(op))
        ):
            return False
        if self.nth > 0:
            self.nth -= 1
            return False
        self.hits += 1
        return True


# ----------------------------------------------------------------- the file system


class SimFs:
    """A simulated machine's file system. Implements `Fs`; not for threads (`InlineOffload`).

    `seed` decides what is random here (the boot id, what a failed sync keeps). `journal` is where operations are
    recorded: given the same list, several lives of a machine share it. `crash_at` is the mutating operation, from 0,
    that is the last: it raises `SimCrash` before it takes effect, or after with `crash_applied`. `capacity` limits the
    sum of all file sizes, in bytes, and `inodes` the number of files and directories.
    """

    def __init__(
        self,
        seed: int = 0,
        *,
        journal: list[Op] | None = None,
        crash_at: int | None = None,
        crash_applied: bool = False,
        faults: Iterable[Fault] = (),
        capacity: int | None = None,
        inodes: int | None = None,
    ) -> None:
        self.seed = seed
        self.ops: list[Op] = [] if journal is None else journal
        self.mutations = 0
        """How many mutating operations there were: after a run without a crash, the range of `crash_at`."""
        self.crash_at = crash_at
        self.crash_applied = crash_applied
        self.faults: list[Fault] = list(faults)
        self.capacity = capacity
        self.inodes = inodes
        self.dead = False
        self.frozen: str | None = None
        """The operation that never returns, while the call that has made it is unwound."""
        self.open_files = 0
        """Files opened and not closed."""
        self._random = random.Random(seed)
        self._salts = 0
        self._state = DiskState()
        self._boot = 0
        self._mounts = 0
        self._heard: int | None = None
        """How many failed writes the anchor has been told of; None without one."""
        self._failed_before = self._broken = False
        """The anchor was told of one, when it was made or since."""
        self._locks: set[int] = set()
        self._subscribers: list[Callable[[Op], None]] = []

    # ------------------------------------------------------------- Fs

    def open(self, path: str, *, create: bool = False, exclusive: bool = False, read_only: bool = False) -> File:
        path = _absolute(path)
        if (create or exclusive) and self._look(path) is None:
            with self._operation("create", path, mutates=True):
                node = self._create(path)
        else:
            with self._operation("open", path):
                if exclusive:
                    raise _failure(errno.EEXIST, path)
                node = self._file(path)
        return SimFile(self, node, read_only)

    def read(self, path: str) -> bytes:
        path = _absolute(path)
        with self._operation("read", path):
            return bytes(self._file(path).visible)

    def rename(self, source: str, target: str) -> None:
        source, target = _absolute(source), _absolute(target)
        with self._operation("rename", source, target, mutates=True):
            node = self._node(source)
            source_dir, target_dir = self._parent(source), self._parent(target)
            replaced = self._look(target)
            if node is replaced:
                return
            if isinstance(node, DirNode):
                if target.startswith(source + "/"):
                    raise _failure(errno.EINVAL, source)
                if isinstance(replaced, FileNode):
                    raise _failure(errno.ENOTDIR, target)
                if replaced is not None and replaced.visible:
                    raise _failure(errno.ENOTEMPTY, target)
            elif isinstance(replaced, DirNode):
                raise _failure(errno.EISDIR, target)
            old, new = posixpath.basename(source), posixpath.basename(target)
            self._change_names((source_dir, old, None), (target_dir, new, node))
            move(node, target)

    def link(self, source: str, target: str) -> None:
        """A crash of the machine leaves two files with the same content, which nobody may tell from one."""
        source, target = _absolute(source), _absolute(target)
        with self._operation("link", source, target, mutates=True):
            node = self._file(source)
            if self._look(target) is not None:
                raise _failure(errno.EEXIST, target)
            self._change_names((self._parent(target), posixpath.basename(target), node))

    def unlink(self, path: str) -> None:
        path = _absolute(path)
        with self._operation("unlink", path, mutates=True):
            self._file(path)
            self._change_names((self._parent(path), posixpath.basename(path), None))

    def mkdir(self, path: str) -> None:
        path = _absolute(path)
        self._alive()
        found = self._look(path)
        if isinstance(found, DirNode):
            return
        self.mkdir(posixpath.dirname(path))
        with self._operation("mkdir", path, mutates=True):
            if found is not None:
                raise _failure(errno.EEXIST, path)
            self._take_inode(path)
            made = DirNode(self._state.new_inode(), path)
            self._change_names((self._parent(path), posixpath.basename(path), made))

    def rmdir(self, path: str) -> None:
        path = _absolute(path)
        with self._operation("rmdir", path, mutates=True):
            if self._directory(path).visible:
                raise _failure(errno.ENOTEMPTY, path)
            self._change_names((self._parent(path), posixpath.basename(path), None))

    def listdir(self, path: str) -> list[str]:
        path = _absolute(path)
        with self._operation("listdir", path):
            try:
                return sorted(self._directory(path).visible)
            except FileNotFoundError:
                return []

    def exists(self, path: str) -> bool:
        path = _absolute(path)
        with self._operation("exists", path):
            return self._look(path) is not None

    def sync_dir(self, path: str) -> None:
        path = _absolute(path)
        with self._operation("sync_dir", path, mutates=True, handles_error=True) as fault:
            synced = self._directory(path)
            touched = [change for change in self._state.changes if synced in change.unsynced]
            if _prevented(fault):
                self._lose_names(touched, fault)
                return
            for change in touched:
                change.unsynced = [directory for directory in change.unsynced if directory is not synced]
            self._state.commit_names(lambda change: not change.unsynced and not change.stuck)

    def anchor(self, path: str) -> bool:
        with self._operation("anchor", _absolute(path)):
            if self._heard is None:
                self._failed_before = self._state.errors.heard(self._state.errors.told)
                self._heard = self._state.errors.count
            return self._failed_before

    @property
    def has_untold_failures(self) -> bool:
        """Return True if the file system has lost writes of which no `sync_all` was told: the next start is, and does
        not know whose they were."""
        return self._state.errors.told < self._state.errors.count

    def release_anchors(self) -> None:
        self._heard, self._broken = None, False

    def sync_all(self, path: str) -> None:
        path = _absolute(path)
        with self._operation("sync_all", path, mutates=True, handles_error=True) as fault:
            self._node(path)
            if self._heard is None:
                raise _failure(errno.ENODEV, path)
            if self._broken:
                raise _failure(errno.EIO, path)
            if _prevented(fault):
                for file in self._state.files():
                    if file.pending:
                        self._lose(file, fault)
                self._lose_names(self._state.changes, fault)
                self._state.errors.count += 1
            else:
                self.settle()
            if self._state.errors.heard(self._heard):
                self._broken = True
                if not _prevented(fault):
                    raise _failure(errno.EIO, path)

    def _lose(self, file: FileNode, fault: Fault | None) -> None:
        """Fail the write of a file's pending bytes: all open handles of the file hear of it, and the file system."""
        file.lose(self._random if fault is not None and fault.keep_some else None)
        self._state.errors.count += 1

    def free_bytes(self, path: str) -> int:
        path = _absolute(path)
        with self._operation("free_bytes", path):
            self._node(path)
            return self._free()

    def free_inodes(self, path: str) -> int | None:
        path = _absolute(path)
        with self._operation("free_inodes", path):
            self._node(path)
            return None if self.inodes is None else max(0, self.inodes - self._nodes())

    def mount(self, path: str) -> str | None:
        path = _absolute(path)
        with self._operation("mount", path):
            self._node(path)
            return f"{self._mounts:x}"

    def identity(self, path: str) -> str:
        path = _absolute(path)
        with self._operation("identity", path):
            return f"sim:{self._node(path).inode:x}"

    def boot_id(self) -> str:
        self._alive()
        return str(uuid.UUID(int=random.Random(f"boot {self.seed} {self._boot}").getrandbits(128), version=4))

    @property
    def boots(self) -> int:
        """How often the machine has been started again. Not an operation."""
        return self._boot

    def salt(self) -> int:
        self._alive()
        self._salts += 1
        return random.Random(f"salt {self.seed} {self._salts}").getrandbits(64)

    def lock(self, path: str, text: str) -> LockHandle:
        path = _absolute(path)
        with self._operation("lock", path, mutates=True):
            directory, found = self._parent(path), self._look(path)
            if self._locks & {directory.inode, found.inode if found is not None else 0}:
                raise LockHeld(path, self._text_of(path))
            node = self._create(path) if found is None else self._file(path)
            self._locks |= {directory.inode, node.inode}
            node.change(Truncate(0))
            if text:
                node.change(Write(0, text.encode()))
        return _SimLock(self._locks, directory.inode, node.inode)

    def lock_dir(self, path: str) -> LockHandle:
        path = _absolute(path)
        with self._operation("lock_dir", path):
            node = self._directory(path)
            if node.inode in self._locks:
                raise LockHeld(path, "")
            self._locks.add(node.inode)
        return _SimLock(self._locks, node.inode)

    def lock_holder(self, path: str) -> str | None:
        path = _absolute(path)
        with self._operation("lock_holder", path):
            nodes = (self._look(posixpath.dirname(path)), self._look(path))
            held = any(node is not None and node.inode in self._locks for node in nodes)
            return self._text_of(path).strip() if held else None

    def _text_of(self, path: str) -> str:
        node = self._look(path)
        return bytes(node.visible).decode() if isinstance(node, FileNode) else ""

    # ------------------------------------------------------------- ends of a run

    def crash(self) -> None:
        """The machine dies now: every operation from here on raises `SimCrash`."""
        self.dead = True

    def after_machine_crash(self, kind: CrashKind, seed: int, *, journal: list[Op] | None = None) -> SimFs:
        """What the disk may hold after a power cut now. This one goes on unharmed, and may be asked again.

        So every state that one run can crash into can be had from that run, asked by a subscriber before each
        operation. The new one has a new boot id and the same capacity, and no faults, subscribers, locks or `crash_at`.
        """
        rng = random.Random(f"{kind} {seed}")
        born = SimFs(seed, journal=journal, capacity=self.capacity, inodes=self.inodes)
        born._state = self._state.after_machine_crash(kind, rng)
        born._boot = self._boot + 1  # and the mounts are counted anew: their names are unique in one boot only
        born._salts = self._salts
        return born

    def after_remount(self, kind: CrashKind, seed: int, *, journal: list[Op] | None = None) -> SimFs:
        """What the next process finds after a SIGKILL now, and after the file system was unmounted, with the disk
        refusing some of what was to be written by that, and mounted again: as after a crash, but in the same boot."""
        born = self.after_machine_crash(kind, seed, journal=journal)
        born._boot, born._mounts, born.seed = self._boot, self._mounts + 1, self.seed
        return born

    def after_process_kill(self, *, journal: list[Op] | None = None) -> SimFs:
        """What the next process finds after a SIGKILL now. This one goes on unharmed, and may be asked again.

        The new one has everything visible, everything pending still pending, and the same boot id; no open files,
        faults, subscribers, locks or `crash_at`.
        """
        born = SimFs(self.seed, journal=journal, capacity=self.capacity, inodes=self.inodes)
        born._state = copy.deepcopy(self._state)
        born._boot, born._mounts = self._boot, self._mounts
        born._random.setstate(self._random.getstate())
        born._salts = self._salts
        return born

    # ------------------------------------------------------------- for tests

    def settle(self) -> None:
        """Make everything durable that no failed sync has lost. Not an operation."""
        for file in self._state.files():
            file.sync()
        self._state.commit_names(lambda change: not change.stuck)

    def fail_writeback(self, pattern: str = "*", *, told: bool = False) -> int:
        """The kernel has tried to write back what is pending of matching files, and the disk has refused it; with
        `told` another process has synced them, and heard of it. Returns how many files that were. Not an operation."""
        lost = [file for file in self._state.files() if file.pending and fnmatchcase(file.path, pattern)]
        for file in lost:
            self._lose(file, None)
            if told:
                file.errors.told = file.errors.count
        if told:
            self._state.errors.told = self._state.errors.count
        return len(lost)

    def inject(self, fault: Fault) -> Fault:
        """Add a fault, from now on; returned, so that a test can look at its `hits`."""
        self.faults.append(fault)
        return fault

    def subscribe(self, told: Callable[[Op], None]) -> None:
        """Have `told` called with every operation that is about to take effect, before it does."""
        self._subscribers.append(told)

    def is_file(self, path: str) -> bool:
        """Whether a file is visible there. Not an operation."""
        return isinstance(self._look(_absolute(path)), FileNode)

    def tree(self, *, durable: bool = False) -> dict[str, bytes | None]:
        """Every path with its content, None for directories: as visible, or as a "drop" crash would leave it."""
        found: dict[str, bytes | None] = {}

        def walk(directory: DirNode, path: str) -> None:
            for name, node in sorted((directory.durable if durable else directory.visible).items()):
                below = posixpath.join(path, name)
                if isinstance(node, DirNode):
                    found[below] = None
                    walk(node, below)
                else:
                    found[below] = bytes(node.durable if durable else node.visible)

        walk(self._state.root, "/")
        return found

    def flip_bit(self, path: str, offset: int, bit: int) -> None:
        """Damage a stored byte, on the disk and in the page cache. Not an operation; also on a dead machine."""
        node = self._file(_absolute(path))
        for content in (node.visible, node.durable):
            if offset < len(content):
                content[offset] ^= 1 << bit
        assert offset < len(node.visible), f"{path} has {len(node.visible)} bytes, none at {offset}"

    def content_durable(self, path: str, start: int = 0, end: int | None = None) -> bool:
        """Whether bytes [start, end) of a visible file survive any crash. Without `end`: all of it, and its size."""
        node = self._file(_absolute(path))
        if end is None:
            return not node.pending and node.visible[start:] == node.durable[start:]
        return node.is_durable(start, end)

    def entry_durable(self, path: str) -> bool:
        """Whether the name of something visible, and of every directory above it, survives any crash."""
        pending = set().union(*(change.keys() for change in self._state.changes))
        node: Node = self._state.root
        for name in _parts(_absolute(path)):
            if not isinstance(node, DirNode) or name not in node.visible:
                raise _failure(errno.ENOENT, path)
            below = node.visible[name]
            if node.durable.get(name) is not below or (node.inode, name) in pending:
                return False
            node = below
        return True

    # ------------------------------------------------------------- inside

    def _alive(self) -> None:
        if self.dead:
            raise SimCrash("the machine is dead")
        if self.frozen is not None:
            raise SimHang(self, self.frozen)

    @contextmanager
    def _operation(
        self, name: str, path: str, detail: str = "", *, mutates: bool = False, handles_error: bool = False
    ) -> Iterator[Fault | None]:
        """Number an operation, and run its body between the crash before it and the crash after it.

        A fault's error is raised instead of the body, or after it: with `applied`, and if the body `handles_error`
        (it then gets the fault, and makes the state that the failure leaves behind).
        """
        self._alive()
        op = Op(len(self.ops), name, path, detail, self.mutations if mutates else None)
        self.ops.append(op)
        self.mutations += mutates
        last = self.crash_at is not None and op.mutation == self.crash_at
        if last and not self.crash_applied:
            self._die(op)
        fault = next((fault for fault in self.faults if fault._claims(op)), None)
        if fault is not None and fault.hangs:
            self.frozen = f"{name} {path}"
            self._alive()
        if fault is not None and fault.hook is not None:
            fault.hook(op)
            self._alive()
        try:
            if _prevented(fault) and not handles_error:
                raise _failure(fault.number, path)
            for told in self._subscribers:
                told(op)
            yield fault
        finally:
            if last:
                self._die(op)
        if fault is not None and fault.error is not None:
            raise _failure(fault.number, path)

    def _die(self, op: Op) -> None:
        self.dead = True
        raise SimCrash(f"the machine died at operation {op.index}: {op.name} {op.path} {op.detail}")

    def _look(self, path: str) -> Node | None:
        node: Node | None = self._state.root
        for name in _parts(path):
            if not isinstance(node, DirNode):
                return None
            node = node.visible.get(name)
        return node

    def _node(self, path: str) -> Node:
        node: Node = self._state.root
        for name in _parts(path):
            if not isinstance(node, DirNode):
                raise _failure(errno.ENOTDIR, path)
            if name not in node.visible:
                raise _failure(errno.ENOENT, path)
            node = node.visible[name]
        return node

    def _file(self, path: str) -> FileNode:
        node = self._node(path)
        if isinstance(node, DirNode):
            raise _failure(errno.EISDIR, path)
        return node

    def _directory(self, path: str) -> DirNode:
        node = self._node(path)
        if isinstance(node, FileNode):
            raise _failure(errno.ENOTDIR, path)
        return node

    def _parent(self, path: str) -> DirNode:
        return self._directory(posixpath.dirname(path))

    def _create(self, path: str) -> FileNode:
        self._take_inode(path)
        node = FileNode(self._state.new_inode(), path)
        self._change_names((self._parent(path), posixpath.basename(path), node))
        return node

    def _change_names(self, *names: tuple[DirNode, str, Node | None]) -> None:
        for directory, name, node in names:
            put(directory.visible, name, node)
        self._state.changes.append(NameChange(*names))

    def _lose_names(self, changes: list[NameChange], fault: Fault) -> None:
        """A directory sync that failed: none of it is durable, or a random part, and no later sync helps the rest."""
        kept = {id(change) for change in changes if fault.keep_some and self._random.random() < 0.5}
        for change in changes:
            change.stuck = True
        self._state.commit_names(lambda change: id(change) in kept)

    def _take_inode(self, path: str) -> None:
        if self.inodes is not None and self._nodes() >= self.inodes:
            raise _failure(errno.ENOSPC, path)

    def _nodes(self) -> int:
        """How many files and directories have a visible name, the root not counted."""
        return len(self.tree())

    def _used(self) -> int:
        used = 0
        todo: list[Node] = [self._state.root]
        while todo:
            node = todo.pop()
            if isinstance(node, DirNode):
                todo += node.visible.values()
            else:
                used += len(node.visible)
        return used

    def _free(self) -> int:
        return max(0, (UNLIMITED if self.capacity is None else self.capacity) - self._used())

    def _room(self, path: str, growth: int) -> int:
        """How much of `growth` bytes fits. None of some is ENOSPC."""
        if self.capacity is None or growth <= 0:
            return growth
        fits = min(growth, self._free())
        if fits == 0:
            raise _failure(errno.ENOSPC, path)
        return fits


class SimFile:
    """An open file of a `SimFs`. Implements `File`. `close` works on a dead machine, so that clean-up code can run."""

    def __init__(self, fs: SimFs, node: FileNode, read_only: bool) -> None:
        self._fs = fs
        self._node = node
        self._read_only = read_only
        self._closed = False
        self._heard = node.errors.told
        node.handles += 1
        fs.open_files += 1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def pread(self, length: int, offset: int) -> bytes:
        with self._operation("pread", f"{offset}+{length}"):
            return bytes(self._node.visible[offset : offset + length])

    def pwrite(self, data: bytes | memoryview, offset: int) -> int:
        data = bytes(data)
        with self._operation("pwrite", f"{offset}+{len(data)}", mutates=True, handles_error=True) as fault:
            self._writable()
            if fault is not None and fault.short is not None:
                data = data[: fault.short]
            elif _prevented(fault):
                data = b""
            size = len(self._node.visible)
            room = self._fs._room(self._node.path, offset + len(data) - size) if data else 0
            if room >= 0 and data:
                data = data[: max(0, size + room - offset)]
                if not data:  # there is room for a part of the gap only
                    raise _failure(errno.ENOSPC, self._node.path)
            if data:
                self._node.change(Write(offset, data))
            return len(data)

    def fdatasync(self) -> None:
        with self._operation("fdatasync", mutates=True, handles_error=True) as fault:
            if _prevented(fault):
                self._fs._lose(self._node, fault)
            else:
                self._node.sync()
            if self._node.errors.heard(self._heard):
                self._heard = self._node.errors.count
                if not _prevented(fault):
                    raise _failure(errno.EIO, self._node.path)

    def truncate(self, length: int) -> None:
        with self._operation("truncate", str(length), mutates=True):
            self._writable()
            self._reserve(length)
            self._node.change(Truncate(length))

    def preallocate(self, length: int) -> None:
        with self._operation("preallocate", str(length), mutates=True):
            self._writable()
            self._reserve(length)
            if length > len(self._node.visible):
                self._node.change(Extend(length))

    def size(self) -> int:
        with self._operation("size"):
            return len(self._node.visible)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._node.close()
            self._fs.open_files -= 1

    @contextmanager
    def _operation(
        self, name: str, detail: str = "", *, mutates: bool = False, handles_error: bool = False
    ) -> Iterator[Fault | None]:
        with self._fs._operation(name, self._node.path, detail, mutates=mutates, handles_error=handles_error) as fault:
            if self._closed:
                raise _failure(errno.EBADF, self._node.path)
            yield fault

    def _writable(self) -> None:
        if self._read_only:
            raise _failure(errno.EBADF, self._node.path)

    def _reserve(self, length: int) -> None:
        """All of the growth to `length`, or ENOSPC and none of it."""
        growth = length - len(self._node.visible)
        if self._fs._room(self._node.path, growth) < growth:
            raise _failure(errno.ENOSPC, self._node.path)


class _SimLock:
    """A lock held in a `SimFs`."""

    def __init__(self, locks: set[int], *inodes: int) -> None:
        self._locks = locks
        self._inodes = set(inodes)

    def release(self) -> None:
        self._locks -= self._inodes
        self._inodes = set()


def _prevented(fault: Fault | None) -> TypeGuard[Fault]:
    """Whether the operation fails without taking effect."""
    return fault is not None and fault.error is not None and not fault.applied


def _failure(number: int, path: str) -> OSError:
    return OSError(number, os.strerror(number), path)


def _absolute(path: str) -> str:
    """Relative paths start at the root; there is no working directory here."""
    return posixpath.normpath("/" + path.lstrip("/"))


def _parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part]
