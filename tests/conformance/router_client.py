"""Calls on routers."""

from __future__ import annotations

import itertools
from typing import Any
from urllib.parse import quote

import httpx

from tests.conformance.client import JSON_TYPE, Client, body_of, error_of, fresh_name

DEFAULTS: dict[str, Any] = {
    "preserve_node": True,
    "preserve_tag": True,
    "create_dest": True,
    "filter": None,
    "allow_cycle": False,
    "guarantee": "at_least_once",
    "from": "tail",
}
FIELDS = {"source", "dest", *DEFAULTS}
LISTED = {"router", "forwarded_total", "cursor_seq", "lag", *FIELDS}


def router_url(router: str) -> str:
    return "/v0/routers/" + quote(router, safe="")


def send_router(client: Client, router: str, source: str, dest: str, **fields: Any) -> httpx.Response:
    """PUT a router; `begin` is for `from`, which is not a name in Python."""
    if "begin" in fields:
        fields["from"] = fields.pop("begin")
    return client.put(router_url(router), json={"source": source, "dest": dest, **fields})


def put_router(client: Client, router: str, source: str, dest: str, **fields: Any) -> Any:
    return body_of(send_router(client, router, source, dest, **fields), 200, 201)


def connect_topics(client: Client, *topics: str, **fields: Any) -> list[str]:
    """A router from each of the topics to the next one, under a name of its own."""
    pairs = list(itertools.pairwise(topics))
    names = [fresh_name("router") for _ in pairs]
    for name, (source, dest) in zip(names, pairs, strict=True):
        assert put_router(client, name, source, dest, **fields)["created"] is True
    return names


def router_of(client: Client, router: str) -> Any:
    return body_of(client.get(router_url(router)))


def drop_router(client: Client, router: str) -> bool:
    answer = body_of(client.delete(router_url(router)))
    assert set(answer) == {"router", "deleted", "performance"}
    assert answer["router"] == router
    deleted: bool = answer["deleted"]
    return deleted


def listed(client: Client, **query: Any) -> list[Any]:
    """The routers of the only page."""
    body = body_of(client.get("/v0/routers", params={"page_size": 1000, **query}))
    assert set(body) == {"routers", "performance"}
    routers: list[Any] = body["routers"]
    return routers


def no_such_router(client: Client, router: str) -> None:
    error_of(client.get(router_url(router)), 404, "router_not_found")
    assert router not in [entry["router"] for entry in listed(client, prefix=router)]


def no_such_topic(client: Client, *topics: str) -> None:
    for topic in topics:
        error_of(client.get(f"/v0/topics/{topic}"), 404, "topic_not_found")


def metric(client: Client, name: str, **labels: str) -> float | None:
    """The value of a figure, None where there is none with these labels."""
    found = body_of(client.get("/v0/metrics", headers={"accept": JSON_TYPE})).get("topics_" + name, [])
    if not isinstance(found, list):
        return float(found)
    return next((float(entry["value"]) for entry in found if entry["labels"] == labels), None)


OTHERS: list[dict[str, Any]] = [
    {"preserve_node": False},
    {"preserve_tag": False},
    {"create_dest": False},
    {"filter": ["tag", "Eq", "x"]},
    {"filter": ["tag", "Eq", "x*"]},
    {"filter": ["tag", "Glob", "x*"]},
    {"filter": ["tag", "Glob", "*"]},
    {"filter": ["tag", "Glob", "x*y*"]},
    {"allow_cycle": True},
    {"guarantee": "exactly_once"},
    {"from": "earliest"},
]


def assert_names_the_cycle(error: Any, topics: list[str]) -> None:
    """The detail goes along the topics, in their order and once around, from wherever it begins."""
    *cycle, end = error["detail"]["cycle"]
    assert cycle[0] == end
    assert len(cycle) == len(topics)
    start = topics.index(cycle[0])
    assert cycle == topics[start:] + topics[:start]
