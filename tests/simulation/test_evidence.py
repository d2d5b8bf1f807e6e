"""Topics with evidence: what was rewritten is found, what may have lost leaves begins anew, copies prove what they
have (`docs/spec/evidence.md` section 1). Crashes everywhere are rows of the crash table (`evidence_operations`)."""

from __future__ import annotations

import pickle
import posixpath
from base64 import b64decode
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Final
from unittest import mock

import pytest
import trio
import xxhash

from tests.everything import EVERYTHING
from tests.simulation.disk import SimFs
from tests.simulation.evidence_lives import Auditor, Heads, checkpoint_of, proved, read, rewritten, tiny_blocks
from tests.simulation.test_damage import overwrite
from tests.simulation.wal_content import scan_of
from tests.simulation.world import ROOT, Life, World, quiet, settings
from tests.storage.data_file import rows_of
from topics.errors import ApiError
from topics.evidence.checkpoint_note import TreeHead
from topics.evidence.record_leaf import BLANK, LEAF_BYTES
from topics.log.tag_match import TagMatch
from topics.model import AppendRequest, Compression, Performance, TopicConfigPatch, TransactionRequest
from topics.storage.evidence import leaf_files
from topics.storage.evidence.key_file import EvidenceKey
from topics.storage.evidence.leaf_files import HEAD_BYTES, LeafFile, encode_leaf_file, parse_leaf_name
from topics.storage.files.file_header import FILE_HEADER_BYTES, decode_file_header
from topics.storage.files.fs import write_all, write_atomic
from topics.storage.offline.verify import Verification
from topics.storage.offline.verify_division import DividedVerification
from topics.storage.offline.verify_trees import KeptCheckpoint
from topics.storage.recovery.restored_copy import MARK
from topics.storage.segments.packed_format import PACK_MAGIC, decode_pack_header, packed_bytes
from topics.storage.segments.packed_reads import unpacked
from topics.storage.wal.frames import CHECKSUM_BYTES, HEADER_BYTES, FrameType

CONFIG: Final = settings(segment_max_events=6, segment_max_age_ms=0)
STRIDE: Final = 1 if EVERYTHING else 11
"""Of the bytes that are changed, every so many in the quick tests."""


def made(compression: Compression = "off") -> tuple[World, Heads]:
    """A machine with records in a sealed segment, in an active one, and in the log, some of them deleted; and the last
    checkpoints."""
    world = World(config=replace(CONFIG, segment_compression=compression))
    heads: list[Heads] = []

    async def script(life: Life) -> None:
        client = Auditor()
        await client.create(life, "t")
        await client.append(life, "t", 8)
        await life.compactor.checkpoint()
        await life.engine.deletions.delete_records("t", None, TagMatch("a", prefix=False), Performance())
        await life.compactor.checkpoint()
        if compression != "off":
            await life.reclaimer.pass_over()
            await life.compactor.checkpoint()
        await client.append(life, "t", 3)
        heads.append(await proved(life))

    with tiny_blocks():
        assert world.live(script, end="kill")
    return world.after("kill"), heads[0]


def opened(content: bytes) -> bytes:
    """The unpacked form of a `.data`."""
    header = decode_pack_header(content)
    return unpacked(content, header.length) if header is not None else content


class Tampering:
    """Somebody who can write to the files, and knows the formats."""

    def __init__(self, fs: SimFs) -> None:
        self.fs = fs

    def segment_bytes(self) -> Iterator[tuple[str, int, int]]:
        """Path, offset of the frame, and offset of each byte that readers see of live records in segments."""
        for path, content in sorted(self.fs.tree().items()):
            if content and path.endswith(".data"):
                content = opened(content)
                rows = rows_of(content)
                for at, size, flag in zip(rows.offset, rows.frame_len, rows.delete_flag, strict=True):
                    names = int.from_bytes(content[at + 21 : at + 23], "little") + content[at + 23]
                    meta_len = range(at + 29 + names, at + 33 + names)  # changing it is damage of another kind
                    places = [*range(at + 13, at + 21), *range(at + 29, at + size - 9)]
                    if not flag:
                        yield from ((path, at, place) for place in places if place not in meta_len)

    def change_segment(self, path: str, frame: int, place: int) -> None:
        stored = self.fs.read(path)
        content = bytearray(opened(stored))
        header = decode_file_header(bytes(content[:FILE_HEADER_BYTES]))
        assert header is not None
        content[place] ^= 1
        end = frame + 4 + int.from_bytes(content[frame : frame + 4], "little")
        total = xxhash.xxh3_64_intdigest(bytes(content[frame + 4 : end - 9]), header.salt ^ frame)
        content[end - 9 : end - 1] = total.to_bytes(8, "little")
        pack = decode_pack_header(stored)
        if pack is None:
            overwrite(self.fs, path, 0, bytes(content))
            return
        with self.fs.open(path) as file:
            file.truncate(0)
            write_all(file, packed_bytes(bytes(content), pack.generation, pack.first), 0)
            file.fdatasync()

    def log_bytes(self, after: int) -> Iterator[tuple[str, int, int]]:
        """The same of records in the log whose seqs are above `after`."""
        for path, content in sorted(self.fs.tree().items()):
            if content and path.endswith(".log"):
                for frame in scan_of(content).frames:
                    if frame.type == FrameType.APPEND and frame.seq > after:
                        start = frame.offset + HEADER_BYTES
                        for place in range(start + frame.node_len + frame.tag_len + 4, frame.end - CHECKSUM_BYTES):
                            yield path, frame.offset, place

    def change_log(self, path: str, frame: int, place: int) -> None:
        content = bytearray(self.fs.read(path))
        header = decode_file_header(bytes(content[:FILE_HEADER_BYTES]))
        assert header is not None
        content[place] ^= 1
        end = frame + 4 + int.from_bytes(content[frame : frame + 4], "little")
        total = xxhash.xxh3_64_intdigest(bytes(content[frame + 4 : end - 8]), header.salt ^ frame)
        content[end - 8 : end] = total.to_bytes(8, "little")
        overwrite(self.fs, path, 0, bytes(content))

    def leaf_places(self) -> Iterator[tuple[str, int]]:
        for path in sorted(self.fs.tree()):
            file = parse_leaf_name(posixpath.basename(path))
            if file is not None:
                yield from ((path, i) for i in range(file.leaves))

    def change_leaf(self, path: str, number: int) -> None:
        file = parse_leaf_name(posixpath.basename(path))
        assert file is not None
        content = bytearray(self.fs.read(path)[HEAD_BYTES : HEAD_BYTES + file.leaves * LEAF_BYTES])
        content[number * LEAF_BYTES] ^= 1
        overwrite(self.fs, path, 0, encode_leaf_file(file.first_seq, bytes(content)))


def found_in(world: World, heads: Heads, fs: SimFs) -> bool:
    other = World(world.seed, config=world.settings, fs=fs, now_ms=world.clock.now_ms())
    return bool(rewritten(other, list(heads.values())))


@pytest.mark.parametrize("compression", ["off", "zstd"])
def test_whoever_rewrites_a_record_or_a_leaf_is_found_out(compression: Compression) -> None:
    """Every byte of live records, and every leaf, with all checksums computed anew."""
    world, heads = made(compression)
    packs = [path for path, content in world.fs.tree().items() if content and content.startswith(PACK_MAGIC)]
    assert bool(packs) is (compression == "zstd")
    with tiny_blocks():
        assert rewritten(world, list(heads.values())) == []
        tampering = Tampering(world.fs)
        segment, log, leaves = (
            list(tampering.segment_bytes()),
            list(tampering.log_bytes(8)),
            list(tampering.leaf_places()),
        )
        assert len(segment) > 140
        assert len(log) > 50
        assert len(leaves) == 8
        missed: list[object] = []
        for i, (path, frame, place) in enumerate(segment):
            if i % STRIDE == 0:
                fs = world.fs.after_process_kill()
                Tampering(fs).change_segment(path, frame, place)
                if not found_in(world, heads, fs):
                    missed.append((path, frame, place))
        for i, (path, frame, place) in enumerate(log):
            if i % STRIDE == 0:
                fs = world.fs.after_process_kill()
                Tampering(fs).change_log(path, frame, place)
                if not found_in(world, heads, fs):
                    missed.append((path, frame, place))
        for path, number in leaves:
            fs = world.fs.after_process_kill()
            Tampering(fs).change_leaf(path, number)
            if not found_in(world, heads, fs):
                missed.append((path, number))
    assert missed == []


@pytest.mark.parametrize("in_use", [False, True])
@pytest.mark.parametrize("what", ["nothing", "record and leaf", "leaf", "damaged leaf", "missing leaves"])
def test_the_divided_verification_finds_the_same(what: str, *, in_use: bool) -> None:
    """As Spark's audit does it: segments and files of leaves by themselves, roots of blocks joined."""
    world, heads = made("zstd")
    tampering = Tampering(world.fs)
    path, number = next(tampering.leaf_places())
    if what == "record and leaf":
        tampering.change_segment(*next(tampering.segment_bytes()))
    if "leaf" in what:
        tampering.change_leaf(path, number)
    if what == "damaged leaf":
        world.fs.flip_bit(path, HEAD_BYTES + 3, 0)
    if what == "missing leaves":
        world.fs.unlink(path)
    kept = [KeptCheckpoint("kept", head) for head in heads.values()]
    with tiny_blocks(), quiet():
        whole = list(Verification(world.fs, ROOT, against=kept, in_use=in_use).findings())
        divided = DividedVerification(world.fs, ROOT, against=kept, in_use=in_use)
        found = list(divided.findings())
        assert not any("leaf" in one.problem or "leaves" in one.problem for one in found)
        work, leaves = pickle.loads(pickle.dumps((divided.work, divided.leaves)))
        assert bool(leaves) is (what != "missing leaves")
        found += [one for part in work for one in part.findings(world.fs)]
        found += divided.tree_findings([part.verified(world.fs) for part in leaves])
    assert sorted(map(str, found)) == sorted(map(str, whole))
    assert any(one.severity == "damage" for one in found) is (what != "nothing")
    assert any("rewritten: its leaf" in one.problem for one in found) is (what in ("record and leaf", "leaf"))


def test_leaves_that_a_daemon_joins_during_the_check_are_no_damage() -> None:
    """The files that were listed are gone when they are read; those of the newest part are looked at then."""
    world = World(config=CONFIG)
    client = Auditor()

    async def pieces(life: Life) -> None:
        if not len(client):
            await client.create(life, "t")
        for _ in range(2):
            await client.append(life, "t")
            await life.compactor.checkpoint()
        await client.keep(life, "t")

    with tiny_blocks(), quiet():
        assert world.live(pieces, end="kill")
        divided = DividedVerification(world.fs, ROOT, in_use=True)
        assert list(divided.findings()) == []
        assert len(divided.leaves) == 2
        assert world.live(pieces, end="kill")
        results = [part.verified(world.fs) for part in divided.leaves]
        assert any(result.problems for result in results)
        assert list(divided.tree_findings(results)) == []


def test_a_record_that_was_never_covered_may_be_rewritten() -> None:
    """A checkpoint says nothing of what came later, nor does the tree of who has changed that, too."""
    world, heads = made()
    with tiny_blocks():
        path, frame, place = list(Tampering(world.fs).log_bytes(8))[-1]
        Tampering(world.fs).change_log(path, frame, place)
        earlier = {name: TreeHead(head.origin, 0, sha256().digest()) for name, head in heads.items()}
        assert not found_in(world, earlier, world.fs)


def test_a_salvage_begins_the_tree_anew_and_a_strict_start_does_not() -> None:
    world, heads = made()

    async def more(life: Life) -> None:
        for _ in range(3):  # so that what follows the damage vouches for it
            await Auditor().append(life, "t", 1)
        heads.update(await proved(life, list(heads.values())))

    with tiny_blocks():
        assert world.live(more, end="kill")
        world = world.after("kill")
    wal = next(path for path in world.fs.tree() if path.endswith(".log"))
    appends = [frame for frame in scan_of(world.fs.read(wal)).frames if frame.type == FrameType.APPEND]
    for at in range(appends[-5].offset + 50, appends[-5].offset + 54):
        world.fs.flip_bit(wal, at, 3)
    world.settings = replace(CONFIG, recovery="salvage")
    found: list[Heads] = []

    async def look(life: Life) -> None:
        found.append(await proved(life, list(heads.values()), renewed=True))
        await Auditor().append(life, "t", 2)
        found.append(await proved(life, list(found[0].values())))

    with tiny_blocks():
        assert world.live(look, end="kill")
        assert found[0]["t"].origin != heads["t"].origin
        assert "evidence_begun_anew" in {event["event"] for event in world.events}
        again = world.after("drop")
        again.settings = CONFIG
        assert again.live(look, end="kill")
    assert found[1] == found[2], "a later start leaves the tree as it is"


def test_a_copy_begins_the_tree_anew_and_proves_all_that_the_original_has_proved() -> None:
    world = World(config=CONFIG)
    heads: list[Heads] = []
    named: list[str] = []

    async def script(life: Life) -> None:
        client = Auditor()
        await client.create(life, "t")
        for count in (5, 7, 1, 9):
            await client.append(life, "t", count)
            await life.compactor.checkpoint()
        await client.append(life, "t", 2)
        heads.append(await proved(life))
        names, _ = await life.engine.checkpoint(60_000)
        named.extend(names)
        before = {name: life.fs.read(f"{ROOT}/{name}") for name in names}
        for _ in range(4):
            await client.append(life, "t", 3)
            await life.compactor.checkpoint()
        assert {name: life.fs.read(f"{ROOT}/{name}") for name in names} == before, "a hold keeps what it names"
        await proved(life, list(heads[0].values()))

    async def look(life: Life) -> None:
        heads.append(await proved(life, list(heads[0].values()), renewed=True))

    with tiny_blocks():
        assert world.live(script, end="kill")
        copy = world.fs.after_process_kill()
        for path, content in copy.tree().items():
            if content is not None and path.removeprefix(f"{ROOT}/") not in named:
                copy.unlink(path)
        copy.open(f"{ROOT}/{MARK}", create=True).close()
        copy.settle()
        other = World(5, config=CONFIG, fs=copy, now_ms=world.clock.now_ms())
        assert other.live(look, end="kill")
    first, second = heads[0]["t"], heads[1]["t"]
    assert first.origin != second.origin
    assert second.size > 1 << 42
    assert any(name.endswith(".mrk") for name in named)
    assert not any(name.endswith(".pem") for name in named), "the key is in no copy"


def test_the_key_of_a_tree_is_the_only_one_that_signs_its_checkpoints() -> None:
    world = World(config=CONFIG)

    async def script(life: Life) -> None:
        await Auditor().create(life, "t")
        await Auditor().keep(life)
        life.fs.unlink(life.store.datadir.evidence_key_path)

    async def look(life: Life) -> None:
        with pytest.raises(ApiError) as refused:
            await life.engine.evidence.checkpoint("t")
        assert (refused.value.code, refused.value.detail["topic"]) == ("not_ready", "t")

    assert world.live(script)
    with mock.patch.object(EvidenceKey, "compare", autospec=True) as compare:
        assert world.after("kill").live(look)
    _, known = compare.call_args.args
    assert list(known.values()) == [1], "the start looks which key the topic knows"


@pytest.mark.parametrize("compression", ["off", "zstd"])
def test_lost_leaves_are_computed_from_the_records_and_compared_with_the_root(compression: Compression) -> None:
    """Deleted records are still in their segment."""
    world, heads = made(compression)
    for path in [path for path in world.fs.tree() if path.endswith(".mrk")]:
        world.fs.unlink(path)
    with tiny_blocks():
        problems = [finding.problem for finding in rewritten(world, list(heads.values()))]
        assert len(problems) == 1
        assert "from seq 1 on are in no .mrk file" in problems[0]
        tampering = Tampering(world.fs)
        tampering.change_segment(*next(tampering.segment_bytes()))
        problems = [finding.problem for finding in rewritten(world, list(heads.values()))]
    assert any("do not lead to the root that its part has" in problem for problem in problems)
    assert any("have another root than the checkpoint" in problem for problem in problems)


def test_a_record_beside_lost_leaves_is_compared_with_its_own() -> None:
    """The leaves of the first block are lost, and a record of another one was rewritten."""
    world, _ = made()
    (path,) = [path for path in world.fs.tree() if path.endswith(".mrk")]
    leaves = world.fs.read(path)[HEAD_BYTES : HEAD_BYTES + 8 * LEAF_BYTES]
    world.fs.unlink(path)
    for i in range(2, 8):
        file = LeafFile(1 + i, 1)
        blob = encode_leaf_file(file.first_seq, leaves[i * LEAF_BYTES : (i + 1) * LEAF_BYTES])
        write_atomic(world.fs, posixpath.join(posixpath.dirname(path), file.name), blob)
    tampering = Tampering(world.fs)
    tampering.change_segment(*list(tampering.segment_bytes())[-1])
    with (
        tiny_blocks(),
        mock.patch.object(leaf_files, "BLOCK_LEAVES", 2),
        mock.patch.object(leaf_files, "BLOCK_LEVEL", 1),
    ):
        problems = [finding.problem for finding in rewritten(world)]
    assert any("the record was rewritten" in problem for problem in problems), problems


async def refused(life: Life, field: str, **changes: object) -> None:
    with pytest.raises(ApiError) as error:
        await life.engine.topic_lifecycle.put("t", TopicConfigPatch(**changes))  # type: ignore[arg-type]
    assert (error.value.code, error.value.detail["field"]) == ("invalid_request", field)


def test_evidence_is_only_for_topics_whose_records_are_on_disk_and_stays() -> None:
    async def script(life: Life) -> None:
        await refused(life, "durability", evidence=True)
        await refused(life, "durability", evidence=True, durability="disk")
        await Auditor().create(life, "t")
        await refused(life, "evidence", evidence=False)
        await refused(life, "durability", durability="disk")
        await refused(life, "durability", durable=False)
        config, _ = await life.engine.topic_lifecycle.put("t", TopicConfigPatch(ttl_ms=1000))
        assert config.evidence

    assert World(config=CONFIG).live(script)


def test_with_a_bucket_evidence_needs_a_key_that_was_given() -> None:
    async def script(life: Life) -> None:
        await refused(life, "evidence", evidence=True, durability="fsync")
        with pytest.raises(ApiError) as error:
            await life.engine.evidence.key()
        assert error.value.code == "not_ready"
        assert "TOPICS_EVIDENCE_KEY_FILE" in error.value.message

    async def missing(life: Life) -> None:
        with pytest.raises(ApiError) as error:
            await Auditor().create(life, "t")
        assert error.value.code == "not_ready"

    assert World(config=replace(CONFIG, bucket="file:///b")).live(script)
    given = replace(CONFIG, bucket="file:///b", evidence_key_file=Path("/keys/evidence.pem"))
    assert World(config=given).live(missing)


def test_sizes_and_seqs_that_cannot_be_are_refused() -> None:
    async def script(life: Life) -> None:
        client = Auditor()
        await client.create(life, "t")
        await client.create(life, "plain", evidence=False)
        calls = life.engine.evidence
        await client.append(life, "t", 3)
        for call, code in (
            (partial(calls.checkpoint, "plain"), "no_evidence"),
            (partial(calls.checkpoint, "missing"), "topic_not_found"),
            (partial(calls.inclusion, "t", 1, 0), "invalid_request"),
            (partial(calls.inclusion, "t", 1, 4), "invalid_request"),
            (partial(calls.inclusion, "t", 0, 3), "record_not_found"),
            (partial(calls.inclusion, "t", 4, 3), "record_not_found"),
            (partial(calls.inclusion, "t", 3, 2), "record_not_found"),
            (partial(calls.consistency, "t", 0, 3), "invalid_request"),
            (partial(calls.consistency, "t", 3, 2), "invalid_request"),
            (partial(calls.consistency, "t", 1, 4), "invalid_request"),
        ):
            with pytest.raises(ApiError) as error:
                await call()
            assert error.value.code == code
        assert (await calls.consistency("t", 3, None)).hashes == []
        assert (await calls.inclusion("t", 2, None)).size == 3

    assert World(config=CONFIG).live(script)


def test_a_damaged_file_of_leaves_is_named() -> None:
    world, heads = made()
    path = next(path for path in world.fs.tree() if path.endswith(".mrk"))
    world.fs.flip_bit(path, HEAD_BYTES + 3, 0)

    async def look(life: Life) -> None:
        with pytest.raises(ApiError) as error:
            await life.engine.evidence.inclusion("t", 2, heads["t"].size)
        assert (error.value.code, error.value.detail["reason"]) == ("no_evidence", "leaves_damaged")
        assert posixpath.basename(path) in error.value.message
        assert posixpath.dirname(path) not in error.value.message, "readers are not told where files are"

    with tiny_blocks():
        assert {finding.path for finding in rewritten(world)} >= {path}
        assert world.live(look, end="kill")


def test_a_bad_manifest_costs_no_leaf() -> None:
    """The start has the part of the snapshot, which counts fewer leaves than the joined files have."""
    world = World(config=replace(CONFIG, rewrite_live_ratio=0.9))
    heads: Heads = {}

    async def script(life: Life) -> None:
        client = Auditor()
        await client.create(life, "t")
        for _ in range(3):
            await client.append(life, "t", 4)
            await life.compactor.checkpoint()
        await client.append(life, "t", 7)
        await life.engine.deletions.delete_records("t", None, TagMatch("a", prefix=False), Performance())
        await life.reclaimer.pass_over()
        heads.update(await proved(life))

    async def look(life: Life) -> None:
        await proved(life, list(heads.values()))
        await Auditor().append(life, "t", 3)
        await life.compactor.checkpoint()
        heads.update(await proved(life, list(heads.values())))

    with tiny_blocks():
        assert world.live(script, end="kill")
        manifest = next(path for path in world.fs.tree() if path.endswith("/topic.cbor"))
        blocks = [path for path in world.fs.tree() if path.endswith("-8.mrk")]
        assert len(blocks) == 2
        world.fs.flip_bit(manifest, 100, 3)
        start = world.after("kill")
        assert start.live(look, end="kill")
        assert "manifest_damaged" in {event["event"] for event in start.events}
        problems = [found.problem for found in rewritten(start.after("drop"), list(heads.values()))]
        assert [one for one in problems if "lea" in one or "checkpoint" in one or "tree" in one] == []


def test_a_checkpoint_covers_what_is_on_disk() -> None:
    """Copies may be visible before the bytes are synced that they are made of."""

    async def script(life: Life) -> None:
        client = Auditor()
        await client.create(life, "t")
        await client.append(life, "t", 3)
        life.engine.registry.topics["t"].synced_seq = 2
        assert (await checkpoint_of(life, "t")).size == 2
        with pytest.raises(ApiError) as error:
            await life.engine.evidence.inclusion("t", 3, None)
        assert error.value.code == "record_not_found"

    assert World(config=CONFIG).live(script)


def test_records_of_an_undone_transaction_have_blank_leaves() -> None:
    """Nobody has ever seen them; the machine crashes at every operation of the transaction."""
    blank: list[int] = []

    async def look(life: Life) -> None:
        await proved(life)
        for name in ("t", "u"):
            seen = {record.seq for record in await read(life, name)}
            for seq in range(1, life.engine.registry.topics[name].log.head_seq + 1):
                leaf = b64decode((await life.engine.evidence.inclusion(name, seq, None)).leaf)
                assert (leaf == BLANK) is (seq not in seen)
                blank.extend([seq] * (leaf == BLANK))

    for at in range(12):

        async def script(life: Life, at: int = at) -> None:
            client = Auditor()
            await client.create(life, "t", "u")
            appends = [AppendRequest(records=client.records(2)), AppendRequest(records=client.records(1))]
            request = TransactionRequest(topics=["t", "u"], appends=appends, idempotency_key="k")
            life.fs.crash_at = life.fs.mutations + at
            with suppress(ApiError):
                await life.engine.transactions.append(request, Performance())
            await trio.sleep(1)

        world = World(config=replace(CONFIG, wal_shards=2))
        world.live(script, end="kill")
        assert world.after("drop").live(look, end="kill")
    assert blank
