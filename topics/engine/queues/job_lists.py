"""Looking at jobs: a page of those of a queue or group, by their states, and of its dead letters
(`docs/spec/consumers.md` section 5, `docs/design/jobs.md` section 7).

A page shows its jobs as they are in one step of the loop, after their records were fetched. Nothing is promised from
one page to the next.
"""

from __future__ import annotations

from array import array
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple

import msgspec

from topics.config import Settings
from topics.engine.job_queue import JobQueue
from topics.engine.loader import Loader
from topics.engine.queues.job_scan import FoundJob, JobScan, JobWish
from topics.engine.queues.lease_commits import LeaseCommits, queue_of
from topics.engine.record_collector import Collector, RecordRequest
from topics.engine.registry import Registry
from topics.engine.topic import Topic
from topics.errors import invalid
from topics.filters.record_filter import Filter, all_of, parse_filter
from topics.job_model import JobPageRequest, JobStateName, ShownJob
from topics.log.block import Block
from topics.model import Performance
from topics.queue.job_pages import (
    ABSENT,
    COMPLETING,
    CONDEMNED,
    DEFAULT_PRIORITY,
    DELAYED,
    FREE,
    LATER,
    LEASED,
    PARKED,
    mask_of,
)
from topics.runtime.turns import Turns

PAGE_BYTES: Final = 8 << 20
"""Bytes of JSON of the records of one page at most; at least one job is listed, of any size."""

STATES: Final[Mapping[JobStateName, frozenset[int]]] = {
    "ready": frozenset((ABSENT, FREE)),
    "in_flight": frozenset((LEASED,)),
    "delayed": frozenset((DELAYED, LATER, PARKED, CONDEMNED, COMPLETING)),
}
"""Which states of a slot count as which state of a job."""

NAMES: Final = {state: name for name, states in STATES.items() for state in states}

MASKS: Final[Mapping[JobStateName | None, bytes]] = {
    **{name: mask_of(states) for name, states in STATES.items()},
    None: mask_of(NAMES),
}
"""The masks of the states that clients name; None for all of them."""


FROM: Final = "$dead_letter_from"
GROUP: Final = "$dead_letter_group"
DELIVERIES: Final = "$dead_letter_deliveries"
ERROR: Final = "$dead_letter_error"
"""Members of the meta of a dead letter (`topics.engine.queues.dead_letters`)."""


class ShownJobs(NamedTuple):
    """A page: its jobs, and the seq after which the next one begins; None for the last page."""

    jobs: list[ShownJob]
    next_after: int | None


class JobLists:
    """Lists jobs. Made once by the engine."""

    def __init__(
        self,
        settings: Settings,
        registry: Registry,
        *,
        lease_commits: LeaseCommits,
        loader: Loader,
        turns: Turns,
        catch_up: Callable[[Iterable[str]], Awaitable[None]],
    ) -> None:
        self._settings = settings
        self._registry = registry
        self._lease_commits = lease_commits
        self._loader = loader
        self._turns = turns
        self._catch_up = catch_up

    async def page(self, name: str, request: JobPageRequest, perf: Performance, group: str | None = None) -> ShownJobs:
        """Return a page of the jobs in a state (None: of all that are not dead). Records that routers owe the topic are
        forwarded first. The call looks at no more than `TOPICS_MAX_SCAN` records, and the page may be empty although
        there are more jobs.

        Raises 404, 409, and 503 if the disk does not answer. Cancelling leaves nothing behind.
        """
        await self._catch_up((name,))
        topic, queue = await self._observed(name, group)
        if request.touch:
            self._registry.touch(topic)
        wish = JobWish(MASKS[request.state], request.filter, records=True)
        to = topic.log.head_seq
        scan = JobScan(self._loader, self._turns, topic, queue, wish, after=request.after, to=to)
        found = await scan.find(request.page_size, PAGE_BYTES, self._settings.max_scan, perf)
        perf.records_scanned = scan.scanned
        await self._lease_commits.until_observed(topic, queue)
        jobs = await self._loader.prepared(topic, partial(self._as_now, topic, queue, wish.mask, found))
        return ShownJobs(jobs, None if scan.is_over else scan.position)

    async def _observed(self, name: str, group: str | None) -> tuple[Topic, JobQueue]:
        topic = self._registry.topic(name)
        queue = queue_of(topic, group)
        await self._lease_commits.until_observed(topic, queue)
        return topic, queue

    def _as_now(self, topic: Topic, queue: JobQueue, mask: bytes, found: Sequence[FoundJob]) -> list[ShownJob]:
        """Return those of the jobs that are still in the wanted states. Raises NotLoaded."""
        live = set(topic.log.index.only_live(array("Q", [job.seq for job in found])))
        return [
            self._listed(queue, job)
            for job in found
            if job.seq in live and queue.is_unfinished(job.seq) and mask[queue.leases.look(job.seq).state]
        ]

    def _listed(self, queue: JobQueue, job: FoundJob) -> ShownJob:
        state, deliveries, node, due_ms, priority, error = queue.leases.look(job.seq)
        deadline = not_before = None
        if state == LEASED:
            deadline = self._lease_commits.deadline(queue.now.after(due_ms - 1 - queue.now.mono))
        elif state == DELAYED:
            not_before = self._lease_commits.deadline(queue.now.after(due_ms - queue.now.mono))
        elif state == LATER:
            not_before = due_ms
        return ShownJob(NAMES[state], deliveries, priority, node or None, deadline, not_before, error, job.record)

    # -- dead letters ------------------------------------------------------------------------------------------------

    def dead_letter_of(self, name: str, group: str | None, field: str) -> str:
        """Return the topic to which dead jobs of a queue or group go. Raises 404, 409, and 400 on `field` where there
        is none."""
        topic = self._registry.topic(name)
        found = queue_of(topic, group).terms(topic.config).dead_letter
        if found is None:
            whose = f"topic {name!r}" if group is None else f"group {group!r} of topic {name!r}"
            raise invalid(field, f"{whose} has no dead_letter")
        return found

    def has_dead_letter(self, name: str, group: str | None) -> bool:
        """Return True if dead jobs of a queue or group go to a topic. Raises 404 and 409."""
        topic = self._registry.topic(name)
        return queue_of(topic, group).terms(topic.config).dead_letter is not None

    async def letters(
        self, name: str, dead: str, request: JobPageRequest, perf: Performance, group: str | None = None
    ) -> ShownJobs:
        """Return a page of the letters that the topic `dead` has of a queue or group. Otherwise like `page`."""
        await self._catch_up((dead,))
        topic = self._registry.topics.get(dead)
        if topic is None:
            return ShownJobs([], None)
        if request.touch:
            self._registry.touch(topic)
        wish = RecordRequest(request.page_size, PAGE_BYTES, filter=letters_of(name, group, request.filter))
        position, left, jobs = request.after, self._settings.max_scan, []
        while True:
            found = LetterCollector(self._registry, topic, wish, position, most_scanned=left)
            while (need := found.advance()) is not None:
                await self._loader.provide(found, need, perf)
            jobs += found.letters
            left -= found.scanned
            position = found.position
            over = found.room <= 0 or len(jobs) >= request.page_size or found.scan_is_over
            if over or position >= topic.log.head_seq:
                break
            # A read ends before a second hole.
            wish = wish._replace(limit=request.page_size - len(jobs), max_bytes=found.room)
        perf.records_scanned = self._settings.max_scan - left
        return ShownJobs(jobs, None if position >= topic.log.head_seq else position)


class LetterCollector(Collector):
    """A read that notes the dead letters that match."""

    __slots__ = ("letters",)

    def __init__(
        self, registry: Registry, topic: Topic, wish: RecordRequest, from_seq: int, *, most_scanned: int
    ) -> None:
        super().__init__(registry, topic, wish, from_seq, most_scanned=most_scanned)
        self.letters: list[ShownJob] = []

    def _cut(self, block: Block, first: int, last: int) -> bool:
        for seq in range(first, last + 1):
            record = block.record_of(seq)
            self.letters.append(_letter(record, block.meta_of(seq)))
            self.count += 1
            self.room -= len(record)
            self.position = seq
            if self.room <= 0:
                return seq == last
        return True


def letters_of(name: str, group: str | None, wanted: Filter | None = None) -> Filter | None:
    """Return the filter of the dead letters of a queue or group that match `wanted`."""
    own = ["meta", FROM, "Eq", name]
    of_group = ["meta", GROUP, "Exists", False] if group is None else ["meta", GROUP, "Eq", group]
    return all_of([parse_filter(msgspec.json.encode(["And", own, of_group])), wanted])


def _letter(record: bytes, meta: bytes | None) -> ShownJob:
    fields: dict[str, str] = msgspec.json.decode(meta) if meta else {}
    deliveries = fields.get(DELIVERIES, "0")
    return ShownJob(
        "dead",
        int(deliveries) if deliveries.isdecimal() else 0,
        DEFAULT_PRIORITY,
        None,
        None,
        None,
        fields.get(ERROR),
        record,
    )
