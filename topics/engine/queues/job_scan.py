"""Going through the jobs of a queue or group in the order of their seqs: those in some states that match a filter
(`docs/design/jobs.md` section 7).

Jobs that are kept are found in the pages of the job table, fresh ones in the log behind the cursor. Records are fetched
only if they are wanted, or if a filter has to be asked. Everything goes in steps of about a millisecond, between which
other tasks run. A scan shows each job as it is when the scan comes by: nothing holds the jobs meanwhile.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from functools import partial
from typing import Final, NamedTuple

from topics.engine.filtered_records import BlockRecord
from topics.engine.job_queue import JobQueue
from topics.engine.loader import Loader
from topics.engine.queues.lease_commits import check_there
from topics.engine.record_collector import DECODE_BYTES, DECODE_SLICE, FILTER_RUN
from topics.engine.topic import Topic
from topics.filters.record_filter import Filter
from topics.log.block import Block, block_with
from topics.model import Performance
from topics.queue.job_pages import ABSENT
from topics.runtime.turns import Turns

FOUND_AT_ONCE: Final = 1000
"""Jobs that one step looks for in the table: somewhat more may be found."""


class FoundJob(NamedTuple):
    """A job that was found, and the JSON of its record without the opening brace; empty if that was not wanted."""

    seq: int
    record: bytes


class JobWish(NamedTuple):
    """Which jobs a scan is about: those in the states of `mask` (`job_pages.mask_of`) that match `filter` (None: all),
    and whether their records are wanted."""

    mask: bytes
    filter: Filter | None
    records: bool


class JobScan:
    """One scan of the jobs above `position` and up to `to`, or of `seqs` only (ascending). It never holds anything."""

    __slots__ = (
        "_end",
        "_left",
        "_loaded",
        "_loader",
        "_queue",
        "_room",
        "_to",
        "_topic",
        "_turns",
        "_wish",
        "cost",
        "position",
        "scanned",
    )

    def __init__(
        self,
        loader: Loader,
        turns: Turns,
        topic: Topic,
        queue: JobQueue,
        wish: JobWish,
        *,
        after: int = 0,
        to: int,
        seqs: Sequence[int] | None = None,
    ) -> None:
        self._loader = loader
        self._turns = turns
        self._topic = topic
        self._queue = queue
        self._wish = wish
        self._to = to
        self.position = after
        """Jobs up to it were looked at."""
        self._end = after if seqs is None else to
        """No jobs but those of `_left` are between `position` and this seq."""
        self._left = array("Q", [seq for seq in seqs or () if after < seq <= to])
        if seqs is not None and not self._left:
            self.position = to
        self._loaded: Sequence[Block] = ()
        self._room = 0
        self.scanned = 0
        """Records that a filter was asked about."""
        self.cost = 0
        """These, and the steps in which jobs were looked for."""

    @property
    def is_over(self) -> bool:
        """Return True if all jobs were looked at."""
        return self.position >= self._to

    async def find(self, most: int, most_bytes: int, most_cost: int, perf: Performance) -> list[FoundJob]:
        """Return the next jobs: at most `most`, with records of `most_bytes` together (one may be larger), and for a
        `cost` of at most `most_cost` altogether. Raises 404, and 503 if the disk does not answer."""
        jobs: list[FoundJob] = []
        self._room = most_bytes
        while len(jobs) < most and self._room > 0 and self.cost < most_cost and not self.is_over:
            check_there(self._topic, self._queue)
            missing = None
            if self._left:
                missing = await self._loader.prepared(self._topic, partial(self._look, jobs, most, most_cost))
            else:
                await self._loader.prepared(self._topic, self._search)
            if missing is not None:
                self._loaded = await self._loader.load(self._topic, *missing, perf)
            else:
                await self._turns.take()
        return jobs

    def _search(self) -> None:
        """Find the next jobs in the wanted states. Raises NotLoaded, and has done nothing then."""
        found, self._end = self._queue.jobs_after(
            self._topic.log, self.position, self._to, self._wish.mask, FOUND_AT_ONCE
        )
        self._left = found
        if not found:
            self.position = self._end
            self.cost += 1

    def _look(self, jobs: list[FoundJob], most: int, most_cost: int) -> tuple[int, int] | None:
        """Look at some of the jobs that were found. Return the range that has to be loaded before the next step, None
        for none. Raises NotLoaded, and has done nothing then."""
        some = self._left[:DECODE_SLICE]
        live = set(self._topic.log.index.only_live(some))
        size, done = 0, 0
        missing: tuple[int, int] | None = None
        for seq in some:
            if len(jobs) >= most or self._room <= 0 or self.cost >= most_cost or size > DECODE_BYTES:
                break
            state = self._queue.leases.look(seq).state
            if seq in live and self._wish.mask[state] and self._queue.is_unfinished(seq):
                filters = self._filters(state)
                block: Block | None = None
                if filters or self._wish.records:
                    block = self._topic.blocks.find(seq) or block_with(self._loaded, seq)
                    if block is None:
                        missing = (seq, _end_of_run(self._left, done))
                        break
                    i = seq - block.first_seq
                    size += block.starts[i + 1] - block.starts[i]
                if not filters or (block is not None and self._matches(block, seq, filters)):
                    record = block.record_of(seq) if block is not None and self._wish.records else b""
                    self._room -= len(record)
                    jobs.append(FoundJob(seq, record))
            done += 1
        if done:
            self.position = some[done - 1]
            del self._left[:done]
        if not self._left:
            self.position = self._end
            self.cost += 1  # of the search that found them: not before, so that each call gets on
        return missing

    def _filters(self, state: int) -> list[Filter]:
        """Return the filters that a job in this state has to match: a fresh one of a group also that of the group."""
        own = self._queue.wanted if state == ABSENT else None
        return [wanted for wanted in (own, self._wish.filter) if wanted is not None]

    def _matches(self, block: Block, seq: int, filters: Sequence[Filter]) -> bool:
        record = BlockRecord(block)
        record.seq = seq
        self.scanned += 1
        self.cost += 1
        return all(wanted.matches(record) for wanted in filters)


def _end_of_run(seqs: array[int], at: int) -> int:
    """Return the last of the contiguous seqs from place `at` on, of those that one read loads."""
    last = seqs[at]
    for seq in seqs[at + 1 : at + FILTER_RUN]:
        if seq != last + 1:
            break
        last = seq
    return last
