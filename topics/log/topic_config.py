"""A topic's configuration: how a patch changes it, and its form in snapshots and the WAL (`docs/spec/api.md` section
2).

Rules that concern other topics (an `ephemeral` `dead_letter` or `completed`) are applied by the engine.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, get_args

import msgspec
from msgspec import UNSET

from topics.errors import ApiError, invalid
from topics.log.names import check_topic_name
from topics.model import (
    MAX_U64,
    SYNCED_CLASSES,
    ClaimRate,
    Durability,
    KeyLimitConfig,
    RetryPolicy,
    TopicConfig,
    TopicConfigPatch,
)
from topics.runtime.instant import MAX_AHEAD_MS
from topics.schemas.record_schema import normal_schema
from topics.schemas.schema_walk import BadSchema

MAX_IDEMPOTENCY_WINDOW_MS: Final = 7 * 24 * 3600 * 1000
MIN_LEASE_MS: Final = 100
MAX_LEASE_MS: Final = 86_400_000

_U64_FIELDS: Final = (
    "ttl_ms",
    "cap_records",
    "cap_bytes",
    "idempotency_window_ms",
    "max_deliveries",
    "priority_aging_ms",
    "max_in_flight",
    "keep_per_tag",
    "null_ttl_ms",
)
SEGMENT_LIMITS: Final[Mapping[str, tuple[int, int]]] = {
    "segment_max_events": (1, 1_000_000),
    "segment_max_bytes": (1 << 10, 1 << 30),
    "segment_max_age_ms": (0, 365 * 86_400_000),
}
"""The least and the most of each limit of segments, as for the settings of the daemon with these names."""
_CLAMPED: Final[Mapping[str, tuple[int, int]]] = {
    "priority": (-1000, 1000),
    "lease_ms": (MIN_LEASE_MS, MAX_LEASE_MS),
    "claim_jitter_ms": (0, 5000),
}
_CHOICES: Final[Mapping[str, tuple[str, ...]]] = {
    "type": ("log", "queue"),
    "discard": ("old", "reject"),
    "durability": get_args(Durability),
    "retention": ("limits", "consumed"),
    "order_by": ("tag", "node"),
    "compression": ("zstd", "off"),
}
_MAY_BE_NULL: Final = frozenset({"order_by", "compression"})

EVIDENCE_CLASSES: Final = frozenset({"fsync", "remote"})
"""The classes of topics with evidence: published records of these are on disk."""

TARGETS: Final = ("dead_letter", "completed")
"""Fields that name another topic, to which the daemon appends. That is not the topic itself, and not `ephemeral`."""

_LATER: Final[Mapping[str, object]] = {
    "schema": None,
    "segment_max_events": None,
    "segment_max_bytes": None,
    "segment_max_age_ms": None,
    "compression": None,
    "evidence": False,
    "retry": None,
    "priority_aging_ms": TopicConfig().priority_aging_ms,
    "max_in_flight": 0,
    "rate": None,
    "order_by": None,
    "completed": None,
    "max_in_flight_per_key": None,
    "keep_per_tag": 0,
    "null_ttl_ms": TopicConfig().null_ttl_ms,
}
"""Fields for which most topics have these values. Then they are left out, so that the parts of other topics are what
they were before there were these fields."""

MAX_RATE_JOBS: Final = 1_000_000
MAX_PER_KEY: Final = 1_000_000
RANGES: Final[Mapping[str, Mapping[str, tuple[int, int]]]] = {
    "retry": {"delay_ms": (0, MAX_AHEAD_MS), "max_delay_ms": (0, MAX_AHEAD_MS), "jitter": (0, 1)},
    "rate": {"jobs": (1, MAX_RATE_JOBS), "per_ms": (1, MAX_AHEAD_MS)},
    "max_in_flight_per_key": {"max": (1, MAX_PER_KEY)},
}
"""Fields that are objects, and the least and the most of their numbers."""

# Most of 100,000 topics have one of a few configurations, so equal ones share an object. The bound is for a daemon
# whose topics all differ: sharing then saves nothing, and the oldest entries are dropped.
_MAX_INTERNED: Final = 4096
_interned: dict[TopicConfig, TopicConfig] = {}


def resolve_config(
    current: TopicConfig | None, patch: TopicConfigPatch, *, topic: str, of_group: bool = False
) -> TopicConfig:
    """Return the configuration of `topic` after `patch`: merged over `current`, or over the defaults on creation
    (None). `of_group`: it has the settings of leases of a group of `topic`.

    Clamped fields are clamped; anything else out of range is `400 invalid_request` naming the field, a changed `type`
    is `409 topic_exists_incompatible`. Equal results are the same object.
    """
    base = current if current is not None else TopicConfig()
    present: dict[str, Any] = {
        name: value for name in patch.__struct_fields__ if (value := getattr(patch, name)) is not UNSET
    }
    for name, value in present.items():
        if name in _CHOICES and value not in _CHOICES[name] and (name not in _MAY_BE_NULL or value is not None):
            raise invalid(name, f"must be one of {', '.join(_CHOICES[name])}")
        if name in _U64_FIELDS and not 0 <= value <= MAX_U64:
            raise invalid(name, "must be between 0 and 2^64 - 1")
        if name in SEGMENT_LIMITS and value is not None:
            low, high = SEGMENT_LIMITS[name]
            if not low <= value <= high:
                raise invalid(name, f"must be between {low} and {high}, or null", min=low, max=high)
        for part, (low, high) in RANGES.get(name, {}).items() if value is not None else ():
            if not low <= getattr(value, part) <= high:
                raise invalid(f"{name}.{part}", f"must be between {low} and {high}", min=low, max=high)
        if name in _CLAMPED and value is not None:
            low, high = _CLAMPED[name]
            present[name] = max(low, min(high, value))
    if present.get("idempotency_window_ms", 0) > MAX_IDEMPOTENCY_WINDOW_MS:
        raise invalid("idempotency_window_ms", "must be at most 7 days", max=MAX_IDEMPOTENCY_WINDOW_MS)
    for name in TARGETS:
        if present.get(name) is not None:
            check_topic_name(present[name], name)
            if present[name] == topic:
                raise invalid(name, "must differ from the topic itself")
    if "schema" in present:
        try:
            present["schema"] = normal_schema(bytes(present["schema"]))
        except BadSchema as error:
            raise invalid("schema", str(error)) from None
    if current is not None and present.get("type", current.type) != current.type:
        raise ApiError(
            "topic_exists_incompatible",
            f"type: topic {topic!r} is a {current.type} and stays one",
            detail={"field": "type", "topic": topic, "type": current.type},
        )
    if present.get("retention") == "consumed" and present.get("type", base.type) == "queue":
        raise invalid("retention", "a queue deletes its jobs itself")
    if present.get("keep_per_tag") and present.get("type", base.type) == "queue":
        raise invalid("keep_per_tag", "a queue keeps each job until it is done")
    for name in ("order_by", "max_in_flight_per_key"):
        if not of_group and present.get(name) is not None and present.get("type", base.type) != "queue":
            raise invalid(name, "only the jobs of a queue and the records of a group have it")
    both = [present.get(name, getattr(base, name)) for name in ("order_by", "max_in_flight_per_key")]
    if None not in both:
        name = "order_by" if present.get("max_in_flight_per_key") is None else "max_in_flight_per_key"
        raise invalid(name, "with an order one job of a key is leased at a time: set one of these fields to null")
    # If a body has both, `durability` wins over `durable`; `durable` alone replaces the present class.
    if "durability" not in present and "durable" in present:
        present["durability"] = "fsync" if present["durable"] else "disk"
    durability = present.get("durability", base.durability)
    if present.get("evidence") is False and base.evidence:
        raise invalid("evidence", "cannot be switched off: what was published with it must stay provable")
    if present.get("evidence", base.evidence) and durability not in EVIDENCE_CLASSES:
        classes = " or ".join(sorted(EVIDENCE_CLASSES.intersection(_CHOICES["durability"])))
        raise invalid("durability", f"a topic with evidence is {classes}")
    present["durable"] = durability in SYNCED_CLASSES
    return _intern(msgspec.structs.replace(base, **present))


def targets_of(config: TopicConfig) -> dict[str, str]:
    """Return the topics that a config names for what becomes of jobs, by field."""
    return {field: name for field in TARGETS if (name := getattr(config, field)) is not None}


def config_from_wire(value: Mapping[str, Any]) -> TopicConfig:
    """Return a configuration read from a snapshot or the WAL. A missing key has its default, an unknown one is ignored.

    Values are not clamped or checked against one another again: they were when they were written. Raises ValueError on
    wrong types.
    """
    try:
        schema = value.get("schema")
        if schema is None:
            return _intern(msgspec.convert(value, TopicConfig))
        rest = {name: field for name, field in value.items() if name != "schema"}
        config = msgspec.convert(rest, TopicConfig)
        return _intern(msgspec.structs.replace(config, schema=msgspec.Raw(schema)))
    except (msgspec.ValidationError, TypeError) as error:
        raise ValueError(f"not a topic config: {error}") from error


def config_to_wire(config: TopicConfig) -> dict[str, Any]:
    """Return the fields by name, as CBOR and JSON take them. A new dict that the caller may keep."""
    fields = msgspec.structs.asdict(config)
    for name, usual in _LATER.items():
        if fields[name] == usual:
            del fields[name]
        elif isinstance(fields[name], RetryPolicy | ClaimRate | KeyLimitConfig):
            fields[name] = msgspec.structs.asdict(fields[name])
    if config.schema is not None:
        fields["schema"] = bytes(config.schema).decode()
    return fields


def _intern(config: TopicConfig) -> TopicConfig:
    known = _interned.get(config)
    if known is not None:
        return known
    if len(_interned) >= _MAX_INTERNED:
        del _interned[next(iter(_interned))]
    _interned[config] = config
    return config
