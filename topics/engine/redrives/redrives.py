"""Redrives: all letters of a dead-letter topic go back to where they came from (`docs/spec/consumers.md` section 5).

A redrive is one background task for its topic. It walks once through the letters that are there when it begins, in the
order of their seqs, moves those that it wants in pieces (`letter_moves`), and ends. It is no part of the log: a start
of the daemon knows nothing of it, but the moved letters stay moved. The state of a redrive that has ended is kept until
the topic has another one or is deleted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Final, Literal, NamedTuple

import trio

from topics.config import Settings
from topics.engine.loader import Loader
from topics.engine.queues.looks import SeqCollector
from topics.engine.record_collector import RecordRequest
from topics.engine.redrives.letter_moves import PIECE_LETTERS, LetterMoves, Reason, check_class
from topics.engine.registry import EngineStatus, Registry
from topics.engine.topic import Topic
from topics.errors import ApiError, invalid, topic_not_found
from topics.filters.record_filter import Filter
from topics.model import Performance
from topics.queue.claim_limits import RateWindow
from topics.runtime.background import BackgroundTasks
from topics.telemetry.logs import get_logger

log = get_logger(__name__)

MOST_ENDED: Final = 1000
"""Redrives that have ended whose states are kept; beyond, the oldest are forgotten."""

LOOK_MS: Final = 1000
"""How long (ms) a redrive waits at most for its rate before it looks whether its topic is still there."""

State = Literal["idle", "running", "done", "stopped", "failed"]


class RedriveWish(NamedTuple):
    """The request of a redrive."""

    to: str | None = None
    """The topic that gets all letters; None: each goes to where it came from."""
    filter: Filter | None = None
    most: int | None = None
    """How many letters are moved at most."""
    rate: tuple[int, int] | None = None
    """At most so many letters are moved in every so many ms."""


class RedriveProgress(NamedTuple):
    """How far a redrive has come."""

    state: State
    moved: int
    left: dict[Reason, int]
    """How many letters that it has looked at and wanted are still there, by why."""
    error: ApiError | None
    """Why it has failed."""


class _Redrive:
    """One redrive, running or ended."""

    __slots__ = ("ended", "error", "left", "may", "moved", "state", "stopping", "topic", "up_to", "window", "wish")

    def __init__(self, topic: Topic, wish: RedriveWish, may: Callable[[str], bool]) -> None:
        self.topic = topic
        self.wish = wish
        self.may = may
        self.up_to = topic.log.head_seq
        """Letters that come later are not moved."""
        self.window = RateWindow(*wish.rate) if wish.rate is not None else None
        self.state: State = "running"
        self.moved = 0
        self.left: Counter[Reason] = Counter()
        self.error: ApiError | None = None
        self.stopping = trio.Event()
        self.ended = trio.Event()


class Redrives:
    """The calls. Made once by the engine."""

    def __init__(
        self,
        settings: Settings,
        status: EngineStatus,
        registry: Registry,
        *,
        moves: LetterMoves,
        loader: Loader,
        background: BackgroundTasks,
    ) -> None:
        self._settings = settings
        self._status = status
        self._registry = registry
        self._moves = moves
        self._loader = loader
        self._background = background
        self._running: dict[int, _Redrive] = {}
        """By topic id."""
        self._ended: dict[int, RedriveProgress] = {}
        """How those have ended that are not running, by topic id, the last ones at the end."""
        self.letters_moved = 0
        """Letters that all redrives have moved since the start."""

    @property
    def running(self) -> int:
        """How many redrives are running."""
        return len(self._running)

    def start(self, name: str, wish: RedriveWish, may: Callable[[str], bool]) -> RedriveProgress:
        """Begin to move the letters of a topic, if no redrive of it is running. `may` tells whether the caller may
        write to a topic. Return the state of the one that is running now.

        Raises 404 for a missing topic, also for `to`; `409 topic_exists_incompatible` for the class of either; 400 if
        `to` is the topic itself.
        """
        topic = self._registry.topic(name)
        known = self._running.get(topic.id)
        if known is not None:
            return _shown(known)
        check_class(topic)
        if wish.to is not None:
            if wish.to == name:
                raise invalid("to", "must be another topic")
            check_class(self._registry.topic(wish.to))
        one = self._running[topic.id] = _Redrive(topic, wish, may)
        self._background.start_soon(self._run, one)
        return _shown(one)

    def get(self, name: str) -> RedriveProgress:
        """Return the state of the last redrive of a topic; `idle` if none is known since the start. Raises 404."""
        return self._of(self._registry.topic(name).id)

    def _of(self, topic_id: int) -> RedriveProgress:
        if topic_id in self._running:
            return _shown(self._running[topic_id])
        return self._ended.get(topic_id, RedriveProgress("idle", 0, {}, None))

    async def stop(self, name: str) -> RedriveProgress:
        """Stop the redrive of a topic, if one is running, and return its state when it has ended: the piece on its way
        is moved first. Raises 404, and 503 while that piece waits for room on the disk. Cancelling stops only the
        waiting."""
        topic = self._registry.topic(name)
        known = self._running.get(topic.id)
        if known is not None:
            known.stopping.set()
            await self._moves.wait_for(known.ended)
        return self._of(topic.id)

    def stop_all(self) -> None:
        """The daemon stops: end every redrive behind the piece that is on its way."""
        for one in self._running.values():
            one.stopping.set()

    async def ended(self) -> None:
        """Wait until no redrive is running that is running now."""
        for one in list(self._running.values()):
            await one.ended.wait()

    # -- the task ------------------------------------------------------------------------------------------------------

    async def _run(self, one: _Redrive) -> None:
        try:
            one.state = await self._move_all(one)
        except ApiError as error:
            one.state, one.error = "failed", error
            log.warning("redrive_failed", topic=one.topic.name, moved=one.moved, why=str(error))
        finally:
            if one.state == "running":  # cancelled
                one.state = "stopped"
            del self._running[one.topic.id]
            self._ended.pop(one.topic.id, None)
            self._ended[one.topic.id] = _shown(one)
            if len(self._ended) > MOST_ENDED:
                del self._ended[next(iter(self._ended))]
            one.ended.set()

    async def _move_all(self, one: _Redrive) -> State:
        """Move the letters, piece by piece; return how it has ended. Raises the errors of `LetterMoves.move`."""
        position, wish = 0, one.wish
        while position < one.up_to and (wish.most is None or one.moved < wish.most):
            if one.stopping.is_set() or self._status.phase == "draining":
                return "stopped"
            if one.topic.deleted:
                raise topic_not_found(one.topic.name)
            most = PIECE_LETTERS if wish.most is None else min(PIECE_LETTERS, wish.most - one.moved)
            if one.window is not None:
                most = min(most, one.window.room(self._registry.monotonic_ms()))
                if most <= 0:
                    await self._until_room(one, one.window)
                    continue
            found = await self._look(one, position, most)
            if found.seqs:
                before = one.moved
                await self._move(one, found)
                if one.window is not None and one.moved > before:
                    one.window.note(self._registry.monotonic_ms(), one.moved - before)
            elif found.position <= position:
                break
            position = found.position
            await trio.lowlevel.checkpoint()
        return "done"

    async def _look(self, one: _Redrive, position: int, most: int) -> SeqCollector:
        """Return the next letters to be moved, at most `most`, and how far it has looked."""
        wish = RecordRequest(most, 1 << 62, filter=one.wish.filter)
        scan = self._settings.max_scan
        found = SeqCollector(self._registry, one.topic, wish, position, most_scanned=scan, up_to=one.up_to)
        while (need := found.advance()) is not None:
            await self._loader.provide(found, need, Performance())
        return found

    async def _move(self, one: _Redrive, found: SeqCollector) -> None:
        done = await self._moves.move(one.topic, found.seqs, to=one.wish.to, may=one.may)
        one.moved += len(done.moved)
        self.letters_moved += len(done.moved)
        one.left.update(done.left.values())

    async def _until_room(self, one: _Redrive, window: RateWindow) -> None:
        now = self._registry.monotonic_ms()
        due = window.next_ms(now)
        left_ms = min(max((due if due is not None else now) - now, 1), LOOK_MS)
        with trio.move_on_after(left_ms / 1000):
            await one.stopping.wait()


def _shown(one: _Redrive) -> RedriveProgress:
    return RedriveProgress(one.state, one.moved, dict(sorted(one.left.items())), one.error)
