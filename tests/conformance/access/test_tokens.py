"""Section 12: a session belongs to a key; tokens in the query open streams and sockets."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from tests.conformance.access.entries import ODD, RECORDS
from tests.conformance.client import Client, body_of
from tests.conformance.keys import BOSS, Callers, bearer, nothing_changes, unauthorized
from tests.conformance.sse import Session, connect, stream_path
from tests.conformance.websocket import WebSocket, shake_hands

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
