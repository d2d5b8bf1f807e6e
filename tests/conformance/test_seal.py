"""Consumers 7: limits of segments for each topic, and sealing the active one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.conformance.client import Client, body_of, data_of, error_of, running
from tests.conformance.keys import asked_by_three


def seal(client: Client, topic: str) -> Any:
    return body_of(client.post(f"/v0/topics/{topic}/seal"))


def sealed_files(root: Path) -> list[str]:
    """The files that only sealed segments have."""
    return sorted(path.name for path in root.rglob("seg-*.tags"))


def test_the_active_segment_is_sealed_and_survives_the_daemon(tmp_path: Path) -> None:
    with running(tmp_path) as client:
        client.append("t", 1, 2)
        answer = seal(client, "t")
        assert set(answer) == {"topic", "segments", "performance"}
        assert (answer["topic"], answer["segments"]) == ("t", 1)
        assert answer["performance"]["server_total_ms"] >= 0
        first = sealed_files(tmp_path)
        assert len(first) == 1
        assert seal(client, "t")["segments"] == 1
        client.append("t", 3)
        assert seal(client, "t")["segments"] == 2
        assert len(sealed_files(tmp_path)) == 2
        client.daemon.kill()
        client = client.daemon.start()
        assert data_of(client.read("t")) == [1, 2, 3]
        assert seal(client, "t")["segments"] == 2


def test_a_topic_of_which_nothing_is_stored_has_no_segments(client: Client, topic: str) -> None:
    client.put_topic(topic, durability="ephemeral")
    assert seal(client, topic)["segments"] == 0
    client.append(topic, 1)
    assert seal(client, topic)["segments"] == 0
    assert data_of(client.read(topic)) == [1]
    error_of(client.post("/v0/topics/no-such-topic/seal"), 404, "topic_not_found")


def test_a_topic_has_its_own_limits(client: Client, topic: str) -> None:
    limits = {"segment_max_events": 2, "segment_max_bytes": 4096, "segment_max_age_ms": 0}
    assert client.put_topic(topic, **limits)["config"].items() >= limits.items()
    client.append(topic, 1, 2, 3, 4, 5)
    assert seal(client, topic)["segments"] == 3
    assert client.put_topic(topic, **dict.fromkeys(limits))["config"].items() >= dict.fromkeys(limits).items()
    client.append(topic, 6, 7, 8)
    assert seal(client, topic)["segments"] == 4


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("segment_max_events", 0),
        ("segment_max_events", 1_000_001),
        ("segment_max_events", "7"),
        ("segment_max_bytes", 1023),
        ("segment_max_bytes", (1 << 30) + 1),
        ("segment_max_age_ms", -1),
        ("segment_max_age_ms", 1.5),
    ],
)
def test_a_limit_out_of_range_is_refused(client: Client, topic: str, field: str, value: Any) -> None:
    detail = error_of(client.put(f"/v0/topics/{topic}", json={field: value}), 400, "invalid_request")["detail"]
    assert detail["field"] == field
    error_of(client.get(f"/v0/topics/{topic}"), 404, "topic_not_found")


def test_only_admins_seal_and_the_audit_log_tells_of_it(tmp_path: Path) -> None:
    answers, lines = asked_by_three(
        tmp_path, lambda client: client.append("t", 1), lambda client: client.post("/v0/topics/t/seal")
    )
    assert answers == [403, 403, 200]
    assert [(line["call"], line["topic"], line["status"]) for line in lines] == [("seal", "t", s) for s in answers]
