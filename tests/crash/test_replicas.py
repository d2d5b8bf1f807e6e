"""`scripts/torment --replicas`: what its ledger notices, and a short run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Literal

import pytest

from tests.crash.processes.ledger import Fault
from tests.crash.processes.replica_ledger import ReplicaJobs, ReplicaLedger, ReplicaView
from tests.crash.processes.replicas import ReplicaPlan, torment_replicas


def view(records: dict[int, int], gaps: list[tuple[int, int, str]] | None = None) -> ReplicaView:
    return ReplicaView(records, gaps or [], max([*records, *(last for _, last, _ in gaps or [])], default=0))


def ledger(durability: Literal["remote", "disk"] = "remote", acked: int = 3) -> ReplicaLedger:
    """A topic in which so many records are acked: number n at seq n + 1."""
    made = ReplicaLedger("t", durability)
    if acked:
        made.acked(1, made.take(acked))
    return made


def test_a_seq_has_one_content_whoever_has_seen_it() -> None:
    made = ledger()
    made.saw(4, 9, "a watch")
    with pytest.raises(Fault, match="two contents"):
        made.saw(4, 8, "a read")
    with pytest.raises(Fault, match="two contents"):
        made.judge(view({1: 0, 2: 7, 3: 2}), {})


def test_a_record_that_was_acked_as_remote_is_there_once_for_ever() -> None:
    ledger().judge(view({1: 0, 2: 1, 3: 2, 4: 77}), ledger().acked_before())
    for records, problem in (
        ({1: 0, 2: 1}, "acked records are lost"),
        ({1: 0, 2: 1, 4: 2}, "is there twice"),
        ({1: 0, 2: 1, 3: 2, 4: 1}, "is there twice"),
        ({1: 0, 2: 1, 3: 2, 5: 9}, "seqs have holes"),
    ):
        made = ledger()
        with pytest.raises(Fault, match=problem):
            made.judge(view(records), made.acked_before())
    made = ledger()
    with pytest.raises(Fault, match="tombstones"):
        made.judge(view({1: 0, 2: 1, 3: 2}, [(4, 9, "lost")]), made.acked_before())


def test_a_takeover_takes_records_of_other_classes_only_with_an_announcement() -> None:
    made = ledger("disk")
    made.judge(view({1: 0, 1001: 50}, [(2, 1000, "lost")]), made.acked_before())
    assert made.lost == 2
    made.saw(2, 1, "a watch that has seen it before")
    with pytest.raises(Fault, match="nobody says so"):
        ledger("disk").judge(view({1: 0}), ledger("disk").acked_before())
    with pytest.raises(Fault, match="another kind"):
        ledger("disk").judge(view({1: 0}, [(2, 3, "recreated")]), ledger("disk").acked_before())
    with pytest.raises(Fault, match="shown from the bucket"):
        made.judge(view({}, [(1, 1000, "lost")]), {})
    with pytest.raises(Fault, match="there twice"):
        ledger("disk").judge(view({1: 0, 2: 1, 3: 2, 4: 1}), {})


def test_a_head_never_goes_back() -> None:
    made = ledger("disk")
    made.saw(9, 50, "a watch")
    with pytest.raises(Fault, match="head went back"):
        made.judge(view({1: 0, 2: 1, 3: 2}), made.acked_before(), is_last=True)


def test_two_holders_of_a_job_and_a_job_that_comes_back_are_noticed() -> None:
    jobs = ReplicaJobs("q", 4.0)
    jobs.claimed("a", 1, "l1", 10.0, 10.1)
    with pytest.raises(Fault, match="two holders"):
        jobs.claimed("b", 1, "l2", 13.0, 13.9)
    with pytest.raises(Fault, match="comes again"):
        jobs.claimed("b", 1, "l1", 14.0, 14.1)
    jobs.claimed("b", 1, "l3", 14.0, 14.1)
    with pytest.raises(Fault, match="an ack of job 1 counts"):
        jobs.acked(1, "a")
    jobs.acked(1, "b")
    with pytest.raises(Fault, match="was acked, and comes again"):
        jobs.claimed("a", 1, "l4", 30.0, 30.1)
    assert jobs.done == 1


@pytest.mark.slow
def test_replicas_keep_all_promises_while_their_owner_is_killed_paused_and_cut_off(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    figures = torment_replicas(ReplicaPlan(seed=1, minutes=1.0, replicas=2, rounds=7, is_small=True), tmp_path)
    for name, figure in figures.items():
        record_property(name, figure)
    print(figures)
    assert figures["rounds"] >= 3
    assert figures["records acked, remote"] > 200
    assert figures["records delivered to watchers"] > 500
    assert figures["jobs acked"] > 20
