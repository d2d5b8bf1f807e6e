"""Section 12: who may do what, by key, scope and prefix; and that what is refused has not happened."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tests.conformance.client import Client, Daemon, RawConnection, body_of, error_of, fresh_name, running, until
from tests.conformance.keys import (
    BOSS,
    COMBINATIONS,
    LETTERS,
    Callers,
    bearer,
    callers_of,
    forbidden,
    names_of,
    nothing_changes,
    pages,
    unauthorized,
)
from tests.conformance.sse import Http2, Session, connect, stream, stream_path
from tests.conformance.test_websocket import shake_hands
from tests.conformance.test_work_streams import Work
from tests.conformance.websocket import WebSocket

ODD = "k+y/e=%&#?@!~*'();[]{}|^`<>$-._"
"""A key of characters that mean something in a query."""

ENTRIES = [
    BOSS,
    *(f"s-{letters}:{'+'.join(letters)}" for letters in COMBINATIONS),
    "mine::mine-",
    "mine-r:r:mine-",
    "mine-w:w:mine-",
    "lister:r:l.a-|l.c-|l.c-x|l.b",
    "one:rw+d+a:l.a-1",
    "nowhere:rw:no-such-",
    f"{ODD}:r",
    # Every way to write an entry.
    "open-scopes:",
    "open-both::",
    "prefix-only::team-",
    "long:read+write",
    "mixed:r+delete",
    "pair:rw",
    "pair-and-more:rw+admin",
    "colons:r:team:a|team-c:d:",
    "UPPER:r",
]


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """A client that may do everything."""
    with running(tmp_path_factory.mktemp("daemon"), api_keys=",".join(ENTRIES)) as client:
        client.headers.update(bearer(BOSS))
        yield client


@pytest.fixture(scope="module")
def callers(client: Client) -> Iterator[Callers]:
    with callers_of(client) as callers:
        yield callers


def socket_of(client: Client, key: str) -> WebSocket:
    return WebSocket(client, headers=bearer(key).items())


# Who it is


def test_who_does_not_say_who_it_is_is_401(client: Client, callers: Callers, topic: str) -> None:
    with nothing_changes(client):
        for key in (None, "nobody", "bos", "bosss", "BOSS", f"{BOSS}:rw", "upper", "mine::mine-"):
            unauthorized(callers[key].get("/v0/topics"))
            unauthorized(callers[key].put(f"/v0/topics/{topic}", json={}))
            unauthorized(callers[key].put(f"/v0/topics/{topic}", json={"no": "such field"}))
            unauthorized(callers[key].put("/v0/topics/-bad", json={}))


@pytest.mark.parametrize(
    "value",
    ["", BOSS, "Bearer", f"Basic {BOSS}", f"Bearer{BOSS}", f"Bearer {BOSS} x", f"Bearer {BOSS},{BOSS}",
     f'Bearer "{BOSS}"', f"Token {BOSS}", f"{BOSS} Bearer", "Bearer b\xf6ss", "Bearer " + "x" * 100_000],
    ids=lambda value: repr(value[:30]),
)  # fmt: skip
def test_a_header_that_holds_no_key_is_401(callers: Callers, value: str) -> None:
    unauthorized(callers[None].get("/v0/topics", headers={b"authorization": value.encode("latin-1")}))


@pytest.mark.parametrize("value", [f"Bearer {BOSS}", f"bearer {BOSS}", f"BEARER {BOSS}"])
def test_the_scheme_is_written_in_any_case(callers: Callers, value: str) -> None:
    body_of(callers[None].get("/v0/topics", headers={"authorization": value}))


def test_keys_are_of_requests_and_not_of_connections(client: Client, topic: str) -> None:
    client.put_topic(topic)
    path = f"/v0/topics/{topic}"
    for http2 in (False, True):
        with Client(client.daemon, http2=http2) as either:
            for _ in range(3):
                body_of(either.get(path, headers=bearer("s-r")))
                unauthorized(either.get(path))
                forbidden(either.get(path, headers=bearer("s-w")), "read")
                unauthorized(either.get(path, headers=bearer("nobody")))


def test_who_is_refused_need_not_send_its_body(client: Client, topic: str) -> None:
    for headers, status in [({}, 401), (bearer("s-r"), 403), (bearer("mine"), 403)]:
        with RawConnection(client) as connection:
            length = str(10 << 20)
            path = f"/v0/topics/{topic}"
            connection.send_head("POST", path, content_type="application/json", content_length=length, **headers)
            connection.receive_error(status)


def test_each_way_to_write_an_entry(client: Client, callers: Callers) -> None:
    for name in ("team:a1", "team-c:d:e", "team-x", "other", "ateam-x"):
        client.append(name, 1)
    abilities: dict[str, tuple[str, set[str]]] = {
        "open-scopes": ("rwda", {"team:a1", "team-c:d:e", "team-x", "other", "ateam-x"}),
        "open-both": ("rwda", {"team:a1", "team-c:d:e", "team-x", "other", "ateam-x"}),
        "prefix-only": ("rwda", {"team-c:d:e", "team-x"}),
        "long": ("rw", {"team:a1", "team-c:d:e", "team-x", "other", "ateam-x"}),
        "mixed": ("rd", {"team:a1", "team-c:d:e", "team-x", "other", "ateam-x"}),
        "pair": ("rw", {"team:a1", "team-c:d:e", "team-x", "other", "ateam-x"}),
        "pair-and-more": ("rwa", {"team:a1", "team-c:d:e", "team-x", "other", "ateam-x"}),
        "colons": ("r", {"team:a1", "team-c:d:e"}),
        "UPPER": ("r", {"team:a1", "team-c:d:e", "team-x", "other", "ateam-x"}),
    }
    for key, (letters, names) in abilities.items():
        for name in ("team:a1", "team-c:d:e", "team-x", "other", "ateam-x"):
            path = f"/v0/topics/{name}"
            answers = {
                "r": callers[key].get(path),
                "w": callers[key].post(path, json={"records": [{"data": 1}]}),
                "d": callers[key].post(f"{path}/delete", json={"before_seq": 1}),
                "a": callers[key].put(path, json={}),
            }
            for letter, answer in answers.items():
                if letter in letters and name in names:
                    body_of(answer)
                else:
                    forbidden(answer, *([LETTERS[letter]] if letter not in letters else [name]))


# No scope implies another


@dataclass(frozen=True)
class Ask:
    """A call on what a test has prepared: `{t}` a log, `{q}` a queue, `{r}` a router, `{n}` nothing yet."""

    needs: str
    method: str
    path: str
    body: Any = None
    is_stream: bool = False

    def __str__(self) -> str:
        return f"{self.method} {self.path} {'' if self.body is None else json.dumps(self.body)}"

    def fill(self, names: dict[str, str]) -> tuple[str, Any]:
        """The path and the body with the names put in."""
        path, body = self.path, json.dumps(self.body)
        for letter, name in names.items():
            path, body = path.replace(f"{{{letter}}}", name), body.replace(f"{{{letter}}}", name)
        return path, json.loads(body)


RECORDS: dict[str, Any] = {"records": [{"data": 1}]}
ASKS = [
    Ask("r", "GET", "/v0/topics"),
    Ask("r", "GET", "/v0/topics?touch=true"),
    Ask("r", "GET", "/v0/topics/{t}"),
    Ask("r", "GET", "/v0/topics/{t}/diff"),
    Ask("r", "POST", "/v0/topics/{t}/diff", {}),
    Ask("r", "POST", "/v0/topics/{q}/diff", {}),
    Ask("r", "GET", "/v0/topics/{t}/stream", is_stream=True),
    Ask("r", "POST", "/v0/watch", {"topics": {"{t}": {}}}),
    Ask("r", "POST", "/v0/watch?lenient=1", {"topics": {"{t}": {}, "{n}": {}}}),
    Ask("r", "GET", "/v0/routers"),
    Ask("r", "GET", "/v0/routers/{r}"),
    Ask("r", "GET", "/v0/metrics"),
    Ask("w", "POST", "/v0/topics/{t}", RECORDS),
    Ask("w", "POST", "/v0/topics/{n}", RECORDS),
    Ask("w", "POST", "/v0/topics/{n}", RECORDS | {"create": True}),
    Ask("wa", "POST", "/v0/topics/{n}", RECORDS | {"config": {"cap_records": 5}}),
    Ask("wa", "POST", "/v0/topics/{n}", RECORDS | {"create": True, "config": {}}),
    Ask("wa", "POST", "/v0/topics/{t}", RECORDS | {"config": {"cap_records": 5}}),
    Ask("w", "POST", "/v0/topics/{q}/ack", {"node": "w", "seqs": [1]}),
    Ask("w", "POST", "/v0/topics/{q}/nack", {"node": "w", "seqs": [1]}),
    Ask("w", "POST", "/v0/topics/{q}/extend", {"node": "w", "seqs": [1], "lease_ms": 90_000}),
    Ask("rw", "POST", "/v0/topics/{q}/claim", {"node": "w"}),
    Ask("rw", "GET", "/v0/topics/{q}/work?node=w", is_stream=True),
    Ask("d", "DELETE", "/v0/topics/{t}"),
    Ask("d", "DELETE", "/v0/topics/{n}"),
    Ask("d", "DELETE", "/v0/routers/{r}"),
    Ask("d", "POST", "/v0/topics/{t}/delete", {"before_seq": 3}),
    Ask("a", "PUT", "/v0/topics/{t}", {"cap_records": 1}),
    Ask("a", "PUT", "/v0/topics/{n}", {}),
    Ask("a", "PUT", "/v0/routers/{r}", {"preserve_tag": False}),
    Ask("a", "PUT", "/v0/routers/{n}", {"source": "{n}", "dest": "{n}-copy"}),
    Ask("a", "POST", "/v0/admin/checkpoint"),
]


def prepared(client: Client) -> dict[str, str]:
    """A log of three records, a router from it, a queue of which one job is held, and a name of nothing."""
    names = {letter: fresh_name(f"scope-{letter}") for letter in "tqrn"}
    client.append(names["t"], 1, 2, 3)
    copy = f"{names['t']}-copy"
    body_of(client.put(f"/v0/routers/{names['r']}", json={"source": names["t"], "dest": copy}), 201)
    client.put_topic(names["q"], type="queue")
    client.append(names["q"], 1, 2)
    body_of(client.post(f"/v0/topics/{names['q']}/claim", json={"node": "w", "lease_ms": 3_600_000}))
    return names


@pytest.mark.parametrize("ask", ASKS, ids=str)
def test_a_call_needs_its_scopes_each_of_them_and_no_other(client: Client, callers: Callers, ask: Ask) -> None:
    names = prepared(client)
    path, body = ask.fill(names)

    def attempt(letters: str) -> Any:
        if ask.is_stream:
            return connect(client, path, headers=bearer(f"s-{letters}"))
        return callers[f"s-{letters}"].request(ask.method, path, json=body)

    with nothing_changes(client, names["t"], names["q"]):
        for letter in ask.needs:
            without = "".join(other for other in LETTERS if other != letter)
            answer = attempt(without)
            if ask.is_stream:
                with answer as events:
                    assert LETTERS[letter] in json.dumps(events.refused(403, "forbidden")["detail"])
            else:
                forbidden(answer, LETTERS[letter])
    answer = attempt("".join(letter for letter in LETTERS if letter in ask.needs))
    if ask.is_stream:
        with Work(answer.transport) if "/work" in path else answer as events:
            assert events.opened().next().event in ("record", "job")
    else:
        assert answer.status_code in (200, 201), answer.text


COMMANDS: list[tuple[str, str, dict[str, Any]]] = [
    ("r", "subscribe", {"topic": "{t}"}),
    ("r", "subscribe", {"topics": {"{t}": {}}}),
    ("w", "publish", {"topic": "{t}", **RECORDS}),
    ("w", "publish", {"topic": "{n}", **RECORDS, "create": True}),
    ("wa", "publish", {"topic": "{n}", **RECORDS, "config": {"cap_records": 5}}),
    ("wa", "publish", {"topic": "{t}", **RECORDS, "config": {}}),
    ("", "ping", {}),
]


@pytest.mark.parametrize(("needs", "op", "fields"), COMMANDS)
def test_a_command_needs_its_scopes_each_of_them_and_no_other(
    client: Client, needs: str, op: str, fields: dict[str, Any]
) -> None:
    names = prepared(client)
    _, fields = Ask(needs, op, "", fields).fill(names)
    for letter in needs:
        with nothing_changes(client, names["t"]), socket_of(client, f"s-{''.join(LETTERS).replace(letter, '')}") as ws:
            error = ws.refused("forbidden", op, **fields)
            assert LETTERS[letter] in json.dumps(error["detail"])
            ws.works()
            ws.quiet(0.05)
    for letters in [needs, "rwda"] if needs else [*LETTERS, "rwda"]:
        with socket_of(client, f"s-{''.join(letter for letter in LETTERS if letter in letters)}") as ws:
            assert ws.ask(op, **fields)["op"] in ("subscribed", "ack", "pong")


CONFIGS = [
    b'"config":{"cap_records":5}',
    b'"config":{}',
    b'"config":null',
    b'"\\u0063onfig":{"cap_records":5}',
    b'"config":null,"config":{"cap_records":5}',
    b'"config":{"cap_records":5},"config":null',
    b'"config":{"cap_records":5},"\\u0063onfig":null',
    b'"Config":{"cap_records":5}',
    b'"x":{"config":{"cap_records":5}}',
]


@pytest.mark.parametrize("member", CONFIGS, ids=lambda member: member.decode())
def test_who_may_only_write_creates_with_the_defaults_however_it_is_written(
    client: Client, callers: Callers, member: bytes
) -> None:
    topic = fresh_name()
    default = client.put_topic(fresh_name())["config"]
    body = b'{"records":[{"data":1}],' + member + b"}"
    answer = callers["s-w"].post(f"/v0/topics/{topic}", content=body, headers={"content-type": "application/json"})
    if answer.status_code == 201:
        assert client.state(topic)["config"] == default
    else:
        assert answer.status_code in (400, 403), answer.text
        error_of(client.get(f"/v0/topics/{topic}"), 404, "topic_not_found")
    published = fresh_name()
    with socket_of(client, "s-w") as ws:
        ws.send_text(f'{{"op":"publish","request_id":1,"topic":"{published}",{body[1:].decode()}')
        if ws.answer(1)["op"] == "ack":
            assert client.state(published)["config"] == default
        else:
            error_of(client.get(f"/v0/topics/{published}"), 404, "topic_not_found")


# Prefixes and names in paths


def test_a_prefix_binds_the_names_in_paths(client: Client, callers: Callers) -> None:
    client.append("theirs", 1)
    client.append("mine-a", 1)
    client.append("mine", 1)
    with nothing_changes(client, "theirs", "mine"):
        for name in ("theirs", "mine", "Mine-a", "xmine-a", "MINE-A", "no-such"):
            path = f"/v0/topics/{name}"
            for method, target, body in [
                ("GET", path, None), ("PUT", path, {}), ("POST", path, RECORDS), ("DELETE", path, None),
                ("GET", f"{path}/diff", None), ("POST", f"{path}/diff", {}), ("GET", f"{path}/stream", None),
                ("POST", f"{path}/delete", {"before_seq": 9}), ("POST", f"{path}/claim", {"node": "n"}),
                ("POST", f"{path}/ack", {"node": "n", "seqs": [1]}), ("GET", f"{path}/work?node=n", None),
                ("POST", f"{path}/nack", {"node": "n", "seqs": [1]}),
                ("POST", f"{path}/extend", {"node": "n", "seqs": [1], "lease_ms": 1000}),
            ]:  # fmt: skip
                forbidden(callers["mine"].request(method, target, json=body), name)
    body_of(callers["mine"].get("/v0/topics/mine-a"))
    error_of(callers["mine"].get("/v0/topics/mine-b"), 404, "topic_not_found")
    with stream(client, "mine-a", how={"headers": bearer("mine-r")}) as events:
        assert events.next().seqs == [1]


@pytest.mark.parametrize(
    "target",
    ["/v0/topics/%74heirs", "/v0/topics/%74%68eirs", "/v0/%74opics/theirs", "http://x/v0/topics/theirs",
     "/v0/topics/theirs?topic=mine-a", "/v0/topics/theirs#mine-a"],
)  # fmt: skip
def test_a_name_is_the_same_however_its_path_is_written(client: Client, target: str) -> None:
    client.put_topic("theirs")
    with RawConnection(client) as connection:
        connection.send_head("GET", target, **bearer("mine"))
        status, _, _ = connection.receive()
        assert status in (400, 403, 404)
    with RawConnection(client) as connection:
        connection.send_head("GET", "/v0/topics/%6Dine%2Da", **bearer("mine"))
        assert connection.receive()[0] in (200, 404)


# Prefixes and names in bodies


def test_a_watch_names_only_what_is_its_own(client: Client, callers: Callers) -> None:
    client.append("mine-w", 1)
    client.append("theirs", 1)
    before = client.get("/v0/metrics", headers={"accept": "application/json"}).json()["topics_watch_sessions"]
    for names in (["theirs"], ["mine-w", "theirs"], ["mine-w", "no-such"], ["mine-none", "theirs"]):
        for query in ({}, {"lenient": "true"}):
            answer = callers["mine"].post("/v0/watch", params=query, json={"topics": {name: {} for name in names}})
            forbidden(answer, names[-1])
    after = client.get("/v0/metrics", headers={"accept": "application/json"}).json()["topics_watch_sessions"]
    assert after == before
    session = Session(callers["mine"], "mine-w", "mine-none", lenient="true")
    assert set(session.answer["topics"]) == {"mine-w"}
    with session.open(headers=bearer("mine")) as events:
        assert events.next().topic == "mine-w"


@pytest.mark.parametrize(
    "member",
    ['"dead_letter":"theirs"', '"dead_letter":"mine","dead_letter":"theirs"', '"dead_lette\\u0072":"theirs"',
     '"dead_letter":"\\u0074heirs"', '"dead_letter":"no-such"', '"dead_letter":"mine"', '"completed":"theirs"',
     '"dead_letter":"mine-dead","completed":"no-such"'],
)  # fmt: skip
def test_a_config_names_only_what_is_its_own(client: Client, callers: Callers, member: str) -> None:
    held, new = fresh_name("mine-q"), fresh_name("mine-q")
    client.put_topic(held, type="queue", max_deliveries=1, dead_letter="mine-dead")
    headers = {"content-type": "application/json"}
    config = f'{{"type":"queue",{member}}}'
    append = f'{{"records":[{{"data":1}}],"config":{config}}}'
    with nothing_changes(client, held):
        for name in (held, new):
            forbidden(callers["mine"].put(f"/v0/topics/{name}", content=config, headers=headers))
            forbidden(callers["mine"].post(f"/v0/topics/{name}", content=append, headers=headers))
            with socket_of(client, "mine") as ws:
                ws.send_text(f'{{"op":"publish","topic":"{name}","request_id":1,{append[1:]}')
                assert ws.answer(1)["code"] == "forbidden"


def test_a_dead_letter_of_its_own_or_none_is_allowed(client: Client, callers: Callers) -> None:
    topic = fresh_name("mine-q")
    callers["mine"].put_topic(topic, type="queue", max_deliveries=1, dead_letter="mine-dead")
    callers["mine"].put_topic(topic, dead_letter=None)
    client.put_topic(topic, dead_letter="theirs")
    # What it does not name stays, whoever has named it.
    assert callers["mine"].put_topic(topic, max_deliveries=2)["config"]["dead_letter"] == "theirs"


def test_a_bad_name_is_400_wherever_it_is_and_whatever_the_key(client: Client, callers: Callers) -> None:
    topic = fresh_name("mine-b")
    config = {"dead_letter": "-bad"}
    for key in (BOSS, "mine"):
        for method, path, body in [
            ("PUT", f"/v0/topics/{topic}", config), ("POST", f"/v0/topics/{topic}", RECORDS | {"config": config}),
            ("POST", "/v0/watch", {"topics": {"-bad": {}}}), ("GET", "/v0/topics/-bad", None),
            ("PUT", f"/v0/routers/{topic}", {"source": "-bad", "dest": "mine-y"}),
            ("PUT", f"/v0/routers/{topic}", {"source": "mine-x", "dest": "-bad"}),
            ("PUT", "/v0/routers/-bad", {"source": "mine-x", "dest": "mine-y"}),
        ]:  # fmt: skip
            error_of(callers[key].request(method, path, json=body), 400, "invalid_request")
        with socket_of(client, key) as ws:
            ws.refused("invalid_request", "subscribe", topic="-bad")
            ws.refused("invalid_request", "subscribe", topics={"-bad": {}})
            ws.refused("invalid_request", "publish", topic="-bad", **RECORDS)


@pytest.fixture(scope="module")
def routers(client: Client) -> dict[str, str]:
    """By whether name, source and dest are within the prefix `mine-`."""
    made = {}
    for number, inside in enumerate(["nsd", "ns", "nd", "sd", "n", "s", "d", ""]):
        name, source, dest = (
            f"{'mine-' if letter in inside else 'their-'}{kind}{number}"
            for letter, kind in zip("nsd", ("router", "source", "dest"), strict=True)
        )
        body_of(client.put(f"/v0/routers/{name}", json={"source": source, "dest": dest}), 201)
        made[inside] = name
    return made


@pytest.mark.parametrize("inside", ["ns", "nd", "sd", "n", "s", "d", ""])
def test_a_router_is_of_a_key_by_its_name_source_and_dest(
    client: Client, callers: Callers, routers: dict[str, str], inside: str
) -> None:
    path = f"/v0/routers/{routers[inside]}"
    state = body_of(client.get(path))
    with nothing_changes(client):
        for answer in (callers["mine"].get(path), callers["mine"].delete(path), callers["mine"].put(path, json={})):
            forbidden(answer)
            for name in (state["source"], state["dest"]):
                assert name not in answer.text, "only names of the request are told"
        # What the body leaves out is that of the router.
        for body in (
            {}, {"preserve_tag": False}, {"source": state["source"]}, {"dest": state["dest"]},
            {"source": "mine-x", "dest": "mine-y"}, {"source": "mine-x"}, {"dest": "mine-y"},
        ):  # fmt: skip
            forbidden(callers["mine"].put(path, json=body))


def test_a_router_all_of_whose_names_are_its_own_is_its_own(callers: Callers, routers: dict[str, str]) -> None:
    path = f"/v0/routers/{routers['nsd']}"
    body_of(callers["mine"].get(path))
    assert body_of(callers["mine"].put(path, json={"preserve_tag": False}))["preserve_tag"] is False
    error_of(callers["mine"].put(path, json={"source": "mine-other"}), 409, "topic_exists_incompatible")
    error_of(callers["mine"].get("/v0/routers/mine-none"), 404, "router_not_found")
    assert body_of(callers["mine"].delete("/v0/routers/mine-none"))["deleted"] is False
    for method in ("GET", "DELETE", "PUT"):
        forbidden(callers["mine"].request(method, "/v0/routers/their-none"), "their-none")


@pytest.mark.parametrize(
    "body",
    ['{"source":"theirs-1","dest":"mine-y"}', '{"source":"mine-x","dest":"theirs-1"}',
     '{"source":"theirs-1","dest":"theirs-2"}', '{"source":"mine-x","dest":"mine-y","dest":"theirs-1"}',
     '{"source":"theirs-1"}', '{"dest":"theirs-1"}', '{"source":"mine-x","dest":"theirs-1","create_dest":false}',
     '{"source":"\\u0074heirs-1","dest":"mine-y"}'],
)  # fmt: skip
def test_a_new_router_names_only_what_is_its_own(client: Client, callers: Callers, body: str) -> None:
    headers = {"content-type": "application/json"}
    with nothing_changes(client):
        forbidden(callers["mine"].put("/v0/routers/mine-new", content=body, headers=headers), "theirs-")
        good = '{"source":"mine-x","dest":"mine-y"}'
        forbidden(callers["mine"].put("/v0/routers/their-new", content=good, headers=headers), "their-new")


def test_a_cycle_through_what_is_not_its_own_is_not_told(client: Client, callers: Callers) -> None:
    a, b, c = fresh_name("mine-c"), fresh_name("secret-c"), fresh_name("mine-c")
    body_of(client.put(f"/v0/routers/{fresh_name('their-r')}", json={"source": a, "dest": b}), 201)
    body_of(client.put(f"/v0/routers/{fresh_name('their-r')}", json={"source": b, "dest": c}), 201)
    answer = callers["mine"].put(f"/v0/routers/{fresh_name('mine-r')}", json={"source": c, "dest": a})
    error_of(answer, 409, "router_cycle")
    assert b not in answer.text
    router = fresh_name("their-r")
    body_of(client.put(f"/v0/routers/{router}", json={"source": b, "dest": f"{a}-in"}), 201)
    answer = callers["mine"].put(f"/v0/routers/{fresh_name('mine-r')}", json={"source": a, "dest": f"{a}-in"})
    assert error_of(answer, 409, "topic_exists_incompatible")["detail"]["reason"] == "router_dest_fan_in"
    assert router not in answer.text
    assert b not in answer.text


def test_a_socket_names_only_what_is_its_own(client: Client, callers: Callers) -> None:
    client.append("mine-s", 1)
    client.append("theirs", 1)
    with nothing_changes(client, "theirs"), socket_of(client, "mine") as ws:
        ws.refused("forbidden", "subscribe", topic="theirs")
        ws.refused("forbidden", "subscribe", topic="no-such")
        ws.refused("forbidden", "subscribe", topics={"mine-s": {}, "theirs": {}})
        ws.refused("forbidden", "publish", topic="theirs", **RECORDS)
        ws.refused("forbidden", "publish", topic="no-such", **RECORDS)
        # None of it has been subscribed to.
        ws.quiet(0.1)
        ws.works()
    with socket_of(client, "mine") as ws:
        assert set(ws.subscribe("mine-s")) == {"mine-s"}
        assert ws.push().seqs == [1]
        assert ws.publish("mine-s", 2)["first_seq"] == 2


def test_deleting_a_topic_takes_all_routers_and_tells_of_its_own(client: Client, callers: Callers) -> None:
    topic = fresh_name("mine-del")
    own, other, partly = fresh_name("mine-del-r"), fresh_name("their-del-r"), fresh_name("mine-del-r")
    body_of(client.put(f"/v0/routers/{own}", json={"source": topic, "dest": f"{topic}-d"}), 201)
    body_of(client.put(f"/v0/routers/{other}", json={"source": topic, "dest": f"their-{topic}"}), 201)
    body_of(client.put(f"/v0/routers/{partly}", json={"source": topic, "dest": f"their-{topic}-2"}), 201)
    answer = body_of(callers["mine"].delete(f"/v0/topics/{topic}"))
    assert (answer["deleted"], answer["routers_removed"]) == (True, [own])
    for name in (own, other, partly):
        error_of(client.get(f"/v0/routers/{name}"), 404, "router_not_found")


# Lists


LISTED = [
    "l.A-1", "l.a", "l.a-1", "l.a-10", "l.a-2", "l.a-3", "l.ab", "l.b", "l.b-1", "l.bb", "l.c", "l.c-", "l.c-1",
    "l.c-x", "l.c-x1", "l.c-xx", "l.c-y", "l.c.", "l.d-1", "l.d-2", "l_a-1", "z.a-1",
]  # fmt: skip
LISTER = ("l.a-", "l.c-", "l.c-x", "l.b")


@pytest.fixture(scope="module")
def listed(client: Client) -> list[str]:
    """The topics of which a part is listed, and routers between some of them."""
    for name in LISTED:
        client.put_topic(name)
    numbers = iter(range(100))
    for name in ("l.a-", "l.b", "l.d-", "z"):
        for source in ("l.a-1", "l.d-1"):
            for dest in ("l.c-", "l.d-"):
                number = next(numbers)
                body = {"source": source, "dest": f"{dest}t{number}"}
                body_of(client.put(f"/v0/routers/{name}r{number}", json=body), 201)
    return names_of(pages(client, "topics"))


@pytest.mark.parametrize("page_size", [1, 2, 3, 4, 7, 1000])
def test_a_list_shows_what_the_prefixes_cover_page_by_page(
    client: Client, callers: Callers, listed: list[str], page_size: int
) -> None:
    for prefix in (
        "",
        "l",
        "l.",
        "l.a",
        "l.a-",
        "l.a-1",
        "l.b",
        "l.bb",
        "l.c-",
        "l.c-x",
        "l.c-x1",
        "l.d",
        "zz",
        "l.c-z",
    ):
        for key, covered in [("lister", LISTER), ("one", ("l.a-1",)), ("nowhere", ("no-such-",)), ("mine", ("mine-",))]:
            found = names_of(pages(callers[key], "topics", page_size, prefix=prefix))
            assert found == [name for name in listed if name.startswith(prefix) and name.startswith(covered)]


def test_a_cursor_means_names_after_this_one_whoever_uses_it(
    client: Client, callers: Callers, listed: list[str]
) -> None:
    for name in ("l.a", "l.ab", "l.bb", "l.c-x1", "l.d-1", "z.a-1"):
        place = listed.index(name)
        first = body_of(client.get("/v0/topics", params={"page_size": place + 1}))
        assert first["topics"][-1]["topic"] == name
        if (cursor := first.get("next_cursor")) is None:
            continue
        answer = body_of(callers["lister"].get("/v0/topics", params={"cursor": cursor}))
        expected = [other for other in listed[place + 1 :] if other.startswith(LISTER)]
        assert names_of(answer["topics"]) == expected
    error_of(callers["lister"].get("/v0/topics", params={"cursor": "!"}), 400, "invalid_request")


@pytest.mark.parametrize("page_size", [1, 2, 1000])
def test_a_list_of_routers_shows_those_all_of_whose_names_are_covered(
    client: Client, callers: Callers, listed: list[str], page_size: int
) -> None:
    everything = pages(client, "routers")

    def is_covered(router: Any) -> bool:
        return all(router[field].startswith(LISTER) for field in ("router", "source", "dest"))

    for query in ({}, {"source": "l.a-1"}, {"source": "l.d-1"}, {"prefix": "l.b"}, {"prefix": "z"}, {"prefix": "l"}):
        found = pages(callers["lister"], "routers", page_size, **query)
        expected = [
            router
            for router in everything
            if is_covered(router)
            and query.get("source") in (None, router["source"])
            and router["router"].startswith(query.get("prefix", ""))
        ]
        assert names_of(found, "router") == names_of(expected, "router"), query
    covered = [router for router in everything if is_covered(router)]
    assert covered
    for router in [covered[0], everything[-1]]:
        found = pages(callers["lister"], "routers", page_size, dest=router["dest"])
        assert names_of(found, "router") == ([router["router"]] if is_covered(router) else [])


def test_a_list_that_touches_touches_what_it_shows(client: Client, callers: Callers, listed: list[str]) -> None:
    def read_at(name: str) -> Any:
        return client.state(name, touch="false")["last_read_ts"]

    assert [read_at(name) for name in ("l.a-1", "l.d-1", "l.ab")] == [None] * 3
    body_of(callers["lister"].get("/v0/topics", params={"touch": "true"}))
    assert read_at("l.a-1") is not None
    assert [read_at(name) for name in ("l.d-1", "l.ab")] == [None] * 2


def test_metrics_name_what_the_prefixes_cover(client: Client, callers: Callers, listed: list[str]) -> None:
    as_json = {"accept": "application/json"}
    values = body_of(callers["lister"].get("/v0/metrics", headers=as_json))
    everything = body_of(client.get("/v0/metrics", headers=as_json))
    shown = pages(callers["lister"], "routers")
    covered = [name for name in listed if name.startswith(LISTER)]
    for name in ("head_seq", "earliest_seq", "records_live", "bytes_live"):
        samples = [sample["labels"]["topic"] for sample in values[f"topics_topic_{name}"]]
        assert sorted(samples) == sorted(covered)
    for name in ("lag", "forwarded_total"):
        samples = [sample["labels"]["router"] for sample in values[f"topics_router_{name}"]]
        assert sorted(samples) == sorted(names_of(shown, "router"))
    # Totals name nobody.
    assert set(values) <= set(everything)
    assert (values["topics_topics"], values["topics_routers"]) == (
        everything["topics_topics"],
        everything["topics_routers"],
    )
    text = callers["lister"].get("/v0/metrics").text
    for name in listed:
        assert (f'topic="{name}"' in text) is (name in covered), name
    for router in pages(client, "routers"):
        assert (f'"{router["router"]}"' in text) is (router in shown or router["router"] in names_of(shown, "router"))


# Sessions


def test_a_session_opens_with_the_key_that_made_it_alone(client: Client, callers: Callers, topic: str) -> None:
    client.append(topic, 1)
    session = Session(callers["s-r"], topic)
    path = f"/v0/watch/{session.wid}"
    for key in (BOSS, "s-rwda", "mine-r", "s-rw", "UPPER"):
        with session.connect(headers=bearer(key)) as events:
            events.refused(401, "unauthorized")
        with connect(client, f"{path}?token={key}") as events:
            events.refused(401, "unauthorized")
    with session.connect() as events:
        events.refused(401, "unauthorized")
    with session.connect(headers=bearer("s-w")) as events:
        assert events.status in (401, 403)
    for how in ({"headers": bearer("s-r")}, {"headers": bearer("s-r"), "http2": True}):
        with session.open(**how) as events:
            assert events.next().seqs == [1]
            # Those who may not have it do not take it over either.
            with session.connect(headers=bearer(BOSS)) as other:
                other.refused(401)
            client.append(topic, 2)
            assert events.until(lambda frame: frame.event == "record")
        client.delete_topic(topic)
        client.append(topic, 1)
        session = Session(callers["s-r"], topic)
    with connect(client, f"/v0/watch/{session.wid}?token=s-r") as events:
        events.opened()
    with connect(client, "/v0/watch/wid_AAAAAAAAAAAAAAAAAAAAAAAA", headers=bearer("s-r")) as events:
        events.refused(404)


# Tokens in the query


def test_a_token_in_the_query_opens_streams_and_sockets(client: Client, callers: Callers, topic: str) -> None:
    client.append(topic, 1)
    client.put_topic(f"{topic}-q", type="queue")
    for http2 in (False, True):
        with connect(client, stream_path(topic, token="s-r"), http2=http2) as events:
            assert events.opened().next().seqs == [1]
        with connect(client, f"/v0/topics/{topic}-q/work?node=n&token=s-rw", http2=http2) as events:
            events.opened()
        with Session(callers["s-r"], topic).connect(http2=http2) as events:
            events.refused(401)
    with WebSocket(client, "/v0/ws?token=s-r") as ws:
        ws.subscribe(topic)
        ws.refused("forbidden", "publish", topic=topic, **RECORDS)
    for token in ("nobody", "", "S-R"):
        with connect(client, stream_path(topic, token=token)) as events:
            events.refused(401, "unauthorized")
        assert shake_hands(client, f"/v0/ws?token={token}")[0] == 401
    assert shake_hands(client)[0] == 401
    with connect(client, stream_path(topic, token="s-w")) as events:
        events.refused(403, "forbidden")


def test_a_token_is_decoded_as_a_query_is(client: Client, topic: str) -> None:
    client.append(topic, 1)
    for token in (quote(ODD, safe=""), "".join(f"%{ord(character):02x}" for character in ODD)):
        for path in (f"{stream_path(topic)}?token={token}", f"{stream_path(topic)}?from_seq=0&token={token}&limit=5"):
            with connect(client, path) as events:
                assert events.opened().next().seqs == [1]
        with WebSocket(client, f"/v0/ws?x=y&token={token}") as ws:
            ws.subscribe(topic)
    with connect(client, stream_path(topic), headers=bearer(ODD)) as events:
        events.opened()


def test_a_token_in_the_query_counts_nowhere_else(client: Client, callers: Callers, topic: str) -> None:
    client.append(topic, 1)
    with nothing_changes(client):
        calls: list[tuple[str, str, Any]] = [
            ("GET", "/v0/topics", None), ("GET", f"/v0/topics/{topic}", None), ("GET", "/v0/routers", None),
            ("GET", f"/v0/topics/{topic}/diff", None), ("POST", f"/v0/topics/{topic}/diff", {}),
            ("POST", f"/v0/topics/{topic}", RECORDS),
            ("PUT", f"/v0/topics/{topic}", {}), ("DELETE", f"/v0/topics/{topic}", None), ("GET", "/v0/metrics", None),
            ("POST", "/v0/watch", {"topics": {topic: {}}}),
            ("POST", "/v0/admin/checkpoint", None),
        ]  # fmt: skip
        for method, path, body in calls:
            unauthorized(callers[None].request(method, path, params={"token": BOSS}, json=body))
    # Where it does not count it does no harm.
    body_of(client.get("/v0/topics", params={"token": "nobody"}))


def test_the_header_goes_before_the_query(client: Client, topic: str) -> None:
    client.append(topic, 1)
    for key, token, status in [
        ("s-r", "nobody", 200),
        ("nobody", "s-r", 401),
        ("s-w", "s-r", 403),
        ("s-r", "s-w", 200),
    ]:
        with connect(client, stream_path(topic, token=token), headers=bearer(key)) as events:
            assert events.status == status, (key, token)
    assert shake_hands(client, "/v0/ws?token=nobody", authorization="Bearer s-r")[0] == 101
    assert shake_hands(client, "/v0/ws?token=s-r", authorization="Bearer nobody")[0] == 401


# Sockets


def test_any_key_opens_a_socket_and_none_does_not(client: Client) -> None:
    for letters in COMBINATIONS:
        with socket_of(client, f"s-{letters}") as ws:
            ws.works()
    for headers in ({}, {"authorization": "Bearer nobody"}, {"authorization": f"Basic {BOSS}"}):
        status, answer_headers, body = shake_hands(client, **headers)
        assert status == 401
        assert json.loads(body)["error"]["code"] == "unauthorized"
        assert answer_headers["www-authenticate"].lower().startswith("bearer")


# Everybody


def test_probes_are_open_and_the_rest_is_not(callers: Callers) -> None:
    for path in ("/v0/health", "/healthz", "/v0/ready", "/readyz"):
        for key in (None, "nobody", BOSS):
            body_of(callers[key].get(path))
    unauthorized(callers[None].get("/v0/metrics"))
    forbidden(callers["s-wda"].get("/v0/metrics"), "read")


def test_what_describes_the_daemon_is_for_any_key(callers: Callers) -> None:
    for path in ("/v0/openapi.json", "/v0/docs"):
        for key in ("s-r", "s-w", "s-d", "s-a", "nowhere", BOSS):
            assert callers[key].get(path).status_code == 200
        unauthorized(callers[None].get(path))
        unauthorized(callers["nobody"].get(path))


def test_probes_may_be_made_to_ask_and_who_has_keys_may_be_reached_from_elsewhere(tmp_path: Path) -> None:
    daemon = Daemon(tmp_path, api_keys="boss,deleter:d:x", probe_auth=1, host="0.0.0.0")
    try:
        daemon.launch()
        with Client(daemon) as client:
            until(lambda: client.get("/v0/ready", headers=bearer("deleter")).status_code == 200)
            for path in ("/v0/health", "/healthz", "/v0/ready", "/readyz"):
                unauthorized(client.get(path))
                unauthorized(client.get(path, headers=bearer("nobody")))
                unauthorized(client.get(path, params={"token": "boss"}))
                body_of(client.get(path, headers=bearer("deleter")))
            unauthorized(client.get("/v0/topics"))
            body_of(client.get("/v0/topics", headers=bearer("boss")))
    finally:
        daemon.kill()


def test_a_hang_up_without_a_file_of_keys_is_survived(client: Client, topic: str) -> None:
    client.append(topic, 1)
    with stream(client, topic, how={"headers": bearer("s-r")}) as events:
        events.until_caught_up()
        for _ in range(3):
            client.daemon.send_signal(signal.SIGHUP)
            client.append(topic, 1)
        events.until_seq(topic, 4)
    body_of(client.get("/v0/topics", headers=bearer("s-r")))


def test_without_keys_the_header_is_ignored(tmp_path: Path) -> None:
    with running(tmp_path, host="0.0.0.0", allow_insecure_no_auth=1, probe_auth=1) as client:
        client.append("a", 1)
        for headers in ({}, bearer("x"), {"authorization": "Basic eDp5"}, {"authorization": ""}):
            body_of(client.get("/v0/topics/a", headers=headers))
            body_of(client.get("/v0/health", headers=headers))
            body_of(client.put("/v0/topics/a", json={}, headers=headers))
            with stream(client, "a", how={"headers": headers}, token="y") as events:
                events.next()
            with WebSocket(client, "/v0/ws?token=z", headers=headers.items()) as ws:
                ws.publish("a", 1)
        session = Session(client, "a")
        with session.open(headers=bearer("another")) as events:
            events.next()


def test_streams_of_several_keys_share_a_connection(client: Client, topic: str) -> None:
    client.append(topic, 1)
    with Http2(client) as connection:
        allowed = connect(client, stream_path(topic), http2=connection, headers=bearer("s-r")).opened()
        connect(client, stream_path(topic), http2=connection, headers=bearer("s-w")).refused(403)
        connect(client, stream_path(topic), http2=connection).refused(401)
        assert allowed.next().seqs == [1]
