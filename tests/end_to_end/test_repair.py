"""The real daemon with a bucket, whose local files are damaged behind its back: reads and starts repair them from the
bucket, and deleted records stay deleted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.command_line import CommandLine
from tests.end_to_end.test_cold_bucket import SMALL, daemon_with_bucket, files, make_cold
from tests.end_to_end.test_cold_hangs import append, hang, metric, until
from tests.end_to_end.test_sigkill import Client, Daemon

pytestmark = pytest.mark.slow

HOT = SMALL | {"TOPICS_HOT_RETAIN_SEGMENTS": "1000", "TOPICS_RECLAIM_MS": "100000", "TOPICS_CACHE_BYTES": "0"}


def fill(daemon: Daemon) -> dict[int, object]:
    """A topic of whose segments the bucket has all but the last; its records by seq."""
    client = Client(daemon.port)
    assert client.call("PUT", "/v0/topics/t", {"durability": "fsync"})[0] in (200, 201)
    append(client, 400)
    archive(daemon)
    return content(client)


def archive(daemon: Daemon) -> None:
    """Wait for a base that has all sealed segments."""
    bases = daemon.root / "bucket" / "bases"
    segments = daemon.root / "bucket" / "segments"
    until(lambda: len(files(daemon, "tags")) >= 7, "segments are not sealed")
    until(lambda: len(list(segments.rglob("*.tags"))) >= len(files(daemon, "tags")), "the segments are not put")
    put_ns = max(path.stat().st_mtime_ns for path in segments.rglob("*.tags"))
    until(
        lambda: any(path.stat().st_mtime_ns > put_ns for path in bases.glob("*") if path.name.isdigit()),
        "no base has the segments",
    )


def content(client: Client) -> dict[int, object]:
    found: dict[int, object] = {}
    position = 0
    while True:
        status, answer = client.call("GET", f"/v0/topics/t/diff?from_seq={position}&limit=1000")
        assert status == 200, answer
        found |= {record["$seq"]: record["data"] for record in answer["records"]}
        assert not answer.get("tombstone"), answer["tombstone"]
        if answer["caught_up"]:
            return found
        position = answer["next_from_seq"]


def flip(path: Path, at: int = -1) -> None:
    """Change one byte, by default in the middle."""
    data = bytearray(path.read_bytes())
    at = at if at >= 0 else len(data) // 2
    data[at] ^= 0x55
    with path.open("r+b") as file:
        file.write(data)


def cut(path: Path) -> None:
    with path.open("r+b") as file:
        file.truncate(len(path.read_bytes()) // 2)


@pytest.mark.parametrize("damage", [flip, cut, Path.unlink])
def test_a_read_that_finds_damage_gets_the_records_from_the_bucket(
    tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    with daemon_with_bucket(tmp_path, **HOT) as daemon:
        before = fill(daemon)
        daemon.terminate()
        daemon.start()  # so that nothing is in memory
        victims = files(daemon, "data")[1:4]
        intact = [victim.read_bytes() for victim in victims]
        for victim in victims:
            damage(victim)
        client = Client(daemon.port)
        assert content(client) == before
        assert [victim.read_bytes() for victim in victims] == intact
        assert metric(client, "bucket_repaired_segments_total") == 3
        assert metric(client, "bucket_repaired_bytes_total") > 0
        assert daemon.log().count("segment_repaired") == 3
        assert daemon.terminate()[0] == 0


def test_a_start_repairs_segments_that_are_missing_or_short_before_it_decides_what_is_lost(tmp_path: Path) -> None:
    with daemon_with_bucket(tmp_path, **HOT) as daemon:
        before = fill(daemon)
        daemon.kill()
        first, second, third = files(daemon, "data")[1:4]
        intact = [first.read_bytes(), second.read_bytes(), third.read_bytes()]
        first.unlink()
        for one in files(daemon, "idx")[1:3]:
            one.unlink()
        cut(second)
        cut(third)
        daemon.start()
        client = Client(daemon.port)
        assert metric(client, "bucket_repaired_segments_total") == 3
        assert content(client) == before
        assert [first.read_bytes(), second.read_bytes(), third.read_bytes()] == intact
        assert daemon.terminate()[0] == 0


def test_records_that_were_deleted_after_the_base_stay_deleted(tmp_path: Path) -> None:
    with daemon_with_bucket(tmp_path, **(HOT | {"TOPICS_BUCKET_BASE_MS": "1000000"})) as daemon:
        client = Client(daemon.port)
        assert client.call("PUT", "/v0/topics/t", {"durability": "fsync"})[0] in (200, 201)
        append(client, 400)
        until(lambda: len(files(daemon, "tags")) >= 7, "segments are not sealed")
        daemon.terminate()
        daemon.settings["TOPICS_BUCKET_BASE_MS"] = "1000"
        daemon.start()
        archive(daemon)
        daemon.terminate()
        daemon.settings["TOPICS_BUCKET_BASE_MS"] = "1000000"
        daemon.start()
        client = Client(daemon.port)
        assert client.call("POST", "/v0/topics/t/delete", {"match": ["tag", "Eq", "b"]})[0] == 200
        assert client.call("POST", "/v0/admin/checkpoint")[0] == 200
        before = content(client)
        assert len(before) == 200
        daemon.terminate()
        daemon.start()
        for victim in files(daemon, "data")[1:4]:
            flip(victim)
        client = Client(daemon.port)
        assert content(client) == before
        for victim in files(daemon, "data")[4:6]:
            victim.unlink()
        daemon.kill()
        daemon.start()
        assert content(Client(daemon.port)) == before
        assert daemon.terminate()[0] == 0


def test_an_object_with_another_hash_is_refused_and_the_records_become_corrupt(tmp_path: Path) -> None:
    with daemon_with_bucket(tmp_path, **HOT) as daemon:
        before = fill(daemon)
        daemon.terminate()
        daemon.start()
        victim = files(daemon, "data")[1]
        first = victim.name.split(".")[0].removeprefix("seg-")
        flip(victim)
        for found in (daemon.root / "bucket" / "segments").rglob(f"{first}-*.data"):
            flip(found, 5000)
        client = Client(daemon.port)
        told: list[str] = []
        count, position, caught_up = 0, 0, False
        while not caught_up:
            status, answer = client.call("GET", f"/v0/topics/t/diff?from_seq={position}&limit=1000")
            assert status == 200
            count, caught_up = count + len(answer["records"]), answer["caught_up"]
            told += [answer["tombstone"]["reason"]] if answer.get("tombstone") else []
            position = answer["next_from_seq"]
        assert (count, told) == (len(before) - 1, ["corrupt"])
        assert "bucket_object_damaged" in daemon.log()
        assert metric(client, "bucket_repaired_segments_total") == 0


def test_while_the_bucket_hangs_the_read_is_503_and_all_else_goes_on_and_then_it_is_repaired(tmp_path: Path) -> None:
    with daemon_with_bucket(tmp_path, **(HOT | {"TOPICS_BUCKET_TIMEOUT_MS": "1000"})) as daemon:
        before = fill(daemon)
        daemon.terminate()
        daemon.start()
        until(lambda: Client(daemon.port).call("GET", "/v0/ready")[1]["bucket"]["has_base"], "there is no base")
        form = daemon.root / "bucket" / "FORMAT"
        aside = hang(form)
        flip(files(daemon, "data")[1])
        client = Client(daemon.port)
        status, answer = client.call("GET", "/v0/topics/t/diff?from_seq=0&limit=1000")
        assert (status, answer["error"]["code"]) == (503, "not_ready")
        assert "bucket" in answer["error"]["message"]
        assert client.call("GET", f"/v0/topics/t/diff?from_seq={max(before) - 5}&limit=5")[0] == 200
        append(client, 1)
        form.unlink()
        aside.rename(form)
        until(lambda: client.call("GET", "/v0/topics/t/diff?from_seq=0&limit=1000")[0] == 200, "it is not repaired")
        assert len(content(client)) == len(before) + 1


def test_pointers_that_are_damaged_or_missing_are_made_anew_from_the_newest_base(tmp_path: Path) -> None:
    with daemon_with_bucket(tmp_path, TOPICS_CACHE_BYTES="0") as daemon:
        make_cold(daemon)
        before = content(Client(daemon.port))
        daemon.terminate()
        first, second, third = files(daemon, "object")[:3]
        intact = [one.read_bytes() for one in (first, second, third)]
        flip(first, 20)
        cut(second)
        third.unlink()
        checked = CommandLine()("verify", str(daemon.root / "data"))
        assert checked.returncode == 1
        assert f"{first.name}: its checksum does not match" in checked.stdout
        daemon.start()
        client = Client(daemon.port)
        assert content(client) == before
        assert [one.read_bytes() for one in (first, second, third)] == intact
        assert daemon.log().count("pointer_remade") == 3
        assert metric(client, "bucket_repaired_segments_total") == 3
        assert daemon.terminate()[0] == 0
        assert CommandLine()("verify", str(daemon.root / "data")).returncode == 0
