"""Rows about files: checkpoints, segments and their tiers, the removal of topics, holds, and starts on such files."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Literal

import trio

from tests.crash.rows import Earlier, Operation, nothing
from tests.simulation.model import Client
from tests.simulation.segment_lives import (
    SMALL,
    SegmentSweep,
    checkpoint,
    exactly,
    fill,
    fill_all,
    maintenance,
    one_of_each,
    reclaim,
    relocate,
    with_shards,
)
from tests.simulation.world import End, Life
from topics.errors import ApiError
from topics.log.tag_match import TagMatch

EAGER = replace(SMALL, rewrite_live_ratio=0.7)
"""Segments are written anew as soon as a third of them is dead."""
YOUNG = replace(SMALL, segment_max_age_ms=10, segment_max_events=20, segment_max_bytes=8192)
"""Segments are sealed for their age, while they are small enough to be merged."""
PACKED = replace(SMALL, segment_compression="zstd")
"""All sealed segments are packed."""
PACKED_EAGER = replace(EAGER, segment_compression="zstd")
PACKED_YOUNG = replace(YOUNG, segment_compression="zstd")
KEPT = ("disk", "fsync")
"""Classes of the topics in most of these rows: what is in a segment is no longer of any class."""
ROTATING = replace(SMALL, wal_file_bytes=4 << 10)
"""Files of the log that a few records fill."""


async def in_the_log(life: Life, client: Client) -> None:
    """Records of all classes, none of them in a segment."""
    await one_of_each(client)
    await fill_all(client, 3)
    await client.delete("disk", before=2)
    await trio.sleep(0.1)


async def two_in_the_log(life: Life, client: Client) -> None:
    """The same of two classes."""
    await one_of_each(client, KEPT)
    await fill_all(client, 3, names=KEPT)
    await trio.sleep(0.1)


async def sealed(life: Life, client: Client) -> None:
    """Two full segments of two classes, and an active one, all hot."""
    await one_of_each(client, KEPT)
    await fill_all(client, 10, names=KEPT)
    await checkpoint(life)


async def cold(life: Life, client: Client) -> None:
    """The same, one of the full ones cold."""
    await sealed(life, client)
    await relocate(life)


# ----------------------------------------------------------------- checkpoints


async def checkpointing(life: Life, client: Client) -> None:
    """One with records of all classes in it, beside appends; and one with what came meanwhile."""
    async with trio.open_nursery() as both:
        both.start_soon(checkpoint, life)
        both.start_soon(fill_all, client, 1)
    await checkpoint(life)


async def dropping_the_log(life: Life, client: Client) -> None:
    """Checkpoints until both snapshots are past the first files of the log, which then go."""
    for _ in range(2):
        await fill_all(client, 2, names=KEPT, size=300)
        await checkpoint(life)
    await checkpoint(life)


async def growing(life: Life, client: Client) -> None:
    """Records that are put into the active segment, again and again, beyond what a manifest vouches for."""
    for _ in range(3):
        await fill_all(client, 1, names=KEPT)
        await checkpoint(life)


async def sealing(life: Life, client: Client) -> None:
    """Segments that are full by count and by bytes."""
    await fill_all(client, 4, names=KEPT)
    await checkpoint(life)
    await fill_all(client, 3, names=KEPT, size=400)
    await checkpoint(life)


async def sealing_on_demand(life: Life, client: Client) -> None:
    """Segments that somebody wants sealed: with new records and without, beside appends, of a topic with its own
    limits, and of one of which nothing is stored."""
    await client.create("ephemeral", durability="ephemeral")
    await fill(client, "ephemeral", 1)
    await client.configure("disk", segment_max_events=3, segment_max_bytes=1024)
    for _ in range(2):
        async with trio.open_nursery() as beside:
            for name in (*KEPT, "ephemeral"):
                beside.start_soon(seal, life, name)
            beside.start_soon(partial(fill_all, client, 1, names=KEPT))
        await seal(life, "fsync")
    await reclaim(life)


async def seal(life: Life, name: str) -> None:
    """A call for sealing, which may fail only as it is documented to."""
    with suppress(ApiError):
        await life.engine.topic_seals.seal(name)


async def flagging(life: Life, client: Client) -> None:
    """Deletions of records in sealed and active segments get into the files."""
    for name in KEPT:
        await client.delete(name, match=exactly("a"))
        await client.delete(name, before=3)
    async with trio.open_nursery() as both:
        both.start_soon(checkpoint, life)
        both.start_soon(delete_matching, client, "disk", exactly("ab"))
    await checkpoint(life)


async def delete_matching(client: Client, name: str, match: TagMatch) -> None:
    await client.delete(name, match=match)


# ----------------------------------------------------------------- reclaim and relocation


async def half_dead(life: Life, client: Client) -> None:
    """Segments with little in them that is live, flagged."""
    await one_of_each(client, KEPT)
    await fill_all(client, 8, names=KEPT)
    await checkpoint(life)
    for name in KEPT:
        await client.delete(name, match=exactly("a"))
        await client.delete(name, match=exactly("b"))
    await checkpoint(life)


async def rewriting(life: Life, client: Client) -> None:
    """Segments are written anew, beside a reader and a deletion."""
    async with trio.open_nursery() as both:
        both.start_soon(reclaim, life)
        both.start_soon(delete_matching, client, "disk", exactly("ab"))
        both.start_soon(client.look, "fsync")
    await checkpoint(life)
    await reclaim(life)


async def small_ones(life: Life, client: Client) -> None:
    """Small sealed segments, some half dead."""
    await one_of_each(client, KEPT)
    for turn in range(3):
        for name in KEPT:
            await client.append(name, 2, tag="ab"[turn % 2])
        await checkpoint(life)
        await trio.sleep(0.02)
    await fill_all(client, 1, names=KEPT)
    await client.delete("fsync", before=4)
    await checkpoint(life)


async def merging(life: Life, client: Client) -> None:
    """They become one, while something in them is deleted."""
    async with trio.open_nursery() as both:
        both.start_soon(reclaim, life)
        both.start_soon(delete_matching, client, "disk", exactly("a"))
    await checkpoint(life)
    await reclaim(life)


async def dropping(life: Life, client: Client) -> None:
    """Segments that the front passes, by a deletion and by a cap."""
    await client.delete("fsync", before=10)
    await client.configure("disk", cap_records=6)
    await checkpoint(life)
    await reclaim(life)
    await checkpoint(life)


async def moving(life: Life, client: Client) -> None:
    """Segments go to the cold tier, beside deletions in them and appends behind them."""
    async with trio.open_nursery() as both:
        both.start_soon(relocate, life)
        both.start_soon(delete_matching, client, "disk", exactly("a"))
        both.start_soon(fill, client, "fsync", 2)
    await checkpoint(life)
    await relocate(life)


async def cold_work(life: Life, client: Client) -> None:
    """Deletions in cold segments, which are flagged there, written anew there, and dropped."""
    for name in KEPT:
        await client.delete(name, match=exactly("a"))
    await checkpoint(life)
    await client.delete("fsync", match=exactly("b"))
    await client.delete("disk", before=9)
    await checkpoint(life)
    await reclaim(life)
    await checkpoint(life)


async def removing(life: Life, client: Client) -> None:
    """Topics with hot and cold segments are deleted, one of them is made again, and the files go."""
    for name in KEPT:
        await client.delete_topic(name)
    await client.create("fsync", durability="fsync")
    await client.append("fsync", 3)
    await reclaim(life)
    await checkpoint(life)
    await reclaim(life)


async def class_of_stored(life: Life, client: Client) -> None:
    """Topics with hot and cold segments turn ephemeral, and come back."""
    for name in KEPT:
        await client.configure(name, durability="ephemeral")
        await fill(client, name, 2)
    await checkpoint(life)
    for name in KEPT:
        await client.configure(name, durability=name)
    await fill_all(client, 1, names=KEPT)
    await checkpoint(life)


async def holding(life: Life, client: Client) -> None:
    """Files that are held are let alone, by deletions, reclaim, relocation and removal; and not any more after it."""
    await life.engine.checkpoint(1000)
    for name in KEPT:
        await client.delete(name, match=exactly("a"))
    await client.delete_topic("disk")
    for work in (checkpoint, reclaim, relocate):
        async with trio.open_nursery() as beside:  # some of them wait for the end of the hold
            beside.start_soon(work, life)
            beside.start_soon(fill, client, "fsync", 1)
    await trio.sleep(1.1)
    await maintenance(life)


async def capturing(life: Life, client: Client) -> None:
    """The same while a base of the bucket is captured, whose hold is prolonged, and ended before its time."""
    with suppress(ApiError, OSError):
        capture = await life.compactor.capture(1000)
        for name in KEPT:
            await client.delete(name, match=exactly("a"))
        await fill_all(client, 2, names=KEPT)
        await checkpoint(life)
        await life.compactor.prolong(capture, 1000)
        life.compactor.release()
    await maintenance(life)


async def checkpointing_in_a_hold(life: Life, client: Client) -> None:
    """Checkpoints beside named files: new segments, deletions that are not flagged yet, manifests of the next
    generation; a further answer, and a checkpoint that clears up behind the hold."""
    await life.engine.checkpoint(1000)
    for tag in ("a", "ab"):
        await fill_all(client, 2, names=KEPT)
        await client.delete("disk", match=exactly(tag))
        await checkpoint(life)
        await client.delete("fsync", before=5)
        await checkpoint(life)
        await life.engine.checkpoint(1000)
    await fill_all(client, 1, names=KEPT)
    await trio.sleep(2)
    await checkpoint(life)


# ----------------------------------------------------------------- packed segments


async def packing(life: Life, client: Client) -> None:
    """Segments are packed, beside deletions in them, a reader and appends; what was flagged meanwhile is packed by the
    next look."""
    async with trio.open_nursery() as both:
        both.start_soon(reclaim, life)
        both.start_soon(delete_matching, client, "disk", exactly("ab"))
        both.start_soon(checkpoint, life)
        both.start_soon(client.look, "fsync")
        both.start_soon(fill, client, "fsync", 2)
    await checkpoint(life)
    await reclaim(life)
    await checkpoint(life)


async def packed(life: Life, client: Client) -> None:
    """Full segments, all hot and packed, with a deletion in each since."""
    await sealed(life, client)
    await reclaim(life)
    await checkpoint(life)
    await client.delete("disk", match=exactly("b"))
    await checkpoint(life)


async def packed_and_cold(life: Life, client: Client) -> None:
    """The same, one of them cold."""
    await packed(life, client)
    await relocate(life)


async def packing_cold(life: Life, client: Client) -> None:
    """Cold segments that are not packed yet are, beside deletions in them."""
    async with trio.open_nursery() as both:
        both.start_soon(reclaim, life)
        both.start_soon(delete_matching, client, "disk", exactly("a"))
        both.start_soon(checkpoint, life)
    await checkpoint(life)
    await reclaim(life)
    await checkpoint(life)


# ----------------------------------------------------------------- starts


async def at_work(life: Life, client: Client) -> None:
    """All that a start may have to take over."""
    await cold(life, client)
    await one_of_each(client, ("ephemeral", "memory"))
    await client.create("capped", durability="fsync", cap_records=5)
    await client.create("brief", durability="disk", ttl_ms=100)
    await client.delete("fsync", match=exactly("a"))
    await fill_all(client, 2, names=("ephemeral", "memory", "fsync", "capped", "brief"))
    await client.configure("memory", cap_records=30)
    await client.delete("disk", before=5)


async def some_work(life: Life, client: Client) -> None:
    """Something in each tier and in the log."""
    await cold(life, client)
    await client.create("memory", durability="memory")
    await client.delete("fsync", match=exactly("a"))
    await fill_all(client, 1, names=("disk", "fsync", "memory"))


def start_after(end: End | Literal["stop"], *rules: int) -> Operation:
    """A start after a life that ended so, which is crashed from its first operation on."""
    return Operation(
        f"recovery-after-{end}",
        (1, 2, *rules),
        (1, 2, 4, 6, 10),
        SegmentSweep,
        SMALL,
        nothing,
        from_start=True,
        earlier=(Earlier(at_work, end),),
    )


def other_shards(before: int, after: int, following: int) -> Operation:
    """A start with another number of shards, and after a crash in it one with the same or yet another."""
    return Operation(
        f"shards-{before}-to-{after}",
        (2, 14),
        (1, 2, 6),
        SegmentSweep,
        with_shards(after),
        nothing,
        from_start=True,
        earlier=(Earlier(some_work, "kill", with_shards(before)),),
        following=with_shards(following),
    )


# ----------------------------------------------------------------- the rows

FILE_OPERATIONS = (
    Operation("checkpoint", (1, 8, 25), (1, 6), SegmentSweep, SMALL, checkpointing, before=in_the_log),
    Operation("drop-wal-files", (9,), (1, 6), SegmentSweep, ROTATING, dropping_the_log, before=two_in_the_log),
    Operation("grow-segment", (10,), (1, 3, 6), SegmentSweep, SMALL, growing, before=two_in_the_log),
    Operation("seal-segment", (8, 10), (1, 5), SegmentSweep, SMALL, sealing, before=two_in_the_log),
    Operation("seal-on-demand", (8, 10), (1, 5), SegmentSweep, SMALL, sealing_on_demand, before=two_in_the_log),
    Operation("flag-deleted", (11, 12), (2, 5), SegmentSweep, SMALL, flagging, before=sealed),
    Operation("rewrite-segment", (12,), (1, 2, 5), SegmentSweep, EAGER, rewriting, before=half_dead),
    Operation("merge-segments", (12,), (1, 2, 5), SegmentSweep, YOUNG, merging, before=small_ones),
    Operation("drop-segments", (8, 12), (2, 4, 5), SegmentSweep, SMALL, dropping, before=sealed),
    Operation("relocate", (12,), (1, 2, 6), SegmentSweep, SMALL, moving, before=sealed),
    Operation("reclaim-cold", (11, 12), (1, 2, 5), SegmentSweep, EAGER, cold_work, before=cold),
    Operation("remove-topic-files", (12, 20), (2,), SegmentSweep, SMALL, removing, before=cold),
    Operation("change-class-of-stored", (8, 24), (1, 2, 4), SegmentSweep, SMALL, class_of_stored, before=cold),
    Operation("hold", (13,), (1, 2), SegmentSweep, SMALL, holding, before=cold),
    Operation("capture", (13,), (1, 2), SegmentSweep, SMALL, capturing, before=cold),
    Operation(
        "checkpoint-in-hold", (8, 9, 10, 11, 13), (1, 2, 5), SegmentSweep, SMALL, checkpointing_in_a_hold, before=cold
    ),
    Operation("pack-segment", (12, 29), (1, 2, 5), SegmentSweep, PACKED, packing, before=sealed),
    Operation("flag-packed", (11, 29), (2, 5), SegmentSweep, PACKED, flagging, before=packed),
    Operation("rewrite-packed", (12, 29), (1, 2, 5), SegmentSweep, PACKED_EAGER, rewriting, before=half_dead),
    Operation("merge-packed", (12, 29), (1, 2, 5), SegmentSweep, PACKED_YOUNG, merging, before=small_ones),
    Operation("relocate-packed", (12, 29), (1, 2, 6), SegmentSweep, PACKED, moving, before=packed),
    Operation("pack-cold", (12, 29), (1, 2, 5), SegmentSweep, PACKED, packing_cold, before=cold),
    Operation(
        "reclaim-cold-packed", (11, 12, 29), (1, 2, 5), SegmentSweep, PACKED_EAGER, cold_work, before=packed_and_cold
    ),
    Operation("hold-packed", (13, 29), (1, 2), SegmentSweep, PACKED, holding, before=packed_and_cold),
    start_after("stop", 6),
    start_after("kill", 3, 10),
    start_after("drop", 3, 5),
    start_after("reorder", 4, 5),
    other_shards(1, 3, 3),
    other_shards(3, 2, 1),
)
