"""`topics queue jobs|retry|cancel`, against canned answers and a daemon."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import parse_qs

import pytest

from tests.cli.canned import CannedDaemon, InProcess

JOBS = [
    {"state": "in_flight", "deliveries": 2, "priority": 5, "node": "w", "deadline": 1_795_296_428_690, "$seq": 7,
     "$ts": 1, "$tag": "t", "data": [1]},
    {"state": "delayed", "deliveries": 0, "priority": 9, "not_before": 1_795_296_428_691, "last_error": "no\x07",
     "$seq": 8, "$ts": 1, "$node": "a", "data": "x", "meta": {"k": "v"}},
]  # fmt: skip


def test_jobs_are_a_table_over_all_pages(here: InProcess, canned: CannedDaemon) -> None:
    canned.on("GET", "/v0/topics/q/jobs", {"topic": "q", "jobs": JOBS[:1], "next_cursor": "ajo3"})
    canned.on("GET", "/v0/topics/q/jobs", {"topic": "q", "jobs": JOBS[1:]})
    done = here("queue", "jobs", "q", "--state", "delayed", "--filter", 'tag = "t"')
    assert (done.code, done.err) == (0, "")
    titles, first, second = done.out.splitlines()
    assert titles.split() == [
        "seq",
        "state",
        "deliveries",
        "priority",
        "holder",
        "until",
        "tag",
        "last",
        "error",
        "data",
    ]
    assert first.split() == ["7", "in_flight", "2", "5", "w", "2026-11-21", "21:27:08.690", "t", "[1]"]
    assert second.split() == ["8", "delayed", "0", "9", "2026-11-21", "21:27:08.691", "no\\x07", '"x"']
    asked = [parse_qs(asked.target.partition("?")[2]) for asked in canned.asked]
    query = {"state": ["delayed"], "filter": ['["tag","Eq","t"]'], "page_size": ["1000"]}
    assert asked == [query, {**query, "cursor": ["ajo3"]}]


def test_as_json_they_are_as_the_interface_shows_them(here: InProcess, canned: CannedDaemon) -> None:
    canned.on("GET", "/v0/topics/t/groups/g/jobs", {"topic": "t", "group": "g", "jobs": JOBS})
    assert json.loads(here("queue", "jobs", "t", "--group", "g", "--json").out) == JOBS


def test_no_more_are_listed_than_asked_for(here: InProcess, canned: CannedDaemon) -> None:
    canned.on("GET", "/v0/topics/q/jobs", {"topic": "q", "jobs": JOBS, "next_cursor": "ajo4"})
    done = here("queue", "jobs", "q", "--limit", "1")
    assert len(done.out.splitlines()) == 3
    assert "only the first 1" in done.out
    assert len(canned.asked) == 1


@pytest.mark.parametrize(
    ("arguments", "path", "body"),
    [
        (("retry", "q", "7", "8"), "/v0/topics/q/jobs/retry", {"seqs": [7, 8]}),
        (("retry", "q", "--filter", 'tag = "t"'), "/v0/topics/q/jobs/retry", {"filter": ["tag", "Eq", "t"]}),
        (("retry", "q", "3", "--state", "dead"), "/v0/topics/q/jobs/retry", {"seqs": [3], "state": "dead"}),
        (("cancel", "q", "7", "-y"), "/v0/topics/q/jobs/cancel", {"seqs": [7]}),
        (
            ("cancel", "q", "--group", "g", "--filter", 'tag = "t"', "--state", "ready", "-y"),
            "/v0/topics/q/groups/g/jobs/cancel",
            {"filter": ["tag", "Eq", "t"], "state": "ready"},
        ),
    ],
)
def test_jobs_are_retried_and_cancelled(
    here: InProcess, canned: CannedDaemon, arguments: tuple[str, ...], path: str, body: Any
) -> None:
    answer = {"topic": "q", "matched": 3, "done": 2, "skipped": 1}
    canned.on("POST", path, answer)
    canned.on("POST", path, answer)
    done = here("queue", *arguments)
    what = "retried" if arguments[0] == "retry" else "cancelled"
    assert (done.code, done.out) == (0, f"2 {what}, 1 skipped\n")
    assert json.loads(here("queue", *arguments, "--json").out) == answer
    assert [asked.body for asked in canned.asked] == [body, body]


@pytest.mark.parametrize("verb", ["retry", "cancel"])
@pytest.mark.parametrize("arguments", [(), ("7", "--filter", 'tag = "t"')])
def test_seqs_or_a_filter_are_needed(
    here: InProcess, canned: CannedDaemon, verb: str, arguments: tuple[str, ...]
) -> None:
    done = here("queue", verb, "q", *arguments)
    assert done.code == 2
    assert "SEQ... or --filter is needed" in done.err
    assert not canned.asked
