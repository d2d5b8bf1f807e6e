"""Section 12: a key may be bound to prefixes; what is refused has not happened."""

from __future__ import annotations

import pytest

from tests.conformance.access.entries import RECORDS, socket_of
from tests.conformance.client import Client, RawConnection, body_of, error_of, fresh_name
from tests.conformance.keys import BOSS, Callers, bearer, forbidden, nothing_changes
from tests.conformance.sse import Session, stream

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
    # A setting that the call does not name stays, also if another caller has set it.
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
