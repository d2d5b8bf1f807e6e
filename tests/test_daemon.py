"""The tree of tasks."""

from __future__ import annotations

import trio

from topics.daemon import Daemon


def test_a_background_task_that_has_ended_is_not_started_again() -> None:
    calls: list[str] = []

    async def task() -> None:
        await trio.lowlevel.checkpoint()
        calls.append("run")

    async def main() -> None:
        daemon = object.__new__(Daemon)
        with trio.fail_after(10):
            await daemon._restarted("task", task)

    trio.run(main)
    assert calls == ["run"]
