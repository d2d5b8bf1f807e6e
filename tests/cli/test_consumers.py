"""`topics consumer ls|show|create|seek|rm`, and consumers in `top`."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.cli.canned import InProcess

WHERE = "/v0/topics/orders/consumers"
CONSUMER = {
    **{"topic": "orders", "consumer": "billing", "epoch": 3, "committed_seq": 41, "lag": 1200, "owner": "host/7"},
    **{
        "last_commit_ts": 1_763_726_400_123,
        "generation": 2,
        "deadline": 1_763_726_430_123,
        "ttl_ms": 0,
        "filter": None,
    },
}
MOVED = {"topic": "orders", "consumer": "billing", "epoch": 3, "committed_seq": 0, "moved": True, "lag": 1241}


def test_ls_prints_all_pages_in_a_table(here: InProcess) -> None:
    here.daemon.on("GET", WHERE, {"consumers": [CONSUMER], "next_cursor": "abc"})
    here.daemon.on("GET", WHERE, {"consumers": [CONSUMER | {"consumer": "z", "owner": None, "lag": 0}]})
    assert [line.split() for line in here("consumer", "ls", "orders", "--prefix", "x").out.splitlines()] == [
        ["consumer", "position", "lag", "owner"],
        ["billing", "41", "1,200", "host/7"],
        ["z", "41", "0", "-"],
    ]
    assert "prefix=x" in here.daemon.asked[0].target


def test_show_and_json(here: InProcess) -> None:
    here.daemon.on("GET", f"{WHERE}/billing", CONSUMER)
    lines = [line.split() for line in here("consumer", "show", "orders", "billing").out.splitlines()]
    for line in (["position", "41"], ["lag", "1,200"], ["owner", "host/7"], ["generation", "2"], ["filter", "-"]):
        assert line in lines
    assert json.loads(here("consumer", "show", "orders", "billing", "--json").out) == CONSUMER


def test_show_has_the_filter(here: InProcess) -> None:
    here.daemon.on("GET", f"{WHERE}/billing", CONSUMER | {"filter": ["data", "/total", "Ge", 10]})
    assert '["data", "/total", "Ge", 10]' in here("consumer", "show", "orders", "billing").out


BIG = ["data", "/total", "Ge", 10]


@pytest.mark.parametrize(
    ("options", "body"),
    [
        ([], {"from": "tail"}),
        (["--from", "earliest", "--ttl", "1m"], {"from": "earliest", "ttl_ms": 60_000}),
        (["--seq", "0", "--ttl", "off"], {"from": {"seq": 0}, "ttl_ms": 0}),
        (["--ts", "5", "--filter", "data./total >= 10"], {"from": {"ts": 5}, "filter": BIG}),
        (["--no-filter"], {"from": "tail", "filter": None}),
    ],
)
def test_create_sends_what_is_given(here: InProcess, options: list[str], body: dict[str, Any]) -> None:
    here.daemon.on("PUT", f"{WHERE}/billing", CONSUMER)
    ended = here("consumer", "create", "orders", "billing", *options)
    assert ended == (0, "billing: at 41, 1,200 behind\n", "")
    assert here.daemon.asked[0].body == body


def test_create_as_json(here: InProcess) -> None:
    here.daemon.on("PUT", f"{WHERE}/billing", CONSUMER | {"filter": BIG})
    assert json.loads(here("consumer", "create", "orders", "billing", "--json").out) == CONSUMER | {"filter": BIG}


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--from", "tail", "--seq", "1"], "--from"),
        (["--seq", "1", "--ts", "1"], "--ts"),
        (["--filter", 'tag = "x"', "--no-filter"], "--no-filter"),
        (["--filter", "tag ="], "--filter"),
    ],
)
def test_create_refuses_what_cannot_be_meant(here: InProcess, options: list[str], named: str) -> None:
    ended = here("consumer", "create", "orders", "billing", *options)
    assert (ended.code, here.daemon.asked) == (2, [])
    assert named in ended.err


@pytest.mark.parametrize(
    ("options", "body"),
    [
        ("--to earliest", {"to": "earliest"}),
        ("--seq 0", {"seq": 0}),
        ("--ts 5 --generation 2", {"ts": 5, "generation": 2}),
    ],
)
def test_seek(here: InProcess, options: str, body: dict[str, Any]) -> None:
    here.daemon.on("POST", f"{WHERE}/billing/seek", MOVED)
    ended = here("consumer", "seek", "orders", "billing", *options.split())
    assert ended == (0, "billing: at 0, 1,241 behind\n", "")
    assert here.daemon.asked[0].body == body


@pytest.mark.parametrize("options", ["", "--to tail --seq 1"])
def test_seek_wants_one_place(here: InProcess, options: str) -> None:
    assert here("consumer", "seek", "orders", "billing", *options.split()).code == 2


def test_rm_and_what_is_not_there(here: InProcess) -> None:
    gone = {"topic": "orders", "consumer": "billing", "deleted": True}
    here.daemon.on("DELETE", f"{WHERE}/billing", gone)
    here.daemon.on("DELETE", f"{WHERE}/z", gone | {"consumer": "z", "deleted": False})
    assert here("consumer", "rm", "orders", "billing", "-y") == (0, "billing: deleted\n", "")
    assert here("consumer", "rm", "orders", "z", "-y").code == 3
