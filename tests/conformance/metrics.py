"""The metrics as section 11 has them: which there are, and both forms read by others' parsers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families

from tests.conformance.client import JSON_TYPE, Client, body_of

PREFIX = "topics_"

CONTRACT: dict[str, tuple[str, set[str]]] = {
    "topics": ("gauge", set()),
    "topics_by_class": ("gauge", {"class"}),
    "routers": ("gauge", set()),
    "records_live": ("gauge", set()),
    "bytes_live": ("gauge", set()),
    "queue_topics": ("gauge", set()),
    "queue_leases_in_flight": ("gauge", set()),
    "results_waiting": ("gauge", set()),
    "results_waiting_bytes": ("gauge", set()),
    "sse_connections": ("gauge", set()),
    "ws_connections": ("gauge", set()),
    "watch_sessions": ("gauge", set()),
    "ready": ("gauge", set()),
    "recovery_progress": ("gauge", set()),
    "uptime_ms": ("gauge", set()),
    "pressure": ("gauge", set()),
    "ready_set_depth": ("gauge", set()),
    "scheduling_wait_ms": ("histogram", set()),
    "throttled": ("counter", {"reason"}),
    "topic_head_seq": ("gauge", {"topic"}),
    "topic_earliest_seq": ("gauge", {"topic"}),
    "topic_records_live": ("gauge", {"topic"}),
    "topic_bytes_live": ("gauge", {"topic"}),
    "topic_queue_ready": ("gauge", {"topic"}),
    "topic_queue_in_flight": ("gauge", {"topic"}),
    "topic_queue_delayed": ("gauge", {"topic"}),
    "topic_queue_paused": ("gauge", {"topic"}),
    "topic_queue_dead_lettered": ("counter", {"topic"}),
    "topic_metrics_truncated": ("gauge", set()),
    "wal_frames": ("counter", set()),
    "wal_batches": ("counter", set()),
    "wal_fsyncs": ("counter", set()),
    "wal_bytes_written": ("counter", set()),
    "wal_rotations": ("counter", set()),
    "wal_queue_depth": ("gauge", set()),
    "wal_queue_depth_peak": ("gauge", set()),
    "wal_submit_full": ("counter", set()),
    "read_only": ("gauge", set()),
    "wal_read_only": ("gauge", set()),
    "wal_fsync_latency_us": ("histogram", set()),
    "segments": ("gauge", {"tier"}),
    "router_lag": ("gauge", {"router"}),
    "router_forwarded": ("counter", {"router"}),
    "requests": ("counter", {"route", "status"}),
    "request_ms": ("histogram", set()),
}
"""Kind and labels of each; counters without their `_total`."""

Labels = tuple[tuple[str, str], ...]


class Scrape:
    """What one scrape of the text form has told."""

    def __init__(self, answer: httpx.Response) -> None:
        assert answer.status_code == 200, answer.text[:500]
        assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
        self.text = answer.text
        self.kinds: dict[str, str] = {}
        self.labels: dict[str, set[str]] = {}
        """By family, what its samples have; the bounds of a histogram's buckets aside."""
        self.samples: dict[tuple[str, Labels], float] = {}
        for family in text_string_to_metric_families(self.text):
            assert family.name.startswith(PREFIX), family.name
            name = family.name.removeprefix(PREFIX)
            assert name not in self.kinds, f"{name} comes twice"
            assert family.documentation, f"{name} does not say what it is"
            self.kinds[name] = family.type
            labels = self.labels[name] = set()
            for sample in family.samples:
                key = sample.name.removeprefix(PREFIX), tuple(sorted(sample.labels.items()))
                assert key not in self.samples, f"{key} comes twice"
                self.samples[key] = float(sample.value)
                labels |= set(sample.labels) - ({"le"} if family.type == "histogram" else set())

    def value(self, name: str, **labels: str) -> float:
        """A sample, 0 where there is none."""
        return self.samples.get((name, tuple(sorted(labels.items()))), 0)

    def by(self, name: str, label: str) -> dict[str, float]:
        """The samples of a name by the value of one label; what differs in others only is added up."""
        found: dict[str, float] = {}
        for (own, labels), value in self.samples.items():
            if own == name:
                key = dict(labels)[label]
                found[key] = found.get(key, 0) + value
        return found

    def counts(self) -> dict[tuple[str, Labels], float]:
        """Everything that may never fall while the daemon lives."""
        parts = ("_total", "_bucket", "_sum", "_count")
        return {key: value for key, value in self.samples.items() if key[0].endswith(parts)}

    def check_histograms(self) -> None:
        """Assert of each that its buckets grow, end with all there are, and that sum and count are there."""
        for name in (name for name, kind in self.kinds.items() if kind == "histogram"):
            buckets = sorted((float(bound), count) for bound, count in self.by(f"{name}_bucket", "le").items())
            counts = [count for _, count in buckets]
            assert len(buckets) > 2
            assert counts == sorted(counts), name
            assert buckets[-1] == (float("inf"), self.samples[f"{name}_count", ()]), name
            assert self.samples[f"{name}_sum", ()] >= 0, name


def scrape(client: Client) -> Scrape:
    return Scrape(client.get("/v0/metrics"))


def as_json(client: Client) -> Any:
    return body_of(client.get("/v0/metrics", headers={"accept": JSON_TYPE}))


def samples_of_json(body: Any) -> Iterable[tuple[str, Labels]]:
    """Names and labels of the JSON form, whose form is checked on the way: `{name: value | [{labels, value}]}`."""
    for name, content in body.items():
        assert name.startswith(PREFIX), name
        if not isinstance(content, list):
            assert isinstance(content, int | float), (name, content)
            assert not isinstance(content, bool)
            yield name.removeprefix(PREFIX), ()
            continue
        for entry in content:
            assert set(entry) == {"labels", "value"}, (name, entry)
            assert entry["labels"], name
            assert all(isinstance(value, str) for value in entry["labels"].values()), (name, entry)
            assert isinstance(entry["value"], int | float), (name, entry)
            yield name.removeprefix(PREFIX), tuple(sorted(entry["labels"].items()))
