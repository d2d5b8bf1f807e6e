"""What can be found out about the queues of a daemon, and the rules that hold for every projection of one."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

import trio

from tests.simulation.model import View, view_of
from tests.simulation.router_lives import nobody_forwards
from tests.simulation.segment_lives import check_logs
from tests.simulation.world import Life
from topics.engine.queues.completions import Completions
from topics.engine.queues.dead_letters import DeadLetters
from topics.log.span import NotLoaded
from topics.log.topic_log import SeqRun
from topics.model import (
    QueueState,
    UniqueJob,
)
from topics.queue.job_pages import DEFAULT_PRIORITY, DELAYED, LEASED, PLAIN, priority_of
from topics.queue.unique_keys import digest_of
from topics.runtime.instant import Instant


class KeptJob(NamedTuple):
    """What is kept of a job that is not fresh. `time` is in epoch ms, 0 where there is none."""

    state: int
    deliveries: int
    time: int = 0
    lease_id: int = 0
    node: str = ""
    priority: int = DEFAULT_PRIORITY


@dataclass(frozen=True, slots=True)
class Kept:
    """The projection of a queue."""

    cursor: int
    dead_lettered: int
    jobs: dict[int, KeptJob]

    @classmethod
    def of(cls, dump: dict[str, Any]) -> Kept:
        """Out of its dump (see `topics.queue.job_pages`)."""
        jobs = {}
        for number, states, *columns, nodes in dump["pages"]:
            slots = [slot for slot, state in enumerate(states) if state]
            rows = [_unpacked(code, column, len(slots)) for code, column in zip("IqQH", columns, strict=True)]
            for slot, deliveries, due_ms, lease_id, holder in zip(slots, *rows, strict=True):
                state = states[slot] & PLAIN
                time = due_ms + dump["to_epoch_ms"] - (state == LEASED) if state in (LEASED, DELAYED) else 0
                node = nodes[holder] if state == LEASED else ""
                jobs[number * dump["page"] + slot] = KeptJob(
                    state, deliveries, time, lease_id, node, priority_of(states[slot])
                )
        return cls(dump["cursor"], dump["dead_lettered"], jobs)


def _unpacked(code: str, column: bytes, n: int) -> array[int]:
    """A column of a page: nothing for nothing but zeros."""
    values = array(code)
    values.frombytes(column or bytes(n * values.itemsize))
    return values


@dataclass(frozen=True, slots=True)
class Shown:
    """Everything that can be found out about a daemon. `kept` and `now` are from the moment of its start."""

    views: dict[str, View]
    states: dict[str, QueueState]
    kept: dict[str, Kept]
    now: int


def kept_by(life: Life) -> dict[str, Kept]:
    """The projection of each queue, now."""
    engine = life.engine
    now = Instant(life.clock.monotonic_ms(), engine.registry.now_ms())
    return {
        topic.name: Kept.of(topic.queue.leases.dump(now))
        for topic in engine.registry.by_id.values()
        if topic.queue is not None
    }


async def shown_by(life: Life, kept: dict[str, Kept] | None = None, now: int | None = None) -> Shown:
    """Every topic, with all invariants checked before and after."""
    kept = kept_by(life) if kept is None else kept
    now = life.engine.registry.now_ms() if now is None else now
    check_logs(life)
    check_queues(life)
    views, states = {}, {}
    for name in list(life.engine.registry.topics):
        views[name] = await view_of(life.engine, name)
        state = await life.engine.topic_states.of(name, touch=False)
        if isinstance(state.queue, QueueState):
            states[name] = state.queue
            counted = state.queue.ready + state.queue.in_flight + state.queue.delayed
            assert counted == state.count, f"{name}: {state.queue}, and count is {state.count}"
    check_logs(life)
    check_queues(life)
    return Shown(views, states, kept, now)


def check_queues(life: Life) -> None:
    """Every projection is consistent with itself, and with its log: what it keeps is live, and what is live is kept or
    will be come across."""
    for topic in life.engine.registry.by_id.values():
        if topic.queue is None:
            continue
        leases, log = topic.queue.leases, topic.log
        leases.check()
        assert leases.ready(log.count) + leases.in_flight + leases.delayed == log.count
        if topic.working is not None or topic.config.ttl_ms:
            continue
        kept = Kept.of(leases.dump(Instant(0, 0)))
        with suppress(NotLoaded):
            live = live_of(topic)
            keyed = {seq for run in leases.unique.runs(1) for seq in run} if leases.unique is not None else set()
            assert keyed <= live, f"{topic.name}: {keyed - live} have keys, and are not there"
            assert keyed == live or not has_keys(topic.name), f"{topic.name}: {live - keyed} have lost their keys"
            assert kept.jobs.keys() <= live, f"{topic.name}: {kept.jobs.keys() - live} are kept, and are not there"
            missed = {seq for seq in live if seq <= kept.cursor} - kept.jobs.keys()
            assert not missed, f"{topic.name}: {missed} will never be claimed, the cursor is {kept.cursor}"


def has_keys(name: str) -> bool:
    """Return True for queues whose jobs all have unique keys."""
    return name.startswith("unique")


def unique_job(number: int) -> UniqueJob:
    """Return the key of a job; every second one has a window too."""
    return UniqueJob(digest_of(str(number)), "window" if number % 2 else "unfinished", 5000 if number % 2 else 0)


def check_first(topic: Any, seqs: Iterable[int]) -> None:
    """Of jobs that were just claimed, none has a live one before it with the same key, as far as that is in memory."""
    if topic.config.order_by != "tag":
        return
    with suppress(NotLoaded):
        live = sorted(live_of(topic))
        blocks = {seq: topic.blocks.find(seq) for seq in live}
        tags = {seq: block.tag_of(seq) for seq, block in blocks.items() if block is not None}
        for seq in seqs:
            before = [one for one, tag in tags.items() if one < seq and tag is not None and tag == tags.get(seq)]
            assert not before, f"{topic.name}: {seq} was given out before {before}"


def live_of(topic: Any) -> set[int]:
    """The live seqs of a topic. Raises NotLoaded."""
    found: set[int] = set()
    after = 0
    while (step := topic.log.step(after, 1000)) is not None:
        if isinstance(step, SeqRun):
            found.update(range(step.first, step.last + 1))
        after = step.last
    return found


@contextmanager
def nobody_moves(life: Life) -> Iterator[None]:
    """Nothing goes to a dead-letter topic, nor back from being parked, and routers forward nothing."""
    with nobody_buries(), nobody_forwards(life):
        yield


@contextmanager
def nobody_buries() -> Iterator[None]:
    """Nothing goes to a dead-letter topic, nor back from being parked, and no result is delivered, of what has not been
    begun."""
    go_on = trio.Event()
    movers: list[Any] = [DeadLetters, Completions]
    originals = [mover._try for mover in movers]

    def held(original: Any) -> Any:
        async def begin(*args: Any) -> None:
            await go_on.wait()
            await original(*args)

        return begin

    for mover, original in zip(movers, originals, strict=True):
        mover._try = held(original)
    try:
        yield
    finally:
        for mover, original in zip(movers, originals, strict=True):
            mover._try = original
        go_on.set()
