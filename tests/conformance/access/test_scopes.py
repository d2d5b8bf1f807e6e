"""Section 12: each call needs its scopes, and no scope implies another."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest

from tests.conformance.access.entries import RECORDS, socket_of
from tests.conformance.client import Client, body_of, error_of, fresh_name
from tests.conformance.keys import LETTERS, Callers, bearer, forbidden, nothing_changes
from tests.conformance.sse import connect
from tests.conformance.work_stream_client import Work


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
