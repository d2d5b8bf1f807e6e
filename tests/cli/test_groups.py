"""`topics group ls|show|create|rm`, and `topics queue` with `--group`."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.cli.canned import InProcess

WHERE = "/v0/topics/orders/groups"
GROUP = {
    **{"topic": "orders", "group": "mailer", "epoch": 3, "floor": 41, "lag": 1200, "missed": 2, "unfinished": 7},
    "queue": {"ready": 1190, "in_flight": 6, "delayed": 4, "dead_lettered": 1, "paused": False, "paused_until": None},
    **{
        "lease_ms": 30_000,
        "claim_jitter_ms": 0,
        "max_deliveries": 5,
        "dead_letter": "dead",
        "leases_durable": False,
        "completed": None,
    },
    **{"max_unfinished": 100_000, "filter": None, "retry": None, "max_in_flight": 0, "rate": None},
    "order_by": None,
    "max_in_flight_per_key": None,
}
BIG = ["data", "/total", "Ge", 10]


def test_ls_prints_all_pages_in_a_table(here: InProcess) -> None:
    here.daemon.on("GET", WHERE, {"groups": [GROUP], "next_cursor": "abc"})
    here.daemon.on("GET", WHERE, {"groups": [GROUP | {"group": "z", "lag": 0}]})
    first, *rows = [line.split() for line in here("group", "ls", "orders", "--prefix", "x").out.splitlines()]
    assert first == ["group", "floor", "lag", "ready", "in", "flight", "delayed", "dead", "missed"]
    assert rows == [
        ["mailer", "41", "1,200", "1,190", "6", "4", "1", "2"],
        ["z", "41", "0", "1,190", "6", "4", "1", "2"],
    ]
    assert "prefix=x" in here.daemon.asked[0].target


def test_show_and_json(here: InProcess) -> None:
    here.daemon.on("GET", f"{WHERE}/mailer", GROUP)
    lines = [line.split() for line in here("group", "show", "orders", "mailer").out.splitlines()]
    for line in (
        ["floor", "41"],
        ["lag", "1,200"],
        ["missed", "2"],
        ["dead_letter", "dead"],
        ["completed", "-"],
        ["filter", "-"],
    ):
        assert line in lines
    assert json.loads(here("group", "show", "orders", "mailer", "--json").out) == GROUP


@pytest.mark.parametrize(
    ("options", "body"),
    [
        ([], {"from": "tail"}),
        (["--from", "earliest", "--lease", "1m"], {"from": "earliest", "lease_ms": 60_000}),
        (["--seq", "0", "--dead-letter", ""], {"from": {"seq": 0}, "dead_letter": None}),
        (["--completed", "done"], {"from": "tail", "completed": "done"}),
        (["--completed", ""], {"from": "tail", "completed": None}),
        (["--ts", "5", "--filter", "data./total >= 10"], {"from": {"ts": 5}, "filter": BIG}),
        (["--no-filter", "--leases-durable"], {"from": "tail", "filter": None, "leases_durable": True}),
        (["--max-deliveries", "3", "--jitter", "100ms"], {"from": "tail", "max_deliveries": 3, "claim_jitter_ms": 100}),
        (["--max-unfinished", "5"], {"from": "tail", "max_unfinished": 5}),
        (["--order-by", "tag"], {"from": "tail", "order_by": "tag"}),
        (["--order-by", "none"], {"from": "tail", "order_by": None}),
        (
            ["--max-in-flight-per-key", '{"by": "node", "max": 2}'],
            {"from": "tail", "max_in_flight_per_key": {"by": "node", "max": 2}},
        ),
        (
            ["--rate", '{"jobs": 9, "per_ms": 1000}', "--retry", '{"backoff": "fixed", "delay_ms": 5}'],
            {"from": "tail", "rate": {"jobs": 9, "per_ms": 1000}, "retry": {"backoff": "fixed", "delay_ms": 5}},
        ),
        (["--rate", "none", "--retry", "none"], {"from": "tail", "rate": None, "retry": None}),
        (["--max-in-flight-per-key", "none"], {"from": "tail", "max_in_flight_per_key": None}),
    ],
)
def test_create_sends_what_is_given(here: InProcess, options: list[str], body: dict[str, Any]) -> None:
    here.daemon.on("PUT", f"{WHERE}/mailer", GROUP)
    ended = here("group", "create", "orders", "mailer", *options)
    assert ended == (0, "mailer: floor 41, 1,200 behind\n", "")
    assert here.daemon.asked[0].body == body


@pytest.mark.parametrize("options", [["--from", "tail", "--seq", "1"], ["--filter", 'tag = "x"', "--no-filter"]])
def test_contradictions_are_refused(here: InProcess, options: list[str]) -> None:
    assert here("group", "create", "orders", "mailer", *options).code == 2
    assert not here.daemon.asked


def test_rm_tells_of_a_group_that_is_not_there(here: InProcess) -> None:
    gone = {"topic": "orders", "group": "mailer"}
    here.daemon.on("DELETE", f"{WHERE}/mailer", gone | {"deleted": True})
    assert here("group", "rm", "orders", "mailer", "--yes") == (0, "mailer: deleted\n", "")
    here.daemon.on("DELETE", f"{WHERE}/nope", gone | {"group": "nope", "deleted": False})
    ended = here("group", "rm", "orders", "nope", "--yes")
    assert ended.code == 3
    assert "no group 'nope'" in ended.err


def test_the_calls_of_queues_take_a_group(here: InProcess) -> None:
    here.daemon.on("POST", f"{WHERE}/mailer/claim", {"topic": "orders", "claimed": [], "count": 0, "ready": 0})
    left = {"skipped": [], "ready": 1, "in_flight": 0, "topic": "orders"}
    here.daemon.on("POST", f"{WHERE}/mailer/ack", left | {"acked": 1})
    here.daemon.on("POST", f"{WHERE}/mailer/nack", left | {"nacked": 1})
    here.daemon.on("POST", f"{WHERE}/mailer/extend", left | {"extended": 0, "deadlines": {}})
    assert here("queue", "claim", "orders", "--group", "mailer").code == 0
    assert here("queue", "ack", "orders", "1", "--group", "mailer").out == "1 acked, 1 ready, 0 in flight\n"
    assert here("queue", "nack", "orders", "1", "--group", "mailer").code == 0
    assert here("queue", "extend", "orders", "1", "--lease", "1m", "--group", "mailer").code == 0
