"""What a start shows of jobs whose outcomes are judged."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec

from tests.simulation.world import Life
from tests.simulator.known import DEAD_LETTER_META, broken
from tests.simulator.outcomes.outcome_plans import GROUP, LETTERS, LOG, QUEUE, RESULTS
from topics.engine.job_queue import JobQueue
from topics.engine.topic import Topic
from topics.model import Performance, ReadRequest
from topics.queue.job_pages import COMPLETING


class SeenLetter(NamedTuple):
    """A dead letter: the number of its record, and where it came from."""

    number: int
    topic: str
    group: str | None
    src_seq: int


class SeenResult(NamedTuple):
    """A result that was delivered."""

    topic: str
    group: str | None
    seq: int
    node: str
    value: bytes


@dataclass(slots=True)
class OutcomesSeen:
    """All of it. What there is by source has the name of its topic as key."""

    jobs: dict[str, dict[int, int]] = field(default_factory=dict)
    """The numbers of the jobs that are not finished, by seq."""
    completing: dict[str, set[int]] = field(default_factory=dict)
    """Those of them whose results wait."""
    waiting: dict[str, dict[int, bytes]] = field(default_factory=dict)
    """The results that wait, by seq; the job may be gone."""
    wants: dict[str, bool] = field(default_factory=dict)
    """Whether results are wanted."""
    letters: dict[int, SeenLetter] = field(default_factory=dict)
    results: Counter[SeenResult] = field(default_factory=Counter)
    tags: dict[int, set[str | None]] = field(default_factory=dict)
    """By number: of its records and letters."""
    datas: dict[int, set[bytes]] = field(default_factory=dict)
    result_tags: dict[tuple[str, int], set[str | None]] = field(default_factory=dict)

    def count(self, topic: str, group: str | None, seq: int, node: str, value: bytes) -> int:
        """How often a result was delivered."""
        return self.results[SeenResult(topic, group, seq, node, value)]

    def _note(self, row: dict[str, Any]) -> int:
        number: int = row["data"]["n"]
        self.tags.setdefault(number, set()).add(row.get("$tag"))
        self.datas.setdefault(number, set()).add(msgspec.json.encode(row["data"]))
        return number


async def rows_of(life: Life, name: str) -> list[dict[str, Any]]:
    """All records of a topic."""
    rows: list[dict[str, Any]] = []
    position = 0
    while True:
        request = ReadRequest(from_seq=position, limit=100, include_tags=True)
        found = await life.engine.reads.read(name, request, Performance())
        rows += msgspec.json.decode(b"[" + found.records + b"]")
        position = found.next_from_seq
        if found.caught_up:
            return rows


def queue_in(topic: Topic) -> JobQueue | None:
    """The queue of a source; None if the group is not there."""
    if topic.queue is not None:
        return topic.queue
    return topic.groups.by_name.get(GROUP) if topic.groups is not None else None


async def outcomes_shown_by(life: Life) -> OutcomesSeen:
    """What there is, without a change."""
    seen, topics = OutcomesSeen(), life.engine.registry.topics
    for name in (QUEUE, LOG):
        queue = queue_in(topics[name]) if name in topics else None
        if queue is None:
            continue
        if name == LOG:
            await life.engine.groups.state(LOG, GROUP)  # brings it up to date
        queue.leases.check()
        rows = await rows_of(life, name)
        jobs = {row["$seq"]: seen._note(row) for row in rows if queue.is_unfinished(row["$seq"])}
        seen.jobs[name] = jobs
        seen.completing[name] = {seq for seq in jobs if queue.leases.look(seq).state == COMPLETING}
        seen.waiting[name] = {seq: result.data for seq, result in queue.leases.results.copy().items()}
        seen.wants[name] = queue.terms(topics[name].config).completed is not None
        lost = seen.completing[name] - seen.waiting[name].keys()
        if lost:
            broken(f"{name}: {lost} wait for the delivery of their results, which are not there")
    for row in await rows_of(life, LETTERS) if LETTERS in topics else ():
        meta = row.get("meta", {})
        origin = (meta.get(DEAD_LETTER_META + key) for key in ("from", "group", "src_seq"))
        topic, group, src_seq = origin
        if topic is None:
            broken(f"{LETTERS}: {row} does not say where it came from")
        seen.letters[row["$seq"]] = SeenLetter(seen._note(row), topic, group, int(src_seq))
    for row in await rows_of(life, RESULTS) if RESULTS in topics else ():
        data = row["data"]
        found = SeenResult(
            data["topic"], data.get("group"), data["job_seq"], data["node"], msgspec.json.encode(data["result"])
        )
        seen.results[found] += 1
        seen.result_tags.setdefault((found.topic, found.seq), set()).add(row.get("$tag"))
    return seen
