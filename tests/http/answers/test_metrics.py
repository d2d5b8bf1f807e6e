"""How figures are rendered, for whom, and that the dashboard asks for what there is."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import trio
from prometheus_client.parser import text_string_to_metric_families

from tests.conformance.metrics import CONTRACT, samples_of_json
from tests.http.conftest import Served
from tests.http.fake_engine import FakeEngine
from topics.auth.keys import ALL, OPEN, Key
from topics.config import Settings
from topics.http.answers.metrics import PREFIX, SLICE, Exposition, families
from topics.http.answers.request_figures import RequestFigures
from topics.telemetry.figures import (
    BucketFigures,
    ConsumerFigures,
    EngineFigures,
    GroupFigures,
    JobFigures,
    RouterFigures,
    TopicFigures,
)

DASHBOARD = Path(__file__).parents[3] / "docs" / "grafana.json"
AS_JSON = "application/json"


FULL = EngineFigures(
    topics=2,
    by_class={"disk": 2},
    topic_samples=[TopicFigures("a", 5, 1, 5, 50), TopicFigures("b", 0, 1, 0, 0, JobFigures(3, 2, 0, False, 1))],
    results_waiting=3,
    results_bytes=1600,
    routers=1,
    consumer_samples=[ConsumerFigures("a", "c", 3)],
    group_samples=[GroupFigures("a", "g", 3, 0, JobFigures(2, 1, 4, True, 5))],
    router_samples=[RouterFigures("a>b", 4, 9)],
    throttled={"max_inflight_bytes": 1, "max_topics": 5},
    segments={"hot": 3, "cold": 1},
    segments_packed=2,
    segment_bytes=9000,
    segment_stored_bytes=2500,
    restarts={"compactor": 2},
    bucket=BucketFigures(
        state="waiting",
        epoch=3,
        round=17,
        rounds=9,
        round_bytes=900,
        lag_bytes=70,
        lag_ms=1500,
        has_base=True,
        base=12,
        base_age_ms=60_000,
        base_is_due=True,
        bases=2,
        bases_failed=1,
        backlog_limit_bytes=1000,
        objects_put={"rounds": 9, "packs": 4, "segments": 6, "bases": 2},
        bytes_put={"rounds": 900, "packs": 400},
        objects_deleted=5,
        segments_repaired=3,
        log_files_repaired=1,
        repaired_bytes=77,
        repairs_waiting=4,
        calls_hanging=1,
        calls_timed_out=2,
        calls_failed={"timeout": 2, "full": 0},
    ),
)
"""With samples in every family."""


def requests() -> RequestFigures:
    """What goes with it."""
    made = RequestFigures()
    made.count("GET /v0/topics/{topic}", 200, 3.5)
    made.throttled["max_inflight_bytes"] += 2
    return made


class Figured(FakeEngine):
    """An engine that has nothing but figures, and remembers who asked."""

    def __init__(self, figures: EngineFigures) -> None:
        super().__init__(Settings(data_dir=Path("/nonexistent"), wal_shards=1))
        self.found = figures
        self.asked_by = OPEN

    async def figures(self, key: Key) -> EngineFigures:
        self.asked_by = key
        return self.found


@dataclass
class Listened:
    """Connections of a server that there is not."""

    connections: Sequence[None] = (None,) * 7
    refused_total: int = 3


async def rendered(figures: EngineFigures, counted: RequestFigures | None = None) -> tuple[str, dict[str, Any]]:
    """Both forms of the same figures."""
    exposition = Exposition(Figured(figures).as_engine(), counted or RequestFigures())
    text, body = await exposition.respond(""), await exposition.respond(AS_JSON)
    return text.body.decode(), json.loads(body.body)


def samples_of_text(text: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {
        (sample.name.removeprefix(PREFIX), tuple(sorted(sample.labels.items()))): float(sample.value)
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


@pytest.mark.trio
async def test_every_family_of_the_contract_is_there_when_nothing_has_happened_yet() -> None:
    text, body = await rendered(EngineFigures())
    found = {family.name.removeprefix(PREFIX): family.type for family in text_string_to_metric_families(text)}
    for name, (kind, _) in CONTRACT.items():
        assert found[name] == kind, name
        total = "_total" if kind == "counter" else ""
        assert PREFIX + name + total in body, name


@pytest.mark.trio
async def test_what_no_sample_has_come_of_is_an_empty_list_in_json() -> None:
    _, body = await rendered(EngineFigures())
    for name in ("topic_head_seq", "router_lag", "router_forwarded_total", "requests_total", "throttled_total"):
        assert body[PREFIX + name] == [], name


@pytest.mark.trio
async def test_both_forms_have_the_same_samples() -> None:
    text, body = await rendered(FULL, requests())
    by_text = samples_of_text(text)
    # In JSON, buckets stand under the name of their histogram.
    renamed = {(name.removesuffix("_bucket"), labels) for name, labels in by_text}
    assert renamed == set(samples_of_json(body))
    assert by_text["throttled_total", (("reason", "max_inflight_bytes"),)] == 3
    assert by_text["topic_queue_ready", (("topic", "b"),)] == 3
    assert ("topic_queue_ready", (("topic", "a"),)) not in by_text
    assert (by_text["results_waiting", ()], by_text["results_waiting_bytes", ()]) == (3, 1600)
    assert by_text["background_restarts_total", (("task", "compactor"),)] == 2
    assert [by_text["bucket_state", (("state", state),)] for state in ("working", "waiting")] == [0, 1]
    assert (by_text["bucket_has_base", ()], by_text["bucket_base", ()], by_text["bucket_base_due", ()]) == (1, 12, 1)
    assert (by_text["bucket_bases_total", ()], by_text["bucket_bases_failed_total", ()]) == (2, 1)
    assert (by_text["bucket_base_age_ms", ()], by_text["bucket_backlog_limit_bytes", ()]) == (60_000, 1000)
    assert by_text["bucket_put_objects_total", (("kind", "segments"),)] == 6
    assert by_text["bucket_put_bytes_total", (("kind", "packs"),)] == 400
    assert by_text["bucket_put_bytes_total", (("kind", "bases"),)] == 0
    assert (by_text["bucket_objects_deleted_total", ()], by_text["bucket_calls_hanging", ()]) == (5, 1)
    assert by_text["bucket_calls_timed_out_total", ()] == 2
    assert [by_text[name, ()] for name in ("segments_packed", "segment_bytes", "segment_stored_bytes")] == [
        2,
        9000,
        2500,
    ]
    assert (by_text["bucket_repaired_segments_total", ()], by_text["bucket_repaired_log_files_total", ()]) == (3, 1)
    assert (by_text["bucket_repaired_bytes_total", ()], by_text["bucket_repairs_waiting", ()]) == (77, 4)
    assert by_text["bucket_calls_failed_total", (("kind", "timeout"),)] == 2
    assert body["topics_request_ms_sum"] == 3.5
    assert body["topics_request_ms_count"] == 1
    assert {"labels": {"le": "5"}, "value": 1} in body["topics_request_ms"]
    assert {"labels": {"le": "2"}, "value": 0} in body["topics_request_ms"]
    assert {"labels": {"le": "+Inf"}, "value": 1} in body["topics_request_ms"]


@pytest.mark.trio
async def test_what_the_gate_counts_is_shown() -> None:
    counted = RequestFigures()
    counted.unauthorized["forbidden"] += 2
    counted.server, counted.audit_failures = Listened(), 1
    found = samples_of_text((await rendered(EngineFigures(), counted))[0])
    assert found["unauthorized_total", (("reason", "forbidden"),)] == 2
    assert found["unauthorized_total", (("reason", "unauthorized"),)] == 0
    assert (found["connections", ()], found["connections_refused_total", ()]) == (7, 3)
    assert found["audit_failures_total", ()] == 1


@pytest.mark.parametrize("topics", [0, 1, SLICE - 1, SLICE, SLICE + 1, 1000])
@pytest.mark.trio
async def test_a_family_that_is_rendered_in_pieces_is_one_family(topics: int) -> None:
    figures = EngineFigures(topic_samples=[TopicFigures(f"t{n}", n, 1, 0, 0) for n in range(topics)])
    text, body = await rendered(figures)
    lines = text.splitlines()
    for kind in ("HELP", "TYPE"):
        assert sum(line.startswith(f"# {kind} topics_topic_head_seq ") for line in lines) == 1
    at = lines.index("# TYPE topics_topic_head_seq gauge") + 1
    assert lines[at : at + topics] == [f'topics_topic_head_seq{{topic="t{n}"}} {float(n)}' for n in range(topics)]
    assert [entry["value"] for entry in body["topics_topic_head_seq"]] == list(range(topics))


@pytest.mark.trio
async def test_others_have_their_turn_while_a_scrape_is_rendered() -> None:
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await trio.lowlevel.checkpoint()

    figures = EngineFigures(topic_samples=[TopicFigures(f"t{n}", n, 1, 0, 0) for n in range(1000)])
    exposition = Exposition(Figured(figures).as_engine(), RequestFigures())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(others)
        await exposition.respond("")
        nursery.cancel_scope.cancel()
    assert turns >= 4 * 1000 / SLICE


@pytest.mark.parametrize("name", ['a"b', "a\\", 'a\\"', "a\nb", 'x"} 1\ntopics_ready{y="', "é\u2028"])
@pytest.mark.trio
async def test_no_name_could_break_out_of_its_label(name: str) -> None:
    # The rules for names let none of these in. If they did, the text would still be what it says.
    figures = EngineFigures(
        topic_samples=[TopicFigures(name, 5, 1, 5, 50)], router_samples=[RouterFigures(name, 1, 2)], throttled={name: 1}
    )
    plain = len(samples_of_text((await rendered(EngineFigures()))[0]))
    text, body = await rendered(figures)
    found = samples_of_text(text)
    assert found["topic_head_seq", (("topic", name),)] == 5
    assert found["router_lag", (("router", name),)] == 1
    assert found["throttled_total", (("reason", name),)] == 1
    assert len(found) == plain + 4 + 2 + 1
    assert body["topics_topic_head_seq"] == [{"labels": {"topic": name}, "value": 5}]


@pytest.mark.trio
async def test_the_engine_is_asked_for_what_the_key_covers_and_totals_stay() -> None:
    engine = Figured(EngineFigures(topics=2))
    exposition = Exposition(engine.as_engine(), RequestFigures())
    key = Key(b"digest", ALL, ("a",))
    assert b"topics_topics 2.0" in (await exposition.respond("", key)).body
    assert engine.asked_by is key
    await exposition.respond("")
    assert engine.asked_by is OPEN


@pytest.mark.trio
async def test_over_http_both_forms_are_what_they_say(served: Served) -> None:
    async with served.client() as client:
        for number in range(30):
            await client.put(f"/v0/topics/t{number}")
        text = await client.get("/v0/metrics", headers={"accept-encoding": "gzip"})
        assert text.headers["content-encoding"] == "gzip"
        assert samples_of_text(text.text)["topics", ()] == 30
        body = await client.get("/v0/metrics", headers={"accept": AS_JSON})
        assert set(samples_of_json(body.json()))


# --- the dashboard ---------------------------------------------------------------------------------------------------


KINDS = {
    family.name.removeprefix(PREFIX): (family.type, {label for sample in family.samples for label in sample.labels})
    for family in families(FULL, requests())
}
"""Of every family that there is, its kind and its labels."""

FOREIGN = {"instance", "job"}
"""Labels that scraping adds."""


def panels_of(document: Any) -> Iterator[Any]:
    for panel in document["panels"]:
        yield panel
        yield from panel.get("panels", [])


def queries_of(document: Any) -> Iterator[str]:
    for panel in panels_of(document):
        for target in panel.get("targets", []):
            yield target["expr"]
    for variable in document["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["query"]["query"]


def family_of(name: str) -> str:
    """The family that a name in a query belongs to. KeyError if there is none that has such samples."""
    for suffix, kind in (
        ("_total", "counter"),
        ("_bucket", "histogram"),
        ("_sum", "histogram"),
        ("_count", "histogram"),
    ):
        stem = name.removesuffix(suffix)
        if stem != name and KINDS.get(stem, ("", set()))[0] == kind:
            return stem
    if KINDS[name][0] != "gauge":
        raise KeyError(name)
    return name


@pytest.fixture(scope="module")
def dashboard() -> Any:
    return json.loads(DASHBOARD.read_text())


def test_every_query_of_the_dashboard_asks_for_what_the_daemon_has(dashboard: Any) -> None:
    queries = list(queries_of(dashboard))
    assert len(queries) > 30
    for query in queries:
        names = re.findall(rf"\b{PREFIX}([a-z0-9_]+)", query)
        assert names, query
        labels = {label for name in names for label in KINDS[family_of(name)][1]} | FOREIGN
        for group in re.findall(r"\bby \(([^)]*)\)", query):
            assert {label.strip() for label in group.split(",")} <= labels, query
        for selector in re.findall(r"\{([^}]*)\}", query):
            assert set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", selector)) <= labels, query
        for function, name in re.findall(rf"\b(rate|increase)\({PREFIX}([a-z0-9_]+)", query):
            assert KINDS[family_of(name)][0] != "gauge", f"{function} of a gauge: {query}"


@pytest.mark.parametrize("name", ["topics", "throttled_total", "request_ms_bucket", "request_ms_sum"])
def test_names_of_samples_are_found(name: str) -> None:
    assert family_of(name) in KINDS


@pytest.mark.parametrize("name", ["topic", "throttled", "topics_total", "request_ms", "ready_bucket", "no_such_total"])
def test_names_that_no_sample_has_are_not(name: str) -> None:
    with pytest.raises(KeyError):
        family_of(name)


def test_legends_show_labels_that_there_are(dashboard: Any) -> None:
    for panel in panels_of(dashboard):
        for target in panel.get("targets", []):
            names = re.findall(rf"\b{PREFIX}([a-z0-9_]+)", target["expr"])
            labels = {label for name in names for label in KINDS[family_of(name)][1]}
            assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) <= labels, target


def test_the_dashboard_can_be_imported_anywhere(dashboard: Any) -> None:
    assert (dashboard["title"], dashboard["uid"]) == ("topics", "topics")
    assert 36 <= dashboard["schemaVersion"] <= 41
    assert "id" not in dashboard, "an id is given by the Grafana that imports it"
    variables = {variable["name"]: variable["type"] for variable in dashboard["templating"]["list"]}
    assert variables["datasource"] == "datasource"
    panels = list(panels_of(dashboard))
    assert len({panel["id"] for panel in panels}) == len(panels)
    for panel in panels:
        if panel["type"] != "row":
            sources = [panel["datasource"], *(target["datasource"] for target in panel["targets"])]
            assert all(source == {"type": "prometheus", "uid": "${datasource}"} for source in sources), panel["title"]


def test_panels_do_not_overlap(dashboard: Any) -> None:
    taken: dict[tuple[int, int], str] = {}
    for panel in panels_of(dashboard):
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        for x in range(place["x"], place["x"] + place["w"]):
            for y in range(place["y"], place["y"] + place["h"]):
                assert (x, y) not in taken, (panel["title"], taken[x, y])
                taken[x, y] = panel["title"]


def test_the_dashboard_has_a_row_for_each_part(dashboard: Any) -> None:
    rows = [panel["title"] for panel in dashboard["panels"] if panel["type"] == "row"]
    assert rows == [
        "Overview", "Traffic", "Log", "Delivery", "Queues", "Routers",
        "Consumers, groups and schedules", "Retention and segments", "Bucket", "Refusals and failures",
    ]  # fmt: skip
