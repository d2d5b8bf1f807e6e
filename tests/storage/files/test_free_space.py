"""Room on the disk, as the daemon watches it; and a data directory that somebody moves while it runs."""

from __future__ import annotations

import errno
from typing import Any

import pytest
import trio
from structlog.testing import capture_logs

from tests.engine.life import living, refusal
from tests.engine.life import settings as life_settings
from tests.simulation.disk import SimFs

pytestmark = pytest.mark.trio


async def test_inodes_count_like_bytes(autojump_clock: Any) -> None:
    fs = SimFs(inodes=60)
    with capture_logs() as logs:
        async with living(life_settings(min_free_inodes=20), fs=fs) as life:
            await life.put("t", durability="fsync")
            await life.append("t", 1)
            empty = [f"/empty{n}" for n in range((fs.free_inodes("/") or 0) - 19)]
            for path in empty:
                fs.open(path, create=True).close()
            await trio.sleep(0.6)
            error = await refusal(life.append("t", 2))
            assert (error.status, error.code) == (503, "read_only")
            assert "less than 20 inodes" in error.message
            assert error.retry_after_s
            await life.put("t", cap_records=10)
            fs.unlink(empty[0])
            await trio.sleep(0.6)
            await life.append("t", 2)
    told = [line for line in logs if line["event"] == "disk_nearly_full"]
    assert [(line["free_inodes"], line["min_free_inodes"]) for line in told] == [(19, 20)]


async def test_a_file_system_without_a_number_of_inodes_has_enough(autojump_clock: Any) -> None:
    async with living(life_settings(min_free_inodes=1 << 30)) as life:
        await life.put("t")
        await trio.sleep(1)
        await life.append("t", 1)


@pytest.mark.parametrize("replaced", [False, True])
async def test_nothing_is_done_to_a_directory_in_the_place_of_ours(replaced: bool, autojump_clock: Any) -> None:
    fs = SimFs()
    async with living(life_settings(wal_file_bytes=64 << 10), fs=fs) as life:
        await life.put("t", durability="fsync")
        await life.append("t", 1)
        await trio.sleep(1)
        fs.rename("/data", "/elsewhere")
        if replaced:
            for name in ("meta", "topics", "wal"):
                fs.mkdir(f"/data/{name}")
        before = {path for path in fs.tree() if path.startswith("/data")}
        await trio.sleep(1)
        assert (await refusal(life.append("t", 2))).code == "read_only"
        with pytest.raises(OSError, match="moved") as failed:
            await life.engine.compactor.checkpoint()
        assert failed.value.errno == errno.ESTALE
        for n in range(60):  # the log goes over to another file meanwhile, or cannot
            await life.put("t", cap_records=1000 + n)
        await trio.sleep(5)
        assert {path for path in fs.tree() if path.startswith("/data")} == before
        for path in sorted(before, reverse=True):
            fs.rmdir(path)
        fs.rename("/elsewhere", "/data")
        await trio.sleep(5)
        await life.append("t", 2)
        await life.engine.compactor.checkpoint()


@pytest.mark.parametrize("replaced", [False, True])
async def test_of_a_moved_directory_it_is_logged_that_it_moved_and_not_that_the_disk_is_full(
    replaced: bool, autojump_clock: Any
) -> None:
    fs = SimFs()
    with capture_logs() as logs:
        async with living(life_settings(), fs=fs) as life:
            await life.put("t", durability="fsync")
            await trio.sleep(1)
            fs.rename("/data", "/elsewhere")
            if replaced:
                fs.mkdir("/data")
            await trio.sleep(30)
            if replaced:
                fs.rmdir("/data")
            fs.rename("/elsewhere", "/data")
            await trio.sleep(30)
            await life.append("t", 1)
    about = {"data_directory_displaced", "data_directory_back", "disk_nearly_full", "disk_has_room_again"}
    assert [line["event"] for line in logs if line["event"] in about] == [
        "data_directory_displaced",
        "data_directory_back",
    ]


async def test_a_disk_that_fills_while_the_directory_is_away_is_told_of_when_it_is_back(autojump_clock: Any) -> None:
    fs = SimFs(inodes=60)
    with capture_logs() as logs:
        async with living(life_settings(min_free_inodes=20), fs=fs) as life:
            await life.put("t", durability="fsync")
            await trio.sleep(1)
            fs.rename("/data", "/elsewhere")
            fs.mkdir("/data")
            for n in range((fs.free_inodes("/") or 0) - 10):
                fs.open(f"/empty{n}", create=True).close()
            await trio.sleep(30)
            fs.rmdir("/data")
            fs.rename("/elsewhere", "/data")
            await trio.sleep(30)
            assert (await refusal(life.append("t", 2))).code == "read_only"
    about = {"data_directory_displaced", "data_directory_back", "disk_nearly_full", "disk_has_room_again"}
    assert [line["event"] for line in logs if line["event"] in about] == [
        "data_directory_displaced",
        "data_directory_back",
        "disk_nearly_full",
    ]
