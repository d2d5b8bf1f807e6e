"""Lives of topics with evidence that are crashed everywhere, and the judgement of their wrecks.

What has to hold after any crash: each checkpoint that somebody got before is the beginning of the present one, or the
tree has another uuid where leaves may be lost; each record that is there is proved by the leaf of what a reader sees;
`verify` says that nothing was rewritten, and agrees with every checkpoint. A second recovery comes to the same tree.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final
from unittest import mock

import msgspec

from tests.simulation import lives, router_lives
from tests.simulation.lives import end_steps
from tests.simulation.model import Fate
from tests.simulation.router_lives import nobody_forwards, until_idle
from tests.simulation.world import COLD, ROOT, End, Life, World, quiet
from topics.config import Settings
from topics.engine.topic import Topic
from topics.evidence.checkpoint_note import SignedCheckpoint, TreeHead
from topics.evidence.proofs import check_consistency, check_inclusion
from topics.evidence.record_leaf import record_leaf
from topics.model import AppendRequest, Performance, ReadRequest, RecordIn, TopicConfigPatch
from topics.storage.evidence import leaf_files
from topics.storage.evidence.leaf_hashes import hashed
from topics.storage.offline.findings import Finding
from topics.storage.offline.verify import Verification
from topics.storage.offline.verify_trees import KeptCheckpoint

Heads = dict[str, TreeHead]
"""The checkpoint of each topic, by name."""

TAGS: Final = (None, "a", "b")


class _Read(msgspec.Struct):
    """A record as a reader gets it."""

    seq: int = msgspec.field(name="$seq")
    ts: int = msgspec.field(name="$ts")
    data: msgspec.Raw
    tag: str | None = msgspec.field(default=None, name="$tag")
    node: str | None = msgspec.field(default=None, name="$node")
    meta: msgspec.Raw = msgspec.field(default_factory=lambda: msgspec.Raw(b""))

    def leaf(self, epoch: int) -> bytes:
        texts = ((self.node or "").encode(), (self.tag or "").encode())
        return record_leaf(epoch, self.seq, self.ts, *texts, bytes(self.meta), bytes(self.data))


_READ: Final = msgspec.json.Decoder(list[_Read])


@contextmanager
def tiny_blocks() -> Iterator[None]:
    """A few leaves are a block, and a few files are many."""
    with (
        mock.patch.object(leaf_files, "BLOCK_LEVEL", 3),
        mock.patch.object(leaf_files, "BLOCK_LEAVES", 8),
        mock.patch.object(leaf_files, "MIDDLE_LEVEL", 1),
        mock.patch.object(leaf_files, "MAX_PIECES", 3),
    ):
        yield


class Auditor:
    """Who appends, and keeps the checkpoints. `kept` is in the order in which they came."""

    def __init__(self) -> None:
        self.kept: list[TreeHead] = []
        self._number = 0

    def __len__(self) -> int:
        return len(self.kept)

    async def create(self, life: Life, *names: str, **config: Any) -> None:
        """Topics with evidence, or with what `config` says instead."""
        for name in names:
            patch = TopicConfigPatch(**{"durability": "fsync", "evidence": True, **config})
            await life.engine.topic_lifecycle.put(name, patch)

    def records(self, count: int) -> list[RecordIn]:
        """Records with everything that a record can have, in turn."""
        made = []
        for _ in range(count):
            n = self._number = self._number + 1
            data = msgspec.Raw(b'{"n":%d,"t":"%b"}' % (n, b"x" * (n % 40)))
            meta = {"m": str(n)} if n % 4 == 1 else None
            made.append(RecordIn(data=data, tag=TAGS[n % 3], node="n" if n % 2 else None, meta=meta))
        return made

    async def append(self, life: Life, name: str, count: int = 1) -> None:
        request = AppendRequest(records=self.records(count))
        await life.engine.appends.append(name, request, Performance())

    async def keep(self, life: Life, *names: str) -> Heads:
        """Get a checkpoint of each of these topics, and keep it; without names, of all that have evidence."""
        heads = {name: await checkpoint_of(life, name) for name in names or with_evidence(life)}
        self.kept += heads.values()
        return heads


def with_evidence(life: Life) -> list[str]:
    return sorted(topic.name for topic in life.engine.registry.topics.values() if topic.tree is not None)


async def checkpoint_of(life: Life, name: str) -> TreeHead:
    """A checkpoint of a topic, verified."""
    result = await life.engine.evidence.checkpoint(name)
    signer = await life.store.evidence_key.signer(life.engine.offload)
    head = SignedCheckpoint.parse(result.note).verify(signer.verifier)
    assert (head.origin, head.size, head.root) == (result.origin, result.size, b64decode(result.root))
    return head


def grown(topic: Topic) -> tuple[int, int, str] | None:
    """The first seq, the size and the root of the tree of a topic, if it has one, with all that is published."""
    tree = topic.tree
    if tree is None:
        return None
    tree.fill(topic.log.head_seq)
    whole = tree.stored.copy()
    for part in (*tree.pending().parts, *hashed(tree.work())):
        whole.add(part)
    assert whole.size == tree.published
    return tree.identity.start_seq, whole.size, whole.root.hex()


async def read(life: Life, name: str) -> list[_Read]:
    """All that a reader of a topic gets."""
    found: list[_Read] = []
    position = 0
    while True:
        asked = ReadRequest(from_seq=position, limit=1000, include_tags=True, max_batch_bytes=1 << 20)
        answer = await life.engine.reads.read(name, asked, Performance())
        found += _READ.decode(b"[%b]" % answer.records)
        position = answer.next_from_seq
        if answer.caught_up:
            return found


async def proved(life: Life, kept: Sequence[TreeHead] = (), *, renewed: bool = False) -> Heads:
    """Check every proof of every topic with evidence, also those from `kept` checkpoints. `renewed`: trees may have
    been begun anew. Return the checkpoints."""
    heads: Heads = {}
    for name in with_evidence(life):
        topic = life.engine.registry.topics[name]
        assert topic.tree is not None
        start = topic.tree.identity.start_seq
        published = topic.log.head_seq + 1 - start
        head = heads[name] = await checkpoint_of(life, name)
        assert head.size >= published, f"{name}: not all that is published is covered"
        for record in await read(life, name):
            if not 0 <= record.seq - start < head.size:  # from before, or a router has just brought it
                continue
            found = await life.engine.evidence.inclusion(name, record.seq, head.size)
            hashes = list(map(b64decode, found.hashes))
            leaf = record.leaf(topic.id)
            assert b64decode(found.leaf) == leaf, f"{name}: seq {record.seq} has the leaf of another record"
            check_inclusion(leaf, found.index, head.size, hashes, head.root)
        for before in kept:
            if before.origin.split("/")[2:] != [name, str(topic.id)]:
                continue
            if before.origin != head.origin:
                assert renewed, f"{name} was {before.origin} and is {head.origin}"
                continue
            assert before.size <= head.size, f"{name}: a checkpoint of {before.size} leaves, and there are {head.size}"
            if before.size:
                proof = await life.engine.evidence.consistency(name, before.size, head.size)
                hashes = list(map(b64decode, proof.hashes))
                check_consistency(before.size, before.root, head.size, head.root, hashes)
    return heads


def rewritten(world: World, kept: Sequence[TreeHead] = ()) -> list[Finding]:
    """The damage that `verify` finds, compared with checkpoints."""
    cold = None if world.settings.cold_dir is None else COLD
    against = [KeptCheckpoint("kept", head) for head in kept]
    with quiet():
        findings = list(Verification(world.fs, ROOT, cold, against=against).findings())
    return [finding for finding in findings if finding.severity == "damage"]


def _check_verified(world: World, kept: Sequence[TreeHead]) -> None:
    found = rewritten(world, kept)
    assert not found, f"verify says {found[:3]}"


class EvidenceSweep(lives.Sweep[Auditor, Auditor, tuple[TreeHead, ...]]):
    """Topics with evidence. `renews`: the start that is judged may begin trees anew."""

    def __init__(self, config: Settings, seed: int, *, renews: bool = False) -> None:
        super().__init__(config, seed, Auditor())
        self.renews = renews

    def client(self, life: Life) -> Auditor:
        return self.history

    def make_oracle(self, known: int) -> tuple[TreeHead, ...]:
        return tuple(self.history.kept[:known])

    def live(self, script: Any, **how: Any) -> None:
        with tiny_blocks():
            super().live(script, **how)

    async def begin(self, life: Life, fate: Fate) -> None:
        """What was kept holds on."""

    def check_said(self, world: World) -> None:
        router_lives.check_said(world)

    def recover(self, world: World) -> Heads:
        found: list[Heads] = []

        async def look(life: Life) -> None:
            with nobody_forwards(life):
                found.append(await proved(life, renewed=True))
                end_steps(life)

        with tiny_blocks():
            assert world.live(look, end="kill")
        self.check_said(world)
        return found[0]

    def judge_world(
        self, world: World, oracle: tuple[TreeHead, ...], fate: Fate, second: End, *args: Any, **kwargs: Any
    ) -> None:
        """What is there is proved; then once more, and with more records, stored; and `verify` agrees each time."""
        with tiny_blocks():
            if not self.renews:
                _check_verified(world, oracle)
            heads: list[Heads] = []

            async def look(life: Life) -> None:
                with nobody_forwards(life):
                    heads.append(await proved(life, oracle, renewed=self.renews))
                    end_steps(life)

            async def go_on(life: Life) -> None:
                with nobody_forwards(life):
                    heads.append(await proved(life, [*oracle, *heads[0].values()], renewed=self.renews))
                for name in with_evidence(life):
                    await self.history_free_append(life, name)
                await life.compactor.checkpoint()
                await life.reclaimer.pass_over()
                await until_idle(life)
                with nobody_forwards(life):
                    heads.append(await proved(life, list(heads[-1].values())))
                    end_steps(life)

            assert world.live(look, end="kill")
            again = world.after(second)
            assert again.live(go_on, end="kill")
            if not self.renews:
                assert heads[1] == heads[0], "a second recovery has come to another tree"
            last = again.after("drop")
            _check_verified(last, list(heads[-1].values()))
            assert self.recover(last) == heads[-1]
        self.check_said(world)
        self.judged += 1

    async def history_free_append(self, life: Life, name: str) -> None:
        """Append something that nobody writes down."""
        await Auditor().append(life, name, 3)
