"""When a segment is rewritten because it holds deleted bytes for too long."""

from __future__ import annotations

import trio

from tests.engine.life import Life, living, settings
from tests.simulation.clock import SimClock
from topics.storage.maintenance.purges import AGAIN_MS, Purges
from topics.storage.segments.topic_segments import Segment

CONFIG = settings(segment_max_events=4, segment_max_age_ms=0, rewrite_live_ratio=0.0)
AFTER_MS = 100_000


def first_segment(life: Life) -> Segment:
    segment = life.engine.registry.topics["a"].log.stored.all()[0].segment
    assert isinstance(segment, Segment)
    return segment


async def holding(life: Life, records: int) -> None:
    """A topic whose first segment holds a deleted record."""
    await life.put("a", durability="fsync")
    await life.append("a", *({"data": i, "tag": f"t{i}"} for i in range(records)))
    await life.compactor.checkpoint()
    await life.delete("a", match="t1")
    await life.compactor.checkpoint()


def test_a_sealed_segment_is_due_when_it_has_held_deleted_bytes_for_so_long() -> None:
    async def main() -> None:
        clock = SimClock()
        async with living(CONFIG, clock=clock) as life:
            await holding(life, 4)
            topic, segment, purges = life.engine.registry.topics["a"], first_segment(life), Purges(AFTER_MS)
            span, now = topic.log.stored.all()[0], life.engine.registry.now_ms()
            assert purges.look(topic, now) == [now + AFTER_MS]
            assert segment.dead_since_ms == now
            assert not purges.is_due(span, segment, now + AFTER_MS - 1)
            assert purges.is_due(span, segment, now + AFTER_MS)
            assert purges.look(topic, now + 7) == [now + AFTER_MS], "it counts from the first look"
            assert purges.look(topic, now + AFTER_MS) == [now + AFTER_MS + AGAIN_MS], "for what cannot be done at once"
            assert not Purges(None).look(topic, now + AFTER_MS)
            assert not Purges(None).is_due(span, segment, now + AFTER_MS)

    trio.run(main)


def test_an_active_segment_is_sealed_first() -> None:
    async def main() -> None:
        async with living(CONFIG) as life:
            await holding(life, 3)
            topic, segment, purges = life.engine.registry.topics["a"], first_segment(life), Purges(AFTER_MS)
            now = life.engine.registry.now_ms()
            purges.look(topic, now)
            await life.compactor.checkpoint()
            assert not segment.sealed
            purges.look(topic, now + AFTER_MS)
            purges.look(topic, now + AFTER_MS)
            assert topic.on_disk.seals_asked == 1
            await life.compactor.checkpoint()
            assert segment.sealed

    trio.run(main)


def test_what_a_start_has_found_counts_from_its_first_record_on_and_what_is_clean_does_not() -> None:
    segment = Segment(1, 1, n=4, data_bytes=400, frames=4, opened_ms=5000, sealed=True)
    assert Segment.from_wire(1, segment.to_wire()).dead_since_ms == 5000

    async def main() -> None:
        async with living(CONFIG) as life:
            await life.put("a", durability="fsync")
            await life.append("a", 1, 2, 3, 4)
            await life.compactor.checkpoint()
            topic, found = life.engine.registry.topics["a"], first_segment(life)
            found.dead_since_ms = found.opened_ms
            assert not Purges(AFTER_MS).look(topic, life.engine.registry.now_ms())
            assert found.dead_since_ms is None

    trio.run(main)
