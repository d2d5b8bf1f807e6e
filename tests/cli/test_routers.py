"""`topics router ls|show|create|set|rm`."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.cli.canned import InProcess
from tests.cli.command_line import CommandLine
from tests.cli.test_topics import ROUTER
from tests.conformance.client import fresh_name

CHANGED = {name: ROUTER[name] for name in ROUTER if name not in {"forwarded_total", "cursor_seq", "lag"}}


def test_ls_asks_for_what_is_wanted_and_prints_a_table_of_all_pages(here: InProcess) -> None:
    here.daemon.on("GET", "/v0/routers", {"routers": [ROUTER], "next_cursor": "abc"})
    here.daemon.on("GET", "/v0/routers", {"routers": [ROUTER | {"router": "all", "filter": None}]})
    ended = here("router", "ls", "--source", "all", "--dest", "orders", "--prefix", "x")
    assert ended.out.splitlines() == [
        "router  source  dest    filter  forwarded  lag",
        "eu      all     orders  eu-*           17    3",
        "all     all     orders  -              17    3",
    ]
    target = here.daemon.asked[0].target
    assert all(part in target for part in ("source=all", "dest=orders", "prefix=x"))


def test_json_is_what_the_daemon_has_answered(here: InProcess) -> None:
    here.daemon.on("GET", "/v0/routers", {"routers": [ROUTER]})
    here.daemon.on("GET", "/v0/routers/eu", ROUTER)
    assert json.loads(here("router", "ls", "--json").out) == {"routers": [ROUTER]}
    assert json.loads(here("router", "show", "eu", "--json").out) == ROUTER


def test_show_tells_everything_about_a_router(here: InProcess) -> None:
    here.daemon.on("GET", "/v0/routers/a%3Eb", ROUTER | {"router": "a>b"})
    lines = here("router", "show", "a>b").out.splitlines()
    for line in (
        "router         a>b",
        "filter         eu-*",
        "create_dest    yes",
        "lag            3",
        "cursor         20",
    ):
        assert line in lines


@pytest.mark.parametrize(
    ("options", "body"),
    [
        ("", {}),
        ("--tag eu", {"filter": ["tag", "Eq", "eu"]}),
        ("--tag *", {"filter": ["tag", "Eq", "*"]}),
        ("--tag-prefix eu-", {"filter": ["tag", "Glob", "eu-*"]}),
        ("--no-filter", {"filter": None}),
        ("--no-preserve-node --no-preserve-tag", {"preserve_node": False, "preserve_tag": False}),
        ("--no-create-dest --allow-cycle", {"create_dest": False, "allow_cycle": True}),
        ("--guarantee exactly_once --from earliest", {"guarantee": "exactly_once", "from": "earliest"}),
    ],
)
def test_create_sends_what_is_given_and_nothing_else(here: InProcess, options: str, body: dict[str, Any]) -> None:
    here.daemon.on("PUT", "/v0/routers/eu", CHANGED | {"created": True})
    ended = here("router", "create", "eu", "all", "orders", *options.split())
    assert ended == (0, "eu: created, all to orders\n", "")
    assert here.daemon.asked[0].body == {"source": "all", "dest": "orders"} | body


def test_set_keeps_source_and_dest_and_does_not_create(here: InProcess) -> None:
    here.daemon.on("PUT", "/v0/routers/eu", CHANGED | {"created": False})
    assert here("router", "set", "eu", "--no-filter") == (0, "eu: configured, all to orders\n", "")
    assert here.daemon.asked[-1][:3] == ("PUT", "/v0/routers/eu?create=false", {"filter": None})
    here.daemon.refuse("PUT", "/v0/routers/no", 404, "router_not_found", "there is no router 'no'")
    assert here("router", "set", "no", "--tag", "x").code == 3


@pytest.mark.parametrize("options", ["", "--tag a --tag-prefix b", "--tag a --no-filter", "--from tail"])
def test_what_makes_no_sense_is_refused_before_anything_is_asked(here: InProcess, options: str) -> None:
    assert here("router", "set", "eu", *options.split()).code == 2
    assert here.daemon.asked == []


def test_rm_tries_all_and_says_which_were_not_there(here: InProcess) -> None:
    here.daemon.on("DELETE", "/v0/routers/a", {"router": "a", "deleted": False})
    here.daemon.on("DELETE", "/v0/routers/b", {"router": "b", "deleted": True})
    assert here("router", "rm", "a", "b") == (3, "b: deleted\n", "topics: there is no router 'a'\n")
    assert json.loads(here("router", "rm", "b", "--json").out) == {"router": "b", "deleted": True}


@pytest.mark.slow
def test_the_life_of_a_router(topics: CommandLine) -> None:
    name, source, dest = fresh_name("r"), fresh_name(), fresh_name()
    assert topics("router", "create", name, source, dest, "--tag", "eu").returncode == 0
    assert topics.json("router", "show", name)["filter"] == ["tag", "Eq", "eu"]
    assert topics.json("router", "set", name, "--no-filter")["filter"] is None
    assert topics("router", "create", "back", dest, source).returncode == 5
    assert [found["router"] for found in topics.json("router", "ls", "--source", source)["routers"]] == [name]
    assert topics("rm", source).stdout == f"{source}: deleted, with routers {name}\n"
    assert topics("router", "rm", name).returncode == 3
