"""The commits that a topic remembers: for how long, how many, and which go first (`docs/spec/crash.md` 23)."""

from __future__ import annotations

import pytest

import topics.log.stages
from topics.log.stages import WINDOW_MS, CommitKeys, KnownCommit


def test_a_commit_and_the_names_that_it_closed_are_remembered_for_the_window() -> None:
    keys = CommitKeys()
    keys.remember("q/1", 5, 3, 1000, ["a", "b"])
    assert keys.lookup("q/1", 1000 + WINDOW_MS) == KnownCommit(5, 3, 1000, ("a", "b"))
    assert keys.lookup("q/1", 1001 + WINDOW_MS) is None
    assert keys.lookup("q/2", 1000) is None
    assert keys.has_closed("a")
    assert keys.expire(1000 + WINDOW_MS) == 0
    assert keys.expire(1001 + WINDOW_MS) == 1
    assert not keys.has_closed("a")
    assert len(keys) == 0


@pytest.mark.parametrize("limit", ["MAX_KEYS", "MAX_NAMES"])
def test_superseded_epochs_go_before_the_latest_of_any_query(limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topics.log.stages, limit, 4)
    keys = CommitKeys()
    for ts, key in enumerate(["old", "slow/1", "fast/1", "fast/2", "fast/3", "slow/2", "fast/4"]):
        keys.remember(key, 1, 1, ts, [f"stage of {key}"])
    assert [entry[0] for entry in keys.dump()] == ["old", "fast/3", "slow/2", "fast/4"]
    assert not keys.has_closed("stage of fast/1")
    for n in range(4):
        keys.remember(f"new{n}", 1, 1, 10 + n, [f"stage {n}"])
    assert [entry[0] for entry in keys.dump()] == ["new0", "new1", "new2", "new3"]


def test_the_latest_commit_is_remembered_however_many_stages_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topics.log.stages, "MAX_NAMES", 3)
    keys = CommitKeys()
    keys.remember("q/1", 1, 1, 1, ["a"])
    keys.remember("q/2", 2, 9, 2, list("bcdef"))
    assert [entry[0] for entry in keys.dump()] == ["q/2"]
    assert keys.has_closed("f")


def test_what_is_dumped_can_be_loaded() -> None:
    keys = CommitKeys()
    keys.remember("q/1", 1, 2, 3, ["a"])
    keys.remember("alone", 3, 0, 3, ["b", "c"])
    loaded = CommitKeys.load(keys.dump())
    assert loaded.dump() == keys.dump()
    assert loaded.has_closed("c")
    assert CommitKeys.load([]).dump() == []


@pytest.mark.parametrize(
    "bad", [None, [1], [["k", 0, 1, 1, []]], [["k", 1, 1, 1, [2]]], [["k", 1, 1, 2, []], ["l", 1, 1, 1, []]]]
)
def test_what_is_no_dump_is_refused(bad: object) -> None:
    with pytest.raises(ValueError, match="commit keys"):
        CommitKeys.load(bad)
