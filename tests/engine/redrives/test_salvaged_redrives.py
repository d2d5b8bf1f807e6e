"""Redrives whose log is damaged, after a start with `recovery: salvage`: each record is in one place, or readers and
the operator are told of the damage."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from tests.engine.life import Life, living, settings
from tests.engine.redrives.test_redrives import queue_and_letters, redrive
from tests.simulation.disk import SimFs

pytestmark = pytest.mark.trio

STEP = 61
"""Of the log every so manieth byte is damaged."""


async def found(life: Life, name: str) -> tuple[list[Any], bool]:
    """Return the data of the live records of a topic, and whether a reader is told that some are lost."""
    if name not in life.engine.registry.topics:
        return [], True
    rows, tombstones = await life.all(name)
    return [row["data"] for row in rows], bool(tombstones)


@pytest.mark.slow
@pytest.mark.parametrize("shards", [1, 2])
async def test_after_damage_a_letter_is_in_one_place_or_it_is_told(
    shards: int, autojump_clock: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    origin = SimFs()
    async with living(settings(wal_shards=shards), fs=origin, clean=False) as life:
        await queue_and_letters(life)
        assert (await redrive(life)).moved == 3
        await trio.sleep(1)
    logs = {path: content for path, content in origin.after_process_kill().tree().items() if content and "/wal" in path}
    outcomes = set()
    for path, content in logs.items():
        for at in range(0, len(content.rstrip(b"\0")), STEP):
            fs = origin.after_process_kill()
            fs.flip_bit(path, at, 3)
            async with living(settings(wal_shards=shards, recovery="salvage"), fs=fs) as life:
                letters, letters_lost = await found(life, "dead")
                jobs, jobs_lost = await found(life, "q")
            told = "".join(capsys.readouterr())
            outcomes.add((len(letters), len(jobs)))
            if sorted(letters + jobs) != [0, 1, 2]:
                assert letters_lost or jobs_lost, (path, at, letters, jobs)
                # Which deletions were in the range nobody knows: an operator is told that some may be missing.
                assert "salvaged_control_frames_may_be_missing" in told, (path, at)
    assert outcomes == {(0, 3), (3, 3), (0, 0)}, "a move of three letters is still one change"
