"""The reserve of seqs of one topic: how much is reserved, and which of several ceilings on their way counts."""

from __future__ import annotations

from topics.log.seq_ceiling import IDLE_MS, MAX_CEILING_BLOCK, MIN_CEILING_BLOCK, SeqCeiling


def test_a_raise_counts_when_it_is_synced_and_for_the_next_start_at_once() -> None:
    ceiling = SeqCeiling()
    raised = ceiling.raise_above(7, 5000)
    assert raised == ceiling.queued == ceiling.highest == 7 + MIN_CEILING_BLOCK
    assert ceiling.synced == 0
    ceiling.note_synced(raised)
    assert ceiling.synced == raised


def test_a_raise_that_was_given_back_before_its_sync_does_not_count() -> None:
    ceiling = SeqCeiling()
    raised = ceiling.raise_above(0, 5000)
    ceiling.lower(3)
    ceiling.note_synced(raised)
    assert (ceiling.synced, ceiling.queued, ceiling.highest) == (3, 3, 3)


def test_an_older_ceiling_that_is_synced_late_takes_nothing_back() -> None:
    ceiling = SeqCeiling()
    first, second = ceiling.raise_above(0, 5000), ceiling.raise_above(900, 9000)
    ceiling.note_synced(second)
    ceiling.note_synced(first)
    assert ceiling.synced == second > first


def test_a_block_doubles_while_raises_come_fast_up_to_a_bound() -> None:
    ceiling = SeqCeiling()
    ceiling.raise_above(0, 5000)
    blocks = [ceiling.raise_above(0, 5000 + i) for i in range(1, 12)]
    assert blocks == [min(MIN_CEILING_BLOCK << i, MAX_CEILING_BLOCK) for i in range(1, 12)]
    assert blocks[-1] == MAX_CEILING_BLOCK


def test_a_block_starts_over_after_a_pause_and_when_the_reserve_is_given_back() -> None:
    ceiling = SeqCeiling()
    ceiling.raise_above(0, 5000)
    assert ceiling.raise_above(0, 5001) == 2 * MIN_CEILING_BLOCK
    assert ceiling.raise_above(0, 5001 + IDLE_MS) == MIN_CEILING_BLOCK
    ceiling.raise_above(0, 5002 + IDLE_MS)
    ceiling.lower(0)
    assert ceiling.block == MIN_CEILING_BLOCK
