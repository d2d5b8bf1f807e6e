"""Records whose tags hold whole segment frames. After any damage to the frame around them, no reader takes them for
records, and no record but the damaged one is given up."""

from __future__ import annotations

import random
import struct
from pathlib import Path

import msgspec
import pytest
import xxhash

from tests.simulation.test_segment_damage import Written, check, copy_of
from tests.simulation.world import Life, World, settings
from topics.model import AppendRequest, Performance, RecordIn, TopicConfigPatch

RECORDS = 20
CONFIG = settings(segment_max_events=RECORDS, segment_max_age_ms=0, cache_bytes=0)


def forged(seq: int, seed: int = 0) -> str | None:
    """A text that is a valid frame of a `.data` without a salt, of a live record with this seq; None if its checksum is
    no UTF-8."""
    for ts in range(1, 2000):
        body = struct.pack("<BQQHHI", 0, seq, ts, 0, 0, 5) + struct.pack("<I", 0) + b"7"
        frame = struct.pack("<I", len(body) + 9) + body + struct.pack("<QB", xxhash.xxh3_64_intdigest(body, seed), 0)
        try:
            return frame.decode()
        except UnicodeDecodeError:
            continue
    return None


def written() -> tuple[World, Written]:
    """A sealed segment in which every second record has forged frames in its tag."""
    world = World(config=CONFIG)
    records: dict[int, tuple[bytes, str | None, str | None]] = {}
    for seq in range(1, RECORDS + 1):
        ahead = (0, 5) if seq % 4 == 1 else (5, 1)  # in place of this record, and far behind it
        texts = [forged(min(seq + distance, RECORDS)) or "" for distance in ahead] if seq % 2 else []
        records[seq] = (b'{"n":%d}' % seq, "".join(texts) or None, None)

    async def scenario(life: Life) -> None:
        await life.engine.topic_lifecycle.put("t", TopicConfigPatch(durability="fsync"))
        for data, tag, _ in records.values():
            await life.engine.appends.append(
                "t", AppendRequest(records=[RecordIn(data=msgspec.Raw(data), tag=tag)]), Performance()
            )
        await life.compactor.checkpoint()

    assert world.live(scenario)
    return world, Written(records, set())


@pytest.mark.parametrize("index", ["kept", "missing"])
@pytest.mark.parametrize("seed", range(12))
def test_a_changed_bit_costs_the_record_that_it_is_in_and_makes_none_up(seed: int, index: str) -> None:
    original, topic = written()
    world, rng = copy_of(original), random.Random(seed)
    (path,) = (name for name in world.fs.tree() if name.endswith(".data"))
    content = world.fs.tree()[path]
    assert content is not None
    hit = rng.choice(range(1, RECORDS, 2))
    at = content.index(b'{"n":%d}' % hit)
    tag = topic.records[hit][1]
    assert tag is not None
    begin = at - 4 - len(tag.encode()) - 29
    world.fs.flip_bit(path, begin + rng.randrange(29), rng.randrange(8))  # in the head of the frame around them
    if index == "missing":
        for kind in (".idx", ".tags"):
            world.fs.unlink(path.replace(".data", kind))
        world.fs.sync_dir(str(Path(path).parent))

    async def look(life: Life) -> None:
        announced = await check(life, {"t": topic})
        assert announced["t"] == {hit}

    assert world.live(look)
    assert world.live(look)
