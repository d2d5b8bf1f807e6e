"""Configs: merging, clamping, refusing, and coming back from disk."""

from __future__ import annotations

from typing import Any

import pytest

from topics.config import ConfigError, load_settings
from topics.errors import ApiError
from topics.log.topic_config import config_from_wire, config_to_wire, resolve_config
from topics.model import TopicConfig, TopicConfigPatch

WEEK_MS = 7 * 24 * 3600 * 1000


def resolve(current: TopicConfig | None = None, /, **fields: Any) -> TopicConfig:
    return resolve_config(current, TopicConfigPatch(**fields), topic="t")


def test_creation_without_a_body_gives_the_defaults() -> None:
    assert resolve() == TopicConfig()


def test_an_update_replaces_what_is_present_and_keeps_the_rest() -> None:
    current = resolve(ttl_ms=5, cap_records=7, priority=3, dead_letter="d")
    updated = resolve(current, cap_records=8, priority=None)
    assert (updated.ttl_ms, updated.cap_records, updated.priority, updated.dead_letter) == (5, 8, None, "d")


@pytest.mark.parametrize(
    ("field", "given", "kept"),
    [
        ("priority", 5000, 1000),
        ("priority", -5000, -1000),
        ("priority", None, None),
        ("priority", 10**30, 1000),
        ("lease_ms", 0, 100),
        ("lease_ms", -5, 100),
        ("lease_ms", 10**9, 86_400_000),
        ("claim_jitter_ms", -1, 0),
        ("claim_jitter_ms", 9000, 5000),
    ],
)
def test_a_clamped_field_is_clamped(field: str, given: int | None, kept: int | None) -> None:
    assert getattr(resolve(**{field: given}), field) == kept


@pytest.mark.parametrize("field", ["ttl_ms", "cap_records", "cap_bytes", "max_deliveries"])
def test_a_u64_field_takes_all_of_its_range_and_no_more(field: str) -> None:
    assert getattr(resolve(**{field: 2**64 - 1}), field) == 2**64 - 1
    for value in (-1, 2**64):
        with pytest.raises(ApiError) as caught:
            resolve(**{field: value})
        assert (caught.value.status, caught.value.detail["field"]) == (400, field)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("idempotency_window_ms", WEEK_MS + 1),
        ("idempotency_window_ms", -1),
        ("dead_letter", "not a name"),
        ("dead_letter", "d\n"),
        ("dead_letter", "t"),
        ("type", "stack"),
        ("discard", "new"),
        ("durability", "paper"),
    ],
)
def test_a_bad_value_is_refused_by_its_field(field: str, value: object) -> None:
    with pytest.raises(ApiError) as caught:
        resolve(**{field: value})
    assert (caught.value.status, caught.value.detail["field"]) == (400, field)


def test_a_window_of_a_week_is_allowed() -> None:
    assert resolve(idempotency_window_ms=WEEK_MS).idempotency_window_ms == WEEK_MS


@pytest.mark.parametrize(
    ("before", "patch", "after"),
    [
        ({}, {}, "disk"),
        ({}, {"durable": True}, "fsync"),
        ({}, {"durable": False}, "disk"),
        ({}, {"durability": "memory", "durable": True}, "memory"),
        ({"durability": "memory"}, {}, "memory"),
        ({"durability": "memory"}, {"durable": False}, "disk"),
        ({"durability": "memory"}, {"durable": True}, "fsync"),
        ({"durability": "fsync"}, {"ttl_ms": 1}, "fsync"),
        ({"durable": True}, {"durability": "ephemeral"}, "ephemeral"),
    ],
)
def test_the_commit_class_follows_durability_then_durable(
    before: dict[str, Any], patch: dict[str, Any], after: str
) -> None:
    config = resolve(resolve(**before), **patch)
    assert config.durability == after
    assert config.durable == (after == "fsync")


def test_the_type_of_a_topic_cannot_change() -> None:
    queue = resolve(type="queue")
    assert resolve(queue, type="queue") is queue
    with pytest.raises(ApiError) as caught:
        resolve(queue, type="log")
    assert caught.value.code == "topic_exists_incompatible"
    assert caught.value.detail["field"] == "type"


def test_equal_configs_are_one_object() -> None:
    one = resolve(cap_records=77, dead_letter="dl")
    assert resolve(resolve(cap_records=77), dead_letter="dl") is one
    assert config_from_wire(config_to_wire(one)) is one


def test_a_config_from_disk_may_lack_fields_and_have_unknown_ones() -> None:
    assert config_from_wire({"ttl_ms": 9, "from_the_future": 1}) == TopicConfig(ttl_ms=9)


def test_a_config_from_disk_with_a_wrong_type_is_an_error() -> None:
    with pytest.raises(ValueError, match="topic config"):
        config_from_wire({"ttl_ms": "9"})


@pytest.mark.parametrize(
    ("field", "least", "most"),
    [
        ("segment_max_events", 1, 1_000_000),
        ("segment_max_bytes", 1024, 1 << 30),
        ("segment_max_age_ms", 0, 365 * 86_400_000),
    ],
)
def test_a_limit_of_segments_has_the_range_of_the_setting_of_the_daemon(field: str, least: int, most: int) -> None:
    environment = f"TOPICS_{field.upper()}"
    for value in (least, most):
        config = resolve(**{field: value})
        assert getattr(config, field) == value
        assert config_from_wire(config_to_wire(config)) == config
        assert getattr(load_settings({environment: str(value)}), field) == value
        assert resolve(config, **{field: None}) == TopicConfig()
    for value in (least - 1, most + 1):
        with pytest.raises(ApiError) as caught:
            resolve(**{field: value})
        assert (caught.value.status, caught.value.detail["field"]) == (400, field)
        with pytest.raises(ConfigError):
            load_settings({environment: str(value)})


def test_fields_that_most_topics_lack_are_not_on_disk() -> None:
    """Parts of topics without them are byte for byte what they were before there were such fields."""
    later = {"schema", "segment_max_events", "segment_max_bytes", "segment_max_age_ms", "compression"}
    later |= {"evidence", "keep_per_tag", "null_ttl_ms"}
    later |= {"retry", "rate", "priority_aging_ms", "max_in_flight", "order_by", "completed", "max_in_flight_per_key"}
    assert set(config_to_wire(TopicConfig())) == set(TopicConfig.__struct_fields__) - later
    assert config_to_wire(resolve(segment_max_age_ms=0))["segment_max_age_ms"] == 0
