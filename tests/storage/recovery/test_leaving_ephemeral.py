"""A topic that was `ephemeral` and is stored from now on: a ConfigUpdate holds the state of its log, and the frames
before it hold its live records (`docs/spec/crash.md` 24). A start finds them, also if other frames are in between."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import trio

from tests.engine.life import Life, living, settings
from tests.simulation.disk import SimFs
from topics.engine.topic import Topic
from topics.storage.recovery.damage import Damage

pytestmark = pytest.mark.trio

SMALL = settings(wal_file_bytes=8 << 10, wal_shards=1)


async def later_files(life: Life) -> None:
    """The log has come to files that the next life numbers otherwise, as those before them have gone."""
    await life.put("big", durability="fsync")
    for _ in range(6):
        await life.append("big", "x" * 5000)
    for _ in range(2):
        await life.compactor.checkpoint()
        await life.append("big", 1)


def record(seq: int) -> dict[str, Any]:
    return {"$seq": seq, "$ts": 1_700_000_000_000, "data": seq}


async def test_a_record_that_was_deleted_meanwhile_is_in_no_file(autojump_clock: Any) -> None:
    fs = SimFs()
    async with living(SMALL, fs=fs, clean=False) as life:
        await later_files(life)
        await life.put("t", durability="fsync")
        await life.append("t", 1, {"data": 2, "tag": "x"}, 3)
        await life.put("t", durability="ephemeral")
        await life.delete("t", match="x")
        await life.put("t", durability="fsync")
        killed = fs.after_process_kill()
    async with living(SMALL, fs=killed) as life:
        assert await life.seqs("t") == [1, 3]
        await life.compactor.checkpoint()
        assert life.engine.registry.topics["t"].log.stored.last_seq == 3
        assert await life.all("t") == ([record(1), record(3)], [])


async def test_a_checkpoint_while_records_are_written_out_leaves_them_to_the_replay(
    autojump_clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a topic that has not changed since the one before, which is how it looks to a checkpoint."""
    fs = SimFs()
    async with living(SMALL, fs=fs, clean=False) as life:
        await later_files(life)
        await life.put("t", durability="ephemeral")
        await life.append("t", 1, 2, 3)
        await life.compactor.checkpoint()
        lifecycle: Any = life.engine.topic_lifecycle
        write_out = lifecycle._write_out

        async def with_a_checkpoint_behind(topic: Topic) -> None:
            await write_out(topic)
            async with trio.open_nursery() as nursery:  # another task: this one has the topic's files
                nursery.start_soon(life.compactor.checkpoint)

        monkeypatch.setattr(lifecycle, "_write_out", with_a_checkpoint_behind)
        await life.put("t", durability="fsync")
        killed = fs.after_process_kill()
    async with living(SMALL, fs=killed) as life:
        assert await life.all("t") == ([record(1), record(2), record(3)], [])
        await life.compactor.checkpoint()
        assert await life.all("t") == ([record(1), record(2), record(3)], [])


async def test_salvage_gives_up_a_record_whose_frame_is_damaged(autojump_clock: Any) -> None:
    """The ConfigUpdate behind it knows of the record still."""
    fs = SimFs()
    async with living(SMALL, fs=fs, clean=False) as life:
        await later_files(life)
        await life.put("t", durability="ephemeral")
        for i in (1, 2, 3):
            await life.append("t", i)
        await life.put("t", durability="fsync")
        (run,) = life.engine.registry.topics["t"].log.index.capture_raw(3)
        path = life.engine.store.files.get(run.file[1]).path
        await trio.sleep(1)  # what is in the log is vouched for
        killed = fs.after_process_kill()
    killed.flip_bit(path, run.offset[1] + run.frame_len[1] - 1, 3)
    killed.flip_bit(path, run.offset[1] + run.frame_len[1] - 2, 5)
    with pytest.raises(BaseExceptionGroup) as refused:
        async with living(SMALL, fs=killed.after_process_kill()):
            pass
    assert refused.group_contains(Damage)
    for config in (replace(SMALL, recovery="salvage"), SMALL):
        async with living(config, fs=killed.after_process_kill()) as life:
            assert await life.all("t") == ([record(1), record(3)], [(2, 2, "corrupt")])
            killed = life.fs
