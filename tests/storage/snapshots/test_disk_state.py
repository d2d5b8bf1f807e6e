"""Which part of a topic the next start begins with, and whether the log has more."""

from __future__ import annotations

from topics.storage.snapshots.disk_state import DiskState
from topics.storage.wal.wal_files import LogPosition

END, LATER = LogPosition(1, 500), LogPosition(2, 40)


def test_a_new_topic_has_no_part_and_nothing_in_the_log() -> None:
    state = DiskState()
    assert state.newest_part is None
    assert not state.is_behind_log


def test_a_part_that_recovery_found_to_be_the_newest_knows_all_of_the_log() -> None:
    state = DiskState(b"part", b"older", applied_end=END)
    assert state.newest_part == b"part"
    assert not state.is_behind_log
    state.applied_end = LATER
    assert state.is_behind_log


def test_where_the_log_has_more_replay_begins_with_the_older_part_until_there_is_a_new_one() -> None:
    state = DiskState(None, b"older", applied_end=LATER)
    assert state.newest_part == b"older"
    assert state.is_behind_log
    state.set_part(b"new", LATER)
    assert state.newest_part == b"new"
    assert not state.is_behind_log


def test_a_part_that_was_written_again_stays_what_it_was() -> None:
    current, older = DiskState(b"part", applied_end=END), DiskState(None, b"older", applied_end=END)
    for state in (current, older):
        state.replace_newest_part(b"again")
        assert state.newest_part == b"again"
    assert current.part == b"again"
    assert older.part is None
    assert older.is_behind_log
