"""Section 11: health, readiness and metrics."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.conformance.client import Client, body_of, until

PLAIN = [
    "topics", "records_live", "bytes_live", "ready", "recovery_progress", "uptime_ms", "topic_metrics_truncated",
    "wal_frames_total", "wal_batches_total", "wal_fsyncs_total", "wal_bytes_written_total", "wal_rotations_total",
    "wal_queue_depth", "wal_queue_depth_peak", "wal_submit_full_total", "wal_read_only",
]  # fmt: skip
PER_TOPIC = ["topic_head_seq", "topic_earliest_seq", "topic_records_live", "topic_bytes_live"]
HISTOGRAMS = ["wal_fsync_latency_us", "request_ms"]
AS_JSON = {"accept": "application/json"}


def scraped(client: Client) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Every sample of the text form by its name and labels."""
    answer = client.get("/v0/metrics")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain")
    samples = {}
    for family in text_string_to_metric_families(answer.text):
        assert family.name.startswith("topics_")
        for sample in family.samples:
            key = (sample.name, tuple(sorted(sample.labels.items())))
            assert key not in samples
            samples[key] = float(sample.value)
    return samples


def families(client: Client) -> dict[str, str]:
    """The kind of every family of the text form by its name."""
    text = client.get("/v0/metrics").text
    return {family.name: family.type for family in text_string_to_metric_families(text)}


def as_json(client: Client) -> Any:
    return body_of(client.get("/v0/metrics", headers=AS_JSON))


@pytest.mark.parametrize("path", ["/v0/health", "/healthz"])
def test_health(client: Client, path: str) -> None:
    body = body_of(client.get(path))
    assert body["status"] == "ok"
    assert isinstance(body["version"], str)
    assert isinstance(body["uptime_ms"], int)
    until(lambda: bool(body_of(client.get(path))["uptime_ms"] > body["uptime_ms"]))


@pytest.mark.parametrize("path", ["/v0/ready", "/readyz"])
def test_readiness(client: Client, topic: str, path: str) -> None:
    body = body_of(client.get(path))
    assert (body["status"], body["wal_replay_complete"]) == ("ready", True)
    client.put_topic(topic)
    assert body_of(client.get(path))["topics"] == body["topics"] + 1


def test_the_figures_of_topics(client: Client, topic: str, durability: str) -> None:
    before = scraped(client)
    client.put_topic(topic, durability=durability, cap_records=2)
    client.append(topic, 11, 22, 33)
    after = scraped(client)

    def grown(name: str, **labels: str) -> float:
        key = (name, tuple(labels.items()))
        return after[key] - before.get(key, 0)

    assert grown("topics_topics") == 1
    assert grown("topics_topics_by_class", **{"class": durability}) == 1
    assert grown("topics_records_live") == 2
    assert grown("topics_bytes_live") == 4
    expected = {"head_seq": 3, "earliest_seq": 2, "records_live": 2, "bytes_live": 4}
    for name, value in expected.items():
        assert after[f"topics_topic_{name}", (("topic", topic),)] == value
    client.delete_topic(topic)
    assert ("topics_topic_head_seq", (("topic", topic),)) not in scraped(client)


def test_the_figures_of_the_daemon(client: Client, topic: str) -> None:
    client.put_topic(topic, durable=True)
    client.append(topic, 1)
    found = scraped(client)
    for name in PLAIN:
        assert (f"topics_{name}", ()) in found, name
    assert found["topics_ready", ()] == 1
    assert found["topics_recovery_progress", ()] == 1
    assert found["topics_wal_read_only", ()] == 0
    assert found["topics_topic_metrics_truncated", ()] == 0
    for name in ("frames", "batches", "fsyncs", "bytes_written"):
        before = found[f"topics_wal_{name}_total", ()]
        client.append(topic, 1)
        assert scraped(client)[f"topics_wal_{name}_total", ()] > before


def test_histograms_are_histograms(client: Client, topic: str) -> None:
    client.put_topic(topic, durable=True)
    kinds = families(client)
    names = {name for name, _ in scraped(client)}
    for name in HISTOGRAMS:
        assert kinds[f"topics_{name}"] == "histogram"
        assert {f"topics_{name}_{part}" for part in ("bucket", "sum", "count")} <= names


def test_requests_are_counted_by_route_and_status(client: Client, topic: str) -> None:
    def counted(status: str) -> float:
        found = scraped(client).items()
        return sum(
            value
            for (name, labels), value in found
            if name == "topics_requests_total" and dict(labels)["status"] == status
        )

    created, missing = counted("201"), counted("404")
    client.put_topic(topic)
    for _ in range(3):
        client.get("/v0/topics/no-such-topic")
    assert counted("201") == created + 1
    assert counted("404") == missing + 3
    routes = {dict(labels)["route"] for name, labels in scraped(client) if name == "topics_requests_total"}
    assert not [route for route in routes if topic in route or "no-such-topic" in route]


def test_throttling_is_counted_by_reason(client: Client) -> None:
    assert families(client)["topics_throttled"] == "counter"


@pytest.mark.parametrize("accept", ["application/json", "application/json;q=0.9, text/html;q=0.1"])
def test_the_same_figures_come_as_json(client: Client, topic: str, accept: str) -> None:
    client.put_topic(topic, durable=True)
    client.append(topic, 5, 6)
    body = body_of(client.get("/v0/metrics", headers={"accept": accept}))
    for name in PLAIN:
        assert isinstance(body[f"topics_{name}"], int | float), name
    heads = {entry["labels"]["topic"]: entry["value"] for entry in body["topics_topic_head_seq"]}
    assert heads[topic] == 2
    for name in PER_TOPIC:
        assert all(set(entry) == {"labels", "value"} for entry in body[f"topics_{name}"])
    classes = {entry["labels"]["class"]: entry["value"] for entry in body["topics_topics_by_class"]}
    assert classes["fsync"] >= 1
    assert all(name.startswith("topics_") for name in body)


def test_both_forms_agree(client: Client, topic: str) -> None:
    client.append(topic, 1)
    body = as_json(client)
    found = scraped(client)
    for name in ("topics", "records_live", "bytes_live", "ready", "wal_read_only"):
        assert body[f"topics_{name}"] == found[f"topics_{name}", ()]


@pytest.mark.parametrize("accept", ["*/*", "text/plain", "text/plain;version=0.0.4;q=0.5,*/*;q=0.1", None])
def test_text_is_the_default(client: Client, accept: str | None) -> None:
    with httpx.Client(base_url=client.daemon.url, trust_env=False) as other:
        if accept is None:
            del other.headers["accept"]
        else:
            other.headers["accept"] = accept
        answer = other.get("/v0/metrics")
    assert answer.headers["content-type"].startswith("text/plain")
    assert list(text_string_to_metric_families(answer.text))
