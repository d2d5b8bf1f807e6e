"""What is there after a restart, by SIGTERM and by SIGKILL, with every class side by side."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.conformance.client import CLASSES, Client, Daemon, data_of, envelope, error_of, running, seqs_of

KEPT = ["memory", "disk", "fsync"]


class Life:
    """A daemon that has lived once and lives again, and what its topics were before."""

    def __init__(self, root: Path, ended_by: signal.Signals) -> None:
        self.ended_by = ended_by
        self.daemon = Daemon(root)
        client = self.daemon.start()
        for durability in CLASSES:
            fill(client, durability)
        client.put_topic("deleted")
        client.append("deleted", 1)
        client.delete_topic("deleted")
        self.old_epoch = client.put_topic("recreated") and client.state("recreated")["epoch"]
        client.append("recreated", "old", "older")
        client.delete_topic("recreated")
        client.append("recreated", "new", config={"durability": "fsync"})
        client.append("barrier", *range(20), config={"durability": "memory"})
        client.put_topic("barrier", durability="fsync")
        client.append("sunk", 1, 2)
        client.put_topic("sunk", durability="ephemeral")
        client.append("sunk", 3)
        self.before = {
            entry["topic"]: client.state(entry["topic"]) for entry in client.get("/v0/topics").json()["topics"]
        }
        client.close()
        self.code = self.daemon.end(ended_by)
        self.client = self.daemon.start()


def fill(client: Client, durability: str) -> None:
    config = {"durability": durability, "ttl_ms": 10**10, "priority": 3}
    client.append(f"plain-{durability}", "a", "b", config=config)
    client.append(f"plain-{durability}", "c", idempotency_key="key", records=[{"data": "c", "meta": {"k": "v"}}])
    client.append(f"capped-{durability}", *range(1, 6), config={"durability": durability, "cap_records": 2})
    client.append(f"pruned-{durability}", 1, config={"durability": durability})
    client.tagged(f"pruned-{durability}", "a", "b", "c", "b")
    client.delete_records(f"pruned-{durability}", before_seq=2)
    client.delete_records(f"pruned-{durability}", match="b")
    client.put_topic(f"expired-{durability}", durability=durability)
    client.append(f"expired-{durability}", 1, 2)
    time.sleep(0.02)
    client.put_topic(f"expired-{durability}", ttl_ms=10)
    client.put_topic(f"expired-{durability}", ttl_ms=0)
    client.put_topic(f"empty-{durability}", durability=durability)


@pytest.fixture(scope="module", params=[signal.SIGTERM, signal.SIGKILL], ids=["SIGTERM", "SIGKILL"])
def life(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Life]:
    root = tmp_path_factory.mktemp("life")
    life = Life(root, request.param)
    try:
        yield life
    finally:
        life.daemon.kill()


def certain(life: Life) -> list[str]:
    """The classes whose records are all there: `memory` may lose some when the daemon is killed."""
    return KEPT if life.ended_by == signal.SIGTERM else ["disk", "fsync"]


def test_a_stop_that_is_asked_for_is_clean(life: Life) -> None:
    assert life.code == (0 if life.ended_by == signal.SIGTERM else -signal.SIGKILL)


def test_configs_and_epochs_are_as_they_were(life: Life) -> None:
    for topic, before in life.before.items():
        after = life.client.state(topic, touch="false")
        assert (after["config"], after["epoch"], after["type"]) == (before["config"], before["epoch"], before["type"])
        assert after["head_seq"] >= before["head_seq"]


def test_states_are_as_they_were_where_nothing_may_be_lost(life: Life) -> None:
    same = ["head_seq", "earliest_seq", "next_seq", "count", "bytes"]
    for topic, before in life.before.items():
        if before["config"]["durability"] in certain(life):
            after = life.client.state(topic, touch="false")
            assert {name: after[name] for name in same} == {name: before[name] for name in same}, topic
            assert after["synced_seq"] == after["head_seq"]


def test_records_are_as_they_were(life: Life) -> None:
    for durability in certain(life):
        answer = life.client.read(f"plain-{durability}")
        assert answer["tombstone"] is None
        assert [(record["$seq"], record["data"]) for record in answer["records"]] == [(1, "a"), (2, "b"), (3, "c")]
        assert answer["records"][2]["meta"] == {"k": "v"}
        assert answer["records"][2]["$ts"] == life.before[f"plain-{durability}"]["last_write_ts"]


def test_what_was_evicted_is_announced_still(life: Life) -> None:
    for durability in certain(life):
        answer = life.client.read(f"capped-{durability}")
        assert (answer["tombstone"]["gap_from"], answer["tombstone"]["gap_to"]) == (1, 3)
        assert answer["tombstone"]["reason"] == "cap"
        assert data_of(answer) == [4, 5]


def test_what_was_deleted_is_gone_in_silence(life: Life) -> None:
    for durability in certain(life):
        answer = life.client.read(f"pruned-{durability}")
        assert (answer["tombstone"], seqs_of(answer)) == (None, [2, 4])


def test_what_expired_does_not_come_back(life: Life) -> None:
    for durability in certain(life):
        answer = life.client.read(f"expired-{durability}")
        assert answer["records"] == []
        assert (answer["tombstone"]["gap_to"], answer["tombstone"]["reason"]) == (2, "ttl")


def test_a_repeat_is_known(life: Life) -> None:
    for durability in certain(life):
        before = life.client.state(f"plain-{durability}")
        again = life.client.append(f"plain-{durability}", "other", idempotency_key="key")
        assert (again["deduped"], again["seqs"], again["created"], again["count"]) == (True, [3], False, 1)
        assert life.client.state(f"plain-{durability}")["head_seq"] == before["head_seq"]


def test_a_deleted_topic_stays_deleted(life: Life) -> None:
    error_of(life.client.get("/v0/topics/deleted"), 404, "topic_not_found")
    assert life.client.append("deleted-anew", 1)["seqs"] == [1]
    assert life.client.state("deleted-anew")["epoch"] > max(before["epoch"] for before in life.before.values())


def test_of_two_instances_the_last_is_there(life: Life) -> None:
    answer = life.client.read("recreated", 2, epoch=life.old_epoch)
    assert answer["tombstone"]["reason"] == "recreated"
    assert data_of(answer) == ["new"]


def test_a_change_of_class_has_synced_what_came_before(life: Life) -> None:
    answer = life.client.read("barrier")
    assert answer["tombstone"] is None
    assert data_of(answer) == list(range(20))


@pytest.mark.parametrize("topic", ["plain-ephemeral", "sunk"])
def test_the_records_of_an_ephemeral_topic_are_lost_and_it_is_said(life: Life, topic: str) -> None:
    state = life.client.state(topic)
    assert (state["count"], state["bytes"], state["synced_seq"]) == (0, 0, 0)
    assert state["head_seq"] >= 3
    if life.ended_by == signal.SIGTERM:
        assert state["head_seq"] == 3
    for from_seq in (0, 2):
        answer = life.client.read(topic, from_seq)
        assert (answer["records"], answer["caught_up"]) == ([], True)
        tombstone = answer["tombstone"]
        assert (tombstone["gap_from"], tombstone["gap_to"]) == (from_seq + 1, state["head_seq"])
        assert tombstone["reason"] == "lost"
        assert tombstone["missed_estimate"] == state["head_seq"] - from_seq


def test_an_ephemeral_topic_that_was_empty_has_lost_nothing_to_a_clean_stop(life: Life) -> None:
    if life.ended_by == signal.SIGTERM:
        answer = life.client.read("empty-ephemeral")
        assert (answer["tombstone"], answer["head_seq"]) == (None, 0)


@pytest.mark.parametrize("durability", CLASSES)
def test_every_seq_is_a_record_or_announced(life: Life, durability: str) -> None:
    topic = f"plain-{durability}"
    before = life.client.state(topic)["head_seq"]
    assert life.client.append(topic, "after")["seqs"] == [before + 1]
    from_seq, accounted, caught_up = 0, 0, False
    while not caught_up:
        answer = life.client.read(topic, from_seq)
        if answer["tombstone"] is not None:
            assert answer["tombstone"]["gap_from"] == from_seq + 1
            assert answer["tombstone"]["reason"] == "lost"
            from_seq = answer["tombstone"]["gap_to"]
            accounted += answer["tombstone"]["gap_to"] - answer["tombstone"]["gap_from"] + 1
        # A gap that is met after records ends the answer before it.
        assert seqs_of(answer) == list(range(from_seq + 1, from_seq + 1 + len(answer["records"])))
        accounted += len(answer["records"])
        assert answer["next_from_seq"] == from_seq + len(answer["records"])
        from_seq, caught_up = answer["next_from_seq"], answer["caught_up"]
        assert caught_up == (from_seq == answer["head_seq"])
    assert accounted == before + 1
    assert data_of(life.client.read(topic, before)) == ["after"]


def test_numbering_and_time_go_on(life: Life) -> None:
    for durability in ("disk", "fsync"):
        topic = f"pruned-{durability}"
        head = life.client.state(topic)["head_seq"]
        assert life.client.append(topic, 1)["seqs"] == [head + 1]
        (record,) = life.client.read(topic, head)["records"]
        assert record["$ts"] >= life.before[topic]["last_write_ts"]


def test_a_memory_topic_under_load_that_is_killed_announces_what_it_lost(tmp_path: Path) -> None:
    daemon = Daemon(tmp_path)
    try:
        client = daemon.start()
        client.put_topic("m", durability="memory")
        acked = 0
        for _ in range(40):
            acked = client.append("m", *(["x" * 100] * 25))["last_seq"]
        client = daemon.restart(signal.SIGKILL)
        head = client.state("m")["head_seq"]
        assert head >= acked
        assert client.append("m", "after")["seqs"] == [head + 1]
        from_seq, gaps = 0, []
        while True:
            answer = client.read("m", from_seq, limit=1000)
            if answer["tombstone"] is not None:
                assert answer["tombstone"]["reason"] == "lost"
                gaps.append((answer["tombstone"]["gap_from"], answer["tombstone"]["gap_to"]))
                assert gaps[-1][0] == from_seq + 1
                from_seq = gaps[-1][1]
            assert seqs_of(answer) == list(range(from_seq + 1, from_seq + 1 + len(answer["records"])))
            from_seq = answer["next_from_seq"]
            if answer["caught_up"]:
                break
        assert from_seq == head + 1
    finally:
        daemon.kill()


def test_a_stop_ends_long_polls_with_503(tmp_path: Path) -> None:
    with running(tmp_path) as client, ThreadPoolExecutor(1) as pool:
        client.put_topic("a")
        poll = pool.submit(client.post, "/v0/topics/a/diff", json={"wait_ms": 30_000})
        time.sleep(0.3)
        client.daemon.send_signal(signal.SIGTERM)
        answer = poll.result(25)
        error_of(answer, 503, "shutting_down")
        assert int(answer.headers["retry-after"]) >= 0
        assert client.daemon.wait() == 0


def test_while_it_starts_only_health_and_metrics_answer(tmp_path: Path) -> None:
    daemon = Daemon(tmp_path)
    try:
        client = daemon.start()
        records = [{"data": "x" * 50, "tag": str(number)} for number in range(10_000)]
        for number in range(4):
            client.append(f"t{number}", records=records)
        daemon.end(signal.SIGKILL)
        daemon.launch()
        with httpx.Client(base_url=daemon.url, trust_env=False) as impatient:
            for _ in range(400):
                if not answers_as_it_should_while_it_starts(impatient):
                    break
    finally:
        daemon.kill()


def answers_as_it_should_while_it_starts(impatient: httpx.Client) -> bool:
    """Whether it is still starting."""
    assert impatient.get("/v0/health").status_code == 200
    assert impatient.get("/v0/metrics").status_code == 200
    listed = impatient.get("/v0/topics")
    ready = impatient.get("/v0/ready")
    for answer in (listed, ready):
        if answer.status_code != 200:
            assert answer.status_code == 503
            error: Any = envelope(answer.json(), "not_ready")
            assert 0 <= error["detail"]["replay_progress"] <= 1
            assert int(answer.headers["retry-after"]) >= 0
    return ready.status_code != 200


def test_a_disk_that_is_nearly_full_is_read_only(tmp_path: Path) -> None:
    daemon = Daemon(tmp_path)
    try:
        client = daemon.start()
        client.append("a", 1)
        daemon.end()
        full = Daemon(tmp_path, min_free_bytes="1000TiB")
        try:
            client = full.start()
            refused = client.send_append("a", 2)
            error_of(refused, 503, "read_only")
            assert int(refused.headers["retry-after"]) >= 0
            assert data_of(client.read("a")) == [1]
            assert client.state("a")["head_seq"] == 1
        finally:
            full.kill()
    finally:
        daemon.kill()
