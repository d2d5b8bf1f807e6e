"""`topics schedule ls|show|create|rm|run|pause|resume`."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.cli.canned import InProcess

WHERE = "/v0/schedules"
NIGHTLY = {
    **{"schedule": "nightly", "topic": "jobs", "record": {"data": {"report": "daily"}}, "cron": "0 3 * * *"},
    **{"every_ms": None, "time_zone": "Europe/Berlin", "catch_up": "one", "paused": False, "last_error": None},
    **{"created_ts": 1_763_726_400_000, "next_ts": 1_763_776_800_000, "last_ts": None},
}
POLL = NIGHTLY | {"schedule": "poll", "cron": None, "every_ms": 90_000, "time_zone": "UTC"}
REFUSED = POLL | {"schedule": "w", "last_error": {"code": "topic_full", "message": "topic 'jobs' is full"}}


def test_ls_prints_all_pages_in_a_table(here: InProcess) -> None:
    here.daemon.on("GET", WHERE, {"schedules": [NIGHTLY], "next_cursor": "abc"})
    here.daemon.on("GET", WHERE, {"schedules": [POLL, POLL | {"schedule": "x", "paused": True}, REFUSED]})
    lines = here("schedule", "ls", "--prefix", "n").out.splitlines()
    assert lines[0].split() == ["schedule", "topic", "when", "next", "last", "state"]
    assert "0 3 * * * Europe/Berlin" in lines[1]
    assert "2025-11-22 02:00:00.000" in lines[1]
    assert "every 1m30s" in lines[2]
    assert [line.split()[-1] for line in lines[1:]] == ["ok", "ok", "paused", "topic_full"]
    assert "prefix=n" in here.daemon.asked[0].target


def test_show_and_json(here: InProcess) -> None:
    here.daemon.on("GET", f"{WHERE}/w", REFUSED)
    out = here("schedule", "show", "w").out
    assert '{"data": {"report": "daily"}}' in out
    assert "topic 'jobs' is full" in out
    assert json.loads(here("schedule", "show", "w", "--json").out) == REFUSED


@pytest.mark.parametrize(
    ("options", "body"),
    [
        (["--cron", "0 3 * * *"], {"cron": "0 3 * * *", "time_zone": "UTC", "catch_up": "none"}),
        (
            ["--every", "1m", "--catch-up", "all", "--paused", "--tag", "x"],
            {"every_ms": 60_000, "time_zone": "UTC", "catch_up": "all", "paused": True},
        ),
    ],
)
def test_create(options: list[str], body: dict[str, Any], here: InProcess) -> None:
    here.daemon.on("PUT", f"{WHERE}/nightly", NIGHTLY)
    out = here("schedule", "create", "nightly", "jobs", '{"report": "daily"}', *options).out
    assert out == "nightly: next 2025-11-22 02:00:00.000\n"
    record = {"data": {"report": "daily"}} | ({"tag": "x"} if "--tag" in options else {})
    assert here.daemon.asked[0].body == {"topic": "jobs", "record": record} | body


def test_the_record_has_what_a_record_of_an_append_has(here: InProcess) -> None:
    here.daemon.on("PUT", f"{WHERE}/nightly", NIGHTLY)
    options = ["--every", "1m", "--tag", "x", "--node", "n", "--meta", "a=b", "--meta", "c=d", "--delay", "2s"]
    options += ["--priority", "7", "--unique-key", "k", "--unique-scope", "window", "--unique-window", "1h"]
    assert here("schedule", "create", "nightly", "jobs", "1", *options).code == 0
    assert here.daemon.asked[0].body["record"] == {
        "data": 1,
        "tag": "x",
        "node": "n",
        "meta": {"a": "b", "c": "d"},
        "delay_ms": 2000,
        "priority": 7,
        "unique": {"key": "k", "scope": "window", "window_ms": 3_600_000},
    }


@pytest.mark.parametrize(
    "arguments",
    [
        ("1",),
        ("1", "--cron", "* * * * *", "--every", "1m"),
        ("{", "--every", "1m"),
        ("1", "--every", "99"),
        ("1", "--every", "1m", "--unique-scope", "queued"),
        ("1", "--every", "1m", "--priority", "10"),
    ],
)
def test_create_refuses_what_cannot_be(arguments: tuple[str, ...], here: InProcess) -> None:
    assert here("schedule", "create", "s", "jobs", *arguments).code == 2
    assert not here.daemon.asked


def test_pause_resume_run_and_rm(here: InProcess) -> None:
    here.daemon.on("POST", f"{WHERE}/s/pause", NIGHTLY | {"schedule": "s", "paused": True, "next_ts": None})
    here.daemon.on("POST", f"{WHERE}/s/resume", NIGHTLY | {"schedule": "s"})
    here.daemon.on("POST", f"{WHERE}/s/run", {"schedule": "s", "topic": "jobs", "seq": 7})
    here.daemon.on("DELETE", f"{WHERE}/s", {"schedule": "s", "deleted": True})
    here.daemon.on("DELETE", f"{WHERE}/gone", {"schedule": "gone", "deleted": False})
    assert here("schedule", "pause", "s").out == "s: paused\n"
    assert here("schedule", "resume", "s").out == "s: next 2025-11-22 02:00:00.000\n"
    assert here("schedule", "run", "s").out == "s: record 7 of jobs\n"
    assert json.loads(here("schedule", "run", "s", "--json").out)["seq"] == 7
    assert here("schedule", "rm", "s", "-y").out == "s: deleted\n"
    assert here("schedule", "rm", "gone", "-y").code == 3
