"""Rows about topics with evidence: their leaves, trees and checkpoints."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Final

import trio

from tests.crash.rows import Earlier, Operation, Script, nothing
from tests.simulation.disk import SimFs
from tests.simulation.evidence_lives import Auditor, EvidenceSweep
from tests.simulation.router_lives import until_idle
from tests.simulation.world import ROOT, Life, settings
from topics.errors import ApiError
from topics.model import AppendRequest, CheckedAppend, Performance, RouterPatch, TopicConfigPatch, TransactionRequest
from topics.storage.recovery.restored_copy import MARK

SMALL: Final = settings(wal_shards=2, wal_file_bytes=4 << 10, segment_max_events=6, segment_max_age_ms=0)
ROOMY: Final = replace(SMALL, wal_file_bytes=32 << 10)
TREES: Final = (1, 2, 3, 6)


async def appending(life: Life, client: Auditor) -> None:
    """A topic is made, with records one by one and side by side, and checkpoints between."""
    await life.engine.evidence.key()
    await client.create(life, "t")
    await client.keep(life)
    for _ in range(3):
        async with trio.open_nursery() as writers:
            writers.start_soon(client.append, life, "t", 2)
            writers.start_soon(client.append, life, "t", 1)
        await client.keep(life)
    await trio.sleep(0.1)


async def filled(life: Life, client: Auditor) -> None:
    """Topics with records in the log."""
    await client.create(life, "t", "u")
    await client.append(life, "t", 5)
    await client.append(life, "u", 1)
    await client.keep(life)


async def without(life: Life, client: Auditor) -> None:
    """A topic without evidence, with records in a segment and in the log."""
    await client.create(life, "t", durability="disk", evidence=False)
    await client.append(life, "t", 4)
    await life.compactor.checkpoint()
    await client.append(life, "t", 2)


async def switching_on(life: Life, client: Auditor) -> None:
    """Evidence begins with the next record."""
    await client.create(life, "t")
    await client.keep(life)
    await client.append(life, "t", 3)
    await client.keep(life)
    await life.compactor.checkpoint()


async def storing(life: Life, client: Auditor) -> None:
    """Leaves go into files, in blocks and pieces, beside deletions and evictions; some records never get a segment."""
    await client.create(life, "t", cap_records=9)
    for count in (3, 4, 1, 1, 1, 12):
        await client.append(life, "t", count)
        await client.keep(life, "t")
        await life.compactor.checkpoint()
    await life.engine.deletions.delete_records("t", None, None, Performance(), after_seq=20, before_ts=None)
    await life.compactor.checkpoint()
    await life.reclaimer.pass_over()
    await client.append(life, "u", 2)
    await client.keep(life)
    await life.compactor.checkpoint()


async def holding(life: Life, client: Auditor) -> None:
    """Checkpoints during a hold write other files than those that it names."""
    await life.compactor.checkpoint()
    await life.engine.checkpoint(60_000)
    for _ in range(4):
        await client.append(life, "t", 3)
        await life.compactor.checkpoint()
    await client.keep(life)
    life.engine.compactor.release()


async def linked(life: Life, client: Auditor) -> None:
    """A source of each kind, and a dest with evidence."""
    await client.create(life, "t")
    await client.create(life, "a", durability="disk", evidence=False)
    await client.append(life, "a", 3)
    await life.compactor.checkpoint()
    patch = RouterPatch(source="a", dest="t", start="earliest", guarantee="exactly_once", preserve_node=False)
    await life.engine.routers.put("a>t", patch)
    await until_idle(life)


async def copying(life: Life, client: Auditor) -> None:
    """Copies come, beside appends; their source goes; they are stored."""
    await client.append(life, "a", 3)
    await client.append(life, "t", 1)
    await until_idle(life)
    await client.keep(life)
    await client.append(life, "a", 2)
    await until_idle(life)
    await life.engine.topic_lifecycle.delete("a", if_empty=False)
    await client.keep(life)
    await life.compactor.checkpoint()
    await trio.sleep(0.1)


def staged(client: Auditor, count: int) -> CheckedAppend:
    """Records for a stage."""
    records = client.records(count)
    return CheckedAppend(
        records=records,
        datas=[bytes(record.data) for record in records],
        tags=[record.tag for record in records],
        nodes=[record.node for record in records],
        metas=[b'{"m":"%d"}' % i if i % 2 else b"" for i in range(count)],
    )


async def stages(life: Life, client: Auditor) -> None:
    """Stages in the log and in a segment."""
    await client.create(life, "t")
    await life.engine.stages.append("t", "one", staged(client, 9), Performance())
    await life.compactor.checkpoint()
    await life.engine.stages.append("t", "one", staged(client, 2), Performance())
    await life.engine.stages.append("t", "two", staged(client, 3), Performance())


async def committing(life: Life, client: Auditor) -> None:
    """Stages are committed beside appends, and stored."""
    async with trio.open_nursery() as both:
        both.start_soon(client.append, life, "t", 2)
        both.start_soon(partial(life.engine.stage_commits.commit, "t", ["two", "one"], "q", Performance()))
    await client.keep(life)
    await life.compactor.checkpoint()
    await client.keep(life)


async def at_once(life: Life, client: Auditor) -> None:
    """Transactions over topics with and without evidence."""
    for number in range(2):
        appends = [AppendRequest(records=client.records(2)), AppendRequest(records=client.records(1))]
        request = TransactionRequest(topics=["t", "u"], appends=appends, idempotency_key=f"k{number}")
        with suppress(ApiError):
            await life.engine.transactions.append(request, Performance())
        await client.keep(life)
    await trio.sleep(0.1)


async def stored(life: Life, client: Auditor) -> None:
    """Leaves in files, pending and queued."""
    await filled(life, client)
    await life.compactor.checkpoint()
    await client.append(life, "t", 4)
    await client.keep(life)
    await client.append(life, "t", 2)
    await life.engine.topic_lifecycle.put("t", TopicConfigPatch(ttl_ms=3_600_000))


def as_copy(fs: SimFs) -> None:
    """Mark the directory as a copy of another one."""
    fs.open(f"{ROOT}/{MARK}", create=True).close()
    fs.settle()


SWEEP: Final = EvidenceSweep


def row(name: str, script: Script, before: Script = nothing, rules: tuple[int, ...] = (8,)) -> Operation:
    return Operation(name, rules, TREES, SWEEP, ROOMY, script, before)


EVIDENCE_OPERATIONS = (
    row("evidence-of-appends", appending),
    row("switch-evidence-on", switching_on, without),
    Operation("store-leaves", (8, 9, 10, 18), TREES, SWEEP, SMALL, storing, filled),
    row("store-leaves-in-hold", holding, filled, (13,)),
    row("evidence-of-copies", copying, linked, (16, 17, 18)),
    row("evidence-of-stages", committing, stages, (23,)),
    row("evidence-of-transactions", at_once, filled),
    Operation(
        "start-with-evidence", (2, 8), TREES, SWEEP, SMALL, nothing, from_start=True, earlier=(Earlier(stored, "kill"),)
    ),
    Operation(
        "restored-evidence",
        (2,),
        TREES,
        partial(EvidenceSweep, renews=True),
        SMALL,
        nothing,
        from_start=True,
        earlier=(Earlier(stored, "kill", hurt=as_copy),),
    ),
)
