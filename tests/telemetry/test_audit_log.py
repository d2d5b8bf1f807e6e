"""The audit log: whole lines, each before its answer, also if the disk fails."""

from __future__ import annotations

import errno
import json
import os
import stat
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import trio
from structlog.testing import capture_logs

from topics.telemetry import audit_log
from topics.telemetry.audit_log import MAX_BODY, MAX_QUERY, AuditEntry, AuditLog, make_entry

pytestmark = pytest.mark.trio

SECRET = "s3cr3t"


def entry(number: int = 1, **fields: Any) -> AuditEntry:
    known: dict[str, Any] = {
        "now_ms": 1_767_225_600_007,
        "request_id": f"r{number}",
        "key": "key-1a2b3c4d",
        "peer": ("127.0.0.1", 4711),
        "call": "put_topic",
        "topic": "jobs",
        "status": 200,
        "ms": 1.23456,
    }
    return make_entry(**(known | fields))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "audit.log"


@pytest.fixture
def torn(path: Path) -> Path:
    """What a daemon has left that was killed while it wrote."""
    path.write_text('{"ts":"2026')
    return path


@pytest.fixture
def journal(path: Path) -> Iterator[AuditLog]:
    opened = AuditLog(path)
    opened.open()
    yield opened
    opened.close()


def text(path: Path) -> str:
    return path.read_text()


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text(path).split("\n")[:-1]]


def ids(path: Path) -> list[str]:
    return [line["request_id"] for line in lines(path)]


def rotated(path: Path) -> Path:
    return path.rename(path.with_suffix(".1"))


# --- a line ----------------------------------------------------------------------------------------------------------


async def test_a_line_says_who_did_what_to_which_and_what_came_of_it(journal: AuditLog, path: Path) -> None:
    await journal.write(
        entry(query=b"a=1&token=x", body=b'{"cap_records":\n 5}', status=403, code="forbidden", router="r>a")
    )
    assert text(path) == (
        '{"ts":"2026-01-01T00:00:00.007Z","request_id":"r1","key":"key-1a2b3c4d","peer":"127.0.0.1:4711",'
        '"call":"put_topic","topic":"jobs","router":"r>a","query":"a=1","body":{"cap_records":5},"status":403,'
        '"code":"forbidden","ms":1.235}\n'
    )


async def test_what_there_is_not_is_left_out(journal: AuditLog, path: Path) -> None:
    await journal.write(entry(topic="", peer=None))
    assert json.loads(text(path)).keys() == {"ts", "request_id", "key", "call", "status", "ms"}


@pytest.mark.parametrize(
    ("query", "kept"),
    [
        (b"", ""),
        (b"if_empty=true", "if_empty=true"),
        (b"token=s3cr3t", ""),
        (b"a=1&token=s3cr3t&b=%20", "a=1&b=%20"),
        (b"%74oken=s3cr3t&TOKEN=s3cr3t&tok%65n=s3cr3t", ""),
        (b"token&a=\xff", "a=ÿ"),
        (b"a=token=s3cr3t", "a=token=(hidden)"),
        (b"x" * 5000, "x" * MAX_QUERY + "..."),
    ],
)
async def test_a_query_is_kept_without_its_token(journal: AuditLog, path: Path, query: bytes, kept: str) -> None:
    await journal.write(entry(query=query))
    assert json.loads(text(path)).get("query", "") == kept
    assert SECRET not in text(path)


@pytest.mark.parametrize(
    "body",
    [
        b"{", b'{"a":1} x', b"\xff", b'"\xff"', b"[" * 3000 + b"]" * 1000, b"[" * 2048 + b"]" * 2048, b"NaN",
        b'"' + b"x" * MAX_BODY + b'"',
    ],
)  # fmt: skip
async def test_of_a_body_that_is_no_json_or_long_the_length_is_kept(journal: AuditLog, path: Path, body: bytes) -> None:
    await journal.write(entry(body=body))
    line = json.loads(text(path))
    assert line["body_bytes"] == len(body)
    assert "body" not in line


@pytest.mark.parametrize("body", [b"{}", b'[1.0, 123456789012345678901234567890, "\xc3\xa9\\n"]', b' {\n"a"\t: 1e400}'])
async def test_a_body_is_kept_as_it_was_sent(journal: AuditLog, path: Path, body: bytes) -> None:
    await journal.write(entry(body=body))
    assert text(path).count("\n") == 1
    assert json.loads(text(path))["body"] == json.loads(body)


@pytest.mark.parametrize("call", ["append", "publish"])
async def test_of_an_append_the_config_is_kept_and_never_a_record(journal: AuditLog, path: Path, call: str) -> None:
    body = json.dumps({"records": [{"data": SECRET * 1000}], "config": {"type": "queue"}}).encode()
    await journal.write(entry(call=call, body=body))
    await journal.write(entry(call=call, body=body[:-1]))
    first, second = lines(path)
    assert first["body"] == {"type": "queue"}
    assert second["body_bytes"] == len(body) - 1
    assert SECRET not in text(path)


async def test_credentials_in_a_body_are_blanked(journal: AuditLog, path: Path) -> None:
    await journal.write(entry(body=b'{"token": "s3cr3t", "a": "Bearer s3cr3t", "api_keys": "s3cr3t"}'))
    assert json.loads(text(path))["body"]["token"] == "(hidden)"
    assert SECRET not in text(path)


async def test_a_line_is_visible_ascii_whatever_a_client_has_sent(journal: AuditLog, path: Path) -> None:
    odd = "\u2028\x9b31m\u202e\x7f\U0001f600\x00\n"
    await journal.write(
        entry(topic=odd, router=odd, query=b"\xff\x7f", body=json.dumps(odd, ensure_ascii=False).encode())
    )
    line = text(path)
    assert line[:-1].isascii()
    assert line[:-1].isprintable()
    assert (json.loads(line)["topic"], json.loads(line)["query"]) == (odd, "\xff\x7f")


# --- the file --------------------------------------------------------------------------------------------------------


async def test_the_file_is_for_its_owner_only_and_is_continued(path: Path) -> None:
    for number in range(3):
        journal = AuditLog(path)
        journal.open()
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
        await journal.write(entry(number))
        journal.close()
    assert ids(path) == ["r0", "r1", "r2"]


async def test_lines_of_concurrent_calls_are_whole_and_in_order(journal: AuditLog, path: Path) -> None:
    async with trio.open_nursery() as nursery:
        for number in range(600):
            nursery.start_soon(journal.write, entry(number, body=b'"%b"' % (b"x" * (number % 1500))))
    assert sorted(ids(path)) == sorted(f"r{number}" for number in range(600))
    for number in range(5):
        await journal.write(entry(number))
    assert ids(path)[-5:] == [f"r{number}" for number in range(5)]


async def test_a_line_is_there_when_write_returns(journal: AuditLog, path: Path) -> None:
    async def call(number: int) -> None:
        await journal.write(entry(number))
        assert f'"r{number}"' in text(path)

    async with trio.open_nursery() as nursery:
        for number in range(100):
            nursery.start_soon(call, number)


class Disk:
    """Stands in for `os.write`: does what `plan` says for one call after the other, and then what it should."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.plan: list[int | OSError] = []
        self.calls = 0
        self.gate: threading.Event | None = None
        self._write = os.write
        monkeypatch.setattr("topics.telemetry.audit_log.os.write", self)

    def __call__(self, fd: int, data: bytes) -> int:
        self.calls += 1
        if self.gate is not None:
            assert self.gate.wait(10)
        step = self.plan.pop(0) if self.plan else len(data)
        if isinstance(step, OSError):
            raise step
        return self._write(fd, data[:step]) if step else 0


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


async def test_a_line_is_one_write(journal: AuditLog, disk: Disk) -> None:
    await journal.write(entry())
    assert disk.calls == 1


async def test_a_short_write_is_gone_on_with(journal: AuditLog, path: Path, disk: Disk) -> None:
    disk.plan = [5, 1, 20]
    await journal.write(entry(1))
    assert ids(path) == ["r1"]
    assert journal.failures == 0


async def test_a_failure_is_logged_once_and_counted_and_its_end_is_told(
    journal: AuditLog, path: Path, disk: Disk
) -> None:
    full = OSError(errno.ENOSPC, "No space left on device")
    disk.plan = [full, full, full]
    with capture_logs() as logs:
        for number in range(5):
            await journal.write(entry(number))
        disk.plan = [full]
        await journal.write(entry(5))
    assert ids(path) == ["r3", "r4"]
    assert journal.failures == 4
    assert [(line["event"], line["log_level"]) for line in logs] == [
        ("audit_log_failed", "error"),
        ("audit_log_works_again", "warning"),
        ("audit_log_failed", "error"),
    ]
    assert "No space" in logs[0]["error"]
    assert logs[1]["lines_lost"] == 3


@pytest.mark.parametrize("failure", [OSError(errno.EIO, "io"), 0])
async def test_what_a_failure_left_of_a_line_spoils_no_other(
    journal: AuditLog, path: Path, disk: Disk, failure: int | OSError
) -> None:
    disk.plan = [30, failure, failure]
    for number in range(3):
        await journal.write(entry(number))
    torn, whole = text(path).splitlines()
    assert len(torn) == 30
    assert json.loads(whole)["request_id"] == "r2"
    assert journal.failures == 2


async def test_of_lines_that_are_written_together_those_count_that_are_missing(
    journal: AuditLog, path: Path, disk: Disk
) -> None:
    disk.gate = threading.Event()
    async with trio.open_nursery() as nursery:
        for number in range(4):
            nursery.start_soon(journal.write, entry(number))
        await trio.testing.wait_all_tasks_blocked()
        length = len(json.dumps(json.loads(audit_log._encode(entry())), separators=(",", ":"))) + 1
        disk.plan = [length, length + 10, OSError(errno.ENOSPC, "full")]
        disk.gate.set()
    assert len(text(path).splitlines()) == 3
    assert journal.failures == 2


async def test_a_line_torn_in_an_earlier_life_spoils_no_other(torn: Path, path: Path) -> None:
    journal = AuditLog(path)
    journal.open()
    await journal.write(entry())
    journal.close()
    assert json.loads(text(path).splitlines()[1])["request_id"] == "r1"


async def test_a_full_device_fails_no_call() -> None:
    journal = AuditLog(Path("/dev/full"))
    journal.open()
    with capture_logs() as logs:
        await journal.write(entry())
    journal.close()
    assert journal.failures == 1
    assert logs[0]["event"] == "audit_log_failed"


async def test_a_directory_that_is_gone_is_an_outage_until_it_is_back(tmp_path: Path) -> None:
    path = tmp_path / "logs" / "audit.log"
    path.parent.mkdir()
    journal = AuditLog(path)
    journal.open()
    await journal.write(entry(1))
    path.unlink()
    path.parent.rmdir()
    await journal.write(entry(2))
    assert journal.failures == 1
    path.parent.mkdir()
    await journal.write(entry(3))
    journal.close()
    assert ids(path) == ["r3"]
    assert journal.failures == 1


async def test_after_a_rotation_lines_go_into_the_new_file(journal: AuditLog, path: Path) -> None:
    await journal.write(entry(1))
    old = rotated(path)
    await journal.write(entry(2))
    await journal.reopen()
    await journal.write(entry(3))
    assert (ids(old), ids(path)) == (["r1", "r2"], ["r3"])


async def test_a_file_that_cannot_be_opened_anew_stays_in_use(journal: AuditLog, path: Path) -> None:
    old = rotated(path)
    Path.mkdir(path)
    with capture_logs() as logs:
        await journal.reopen()
    await journal.write(entry(1))
    assert ids(old) == ["r1"]
    assert [line["event"] for line in logs] == ["audit_log_not_reopened"]


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo, lambda path: path.symlink_to("/nonexistent/a")])
async def test_what_cannot_be_opened_is_refused_at_once(path: Path, make: Callable[[Path], object]) -> None:
    make(path)
    with pytest.raises(OSError):  # noqa: PT011 - each has an errno of its own
        AuditLog(path).open()


async def test_a_call_that_is_cancelled_has_its_line(journal: AuditLog, path: Path) -> None:
    with trio.CancelScope() as scope:
        scope.cancel()
        await journal.write(entry(1))
    assert ids(path) == ["r1"]


async def test_what_waits_for_a_slow_disk_is_bounded(
    journal: AuditLog, path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk.gate = threading.Event()
    async with trio.open_nursery() as nursery:
        for number in range(3 * audit_log.MAX_WAITING):
            nursery.start_soon(journal.write, entry(number))
        await trio.testing.wait_all_tasks_blocked()
        assert len(journal._next.lines) < audit_log.MAX_WAITING
        disk.gate.set()
    assert len(ids(path)) == 3 * audit_log.MAX_WAITING
    assert disk.calls < 100
