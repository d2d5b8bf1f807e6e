"""Section 2: every field of a topic's config."""

from __future__ import annotations

import time
from typing import Any

import pytest

from tests.conformance.client import Client, body_of, data_of, error_of, fresh_name, invalid, until

DEFAULTS: dict[str, Any] = {
    "type": "log",
    "ttl_ms": 0,
    "cap_records": 0,
    "cap_bytes": 0,
    "discard": "old",
    "durability": "disk",
    "durable": False,
    "priority": None,
    "auto_priority": True,
    "auto_create": True,
    "idempotency_window_ms": 120000,
    "dedupe_node": True,
    "lease_ms": 30000,
    "claim_jitter_ms": 0,
    "max_deliveries": 0,
    "dead_letter": None,
    "completed": None,
    "leases_durable": False,
    "retry": None,
    "priority_aging_ms": 60000,
    "max_in_flight": 0,
    "rate": None,
    "order_by": None,
    "max_in_flight_per_key": None,
    "schema": None,
    "retention": "limits",
    "segment_max_events": None,
    "segment_max_bytes": None,
    "segment_max_age_ms": None,
    "compression": None,
    "evidence": False,
    "keep_per_tag": 0,
    "null_ttl_ms": 86400000,
}
U64_MAX = 2**64 - 1
NUMBERS = ["ttl_ms", "cap_records", "cap_bytes", "idempotency_window_ms", "max_deliveries"]
NUMBERS += ["priority_aging_ms", "max_in_flight", "keep_per_tag", "null_ttl_ms"]
BOOLEANS = ["durable", "auto_priority", "auto_create", "dedupe_node", "leases_durable"]


def test_the_defaults_are_echoed_in_full(client: Client, topic: str) -> None:
    assert client.put_topic(topic)["config"] == DEFAULTS
    assert client.state(topic)["config"] == DEFAULTS


def test_a_topic_made_by_an_append_has_the_defaults(client: Client, topic: str) -> None:
    client.append(topic, 1)
    assert client.state(topic)["config"] == DEFAULTS


OTHERS = [
    {"ttl_ms": U64_MAX},
    {"cap_records": U64_MAX},
    {"cap_bytes": U64_MAX},
    {"max_deliveries": U64_MAX},
    {"idempotency_window_ms": 1},
    {"discard": "reject"},
    {"priority": -7},
    {"priority": 0},
    {"auto_priority": False},
    {"auto_create": False},
    {"dedupe_node": False},
    {"lease_ms": 1234},
    {"claim_jitter_ms": 17},
    {"dead_letter": "the-dead"},
    {"completed": "the-results"},
    {"leases_durable": True},
    {"durability": "ephemeral"},
    {"durability": "memory"},
]


@pytest.mark.parametrize("given", OTHERS, ids=str)
def test_a_field_is_set_and_echoed_and_the_others_keep_their_defaults(
    client: Client, topic: str, given: dict[str, Any]
) -> None:
    for kind in ("log", "queue"):
        name = f"{topic}-{kind}"
        expected = DEFAULTS | given | {"type": kind}
        answer = client.put_topic(name, type=kind, **given)
        assert answer["config"] == expected
        assert client.state(name)["config"] == expected
        assert client.state(name)["type"] == kind


@pytest.mark.parametrize("given", OTHERS, ids=str)
def test_an_update_replaces_what_it_names_and_nothing_else(client: Client, topic: str, given: dict[str, Any]) -> None:
    before = {"priority": 5, "cap_records": 99, "ttl_ms": 10**9, "lease_ms": 500, "dedupe_node": False}
    client.put_topic(topic, **before)
    answer = client.put_topic(topic, **given)
    assert answer["created"] is False
    assert answer["config"] == DEFAULTS | before | given
    assert client.state(topic)["config"] == DEFAULTS | before | given


@pytest.mark.parametrize(
    ("field", "given", "kept"),
    [
        ("priority", -1001, -1000),
        ("priority", 1001, 1000),
        ("priority", -1000, -1000),
        ("priority", 10**12, 1000),
        ("priority", -(10**30), -1000),
        ("lease_ms", 0, 100),
        ("lease_ms", 99, 100),
        ("lease_ms", -5, 100),
        ("lease_ms", 86400001, 86400000),
        ("lease_ms", 10**30, 86400000),
        ("claim_jitter_ms", 5001, 5000),
        ("claim_jitter_ms", -1, 0),
    ],
)
def test_some_fields_are_clamped(client: Client, topic: str, field: str, given: int, kept: int) -> None:
    assert client.put_topic(topic, **{field: given})["config"][field] == kept
    assert client.put_topic(topic, **{field: given})["config"][field] == kept
    inline = fresh_name()
    client.append(inline, 1, config={field: given})
    assert client.state(inline)["config"][field] == kept


WRONG_OF_FIELDS: list[tuple[list[str], list[Any]]] = [
    (NUMBERS, [-1, 2**64, 1.5, "1", None, True, []]),
    (BOOLEANS, ["true", "yes", None, 2, []]),
    (["type"], ["Log", "stream", "", 1, None]),
    (["discard"], ["new", "OLD", "", 0, None]),
    (["durability"], ["Disk", "strong", "", 1, True]),
    (["priority"], ["1", 1.5, True, []]),
    (["order_by"], ["", "key", "Tag", 1, True, [], {}, "tag"]),
    (["compression"], ["", "gzip", "ZSTD", 1, True, [], {}]),
    (["max_in_flight_per_key"], ["", 1, True, [], {"by": "tag", "max": 1}]),
    (["lease_ms", "claim_jitter_ms"], ["1", 1.5, None, True]),
    (["dead_letter", "completed"], ["", "-x", "a b", "x" * 256, "a>b", 1, True, []]),
    (["ttl", "colour", "Type"], [5]),
]
WRONG = [(field, value) for fields, values in WRONG_OF_FIELDS for field in fields for value in values]


@pytest.mark.parametrize(("field", "value"), WRONG, ids=str)
def test_a_wrong_value_or_unknown_field_is_400_wherever_it_stands(client: Client, field: str, value: Any) -> None:
    invalid(client.put(f"/v0/topics/{fresh_name()}", json={field: value}), field)
    client.put_topic("configured")
    invalid(client.put("/v0/topics/configured", json={field: value}), field)
    assert client.state("configured")["config"] == DEFAULTS
    # The config inside an append is always validated, and applied only if the append creates the topic.
    invalid(client.send_append("configured", 1, config={field: value}), field)
    assert client.state("configured")["head_seq"] == 0
    missing = fresh_name()
    invalid(client.send_append(missing, 1, config={field: value}), field)
    error_of(client.get(f"/v0/topics/{missing}"), 404, "topic_not_found")


def test_the_type_cannot_be_changed(client: Client, topic: str) -> None:
    client.put_topic(topic, type="queue", ttl_ms=5)
    error_of(client.put(f"/v0/topics/{topic}", json={"type": "log"}), 409, "topic_exists_incompatible")
    error_of(client.put(f"/v0/topics/{topic}", json={"type": "log", "ttl_ms": 9}), 409, "topic_exists_incompatible")
    assert client.state(topic)["config"] == DEFAULTS | {"type": "queue", "ttl_ms": 5}
    assert client.put_topic(topic, type="queue")["created"] is False
    assert client.put_topic(topic, ttl_ms=9)["config"]["type"] == "queue"


@pytest.mark.parametrize(
    ("given", "durability"),
    [
        ({}, "disk"),
        ({"durable": True}, "fsync"),
        ({"durable": False}, "disk"),
        ({"durable": True, "durability": "memory"}, "memory"),
        ({"durable": True, "durability": "disk"}, "disk"),
        ({"durable": False, "durability": "fsync"}, "fsync"),
        ({"durable": False, "durability": "ephemeral"}, "ephemeral"),
    ],
    ids=str,
)
def test_durable_is_shorthand_and_durability_wins(
    client: Client, topic: str, given: dict[str, Any], durability: str
) -> None:
    config = client.put_topic(topic, **given)["config"]
    assert (config["durability"], config["durable"]) == (durability, durability == "fsync")
    inline = fresh_name()
    client.append(inline, 1, config=given)
    config = client.state(inline)["config"]
    assert (config["durability"], config["durable"]) == (durability, durability == "fsync")


@pytest.mark.parametrize("durable", [True, False])
def test_durable_alone_sets_the_class_anew(client: Client, topic: str, durability: str, durable: bool) -> None:
    client.put_topic(topic, durability=durability)
    assert client.put_topic(topic, ttl_ms=10**9)["config"]["durability"] == durability
    config = client.put_topic(topic, durable=durable)["config"]
    assert (config["durability"], config["durable"]) == ("fsync" if durable else "disk", durable)


def test_a_change_of_class_keeps_what_can_be_read(client: Client, topic: str) -> None:
    for number, durability in enumerate(["disk", "fsync", "memory", "ephemeral", "fsync", "ephemeral", "disk"]):
        assert client.put_topic(topic, durability=durability)["config"]["durability"] == durability
        assert client.append(topic, number)["first_seq"] == number + 1
    assert data_of(client.read(topic)) == list(range(7))


def test_priority_can_be_taken_back(client: Client, topic: str) -> None:
    assert client.put_topic(topic, priority=12)["config"]["priority"] == 12
    assert client.put_topic(topic, priority=None)["config"]["priority"] is None


def test_a_dead_letter_can_be_taken_back(client: Client, topic: str) -> None:
    assert client.put_topic(topic, type="queue", dead_letter="dead")["config"]["dead_letter"] == "dead"
    assert client.put_topic(topic, dead_letter=None)["config"]["dead_letter"] is None


def test_a_topic_is_not_its_own_dead_letter(client: Client, topic: str) -> None:
    invalid(client.put(f"/v0/topics/{topic}", json={"type": "queue", "dead_letter": topic}), "dead_letter")
    error_of(client.get(f"/v0/topics/{topic}"), 404, "topic_not_found")
    client.put_topic(topic, type="queue")
    invalid(client.put(f"/v0/topics/{topic}", json={"dead_letter": topic}), "dead_letter")
    other = fresh_name()
    config = {"type": "queue", "dead_letter": other}
    invalid(client.send_append(other, 1, config=config), "dead_letter")


def test_an_ephemeral_topic_is_no_dead_letter(client: Client, topic: str) -> None:
    dead = fresh_name("dead")
    client.put_topic(dead, durability="ephemeral")
    config = {"type": "queue", "dead_letter": dead}
    invalid(client.put(f"/v0/topics/{topic}", json=config), "dead_letter")
    invalid(client.send_append(topic, 1, config=config), "dead_letter")
    client.put_topic(topic, type="queue")
    invalid(client.put(f"/v0/topics/{topic}", json={"dead_letter": dead}), "dead_letter")


def test_a_dead_letter_cannot_become_ephemeral_while_it_is_named(client: Client, topic: str) -> None:
    dead = fresh_name("dead")
    client.put_topic(dead)
    client.put_topic(topic, type="queue", dead_letter=dead)
    error_of(client.put(f"/v0/topics/{dead}", json={"durability": "ephemeral"}), 400, "invalid_request")
    assert client.state(dead)["config"]["durability"] == "disk"
    client.put_topic(topic, dead_letter=None)
    assert client.put_topic(dead, durability="ephemeral")["config"]["durability"] == "ephemeral"


def test_a_dead_letter_that_is_yet_to_come_cannot_be_created_ephemeral(client: Client, topic: str) -> None:
    dead = fresh_name("dead")
    client.put_topic(topic, type="queue", dead_letter=dead)
    config = {"durability": "ephemeral"}
    error_of(client.put(f"/v0/topics/{dead}", json=config), 400, "invalid_request")
    error_of(client.send_append(dead, 1, config=config), 400, "invalid_request")
    client.delete_topic(topic)
    assert client.put_topic(dead, **config)["created"] is True


def test_a_tighter_cap_applies_at_once(client: Client, topic: str, durability: str) -> None:
    client.put_topic(topic, durability=durability)
    client.append(topic, *range(10))
    client.put_topic(topic, cap_records=3)
    state = client.state(topic)
    assert (state["count"], state["earliest_seq"], state["head_seq"], state["bytes"]) == (3, 8, 10, 3)
    client.put_topic(topic, cap_records=0, cap_bytes=2)
    assert (client.state(topic)["count"], client.state(topic)["bytes"]) == (2, 2)
    client.put_topic(topic, cap_bytes=0)
    assert data_of(client.read(topic)) == [8, 9]


def test_a_tighter_ttl_applies_at_once_and_for_ever(client: Client, topic: str, durability: str) -> None:
    client.put_topic(topic, durability=durability)
    client.append(topic, 1, 2, 3)
    time.sleep(0.05)  # until the records are older than the ttl that they get
    client.put_topic(topic, ttl_ms=20)
    state = client.state(topic)
    assert (state["count"], state["earliest_seq"], state["head_seq"], state["bytes"]) == (0, 4, 3, 0)
    client.put_topic(topic, ttl_ms=0)
    assert client.state(topic)["count"] == 0
    assert client.read(topic)["tombstone"]["reason"] == "ttl"


def test_records_expire_after_the_ttl(client: Client, topic: str) -> None:
    client.put_topic(topic, ttl_ms=1000)
    client.append(topic, 1)
    assert data_of(client.read(topic)) == [1]
    until(lambda: data_of(client.read(topic)) == [])
    client.append(topic, 2)
    answer = client.read(topic)
    assert data_of(answer) == [2]
    assert client.state(topic)["earliest_seq"] == 2


def test_an_inline_config_is_applied_only_on_creation(client: Client, topic: str) -> None:
    client.append(topic, 1, config={"cap_records": 5, "durability": "fsync"})
    expected = DEFAULTS | {"cap_records": 5, "durability": "fsync", "durable": True}
    assert client.state(topic)["config"] == expected
    client.append(topic, 2, config={"cap_records": 1, "type": "queue"})
    assert client.state(topic)["config"] == expected
    assert client.state(topic)["count"] == 2


def test_auto_create_false_without_create_is_404_on_a_missing_topic(client: Client, topic: str) -> None:
    refused = client.send_append(topic, 1, config={"auto_create": False})
    error_of(refused, 404, "topic_not_found")
    error_of(client.get(f"/v0/topics/{topic}"), 404, "topic_not_found")
    made = client.send_append(topic, 1, config={"auto_create": False}, create=True)
    assert body_of(made, 201)["created"] is True
    assert client.state(topic)["config"]["auto_create"] is False
    assert client.append(topic, 2, config={"auto_create": False})["created"] is False


def test_a_topic_of_no_node_filter_ignores_it(client: Client, topic: str) -> None:
    client.put_topic(topic, dedupe_node=False)
    client.append(topic, 1, node="n")
    assert data_of(client.read(topic, node="n")) == [1]
    client.put_topic(topic, dedupe_node=True)
    assert data_of(client.read(topic, node="n")) == []
