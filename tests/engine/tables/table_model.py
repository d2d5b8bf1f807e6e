"""A topic with `keep_per_tag` as a list, and the steps that a test makes with it and with the real one."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import msgspec
import trio

from tests.engine.life import Life, settle
from topics.model import (
    AppendRequest,
    CheckedAppend,
    LatestRequest,
    Performance,
    RecordIn,
    RouterPatch,
    TransactionRequest,
)

MINUTE_MS = 60_000
Batch = list[tuple[str | None, bool]]
"""Tags, and which records are null."""


class Row(NamedTuple):
    """A live record."""

    seq: int
    tag: str | None
    data: Any
    ts: int


def size_of(data: Any) -> int:
    """The bytes of a record's data."""
    return len(json.dumps(data))


class TableModel:
    """What a topic is after the steps, according to the rules alone."""

    def __init__(self, **config: int) -> None:
        self.config: dict[str, Any] = {"keep_per_tag": 0, "ttl_ms": 0, "cap_records": 0, "cap_bytes": 0}
        self.config |= {"null_ttl_ms": 86_400_000, **config}
        self.head = 0
        self.live: list[Row] = []
        self.lost = 0
        """The highest seq that a cap or the ttl has taken."""

    @property
    def bytes(self) -> int:
        return sum(size_of(row.data) for row in self.live)

    def newest(self, tag: str) -> Row | None:
        return max((row for row in self.live if row.tag == tag), default=None)

    def table(self, prefix: str = "") -> list[Row]:
        """The newest record of each tag that is not null, in order of the tags."""
        tags = sorted({row.tag for row in self.live if row.tag is not None and row.tag.startswith(prefix)})
        found = [self.newest(tag) for tag in tags]
        return [row for row in found if row is not None and row.data is not None]

    def append(self, batch: list[tuple[str | None, Any]], now: int) -> None:
        self.expire(now)
        for tag, data in batch:
            self.head += 1
            self.live.append(Row(self.head, tag, data, now))
        self.keep()
        self.cap()

    def keep(self) -> None:
        """Each tag has its newest records only, and none older than one whose data is null."""
        keep = self.config["keep_per_tag"]
        if not keep:
            return
        for tag in {row.tag for row in self.live if row.tag is not None}:
            rows = [row for row in self.live if row.tag == tag]
            null = max((i for i, row in enumerate(rows) if row.data is None), default=0)
            gone = set(rows[: max(len(rows) - keep, null)])
            self.live = [row for row in self.live if row not in gone]

    def cap(self) -> None:
        records, size = self.config["cap_records"], self.config["cap_bytes"]
        while self.live and ((records and len(self.live) > records) or (size and self.bytes > size)):
            self.lost = max(self.lost, self.live.pop(0).seq)

    def put(self, now: int, patch: dict[str, int]) -> None:
        self.expire(now)
        self.config |= patch
        self.keep()
        self.cap()
        self.expire(now)

    def expire(self, now: int) -> None:
        while self.config["ttl_ms"] and self.live and now - self.live[0].ts > self.config["ttl_ms"]:
            self.lost = max(self.lost, self.live.pop(0).seq)

    def expire_nulls(self, now: int) -> None:
        self.expire(now)
        ttl = self.config["null_ttl_ms"]
        if ttl and self.config["keep_per_tag"]:
            self.live = [row for row in self.live if row.tag is None or row.data is not None or now - row.ts <= ttl]


async def carry_out(life: Life, model: TableModel, number: int, step: tuple[Any, ...]) -> None:
    """Make a step with topic `t` of the engine and with the model."""
    engine = life.engine
    match step:
        case ("append", batch):
            rows = _rows(number, batch)
            answer = await life.append("t", *_records(rows))
            assert answer.first_seq == model.head + 1
            model.append(rows, life.clock.now_ms())
        case ("burst", batches):
            await _burst(life, model, number, batches)
        case ("transaction", batch):
            rows = _rows(number, batch)
            appends = [
                AppendRequest(records=[record_in(*row) for row in some]) for some in (rows, [("a", 1), ("a", 2)])
            ]
            await engine.transactions.append(TransactionRequest(topics=["t", "other"], appends=appends), Performance())
            model.append(rows, life.clock.now_ms())
        case ("stage", batches):
            for i, batch in enumerate(batches):
                await engine.stages.append("t", f"{number}-{i}", _checked(_rows(number + i, batch)), Performance())
            stages = [f"{number}-{i}" for i in range(len(batches))]
            await engine.stage_commits.commit("t", stages, f"key-{number}", Performance())
            model.append(
                [row for i, batch in enumerate(batches) for row in _rows(number + i, batch)], life.clock.now_ms()
            )
        case ("forward", batch):
            rows = _rows(number, batch)
            await life.append("s", *_records(rows))
            await engine.routers.catch_up(("t",))
            model.append(rows, life.clock.now_ms())
        case ("delete", before, tag):
            await life.delete("t", before, ["tag", "Eq", tag] if tag is not None else None)
            model.expire(life.clock.now_ms())
            model.live = [
                row
                for row in model.live
                if (before is not None and row.seq >= before) or (tag is not None and row.tag != tag)
            ]
        case ("delete_range", after, before):
            await life.delete("t", before, after_seq=after)
            model.expire(life.clock.now_ms())
            model.live = [row for row in model.live if row.seq <= after or row.seq >= before]
        case ("put", patch):
            await life.put("t", **patch)
            model.put(life.clock.now_ms(), patch)
        case ("pass", minutes):
            life.clock.advance(minutes * MINUTE_MS)
            for _ in range(2):
                engine.expire_unused()
                await settle()
            await engine.loader.expire(engine.registry.topics["t"])
            model.expire_nulls(life.clock.now_ms())
        case ("checkpoint",):
            await life.compactor.checkpoint()
        case ("reclaim",):
            await life.compactor.checkpoint()
            await engine.reclaimer.pass_over()


async def compare(life: Life, model: TableModel) -> None:
    """Assert that topic `t` and the model are the same."""
    topic = life.engine.registry.topics["t"]
    model.expire(life.clock.now_ms())
    found, gaps = await life.all("t", include_tags=True)
    assert [(one["$seq"], one.get("$tag"), one["data"]) for one in found] == [row[:3] for row in model.live]
    log = topic.log
    first = model.live[0].seq if model.live else model.head + 1
    assert (log.count, log.bytes, log.earliest_seq, log.head_seq) == (
        len(model.live),
        model.bytes,
        first,
        model.head,
    )
    assert [gap[:2] for gap in gaps] == ([(1, first - 1)] if model.lost else [])
    assert log.losses.evict_floor == model.lost + 1
    assert (log.kept is not None) is bool(model.config["keep_per_tag"])
    if log.kept is not None:
        tags = {row.tag for row in model.live if row.tag is not None}
        live = {tag: [row.seq for row in model.live if row.tag == tag] for tag in tags}
        log.kept.check(live, log.earliest_seq)
        nulls = [row.seq for row in model.live if row.tag is not None and row.data is None]
        assert [seq for seq in log.nulls or () if seq in {row.seq for row in model.live}] == nulls


async def compare_latest(life: Life, model: TableModel, page_size: int) -> None:
    """Assert that `/latest` shows the same."""
    found: list[dict[str, Any]] = []
    after: str | None = None
    while True:
        request = LatestRequest("", after, page_size, 1 << 20)
        page = await life.engine.latest.page("t", request, Performance())
        found += json.loads(b"[%b]" % page.records)
        assert page.head_seq == model.head
        after = page.next_after
        if after is None:
            break
    assert [(one["$seq"], one["$tag"], one["data"]) for one in found] == [row[:3] for row in model.table()]


def _rows(number: int, batch: Batch) -> list[tuple[str | None, Any]]:
    return [(tag, None if null else 10 ** (number % 7) + i) for i, (tag, null) in enumerate(batch)]


def _records(rows: list[tuple[str | None, Any]]) -> list[dict[str, Any]]:
    return [{"data": data, "tag": tag} for tag, data in rows]


def record_in(tag: str | None, data: Any) -> RecordIn:
    return RecordIn(data=msgspec.Raw(json.dumps(data).encode()), tag=tag)


def _checked(rows: list[tuple[str | None, Any]]) -> CheckedAppend:
    tags = [tag for tag, _ in rows]
    found = [record_in(*row) for row in rows]
    datas = [bytes(record.data) for record in found]
    return CheckedAppend(records=found, datas=datas, nodes=None, tags=tags if any(tags) else None, metas=None)


async def _burst(life: Life, model: TableModel, number: int, batches: list[Batch]) -> None:
    """Append several batches at the same time, in any order."""
    done: list[tuple[int, list[tuple[str | None, Any]]]] = []

    async def one(rows: list[tuple[str | None, Any]]) -> None:
        answer = await life.append("t", *_records(rows))
        done.append((answer.first_seq, rows))

    async with trio.open_nursery() as nursery:
        for i, batch in enumerate(batches):
            nursery.start_soon(one, _rows(number + i, batch))
    for _, rows in sorted(done, key=lambda item: item[0]):
        model.append(rows, life.clock.now_ms())


async def prepare(life: Life, model: TableModel, durability: str) -> None:
    """Make the topics of a test, or find them again."""
    await life.put("t", durability=durability, **model.config)
    await life.put("s", durability=durability)
    await life.put("other", keep_per_tag=1)
    await life.engine.routers.put("r", RouterPatch(source="s", dest="t"))
