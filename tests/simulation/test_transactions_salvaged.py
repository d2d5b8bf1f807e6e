"""Transactions that do not count, in a log of which salvage gives up a range: no part of them comes back, with any
frames in that range (`docs/design/transactions.md` section 3)."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from functools import partial

import pytest
import trio

from tests.simulation.disk import Fault
from tests.simulation.test_transaction_crashes import CONFIG, SHARDS, Script, Shown, make, shown
from tests.simulation.test_transactions_in_flight import on_other_shards, settled, stall
from tests.simulation.world import End, Life, World, settings
from topics.storage.files.file_header import decode_file_header
from topics.storage.wal import frames
from topics.storage.wal.frames import Frame, FrameType

SALVAGE = settings(**SHARDS, recovery="salvage")

Names = list[str]
"""Topics on shards of their own: two that go on, and the one whose shard has failed or waits."""


class Wreck:
    """A machine that has died, and what is known about it."""

    def __init__(self) -> None:
        self.world = World(11, config=CONFIG)
        self.script = Script()
        self.names: Names = []
        self.told: Shown = {}
        """All records that readers had seen."""
        self.refused: set[int] = set()
        """Numbers of the records of the transaction that does not count."""

    async def begin(self, life: Life) -> None:
        """Topics with records, and a transaction over them that counts."""
        await make(life, "abcde", durability="fsync")
        self.names.extend(on_other_shards(life, 3))
        for name in self.names:
            await self.script.append(life, name, 2)
        await self.script.transaction(life, dict.fromkeys(self.names, 1), "counts")
        await settled(life)

    def refuse(self, at: int) -> None:
        """The transaction at this place of the script's history does not count."""
        self.refused.update(number for some in self.script.history[at][1][0].values() for number in some)


def undone_by_a_failed_shard() -> Wreck:
    """Each of the shards that go on has the batch and an Undone frame, and the failed one may have the batch."""
    wreck = Wreck()
    script, names = wreck.script, wreck.names

    async def live(life: Life) -> None:
        await wreck.begin(life)
        failing = life.engine.registry.topics[names[2]].shard
        life.fs.inject(Fault(error=errno.EIO, name="fdatasync", path=f"*shard-{failing:02d}/*.log"))
        assert await script.transaction(life, dict.fromkeys(names, 2), "undone") is None
        wreck.refuse(-2)
        for name in names[:2]:
            await script.append(life, name, 2)
        await settled(life)
        wreck.told = await shown(life)

    assert wreck.world.live(live, end="kill")
    return wreck


def in_flight_at_the_crash() -> Wreck:
    """One shard waits for room when the machine dies. The others have the batch, and nothing says what became of it."""
    wreck = Wreck()
    script, names = wreck.script, wreck.names

    async def live(life: Life) -> None:
        await wreck.begin(life)
        await stall(life, names[2], script)
        wreck.told = await shown(life)
        async with trio.open_nursery() as clients:
            clients.start_soon(partial(script.transaction, life, dict.fromkeys(names, 2), size=9000))
            await settled(life)
            wreck.refuse(-1)
            assert all(life.engine.registry.topics[name].pending for name in names)
            clients.cancel_scope.cancel()

    assert wreck.world.live(live, end="kill")
    return wreck


def frames_in(world: World, shard: int) -> Iterator[tuple[str, Frame]]:
    """The frames of a shard that a topic has, from the first record on: file and frame."""
    directory = f"/data/wal/shard-{shard:02d}"
    for name in sorted(name for name in world.fs.listdir(directory) if name.endswith(".log")):
        blob = world.fs.read(f"{directory}/{name}")
        header = decode_file_header(blob[:32])
        assert header is not None
        for frame in frames.scan_window(blob[32:], 32, file_end=len(blob), salt=header.salt).frames:
            if frame.topic_id and frame.type != FrameType.TOPIC_CREATE:
                yield f"{directory}/{name}", frame


@pytest.mark.parametrize("end", ["drop", "kill"])
@pytest.mark.parametrize("made", [undone_by_a_failed_shard, in_flight_at_the_crash])
def test_no_part_of_it_comes_back_whatever_frame_is_damaged(made: Callable[[], Wreck], end: End) -> None:
    """Unless its batch in the damaged shard may have been in the range, and nothing says that it was undone."""
    wreck = made()
    after = wreck.world.after(end)
    judged: set[tuple[int, int]] = set()
    kept = 0
    for shard in range(4):
        for path, frame in list(frames_in(after, shard)):
            damaged = after.after("kill")
            damaged.fs.flip_bit(path, frame.offset + 20, 2)
            try:
                kept += judge(wreck, damaged)
            except Exception as error:
                what = f"{FrameType(frame.type).name} of topic {frame.topic_id} in {path}"
                raise AssertionError(f"{what}: {type(error).__name__}: {error}") from error
            judged.add((shard, frame.type))
    kinds = {FrameType.APPEND, FrameType.TRANSACTION, FrameType.TRANSACTION_DECISION}
    assert sum(kinds <= {kind for at, kind in judged if at == shard} for shard in range(4)) == len(wreck.names)
    assert kept == 0 or made is in_flight_at_the_crash


def judge(wreck: Wreck, damaged: World) -> bool:
    """Salvage, twice. Return True if the transaction was kept, since its batch may have been in the range."""
    found: list[Shown] = []
    heads: dict[str, int] = {}

    async def look(life: Life) -> None:
        found.append(await shown(life, loss=True))
        heads.update({name: topic.log.head_seq for name, topic in life.engine.registry.topics.items()})
        life.engine.status.phase = "draining"

    salvaged = World(1, config=SALVAGE, fs=damaged.fs, now_ms=damaged.clock.now_ms())
    assert salvaged.live(look, end="kill")
    assert salvaged.after("drop").live(look, end="kill")
    assert found[0] == found[1], "the second recovery shows something else"
    for name, records in found[0].items():
        others = {seq: number for seq, number in records.items() if number not in wreck.refused}
        assert others.items() <= wreck.told[name].items()
    shows = {name for name, records in found[0].items() if not wreck.refused.isdisjoint(records.values())}
    if not shows:
        return False
    assert shows <= set(wreck.names[:2]), "where it was never whole"
    hole = set(range(1, heads[wreck.names[2]] + 1)) - found[0][wreck.names[2]].keys()
    assert max(hole, default=0) > max(wreck.told[wreck.names[2]]), (
        f"{shows} show a transaction that nothing can have held whole"
    )
    return True
