"""Large batches take turns: each is committed in a separate pass of the loop, even if it has waited for other things
before."""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from typing import Any

import pytest
import trio

from tests.engine.life import Life, living, settle
from tests.runtime.test_turns import Passes
from topics.engine.operations.append import Appends
from topics.storage.wal.write_queue import WriteQueue

LARGE = ["x" * 100] * 1000


class Commits:
    """In which pass of the loop each append got its seqs, and how many records it had."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.passes = Passes()
        self.noted: list[tuple[int, int]] = []
        trio.lowlevel.add_instrument(self.passes)
        commit = Appends._commit

        def noting(appends: Any, topic: Any, batch: Any, *rest: Any, **named: Any) -> Any:
            self.noted.append((self.passes.count, len(batch.datas)))
            return commit(appends, topic, batch, *rest, **named)

        monkeypatch.setattr(Appends, "_commit", noting)

    @property
    def of_large(self) -> list[int]:
        return [at for at, records in self.noted if records > 1]


def are_apart(passes: list[int]) -> bool:
    return all(after - before >= 2 for before, after in pairwise(passes))


@pytest.mark.trio
async def test_no_two_large_batches_are_committed_in_one_pass(
    autojump_clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with living() as life:
        await life.append("t", 1)
        commits = Commits(monkeypatch)
        async with trio.open_nursery() as nursery:
            for _ in range(6):
                nursery.start_soon(partial(life.append, "t", *LARGE))
        assert len(commits.of_large) == 6
        assert are_apart(commits.of_large), commits.noted
        assert await life.seqs("t", 5995) == list(range(5996, 6002))


@pytest.mark.trio
@pytest.mark.parametrize("fills", ["before", "meanwhile"])
async def test_a_turn_ends_when_the_task_waits_for_anything_else(
    fills: str, autojump_clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with living() as life:
        await life.append("t", 1)
        commits = Commits(monkeypatch)
        full = fills == "before"
        monkeypatch.setattr(WriteQueue, "is_full", property(lambda queue: full))
        turns = life.engine.turns
        await turns.take()
        async with trio.open_nursery() as nursery:
            for _ in range(6):
                nursery.start_soon(partial(life.append, "t", *LARGE, disable_backpressure=True))
            while fills == "meanwhile" and not turns._queue.locked():
                await trio.lowlevel.checkpoint()
            full = True
            await settle()
            assert commits.noted == []
            full = False
            life.engine.store.writers[0].queue.wake_waiting()
        assert len(commits.of_large) == 6
        assert are_apart(commits.of_large), commits.noted


@pytest.mark.trio
async def test_small_appends_go_between_and_take_no_turn(autojump_clock: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async with living() as life:
        await life.append("t", 1)
        commits = Commits(monkeypatch)

        async def large() -> None:
            for _ in range(5):
                await life.append("t", *LARGE)

        async with trio.open_nursery() as nursery:
            for _ in range(4):
                nursery.start_soon(large)
            for _ in range(20):
                taken = await taken_by_small(life)
                assert taken == 0
        assert are_apart(commits.of_large)


async def taken_by_small(life: Life) -> int:
    """Append one record. Return how many turns the append has asked for."""
    turns, asked, me = life.engine.turns, 0, trio.lowlevel.current_task()
    take = type(turns).take

    async def counted(*arguments: Any) -> None:
        nonlocal asked
        asked += trio.lowlevel.current_task() is me
        await take(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(turns), "take", counted)
        await life.append("t", 1)
    return asked
