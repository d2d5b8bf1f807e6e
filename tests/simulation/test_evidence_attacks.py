"""What somebody who reads the code of evidence would try: lies in parts, damage beside other topics, topics that go
while they are proved, trees that begin behind a transaction in doubt."""

from __future__ import annotations

import posixpath
from base64 import b64decode
from dataclasses import replace
from functools import partial
from pathlib import Path
from unittest import mock

import pytest

from tests.simulation.evidence_lives import Auditor, Heads, proved, read, rewritten, tiny_blocks
from tests.simulation.wal_content import scan_of
from tests.simulation.world import Life, World, settings
from topics.engine.evidence.evidence_calls import EvidenceCalls
from topics.engine.transaction import Transaction
from topics.errors import ApiError
from topics.evidence.merkle import GrowingTree, Leaves
from topics.evidence.record_leaf import BLANK
from topics.log.tag_match import TagMatch
from topics.model import AppendRequest, Performance, TopicConfigPatch, TransactionRequest
from topics.storage.evidence.leaf_files import HEAD_BYTES, LeavesDamaged
from topics.storage.files.fs import write_all
from topics.storage.snapshots.snapshot import decode_manifest, encode_manifest, encode_part
from topics.storage.wal.frames import FrameType

CONFIG = replace(settings(), wal_shards=1)


def test_a_damaged_file_of_leaves_holds_up_no_checkpoint() -> None:
    """A joined file cannot be made of it. The checkpoint of all other topics must not wait for that for ever."""
    world = World(config=CONFIG)
    damaged: list[str] = []

    async def script(life: Life) -> None:
        client = Auditor()
        await client.create(life, "t", "u")
        await client.append(life, "t", 1)
        await client.append(life, "u", 1)
        await life.compactor.checkpoint()
        damaged.append(next(path for path in sorted(life.fs.tree()) if path.endswith(".mrk")))
        life.fs.flip_bit(damaged[0], HEAD_BYTES + 3, 0)
        for _ in range(10):
            await client.append(life, "t", 1)
            await client.append(life, "u", 1)
            await life.compactor.checkpoint()
        with pytest.raises(ApiError, match=posixpath.basename(damaged[0])) as error:
            await life.engine.evidence.inclusion("t", 1, None)
        assert error.value.code == "no_evidence"
        assert (await life.engine.evidence.inclusion("u", 1, None)).size == 11
        await client.keep(life)
        heads.update({head.origin.split("/")[2]: head for head in client.kept})

    heads: Heads = {}
    with tiny_blocks():
        assert world.live(script, end="kill")
        assert world.after("kill").live(partial(_check_heads, heads), end="kill")
        assert damaged[0] in {finding.path for finding in rewritten(world)}


async def _check_heads(heads: Heads, life: Life) -> None:
    found = Auditor()
    await found.keep(life)
    assert {head.origin: (head.size, head.root) for head in found.kept} == {
        head.origin: (head.size, head.root) for head in heads.values()
    }


def test_a_part_whose_tree_does_not_fit_its_log_is_damaged() -> None:
    """Its checksums are right. A tree of other seqs than the log has would end the daemon with the next append."""
    world = World(config=CONFIG)

    async def script(life: Life) -> None:
        client = Auditor()
        await client.create(life, "t")
        await client.append(life, "t", 3)
        await life.compactor.checkpoint()
        await client.append(life, "t", 1)

    async def look(life: Life) -> None:
        await Auditor().append(life, "t", 2)
        await proved(life)

    assert world.live(script, end="kill")
    start = world.after("kill")
    path = next(path for path in start.fs.tree() if path.endswith("/topic.cbor"))
    part = decode_manifest(start.fs.read(path))
    assert part.evidence is not None
    more = GrowingTree.of(part.evidence[3], part.evidence[4])
    more.add(Leaves(BLANK * 2))
    part.evidence[3:5] = [more.size, more.edge]
    with start.fs.open(path) as file:
        file.truncate(0)
        write_all(file, encode_manifest(encode_part(part)), 0)
        file.fdatasync()
    assert start.live(look, end="kill")
    assert "manifest_damaged" in {event["event"] for event in start.events}


def test_a_topic_that_is_deleted_while_it_is_proved_is_not_found() -> None:
    async def script(life: Life) -> None:
        client = Auditor()
        await client.create(life, "t")
        await client.append(life, "t", 3)

        async def gone(*_: object) -> None:
            await life.engine.topic_lifecycle.delete("t", if_empty=False)
            raise LeavesDamaged("there is no file any more")

        with mock.patch.object(EvidenceCalls, "_read_once", gone), pytest.raises(ApiError) as error:
            await life.engine.evidence.inclusion("t", 2, None)
        assert error.value.code == "topic_not_found"

    world = World(config=CONFIG)
    assert world.live(script)
    assert "leaves_damaged" not in {event["event"] for event in world.events}


def test_a_tree_that_begins_behind_a_transaction_in_doubt_has_the_leaves_that_follow() -> None:
    """The Decision frames come later than the change of config, as they may where the removals of a commit take the
    loop several steps. A replay keeps back all that follows the transaction until it has read the other shard."""
    world = World(config=replace(CONFIG, wal_shards=2))
    heads: list[Heads] = []
    names = ("t", "u")

    async def script(life: Life) -> None:
        client = Auditor()
        for name in names:
            await life.engine.topic_lifecycle.put(name, TopicConfigPatch(durability="fsync"))
        assert {life.engine.registry.topics[name].shard for name in names} == {0, 1}
        appends = [AppendRequest(records=client.records(2)), AppendRequest(records=client.records(1))]
        with mock.patch.object(Transaction, "_queue", return_value=None):
            await life.engine.transactions.append(
                TransactionRequest(topics=list(names), appends=appends), Performance()
            )
            for name in names:
                await life.engine.topic_lifecycle.put(name, TopicConfigPatch(evidence=True))
                await client.append(life, name, 3)
            heads.append(await proved(life))

    async def look(life: Life) -> None:
        heads.append(await proved(life, list(heads[0].values())))
        for name in names:
            topic = life.engine.registry.topics[name]
            assert topic.tree is not None
            for record in await read(life, name):
                if record.seq >= topic.tree.identity.start_seq:
                    found = await life.engine.evidence.inclusion(name, record.seq, None)
                    assert b64decode(found.leaf) == record.leaf(topic.id) != BLANK

    assert world.live(script, end="kill")
    assert world.after("kill").live(look, end="kill")
    assert heads[0] == heads[1]


def test_leaves_that_salvage_gives_up_are_in_no_file_any_more() -> None:
    """A manifest cannot be read, and the log behind the part of the snapshot is damaged. A file of leaves that the
    manifest counted has leaves of the records that are given up."""
    world = World(config=replace(CONFIG, segment_max_events=6, rewrite_live_ratio=0.9))
    heads: Heads = {}

    async def script(life: Life) -> None:
        client = Auditor()
        await client.create(life, "t")
        await client.append(life, "t", 9)
        await life.compactor.checkpoint()
        await client.append(life, "t", 1)
        await life.compactor.checkpoint()
        for _ in range(2):
            await client.append(life, "t", 1)
        await life.engine.deletions.delete_records("t", None, TagMatch("a", prefix=False), Performance())
        await life.reclaimer.pass_over()
        await client.append(life, "t", 1)
        heads.update(await client.keep(life))

    async def look(life: Life) -> None:
        found = await proved(life, list(heads.values()), renewed=True)
        assert found["t"].origin != heads["t"].origin
        for seq in (11, 12):
            leaf = await life.engine.evidence.inclusion("t", seq, None)
            assert b64decode(leaf.leaf) == BLANK
        for _ in range(2):
            await Auditor().append(life, "t", 1)
            await life.compactor.checkpoint()
            found = await proved(life, list(found.values()))
        for seq in (11, 12):
            leaf = await life.engine.evidence.inclusion("t", seq, found["t"].size)
            assert b64decode(leaf.leaf) == BLANK, "a leaf of a record that was given up"
        heads.update(found)

    with tiny_blocks(), mock.patch("topics.storage.evidence.leaf_files.MAX_PIECES", 1):
        assert world.live(script, end="kill")
        start = world.after("kill")
        names = [posixpath.basename(path) for path in start.fs.tree() if path.endswith(".mrk")]
        assert f"seg-{9:020d}-4.mrk" in names, "leaves 11 and 12 are joined with those before"
        manifest = next(path for path in start.fs.tree() if path.endswith("/topic.cbor"))
        start.fs.flip_bit(manifest, 100, 3)
        wal = max(path for path in start.fs.tree() if path.endswith(".log"))
        frames = [frame for frame in scan_of(start.fs.read(wal)).frames if frame.type == FrameType.APPEND]
        for frame in frames:
            if frame.seq in (11, 12):
                start.fs.flip_bit(wal, frame.offset + 50, 3)
        start.settings = replace(start.settings, recovery="salvage")
        assert start.live(look, end="kill")
        assert {"manifest_damaged", "salvaged"} <= {event["event"] for event in start.events}
        last = start.after("drop")
        last.settings = CONFIG
        problems = [one.problem for one in rewritten(last, list(heads.values()))]
        assert not [one for one in problems if any(word in one for word in ("root", "tree", "rewritten"))]


@pytest.mark.parametrize("path", ["/", "/nowhere/key.pem"])
def test_a_key_file_that_is_none_costs_the_topic_nothing(path: str) -> None:
    async def script(life: Life) -> None:
        with pytest.raises(ApiError) as error:
            await Auditor().create(life, "t")
        assert error.value.code == "not_ready"
        await Auditor().create(life, "t", evidence=False)
        with pytest.raises(ApiError):
            await Auditor().create(life, "t")
        await Auditor().append(life, "t", 1)

    assert World(config=replace(CONFIG, evidence_key_file=Path(path))).live(script)
