"""Section 8: several sockets."""

from __future__ import annotations

import json
import re
import socket
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.conformance.client import CLASSES, Client, envelope, running, until
from tests.conformance.sse import Covered, gauge, stream
from tests.conformance.websocket import (
    Message,
    WebSocket,
    all_open,
    covered,
    covering,
    raw_frame,
    shake_hands,
    subscribed,
)


def test_sockets_of_a_topic_get_the_same(client: Client, topic: str) -> None:
    client.append(topic, *range(300))
    with all_open(subscribed(client, topic) for _ in range(25)) as sockets:
        for number in range(300, 320):
            client.append(topic, number)
        found = [covering(topic).take(ws.until_seq(topic, 320)) for ws in sockets]
    for one in found:
        one.check(320)
        assert one.records == found[0].records
    assert found[0].data == list(range(320))


def test_sockets_have_subscriptions_of_their_own(client: Client, topic: str) -> None:
    client.append(topic, 1, 2, 3)
    with subscribed(client, topic) as first, subscribed(client, topic, from_seq=2) as second, WebSocket(client) as none:
        covered(topic, first.until_caught_up(), head=3)
        covered(topic, second.until_caught_up(), 2, head=3)
        first.unsubscribe(topic=topic)
        none.unsubscribe(topic=topic)
        client.append(topic, 4)
        second.expect("record", from_seq=3, to_seq=4)
        first.quiet(0.1)
        none.quiet(0.05)


def test_300_sockets_at_once(client: Client, topic: str) -> None:
    client.append(topic, 1)
    with all_open(subscribed(client, topic) for _ in range(300)) as sockets:
        for ws in sockets:
            covered(topic, ws.until_caught_up(), head=1)
        client.append(topic, 2)
        for ws in sockets:
            ws.expect("record", from_seq=1, to_seq=2)
        for ws in sockets:
            ws.send("publish", topic=topic, records=[{"data": 1}], request_id="x")
        assert sorted(ws.answer("x")["first_seq"] for ws in sockets) == list(range(3, 303))
        for ws in sockets:
            covered(topic, ws.until_seq(topic, 302), 2, head=302)


def test_sockets_are_counted_and_freed(tmp_path: Path) -> None:
    with running(tmp_path) as client:
        client.append("a", 1)
        assert gauge(client, "topics_ws_connections") == 0
        with all_open(WebSocket(client) for _ in range(3)) as sockets:
            assert gauge(client, "topics_ws_connections") == 3
            sockets[0].subscribe("a")
            sockets[0].until_caught_up()
            sockets[0].send_close()
            sockets[0].rest()
            until(lambda: gauge(client, "topics_ws_connections") == 2)
            # Without a word.
            sockets[1].subscribe("a")
            sockets[1].hang_up()
            until(lambda: gauge(client, "topics_ws_connections") == 1)
            sockets[2].send_bytes(raw_frame(3, b""))
            sockets[2].rest()
            until(lambda: gauge(client, "topics_ws_connections") == 0)
        with subscribed(client, "a") as ws:
            # It has no more to say, and goes without a close.
            ws.socket.shutdown(socket.SHUT_WR)
            until(lambda: gauge(client, "topics_ws_connections") == 0)
        for _ in range(50):
            with subscribed(client, "a") as ws:
                ws.send("publish", topic="a", records=[{"data": 1}])
        until(lambda: gauge(client, "topics_ws_connections") == 0)
        text = client.get("/v0/metrics").text
        assert re.search(r"^topics_ws_connections 0(\.0)?$", text, re.MULTILINE)
        until(lambda: bool(client.state("a")["head_seq"] >= 1))


def test_how_many_streams_there_may_be_is_a_setting(tmp_path: Path) -> None:
    with running(tmp_path, max_sse_connections=2) as client:
        client.append("a", 1)
        with WebSocket(client) as ws, stream(client, "a") as events:
            events.until_caught_up()
            status, headers, body = shake_hands(client)
            assert status == 429, (status, body[:500])
            assert "retry-after" in headers
            detail = envelope(json.loads(body), "throttled")["detail"]
            assert (detail["limit"], detail["max"]) == ("max_sse_connections", 2)
            ws.works()
            ws.send_close()
            ws.rest()
            until(lambda: shake_hands(client)[0] == 101)


class Follower:
    """A socket, and what it may be told according to the answers to its commands."""

    def __init__(self, client: Client) -> None:
        self.ws = WebSocket(client)
        self.found: dict[str, Covered] = {}
        self.tombstones: set[str] = set()

    def take(self, message: Message) -> None:
        if message.op == "subscribed":
            for name, at in message.body["topics"].items():
                self.found[name] = covering(name, at["from_seq"])
        elif message.op == "unsubscribed":
            for name in message.body["topics"]:
                self.found.pop(name, None)
        elif message.op == "error":
            assert message.body["code"] == "topic_not_found", message.body
        elif message.is_push:
            frame = message.frame
            assert frame.topic in self.found, ("nobody asked for it", message.text[:500])
            if frame.event == "topic_deleted":
                del self.found[frame.topic]
                return
            if frame.event == "tombstone":
                self.tombstones.add(frame.topic)
            self.found[frame.topic].take([frame])


@pytest.mark.parametrize("seed", range(4))
def test_whatever_is_asked_for_in_whatever_order_is_told_exactly(client: Client, topic: str, seed: int) -> None:
    random = Random(seed)
    plain, pruned, capped, reborn = names = [f"{topic}-{kind}" for kind in ("plain", "pruned", "capped", "reborn")]
    for name in names:
        client.append(name, *range(30), config={"durability": CLASSES[seed]})
    followers = [Follower(client) for _ in range(6)]
    with all_open(follower.ws for follower in followers):
        for _ in range(500):
            follower, name = random.choice(followers), random.choice(names)
            match random.randrange(12):
                case 0 | 1:
                    start: Any = random.choice([{}, {"tail": True}, {"from_seq": random.randrange(1, 30)}])
                    if name == reborn:
                        # It may have fewer than what it is asked to begin after.
                        start.pop("from_seq", None)
                    limit = random.choice([0, 1, 5, 100])
                    follower.ws.send("subscribe", topics={name: start, plain: {}}, limit=limit)
                case 2:
                    follower.ws.send("unsubscribe", topic=name)
                case 3:
                    follower.ws.send("publish", topic=name, records=[{"data": 1}] * random.randrange(1, 40))
                case 4:
                    client.delete_records(pruned, before_seq=random.randrange(1, 200))
                case 5:
                    client.delete_records(pruned, match=random.choice("abc"))
                case 6:
                    client.put_topic(capped, cap_records=random.choice([0, 1, 10, 100]))
                case 7 if random.random() < 0.3:
                    client.delete_topic(reborn)
                    client.append(reborn, 1, 2)
                case 8:
                    while follower.ws.messages:
                        follower.take(follower.ws.messages.pop(0))
                    follower.ws.wait(0.001)
                case _:
                    client.tagged(name, *random.choices("abc", k=random.randrange(1, 40)))
        for follower in followers:
            follower.ws.send("ping", request_id="last")
            while (message := follower.ws.next()).op != "pong":
                follower.take(message)
        heads = {name: client.state(name)["head_seq"] for name in names}
        for follower in followers:
            while any(found.at != heads[name] for name, found in follower.found.items()):
                follower.take(follower.ws.next())
            for name, found in follower.found.items():
                found.check(heads[name], silent=range(1, heads[name] + 1) if name == pruned else ())
            assert follower.tombstones <= {capped}
