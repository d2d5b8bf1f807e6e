"""Section 11: the figures are those of what was done."""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from tests.conformance.client import JSON_TYPE, Client, RawConnection, body_of, error_of, fresh_name, running, until
from tests.conformance.metrics import CONTRACT, Scrape, as_json, samples_of_json, scrape
from tests.conformance.queue_client import new_queue
from tests.conformance.sse import Session, stream
from tests.conformance.websocket import subscribed

SETTINGS = {"wal_file_bytes": "64KiB", "wal_shards": 1, "reclaim_ms": 600_000, "checkpoint_ms": 600_000}


def grown(before: Scrape, after: Scrape, name: str, **labels: str) -> float:
    return after.value(name, **labels) - before.value(name, **labels)


def answered(before: Scrape, after: Scrape) -> dict[tuple[str, str], float]:
    """How many requests were answered in between by route and status, scrapes aside."""
    found = {}
    for (name, labels), value in after.samples.items():
        if name == "requests_total" and "metrics" not in dict(labels)["route"]:
            more = value - before.samples.get((name, labels), 0)
            if more:
                found[dict(labels)["route"], dict(labels)["status"]] = more
    return found


def only(counts: dict[tuple[str, str], float]) -> tuple[str, str, float]:
    """The one route and status that there were answers of, and how many."""
    [((route, status), count)] = counts.items()
    return route, status, count


# --- which there are -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    with running(tmp_path_factory.mktemp("fresh")) as client:
        yield client


def test_a_fresh_daemon_has_every_family(fresh: Client) -> None:
    found = scrape(fresh)
    for name, (kind, labels) in CONTRACT.items():
        assert found.kinds.get(name) == kind, name
        assert found.labels[name] in (set(), labels), name
        if not labels and kind != "histogram":
            total = "_total" if kind == "counter" else ""
            assert (name + total, ()) in found.samples, name
    found.check_histograms()
    assert [found.value(name) for name in ("topics", "records_live", "bytes_live", "routers", "segments")] == [0] * 5
    assert (found.value("ready"), found.value("recovery_progress"), found.value("wal_read_only")) == (1, 1, 0)
    assert not found.by("throttled_total", "reason")
    assert all(math.isfinite(value) for value in found.samples.values())


def test_the_json_form_has_the_same_names(fresh: Client) -> None:
    found = scrape(fresh)
    body = as_json(fresh)
    by_text = {name.removesuffix("_bucket") for name, _ in found.samples}
    assert {name for name, _ in samples_of_json(body)} == by_text
    for name, (kind, labels) in CONTRACT.items():
        if labels and not found.labels[name]:
            assert body[f"topics_{name}" + ("_total" if kind == "counter" else "")] == [], name
    for name in ("scheduling_wait_ms", "wal_fsync_latency_us", "request_ms"):
        assert isinstance(body[f"topics_{name}_sum"], int | float)
        bounds = {entry["labels"]["le"]: entry["value"] for entry in body[f"topics_{name}"]}
        assert bounds["+Inf"] == body[f"topics_{name}_count"]


def test_every_family_has_its_labels_when_there_is_something_to_tell(client: Client, topic: str) -> None:
    queue = new_queue(client, 1)
    client.put_topic(topic)
    client.append(topic, 1, 2)
    body_of(client.put(f"/v0/routers/{topic}>dest", json={"source": topic, "dest": f"{topic}-dest"}), 201)
    client.post(f"/v0/topics/{topic}", json={"records": []})
    found = scrape(client)
    for name, (_, labels) in CONTRACT.items():
        if name != "throttled":
            assert found.labels[name] == labels, name
    assert found.value("topic_queue_ready", topic=queue.topic) == 1
    assert ("topic_queue_ready", (("topic", topic),)) not in found.samples
    assert set(found.by("topics_by_class", "class")) == {"ephemeral", "memory", "disk", "fsync", "remote"}
    assert sum(found.by("topics_by_class", "class").values()) == found.value("topics")


# --- numbers ---------------------------------------------------------------------------------------------------------


def test_appends_and_reads_are_counted(client: Client, topic: str) -> None:
    client.put_topic(topic, durability="disk")
    before = scrape(client)
    for _ in range(7):
        client.append(topic, "abc", 12, None)
    after = scrape(client)
    _, status, count = only(answered(before, after))
    assert (status, count) == ("200", 7)
    assert grown(before, after, "records_live") == 21
    assert grown(before, after, "bytes_live") == 7 * (5 + 2 + 4)
    assert after.value("topic_head_seq", topic=topic) == after.value("topic_records_live", topic=topic) == 21
    assert after.value("topic_bytes_live", topic=topic) == 7 * 11
    assert after.value("topic_earliest_seq", topic=topic) == 1
    # A batch that is synced in the same turn is counted behind its sync, and may be answered before.
    until(lambda: grown(before, scrape(client), "wal_frames_total") >= 21)
    after = scrape(client)
    assert 1 <= grown(before, after, "wal_batches_total") <= grown(before, after, "wal_frames_total")
    assert grown(before, after, "wal_bytes_written_total") >= 7 * 11
    assert grown(before, after, "request_ms_count") >= 7

    before = after
    for _ in range(5):
        client.read(topic)
    after = scrape(client)
    _, status, count = only(answered(before, after))
    assert (status, count) == ("200", 5)
    assert grown(before, after, "records_live") == 0

    client.delete_records(topic, before_seq=20)
    after = scrape(client)
    assert (after.value("topic_records_live", topic=topic), after.value("topic_earliest_seq", topic=topic)) == (2, 20)


def test_what_a_topic_held_goes_with_it(client: Client, topic: str) -> None:
    before = scrape(client)
    client.append(topic, 1, 2, 3)
    client.delete_topic(topic)
    after = scrape(client)
    for name in ("topics", "records_live", "bytes_live"):
        assert grown(before, after, name) == 0, name
    assert topic not in after.by("topic_head_seq", "topic")
    assert topic not in after.text


def test_each_refusal_is_counted_under_its_status(client: Client, topic: str) -> None:
    client.put_topic(topic, cap_records=1, discard="reject")
    client.append(topic, 1)
    refused: dict[int, Callable[[], httpx.Response]] = {
        400: lambda: client.send_append(topic),
        404: lambda: client.get("/v0/topics/missing"),
        409: lambda: client.post(f"/v0/topics/{topic}/claim", json={"node": "n"}),
        415: lambda: client.post(f"/v0/topics/{topic}", content=b"x"),
        422: lambda: client.send_append(topic, 2),
    }
    for status, send in refused.items():
        before = scrape(client)
        for _ in range(3):
            error_of(send(), status)
        route, counted, count = only(answered(before, scrape(client)))
        assert (counted, count) == (str(status), 3)
        assert topic not in route


def test_paths_that_there_are_not_make_no_labels(client: Client) -> None:
    before = scrape(client)
    for _ in range(20):
        name = secrets.token_hex(4)
        assert client.get(f"/{name}").status_code == 404
        assert client.get(f"/v0/topics/a/{name}").status_code == 404
        assert client.delete(f"/v0/{name}/%22%0A").status_code == 404
    route, status, count = only(answered(before, scrape(client)))
    assert (status, count) == ("404", 60)
    assert not set(route) & set('/%"\\')


def test_methods_that_nobody_knows_make_no_labels(client: Client) -> None:
    before = scrape(client)
    for number in range(5):
        with RawConnection(client) as connection:
            connection.send_head(f"METHOD{number}", "/v0/topics/a", content_length="0", connection="close")
            assert connection.receive()[0] == 405
    assert len(answered(before, scrape(client))) <= 1


def test_syncs_are_counted_and_timed(client: Client, topic: str) -> None:
    client.put_topic(topic, durable=True)
    before = scrape(client)
    for number in range(5):
        client.append(topic, number)
    after = scrape(client)
    assert grown(before, after, "wal_fsyncs_total") >= 5
    assert grown(before, after, "wal_fsync_latency_us_count") >= 5
    assert grown(before, after, "wal_fsync_latency_us_sum") > 0
    after.check_histograms()


def test_files_of_the_log_are_counted(client: Client, topic: str) -> None:
    before = scrape(client)
    for _ in range(10):
        client.append(topic, "x" * (32 << 10))
    # An append of this class is acked before the sync that its group ends with, and groups are counted at their end.
    until(lambda: grown(before, scrape(client), "wal_bytes_written_total") >= 320 << 10)
    after = scrape(client)
    # A record does not span files, so each of 64 KiB has one or two of these.
    assert 4 <= grown(before, after, "wal_rotations_total") <= 11


def test_segments_are_counted_after_a_checkpoint(client: Client, topic: str) -> None:
    client.put_topic(topic, durability="disk")
    client.append(topic, 1, 2)
    before = scrape(client)
    assert set(before.by("segments", "tier")) >= {"hot", "cold"}
    body_of(client.post("/v0/admin/checkpoint"))
    after = scrape(client)
    assert grown(before, after, "segments", tier="hot") >= 1
    assert after.value("segments", tier="cold") == 0


def test_queues_and_leases_are_counted(client: Client) -> None:
    before = scrape(client)
    queue = new_queue(client, 1, 2, 3)
    jobs = queue.claim(most=2)
    after = scrape(client)
    assert grown(before, after, "queue_topics") == 1
    assert grown(before, after, "queue_leases_in_flight") == 2
    of_queue = {"topic": queue.topic}
    assert (after.value("topic_queue_ready", **of_queue), after.value("topic_queue_in_flight", **of_queue)) == (1, 2)
    queue.ack(*(job["$seq"] for job in jobs))
    after = scrape(client)
    assert grown(before, after, "queue_leases_in_flight") == 0
    assert (after.value("topic_queue_ready", **of_queue), after.value("topic_queue_in_flight", **of_queue)) == (1, 0)
    client.delete_topic(queue.topic)
    assert grown(before, scrape(client), "queue_topics") == 0


def test_routers_have_their_lag_and_their_copies(client: Client, topic: str) -> None:
    dest, router = f"{topic}-dest", f"{topic}>dest"
    before = scrape(client)
    client.put_topic(dest, cap_records=3, discard="reject")
    body_of(client.put(f"/v0/routers/{router}", json={"source": topic, "dest": dest}), 201)
    for number in range(3):
        client.append(topic, number)
    assert client.read(dest)["head_seq"] == 3
    found = scrape(client)
    assert grown(before, found, "routers") == 1
    assert (found.value("router_forwarded_total", router=router), found.value("router_lag", router=router)) == (3, 0)
    client.append(topic, 4, 5)
    found = scrape(client)
    assert (found.value("router_forwarded_total", router=router), found.value("router_lag", router=router)) == (3, 2)
    body_of(client.delete(f"/v0/routers/{router}"))
    found = scrape(client)
    assert grown(before, found, "routers") == 0
    assert router not in found.by("router_lag", "router")


def test_streams_sockets_and_sessions_are_counted_while_they_are_open(client: Client, topic: str) -> None:
    client.put_topic(topic)
    names = ("sse_connections", "ws_connections", "watch_sessions")

    def open_now() -> list[float]:
        found = scrape(client)
        return [found.value(name) for name in names]

    sse, ws, sessions = open_now()
    session = Session(client, topic)
    assert open_now() == [sse, ws, sessions + 1]
    with stream(client, topic), session.open(), subscribed(client, topic):
        assert open_now() == [sse + 2, ws + 1, sessions + 1]
    until(lambda: open_now() == [sse, ws, sessions + 1])
    client.delete_topic(topic)
    until(lambda: open_now()[:2] == [sse, ws])


def test_delivery_is_timed(client: Client, topic: str) -> None:
    client.put_topic(topic)
    with stream(client, topic) as events:
        before = scrape(client)
        client.append(topic, 1)
        events.until_seq(topic, 1)
        after = scrape(client)
    assert grown(before, after, "scheduling_wait_ms_count") >= 1
    assert grown(before, after, "scheduling_wait_ms_sum") >= 0
    assert 0 <= after.value("pressure") <= 1
    assert after.value("ready_set_depth") >= 0


def test_time_goes_on(client: Client) -> None:
    before = scrape(client).value("uptime_ms")
    until(lambda: scrape(client).value("uptime_ms") > before)


def test_counts_never_fall(client: Client) -> None:
    last = scrape(client)
    for number in range(6):
        name = fresh_name()
        router = f"{name}>to"
        client.put_topic(name, durability=["ephemeral", "memory", "disk", "fsync"][number % 4])
        body_of(client.put(f"/v0/routers/{router}", json={"source": name, "dest": f"{name}-to"}), 201)
        client.append(name, "x" * 1000)
        client.read(f"{name}-to")
        client.get("/nowhere")
        if number % 2:
            body_of(client.post("/v0/admin/checkpoint"))
            client.delete_topic(name)
        now = scrape(client)
        now.check_histograms()
        for key, value in last.counts().items():
            if key[0] != "router_forwarded_total" or key in now.samples:
                assert now.samples[key] >= value, key
        last = now
    assert last.value("wal_queue_depth_peak") >= last.value("wal_queue_depth")


# --- limits ----------------------------------------------------------------------------------------------------------


def test_refusals_for_lack_of_room_are_counted_by_reason(tmp_path: Path) -> None:
    caps = {
        "max_topics": 2, "max_routers": 1, "max_watch_sessions": 1, "max_sse_connections": 1, "max_idempotency_keys": 1,
        "max_total_bytes": 100,
    }  # fmt: skip
    with running(tmp_path, **caps) as client:
        client.append("a", 1, idempotency_key="k")
        client.put_topic("b")
        body_of(client.put("/v0/routers/r", json={"source": "a", "dest": "b"}), 201)
        Session(client, "a")
        with stream(client, "a"):
            refused: dict[str, Callable[[], httpx.Response]] = {
                "max_topics": lambda: client.put("/v0/topics/c", json={}),
                "max_routers": lambda: client.put(
                    "/v0/routers/s", json={"source": "b", "dest": "a", "allow_cycle": True}
                ),
                "max_watch_sessions": lambda: client.post("/v0/watch", json={"topics": {"a": {}}}),
                "max_sse_connections": lambda: client.get("/v0/topics/a/stream"),
                "max_idempotency_keys": lambda: client.send_append("a", 1, idempotency_key="other"),
                "max_total_bytes": lambda: client.send_append("a", "x" * 200),
            }
            assert set(refused) == set(caps)
            for times, (limit, send) in enumerate(refused.items(), 1):
                for _ in range(times):
                    assert error_of(send(), 429, "throttled")["detail"]["limit"] == limit
            found = scrape(client)
        expected = {limit: float(times) for times, limit in enumerate(refused, 1)}
        assert found.by("throttled_total", "reason") == expected
        assert found.labels["throttled"] == {"reason"}
        by_json = {entry["labels"]["reason"]: entry["value"] for entry in as_json(client)["topics_throttled_total"]}
        assert by_json == expected
        assert found.by("requests_total", "status")["429"] == sum(expected.values())


BOSS, BOUND = "boss-of-all", "bound-to-z"


def fill(client: Client, numbers: Iterable[int]) -> None:
    """Make topics by small appends, over so many connections that they share their syncs."""
    body = b'{"records":[{"data":1}],"config":{"durability":"ephemeral"}}'
    waiting = iter(numbers)

    def append_all() -> None:
        with RawConnection(client) as connection:
            for number in waiting:
                connection.send_head(
                    "POST", f"/v0/topics/b{number}", content_type=JSON_TYPE, content_length=str(len(body)),
                    authorization=f"Bearer {BOSS}",
                )  # fmt: skip
                connection.send(body)
                assert connection.receive()[0] == 201

    with ThreadPoolExecutor(16) as threads:
        for done in [threads.submit(append_all) for _ in range(16)]:
            done.result()


def test_at_most_a_thousand_topics_are_shown_and_to_a_bound_key_those_that_it_may_see(tmp_path: Path) -> None:
    with running(tmp_path, api_keys=f"{BOSS},{BOUND}:r:z") as client:
        client.headers["authorization"] = f"Bearer {BOSS}"
        for name in ("z1", "z2"):
            client.put_topic(name, durability="ephemeral")
        for router, source, dest in (("z>z", "z1", "z2"), ("z>a", "z1", "a1"), ("z-a", "a1", "z2"), ("a", "z1", "z3")):
            answer = client.put(f"/v0/routers/{router}", json={"source": source, "dest": dest, "allow_cycle": True})
            body_of(answer, 201)
        fill(client, range(1000 - 4))
        found = scrape(client)
        assert (found.value("topics"), len(found.by("topic_head_seq", "topic"))) == (1000, 1000)
        assert found.value("topic_metrics_truncated") == 0
        fill(client, range(1000, 1003))
        found = scrape(client)
        shown = set(found.by("topic_head_seq", "topic"))
        assert (found.value("topics"), len(shown), found.value("topic_metrics_truncated")) == (1003, 1000, 1)
        for name in ("topic_earliest_seq", "topic_records_live", "topic_bytes_live"):
            assert set(found.by(name, "topic")) == shown
        assert len(as_json(client)["topics_topic_head_seq"]) == 1000

        client.headers["authorization"] = f"Bearer {BOUND}"
        found = scrape(client)
        assert set(found.by("topic_head_seq", "topic")) == {"z1", "z2", "z3"}
        assert set(found.by("router_lag", "router")) == set(found.by("router_forwarded_total", "router")) == {"z>z"}
        assert (found.value("topics"), found.value("routers"), found.value("topic_metrics_truncated")) == (1003, 4, 0)
        assert "b1" not in set(found.by("topic_records_live", "topic"))
        assert [entry["labels"]["topic"] for entry in as_json(client)["topics_topic_head_seq"]] == ["z1", "z2", "z3"]

        error_of(client.put("/v0/topics/z9", json={}), 403, "forbidden")
        error_of(client.get("/v0/topics/b1"), 403, "forbidden")
        error_of(client.get("/v0/topics/z1", headers={"authorization": "Bearer nobody"}), 401, "unauthorized")
        assert scrape(client).by("unauthorized_total", "reason") == {"forbidden": 2, "unauthorized": 1}
