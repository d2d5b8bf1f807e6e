"""Section 12: which key a request has, and what needs none."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from tests.conformance.access.entries import socket_of
from tests.conformance.client import Client, Daemon, RawConnection, body_of, running, until
from tests.conformance.keys import (
    BOSS,
    COMBINATIONS,
    LETTERS,
    Callers,
    bearer,
    forbidden,
    nothing_changes,
    unauthorized,
)
from tests.conformance.sse import Http2, Session, connect, stream, stream_path
from tests.conformance.websocket import WebSocket, shake_hands

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
