"""The settings of topics and routers, as the calls that create and change them take them by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypedDict

Match = str | Sequence[str]
"""`["tag", "Eq", "x"]`, `["tag", "Glob", "x*"]`, or a bare string, which means Eq (`docs/spec/api.md` section 1)."""


class TopicSettings(TypedDict, total=False):
    """The settings of a topic (`docs/spec/api.md` section 2). An absent one has its default in a new topic, and keeps
    its value in an existing one. Times are in ms."""

    type: Literal["log", "queue"]
    ttl_ms: int
    cap_records: int
    cap_bytes: int
    discard: Literal["old", "reject"]
    durability: Literal["ephemeral", "memory", "disk", "fsync", "remote"]
    durable: bool
    priority: int | None
    auto_priority: bool
    auto_create: bool
    idempotency_window_ms: int
    dedupe_node: bool
    lease_ms: int
    claim_jitter_ms: int
    max_deliveries: int
    dead_letter: str | None
    completed: str | None
    leases_durable: bool
    retry: Mapping[str, Any] | None
    priority_aging_ms: int
    max_in_flight: int
    rate: Mapping[str, int] | None
    max_in_flight_per_key: Mapping[str, object] | None
    schema: Mapping[str, Any] | None
    segment_max_events: int | None
    segment_max_bytes: int | None
    segment_max_age_ms: int | None
    keep_per_tag: int
    null_ttl_ms: int
    compression: Literal["zstd", "off"] | None
    evidence: bool
    retention: Literal["limits", "consumed"]
    order_by: Literal["tag", "node"] | None


class RouterSettings(TypedDict, total=False):
    """The settings of a router beside source and dest (`docs/spec/api.md` section 7). `from_` is `from` on the wire."""

    preserve_node: bool
    preserve_tag: bool
    create_dest: bool
    filter: Match | Sequence[object] | None
    allow_cycle: bool
    guarantee: Literal["at_least_once", "exactly_once"]
    from_: Literal["tail", "earliest"]
