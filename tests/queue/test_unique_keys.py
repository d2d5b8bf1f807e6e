"""The unique keys of a queue against a naive list."""

from __future__ import annotations

from array import array
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from topics.queue import shared_pages
from topics.queue.shared_pages import SharedPages
from topics.queue.unique_keys import DIGEST_BYTES, FirstAnswer, KeyTotal, UniqueKeys, digest_of

KEYS = ["a", "b", "c", "d"]


class UniqueKeysMachine(RuleBasedStateMachine):
    """Keys of jobs come and end; time passes; checkpoints are taken and loaded, and events repeated."""

    def __init__(self) -> None:
        super().__init__()
        self.keys = UniqueKeys()
        self.total = KeyTotal()
        self.keys.join(self.total)
        self.now = 1000
        self.seq = 0
        self.jobs: list[dict[str, Any]] = []
        """All that ever were."""

    @rule(
        keys=st.lists(st.sampled_from(KEYS), max_size=4),
        window_ms=st.sampled_from([0, 0, 5, 50]),
        gap=st.integers(0, 3),
    )
    def append(self, keys: list[str], window_ms: int, gap: int) -> None:
        first = self.seq + 1 + gap
        event = range(first, first + len(keys)), b"".join(map(digest_of, keys)), [window_ms] * len(keys), self.now
        self.keys.add(*event)
        self.keys.add(*event)  # as a replay does
        until = self.now + window_ms if window_ms else 0
        self.jobs += [
            {"seq": seq, "key": key, "at": self.now, "until": until, "gone": False}
            for seq, key in enumerate(keys, first)
        ]
        self.seq = first + len(keys) - 1 if keys else self.seq

    @rule(chosen=st.sets(st.integers(1, 40)))
    def end(self, chosen: set[int]) -> None:
        self.keys.end(sorted(chosen))
        for job in self.jobs:
            job["gone"] |= job["seq"] in chosen

    @rule(seq=st.integers(1, 40))
    def end_below(self, seq: int) -> None:
        seq = min(seq, self.seq + 1)
        self.keys.end_below(seq)
        for job in self.jobs:
            job["gone"] |= job["seq"] < seq

    @rule(ms=st.integers(0, 30), most=st.sampled_from([1, 2, 1000]))
    def tidy(self, ms: int, most: int) -> None:
        self.now += ms
        while self.keys.tidy(self.now, 100, most):
            pass
        kept = [job for job in self.jobs if not job["gone"] or job["until"] > self.now]
        assert len(self.keys) == len(kept)

    @rule()
    def restart(self) -> None:
        frozen = self.keys.freeze()
        before = frozen.dump()
        self.keys.end(range(1, self.seq + 1))
        assert frozen.dump() == before
        self.keys.join(KeyTotal())
        self.keys = UniqueKeys.load(before)
        self.keys.join(self.total)

    @invariant()
    def is_as_the_list(self) -> None:
        self.keys.check()
        assert self.total.count == len(self.keys)
        for key in KEYS:
            found = [entry for entry in self.keys.of(digest_of(key)) if not entry.gone or entry.until > self.now]
            wanted = [
                (job["seq"], job["at"], job["until"], job["gone"])
                for job in reversed(self.jobs)
                if job["key"] == key and (not job["gone"] or job["until"] > self.now)
            ]
            assert [(entry.seq, entry.at, entry.until, entry.gone) for entry in found] == wanted
        there = [seq for run in self.keys.runs(3, 30) for seq in run]
        assert there == [job["seq"] for job in self.jobs if not job["gone"] and 3 <= job["seq"] <= 30]


test_unique_keys = UniqueKeysMachine.TestCase


def test_answers_are_kept_for_their_window_and_the_last_one_of_a_key_wins() -> None:
    keys = UniqueKeys()
    for at, key in ((10, "k"), (20, "l"), (30, "k")):
        keys.remember(FirstAnswer(key, at, at, 0, array("I", [0, 1]), array("Q", [1, at])))
    assert len(keys) == keys.total.count == 4
    again = UniqueKeys.load(keys.freeze().dump())
    answer = again.answer("k")
    assert answer is not None
    assert (answer.at, list(answer.seqs)) == (30, [1, 30])
    assert not again.tidy(120, 100)
    assert again.answer("l") is not None
    assert not again.tidy(121, 100)
    assert again.answer("l") is None
    assert (len(again), again.total.count) == (2, 2)


@pytest.mark.parametrize(
    "change",
    [
        {"last_seq": "1"},
        {"pages": [[b"\1", b""]]},
        {"pages": [[b"\1" + bytes(7), bytes(28)]]},
        {"pages": [[b"\2" + bytes(7) + b"\1" + bytes(7), bytes(2 * 29)]]},
        {"pages": [5]},
        {"answers": [["k", 1, 1, 0, b"", b""]]},
        {"answers": [[1]]},
    ],
)
def test_a_bad_dump_is_refused(change: dict[str, Any]) -> None:
    keys = UniqueKeys()
    keys.add([1, 2], bytes(2 * DIGEST_BYTES), [0, 9], 5)
    dumped = keys.freeze().dump()
    UniqueKeys.load(dumped)
    with pytest.raises(ValueError, match=r"unique keys|array dump|bytes length"):
        UniqueKeys.load({**dumped, **change})


def test_pages_are_copied_before_their_first_change_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_pages, "PAGE", 4)
    pages: SharedPages[str] = SharedPages()
    for number in range(10):
        pages.put(number, str(number))
    frozen = pages.freeze()
    assert pages.pop(5) == "5"
    assert pages.pop(5) is None
    own = pages._pages[1]
    pages.put(6, "x")
    assert pages._pages[1] is own
    assert frozen[1] == {4: "4", 5: "5", 6: "6", 7: "7"}
    assert frozen[0] is pages._pages[0]
    assert [list(run) for run in pages.runs(2, 8)] == [[2, 3], [4, 6, 7], [8]]
    assert len(pages) == 9
    for number in (0, 1, 2, 3):
        pages.pop(number)
    assert pages.first() == 4
