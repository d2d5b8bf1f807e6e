"""Repairs of damaged segments of a running daemon, from the bucket (`docs/design/bucket.md` section 9).

A task that has found damage in the files of a segment asks for a repair before it makes `corrupt` holes. The repair is
a task of its own. It fetches the copy without a lock, because nobody waits for the bucket who holds the lock of a
topic's hot files (`docs/spec/crash.md` 12), and writes with the lock. The task that has asked waits for `WAIT_S` at
most. If the bucket does not answer, nothing is given up: reads fail until it does.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from functools import partial
from typing import Final, Protocol

import trio

from topics.log.span import Span
from topics.log.topic_log import TopicLog
from topics.runtime.offload import Offload, Pool
from topics.storage.segments.mended_files import (
    MendedFiles,
    NotMendable,
    SecondHome,
    counted_slots,
    may_be_mended,
    mended,
    put_mended,
    read_local,
)
from topics.storage.segments.segment_store import SegmentStore
from topics.storage.segments.topic_segments import Segment, SegmentSet
from topics.telemetry.logs import get_logger

log = get_logger(__name__)

WAIT_S: Final = 10.0
"""How long a read waits for a repair."""

AGAIN_S: Final = 5.0
"""How long after a failed attempt the next one begins, if it is asked for."""

AWAY_S: Final = 60.0
"""Who needs the columns of a segment, and cannot do without, waits so long for a bucket that does not answer."""

AT_ONCE: Final = 2
"""Repairs at one time: each has two copies of a segment in memory."""

MOST_KNOWN: Final = 10_000
"""Segments of which it is remembered that the bucket cannot mend them. At the bound all are forgotten."""

Key = tuple[int, int, int]
"""Topic id, first seq and salt."""


class DamagedOwner(Protocol):
    """The topic of a damaged segment."""

    name: str
    deleted: bool
    log: TopicLog
    segment_set: SegmentSet | None

    def mark_changed(self) -> None:
        """Note that the next checkpoint has to make the topic's part again."""
        ...


class _Work:
    """One segment that is to be repaired."""

    def __init__(self) -> None:
        self.done = trio.Event()
        """Set when an attempt has ended; replaced by the next one."""
        self.problem = ""
        """Why the last attempt has failed."""
        self.since = trio.current_time()
        self.again_at = 0.0


class SegmentRepairs:
    """The repairs of one daemon. Made by the loader of spans; without a `home` it does nothing."""

    def __init__(self, store: SegmentStore, offload: Offload, start_soon: Callable[..., None]) -> None:
        """`start_soon(work, *args)` starts a task."""
        self.home: SecondHome | None = None
        self.repaired = 0
        """Segments that were repaired since the start."""
        self.repaired_bytes = 0
        """Bytes that were taken from the bucket for repairs."""
        self._store = store
        self._offload = offload
        self._start_soon = start_soon
        self._works: dict[Key, _Work] = {}
        self._hopeless: dict[Key, None] = {}
        self._places = trio.CapacityLimiter(AT_ONCE)

    @property
    def waiting(self) -> int:
        """How many damaged segments are waiting for the bucket."""
        return len(self._works)

    def count(self, files: MendedFiles) -> None:
        """A segment was repaired."""
        self.repaired += 1
        self.repaired_bytes += files.taken

    async def repair(self, topic: DamagedOwner, span: Span, *, patient: bool = True) -> None:
        """Repair the segment of a span that looked damaged, if the bucket can. When this returns, the files have to be
        read again; what is damaged then is lost.

        Raises OSError if it is not known yet. With `patient=False` this ends when the bucket has not answered for
        `AWAY_S`. A caller that holds the lock of the files does not wait.
        """
        segment = span.segment
        if self.home is None or not isinstance(segment, Segment) or not may_be_mended(segment):
            return
        key = (segment.topic_id, segment.first, segment.salt or 0)
        if key in self._hopeless:
            return
        work = self._works.get(key)
        if work is None:
            work = self._works[key] = _Work()
            self._begin(topic, span, key, work)
        elif work.done.is_set():
            if not patient and trio.current_time() - work.since >= AWAY_S:
                return
            if trio.current_time() < work.again_at:
                raise _later(work)
            self._begin(topic, span, key, work)
        assert topic.segment_set is not None
        if not topic.segment_set.hot_lock.mine:
            with trio.move_on_after(WAIT_S):
                await work.done.wait()
        if not work.done.is_set() or work.problem:
            raise _later(work)

    def _begin(self, topic: DamagedOwner, span: Span, key: Key, work: _Work) -> None:
        work.done, work.problem = trio.Event(), ""
        self._start_soon(self._attempt, topic, span, key, work)

    async def _attempt(self, topic: DamagedOwner, span: Span, key: Key, work: _Work) -> None:
        """Make one attempt; `work` says how it has ended."""
        try:
            async with self._places:
                await self._repair(topic, span, key)
        except NotMendable as problem:
            self._give_up(key, topic, str(problem))
        except OSError as error:
            work.problem = error.strerror or str(error)
            work.again_at = trio.current_time() + AGAIN_S
            log.warning("segment_not_repaired_yet", topic=topic.name, first=key[1], problem=work.problem)
        except Exception:  # the bytes of the bucket may be anything
            log.exception("segment_repair_failed", topic=topic.name, first=key[1])
            self._give_up(key, topic, "an unexpected error")
        finally:
            if not work.problem:
                self._works.pop(key, None)
            work.done.set()

    def _give_up(self, key: Key, topic: DamagedOwner, problem: str) -> None:
        if len(self._hopeless) >= MOST_KNOWN:
            self._hopeless.clear()
        self._hopeless[key] = None
        log.error("segment_not_repaired", topic=topic.name, first=key[1], problem=problem)

    async def _repair(self, topic: DamagedOwner, span: Span, key: Key) -> None:
        segment, home = span.segment, self.home
        assert isinstance(segment, Segment)
        assert home is not None
        assert topic.segment_set is not None
        copy = await self._offload.run(Pool.BUCKET_READ, partial(home.segment, *key))
        if copy is None:
            raise NotMendable("the bucket has no copy of it")
        async with topic.segment_set.hot_lock:
            if topic.deleted or span.segment is not segment or segment.tier != "hot":
                return  # other files count by now
            if not topic.log.stored.holds(span):
                return
            local = await self._offload.run(Pool.HOT_READ, partial(read_local, self._store, segment))
            counted = counted_slots(span)
            files = await self._offload.run(Pool.CPU, partial(mended, local, copy, segment, counted))
            with trio.CancelScope(shield=True):
                await self._offload.run(Pool.FILES, partial(put_mended, self._store, segment, files))
                if files.data is not None:
                    segment.packed = None  # the packer packs it again
                    topic.mark_changed()
                segment.flagged_meanwhile = None  # a copy or a packed file in progress is of other bytes
        self.count(files)
        log_repaired(topic.name, segment, files)


def log_repaired(topic: str, segment: Segment, files: MendedFiles) -> None:
    """Log a repair."""
    log.warning(
        "segment_repaired",
        topic=topic,
        first=segment.first,
        bytes=files.taken,
        files=[kind for kind, content in (("data", files.data), ("idx", files.idx), ("tags", files.tags)) if content],
        still_damaged=files.damaged,
    )


def _later(work: _Work) -> OSError:
    why = f": {work.problem}" if work.problem else ""
    return OSError(errno.EAGAIN, f"damaged bytes are being repaired from the bucket{why}")
