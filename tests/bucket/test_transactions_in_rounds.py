"""Which records of a transaction the bucket has: those of which a round has all that decides whether they count
(`docs/design/bucket.md` section 3)."""

from __future__ import annotations

import errno
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio

from tests.bucket.archived import ArchivedLife, archived, bucket_settings
from tests.bucket.simulated_objects import SimFault, SimObjects
from tests.bucket.standby_lives import following
from tests.engine.life import living
from tests.simulation.clock import BASE_MS, SimClock
from tests.simulation.disk import Fault, SimFs
from tests.simulation.world import ROOT, quiet
from topics.bucket.standby.handover import hand_over
from topics.engine.topic import Topic
from topics.errors import ApiError
from topics.evidence.checkpoint_note import SignedCheckpoint
from topics.evidence.signed_note import NoteSigner
from topics.model import AppendRequest, Performance, RecordIn, TransactionRequest
from topics.storage.files.datadir import DataDir
from topics.storage.files.fs import write_all

pytestmark = pytest.mark.trio

KEY = "/keys/evidence.pem"


def machine() -> SimFs:
    fs = SimFs()
    fs.mkdir("/keys")
    with fs.open(KEY, create=True) as file:
        write_all(file, NoteSigner.generate().to_pem(), 0)
    return fs


async def on_two_shards(life: ArchivedLife, **config: Any) -> tuple[Topic, Topic]:
    """Topics `a` and `b`, each on a shard of its own."""
    await life.put("a", **config)
    first = life.engine.registry.topics["a"]
    for i in range(20):  # a shard is chosen by the number of the topic
        registry = life.engine.registry
        if life.engine.store.shard_of(registry.next_topic_id) != first.shard:
            break
        await life.put(f"between-{i}")
    await life.put("b", **config)
    second = life.engine.registry.topics["b"]
    assert first.shard != second.shard
    return first, second


async def transaction(life: ArchivedLife, size: int = 1) -> None:
    """One record in each topic; that in `b` has so many bytes. It may come to its end long after its answer."""
    appends = [AppendRequest(records=[RecordIn(data=msgspec.Raw(b"1" * count))]) for count in (1, size)]
    with suppress(ApiError):
        await life.engine.transactions.append(TransactionRequest(topics=["a", "b"], appends=appends), Performance())


async def test_a_round_without_all_batches_of_a_transaction_has_none_of_its_records(autojump_clock: Any) -> None:
    """One shard waits for room, so the round lacks it. A takeover would undo the transaction, so nothing may say that
    its records are in the bucket, not even when it is published: neither `bucket_seq` nor a checkpoint."""
    config = bucket_settings(bucket_round_ms=10_000, evidence_key_file=Path(KEY))
    async with archived(SimObjects(), config, fs=machine(), bases=True) as life:
        first, second = await on_two_shards(life, durability="fsync", evidence=True)
        await life.append("b", "x" * 300_000)
        await life.append("a", 1)
        await trio.sleep(25)
        assert first.bucket_seq == 1
        for what in ("preallocate", "create", "pwrite"):  # a next file may be there already
            life.fs.inject(Fault(error=errno.ENOSPC, name=what, path=f"*shard-{second.shard:02d}*", times=None))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(transaction, life, 1_000_000)  # its shard needs another file for that
            await trio.sleep(1)
            assert (first.assigned, first.log.head_seq) == (2, 1), "the transaction is in doubt"
            await trio.sleep(20)
            assert first.synced_seq == 2, "its batch in this shard is in a round by now"
            assert first.bucket_seq == 1
            life.fs.faults.clear()
            with trio.fail_after(60):
                await first.drained()
            assert first.bucket_seq == 1
            head = SignedCheckpoint.parse((await life.engine.evidence.checkpoint("a")).note).checkpoint
            assert head.size == 1, "the bucket would not restore what the checkpoint covers"
        await trio.sleep(40)
        assert (first.bucket_seq, second.bucket_seq) == (2, 2)
        assert (await life.engine.evidence.checkpoint("a")).size == 2


async def test_a_transaction_that_waits_for_a_round_is_in_the_bucket_when_it_is_published(autojump_clock: Any) -> None:
    async with archived(SimObjects(), bucket_settings(), bases=True) as life:
        await trio.sleep(5)
        topics = await on_two_shards(life, durability="remote")
        await life.append("a", 1)
        await transaction(life)
        assert [topic.bucket_seq for topic in topics] == [topic.log.head_seq for topic in topics] == [2, 1]


async def test_a_stop_while_the_bucket_is_away_undoes_no_transaction(autojump_clock: Any) -> None:
    """The bucket has the round, and only the answer was lost. A standby shows the transaction by then, so no frame of
    the stop may undo it."""
    fs, objects, standby_fs = SimFs(), SimObjects(), SimFs()
    config = bucket_settings(bucket_base_ms=5000)
    async with archived(objects, config, fs=fs, bases=True, clean=False) as life:
        topics = await on_two_shards(life, durability="remote")
        await life.append("a", 1)
        await trio.sleep(10)
        async with following(standby_fs, objects, config) as standby, trio.open_nursery() as nursery:
            answers = iter([SimFault.AFTER])
            objects.faults = lambda op, name: (
                next(answers, SimFault.BEFORE) if op == "put_new" and name.startswith("rounds/") else SimFault.BEFORE
            )
            nursery.start_soon(transaction, life)
            await trio.sleep(3)
            assert life.engine.store.round_waits.is_away
            objects.faults = lambda op, name: None if op != "put_new" else SimFault.BEFORE
            await standby.follower.catch_up()
            shown = [standby.engine.registry.topics[name].log.count for name in "ab"]
            assert shown == [2, 1], "the round has the transaction"
            assert [topic.log.count for topic in topics] == [1, 0]
            await life.stop()
    objects.faults = lambda op, name: None
    async with archived(objects, config, fs=fs, bases=True) as life:
        assert [await life.seqs(name) for name in "ab"] == [[1, 2], [1]]


async def test_checkpoints_of_a_standby_begin_before_a_transaction_without_its_decision(
    autojump_clock: Any,
) -> None:
    """A start that finds the batch of one shard only would undo it there."""
    fs, objects, config = SimFs(), SimObjects(), bucket_settings(bucket_base_ms=5000)
    async with archived(objects, config, bases=True, clean=False) as life:
        await on_two_shards(life, durability="remote")
        await trio.sleep(10)
        async with following(fs, objects, config) as standby:
            await standby.compactor.checkpoint()
            begun = standby.compactor.replay_starts()
            await transaction(life)
            await standby.follower.catch_up()
            await standby.compactor.checkpoint()
            assert standby.compactor.replay_starts() == begun
        async with following(fs, objects, config) as standby:
            await standby.compactor.checkpoint()
            assert standby.compactor.replay_starts() == begun, "after a restart, too"
            await trio.sleep(5)
            await standby.follower.catch_up()
            await standby.compactor.checkpoint()
            assert all(now > before for now, before in zip(standby.compactor.replay_starts(), begun, strict=True))


async def test_a_takeover_decides_a_transaction_that_the_checkpoints_of_the_standby_have(autojump_clock: Any) -> None:
    """Without Decision frames each replay of the log would keep back all that follows in these topics."""
    fs, objects, config = SimFs(), SimObjects(), bucket_settings(bucket_base_ms=5000)
    async with archived(objects, config, bases=True, clean=False) as life:
        await on_two_shards(life, durability="remote")
        await trio.sleep(10)
        async with following(fs, objects, config) as standby:
            await transaction(life)
            await standby.follower.catch_up()
            await standby.compactor.checkpoint()
            note = standby.follower.note
    hand_over(fs, DataDir(ROOT), note, goes_on=True)
    events: list[dict[str, Any]] = []
    with quiet(events):
        async with living(replace(config, bucket=""), fs=fs, clock=SimClock(BASE_MS), clean=False) as taker:
            assert [await taker.seqs(name) for name in "ab"] == [[1], [1]]
    assert [(one["batches"], one["undone"]) for one in events if one["event"] == "transactions_decided"] == [(2, 0)]
