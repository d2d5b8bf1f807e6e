"""The figures that `topics top` shows, computed from two looks at a daemon: rates, lags, the slowest syncs.

Pure: figures in, figures out. Where they come from, when, and how they are drawn is the business of
`topics.cli.figures.top`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from msgspec import Struct

if TYPE_CHECKING:
    from topics.client.daemon_results import Load

Metrics = Mapping[str, float | list[dict[str, Any]]]
"""The JSON form of the daemon's metrics."""

SortBy = Literal["rate", "bytes-rate", "records", "bytes", "ready", "name"]


@dataclass(frozen=True, slots=True)
class TopicObservation:
    """Where a topic stands."""

    head_seq: int
    records: int
    bytes: int


@dataclass(frozen=True, slots=True)
class QueueObservation:
    """The figures of a queue."""

    ready: int
    in_flight: int


@dataclass(frozen=True, slots=True)
class DaemonObservation:
    """One look at the daemon. `at` is a clock of seconds that never goes back, `ts` is ms since the epoch."""

    at: float
    ts: int
    version: str
    metrics: Metrics
    topics: Mapping[str, TopicObservation]
    complete: bool
    """These are all topics (whose names begin with the prefix)."""
    load: Load | None = None
    """The daemon's rates and latencies; None if the daemon is too old to report them."""


class TopicLine(Struct, kw_only=True):
    """One topic. Rates are None where there is nothing to compare with."""

    topic: str
    records_per_s: float | None
    bytes_per_s: float | None
    records: int
    bytes: int
    head_seq: int
    ready: int | None = None
    """Jobs that can be claimed; None for what is no queue, or not known as one."""
    in_flight: int | None = None


class RouterLine(Struct, kw_only=True):
    """One router."""

    router: str
    lag: int
    copies_per_s: float | None
    copies: int


class ConsumerLine(Struct, kw_only=True):
    """One named consumer."""

    topic: str
    consumer: str
    lag: int


class GroupLine(Struct, kw_only=True):
    """One group of a log."""

    topic: str
    group: str
    lag: int
    ready: int
    in_flight: int


class Outage(Struct, kw_only=True):
    """A line of `topics top --json` while the daemon does not answer."""

    ts: int
    up: bool = False
    error: str


class TopSnapshot(Struct, kw_only=True):
    """A line of `topics top --json`."""

    ts: int
    up: bool = True
    version: str
    uptime_ms: int
    ready: bool
    replayed: float
    """How much of the log is replayed, 0 to 1, while it is not ready."""
    read_only: bool
    pressure: float
    connections: int
    watchers: int
    """Open event streams and WebSockets."""
    fsync_p99_us: float | None
    """Of the syncs since the look before (since the start, in the first): the upper bound of the bucket of their
    histogram. None if there were none."""
    wal_bytes_per_s: float | None
    records_per_s: float | None
    """Appended to the topics looked at, those that are not shown included."""
    topics_total: int
    topics_seen: int
    complete: bool
    """All topics (whose names begin with the prefix) were looked at."""
    topics: list[TopicLine]
    routers_total: int
    routers: list[RouterLine]
    consumers_total: int = 0
    consumers: list[ConsumerLine] = []
    groups_total: int = 0
    groups: list[GroupLine] = []
    records_in_per_s: float | None = None
    """Of all topics, as the daemon has counted them over the last ten seconds; the same for the next one."""
    records_out_per_s: float | None = None
    append_p50_ms: float | None = None
    """Latencies of the last ten seconds; None where nothing happened."""
    append_p99_ms: float | None = None
    delivery_p50_ms: float | None = None
    delivery_p99_ms: float | None = None


@dataclass(frozen=True, slots=True)
class LineSelection:
    """Which lines, how many, in which order."""

    sort: SortBy = "rate"
    prefix: str = ""
    limit: int = 20


_ORDER: Final[Mapping[SortBy, Callable[[TopicLine], float]]] = {
    "rate": lambda line: line.records_per_s or 0.0,
    "bytes-rate": lambda line: line.bytes_per_s or 0.0,
    "records": lambda line: line.records,
    "bytes": lambda line: line.bytes,
    "ready": lambda line: -1 if line.ready is None else line.ready,
    "name": lambda _: 0,
}


def standings(metrics: Metrics, prefix: str) -> dict[str, TopicObservation]:
    """The topics that the metrics have."""
    records, sizes = by_label(metrics, "topic_records_live", "topic"), by_label(metrics, "topic_bytes_live", "topic")
    return {
        name: TopicObservation(int(head), int(records.get(name, 0)), int(sizes.get(name, 0)))
        for name, head in by_label(metrics, "topic_head_seq", "topic").items()
        if name.startswith(prefix)
    }


def truncated(metrics: Metrics) -> bool:
    """Return True if the metrics leave topics out."""
    return number(metrics, "topic_metrics_truncated") > 0


def snapshot(before: DaemonObservation | None, now: DaemonObservation, wanted: LineSelection) -> TopSnapshot:
    """Return the figures to show. Rates are over the time between both looks. There are none over a restart, after
    which a head may be higher than the number of appended records (`docs/spec/storage.md`)."""
    if before is not None and number(now.metrics, "uptime_ms") < number(before.metrics, "uptime_ms"):
        before = None
    seconds = math.nan if before is None else max(now.at - before.at, 1e-3)
    metrics = now.metrics
    lines = [_topic_line(name, before, now, seconds) for name in now.topics]
    ready, held = by_label(metrics, "topic_queue_ready", "topic"), by_label(metrics, "topic_queue_in_flight", "topic")
    for line in lines:
        if line.topic in ready:
            line.ready, line.in_flight = int(ready[line.topic]), int(held.get(line.topic, 0))
    lines.sort(key=lambda line: line.topic)
    lines.sort(key=_ORDER[wanted.sort], reverse=True)
    rates = [line.records_per_s for line in lines if line.records_per_s is not None]
    read_only = number(metrics, "read_only", number(metrics, "wal_read_only"))
    seen = TopSnapshot(
        ts=now.ts,
        version=now.version,
        uptime_ms=int(number(metrics, "uptime_ms")),
        ready=number(metrics, "ready") > 0,
        replayed=number(metrics, "recovery_progress"),
        read_only=read_only > 0,
        pressure=number(metrics, "pressure"),
        connections=int(number(metrics, "connections")),
        watchers=int(number(metrics, "sse_connections") + number(metrics, "ws_connections")),
        fsync_p99_us=_fsync_p99_us(None if before is None else before.metrics, metrics),
        wal_bytes_per_s=_rate("wal_bytes_written_total", before, now, seconds),
        records_per_s=None if before is None else sum(rates),
        topics_total=int(number(metrics, "topics")),
        topics_seen=len(lines),
        complete=now.complete,
        topics=lines[: wanted.limit],
        routers_total=int(number(metrics, "routers")),
        routers=_router_lines(before, now, seconds)[: wanted.limit],
        consumers_total=int(number(metrics, "consumers")),
        consumers=_consumer_lines(now)[: wanted.limit],
        groups_total=int(number(metrics, "groups")),
        groups=_group_lines(now)[: wanted.limit],
    )
    _add_load(seen, now.load)
    return seen


def _add_load(seen: TopSnapshot, load: Load | None) -> None:
    """Fill in the fields that the daemon itself tells."""
    if load is None:
        return
    if load.rates is not None:
        seen.records_in_per_s, seen.records_out_per_s = load.rates.records_in, load.rates.records_out
    if (append := load.latencies.append) is not None:
        seen.append_p50_ms, seen.append_p99_ms = append.p50_ms, append.p99_ms
    if (delivery := load.latencies.delivery) is not None:
        seen.delivery_p50_ms, seen.delivery_p99_ms = delivery.p50_ms, delivery.p99_ms


def _topic_line(name: str, before: DaemonObservation | None, now: DaemonObservation, seconds: float) -> TopicLine:
    stands = now.topics[name]
    line = TopicLine(
        topic=name,
        records_per_s=None,
        bytes_per_s=None,
        records=stands.records,
        bytes=stands.bytes,
        head_seq=stands.head_seq,
    )
    if before is None:
        return line
    stood = before.topics.get(name)
    if stood is None or stood.head_seq > stands.head_seq:
        if stood is None and not before.complete:
            return line
        stood = TopicObservation(0, 0, 0)  # it is new, or was deleted and made again
    appended = stands.head_seq - stood.head_seq
    grown = stands.bytes - stood.bytes
    if stands.records - stood.records != appended:
        # Records were removed too, so the growth in bytes says little: take new records to be as large as live ones.
        grown = round(appended * stands.bytes / stands.records) if stands.records else 0
    line.records_per_s = appended / seconds
    line.bytes_per_s = max(grown, 0) / seconds
    return line


def _router_lines(before: DaemonObservation | None, now: DaemonObservation, seconds: float) -> list[RouterLine]:
    """Those that are behind first."""
    copies = by_label(now.metrics, "router_forwarded_total", "router")
    earlier = {} if before is None else by_label(before.metrics, "router_forwarded_total", "router")
    lines = [
        RouterLine(
            router=name,
            lag=int(lag),
            copies_per_s=max(copies.get(name, 0) - earlier[name], 0) / seconds if name in earlier else None,
            copies=int(copies.get(name, 0)),
        )
        for name, lag in by_label(now.metrics, "router_lag", "router").items()
    ]
    return sorted(lines, key=lambda line: (-line.lag, -(line.copies_per_s or 0.0), line.router))


def _consumer_lines(now: DaemonObservation) -> list[ConsumerLine]:
    """Those that are behind first."""
    lags = _by_topic(now, "consumer_lag", "consumer")
    lines = [ConsumerLine(topic=topic, consumer=name, lag=lag) for (topic, name), lag in lags.items()]
    return sorted(lines, key=lambda line: (-line.lag, line.topic, line.consumer))


def _group_lines(now: DaemonObservation) -> list[GroupLine]:
    """Those that are behind first."""
    ready = _by_topic(now, "group_ready", "group")
    in_flight = _by_topic(now, "group_in_flight", "group")
    lines = [
        GroupLine(topic=key[0], group=key[1], lag=lag, ready=ready.get(key, 0), in_flight=in_flight.get(key, 0))
        for key, lag in _by_topic(now, "group_lag", "group").items()
    ]
    return sorted(lines, key=lambda line: (-line.lag, line.topic, line.group))


def _by_topic(now: DaemonObservation, name: str, label: str) -> dict[tuple[str, str], int]:
    """Return a figure of what topics have, such as consumers, by topic and name."""
    values = now.metrics.get(f"topics_{name}")
    entries = values if isinstance(values, list) else []
    return {(entry["labels"]["topic"], entry["labels"][label]): int(entry["value"]) for entry in entries}


def _rate(name: str, before: DaemonObservation | None, now: DaemonObservation, seconds: float) -> float | None:
    if before is None:
        return None
    return max(number(now.metrics, name) - number(before.metrics, name), 0.0) / seconds


def _fsync_p99_us(before: Metrics | None, now: Metrics) -> float | None:
    buckets = by_label(now, "wal_fsync_latency_us", "le")
    earlier = {} if before is None else by_label(before, "wal_fsync_latency_us", "le")
    return quantile(((float(bound), count - earlier.get(bound, 0)) for bound, count in buckets.items()), 0.99)


def quantile(cumulative: Iterable[tuple[float, float]], share: float) -> float | None:
    """The upper bound of the bucket that holds the quantile, of `(bound, count of all up to it)`; None if all are
    empty. A value above the last finite bound is reported as that bound."""
    buckets: Sequence[tuple[float, float]] = sorted(cumulative)
    if not buckets or buckets[-1][1] <= 0:
        return None
    finite = [bound for bound, _ in buckets if bound != math.inf]
    for bound, count in buckets:
        if count >= share * buckets[-1][1] and bound != math.inf:
            return bound
    return finite[-1] if finite else None


def number(metrics: Metrics, name: str, default: float = 0.0) -> float:
    """The value of a metric without labels; `default` where the daemon has none of that name."""
    value = metrics.get("topics_" + name)
    return default if value is None or isinstance(value, list) else value


def by_label(metrics: Metrics, name: str, label: str) -> dict[str, float]:
    """The values of a metric by one of its labels."""
    values = metrics.get("topics_" + name)
    return {entry["labels"][label]: entry["value"] for entry in values} if isinstance(values, list) else {}
