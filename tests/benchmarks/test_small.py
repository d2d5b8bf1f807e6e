"""The part `small`: what counts as a right answer, and which figures come of a case."""

from __future__ import annotations

from array import array

import pytest

from benchmarks.client import Answer, Load, WrongAnswer
from benchmarks.figures import figure, resolve
from benchmarks.parts import PARTS
from benchmarks.redis_streams import SINGLES
from benchmarks.references import cpu_figures
from benchmarks.small import (
    AIMS,
    CONNECTIONS,
    REQUESTS,
    Aim,
    Appended,
    CheckAndCount,
    Done,
    Sample,
    request_figures,
)
from tests.benchmarks.runs import STEADY

ECHO = figure("reference: bare hypercorn, one small request, p50", "ms", [0.4], key="echo-p50")
ECHO_P99 = figure("... p99", "ms", [0.8])
SAMPLE = Sample(Load(seconds=2.0, requests=1000, latencies_ms=array("d", [0.5, 1.0, 4.0])), 80.0, 0.5)


def test_right_answers_are_counted() -> None:
    check = CheckAndCount(b'"count":1,')
    assert [check(0, Answer(200, b'{"topic":"t","count":1,"x":0}')) for _ in range(3)] == [1, 1, 1]
    assert check.total == 3


@pytest.mark.parametrize(
    "answer", [Answer(200, b'{"count":10,}'), Answer(429, b'{"count":1,}')], ids=["body", "status"]
)
def test_a_wrong_answer_ends_the_benchmark(answer: Answer) -> None:
    check = CheckAndCount(b'"count":1,')
    with pytest.raises(WrongAnswer):
        check(0, answer)
    assert check.total == 0


def test_a_case_gives_its_rate_its_latencies_and_what_it_takes_of_the_processor() -> None:
    figures = request_figures("health, 1 connection", "health-1", [SAMPLE], Aim(p99=2))
    results = {one.id: one for one in resolve("small", [*cpu_figures(STEADY), ECHO, ECHO_P99, *figures], {})}
    medians = {name: results[f"small/health-1{name}"].median for name in ("", "-p50", "-p99", "-cpu")}
    assert medians == {"": 500.0, "-p50": 1.0, "-p99": 4.0, "-cpu": 80.0}
    assert results["small/health-1-p99"].met is False
    assert [one.id for one in results["small/health-1-p50"].references] == ["small/echo-p50"]


def test_redis_stands_beside_appends_of_the_same_durability_and_connections() -> None:
    figures = request_figures("append", "append-fsync-16", [SAMPLE], Aim())
    absent = dict.fromkeys(SINGLES, "not installed")
    results = {one.id: one for one in resolve("small", [*cpu_figures(STEADY), *figures], absent)}
    assert results["small/append-fsync-16"].references[0].id == "small/redis-always-16"
    assert results["small/append-fsync-16-p99"].references[0].id == "small/redis-always-16-p99"


def test_every_target_is_one_of_a_case_that_is_measured_and_shown() -> None:
    assert set(AIMS) <= {(key, connections) for key in REQUESTS for connections in CONNECTIONS}
    assert {f"{key}-{connections}" for key, connections in AIMS} <= set(PARTS["small"].shown)


def test_only_appends_that_were_sent_during_bulk_work_are_beside_it() -> None:
    appended = Appended(sent_at=[9.9, 10.0, 11.9, 12.0], latencies_ms=[1.0, 20.0, 30.0, 2.0])
    assert list(appended.during(Done(1000, seconds=2.0, began=10.0)).latencies_ms) == [20.0, 30.0]


def test_bulk_work_beside_which_nothing_was_sent_is_no_result() -> None:
    with pytest.raises(WrongAnswer):
        Appended([9.9], [1.0]).during(Done(1000, seconds=2.0, began=10.0))
