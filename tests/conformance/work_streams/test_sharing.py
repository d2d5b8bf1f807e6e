"""Section 9: several work streams share the jobs of a queue."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from tests.conformance.client import Client, fresh_name
from tests.conformance.sse import Http2
from tests.conformance.work_stream_client import (
    HOUR_MS,
    Work,
    ack,
    call,
    claim,
    come_to,
    counts,
    nack,
    queue,
    seqs,
    working,
)


@contextmanager
def all_at_work(streams: Iterable[Work]) -> Iterator[list[Work]]:
    with ExitStack() as stack:
        yield [stack.enter_context(one) for one in streams]


# Several


def test_several_streams_share_the_work(client: Client, topic: str) -> None:
    queue(client, topic, *range(200), lease_ms=HOUR_MS)

    def do(http2: bool) -> list[int]:
        done = []
        with Client(client.daemon) as own, working(own, topic, max=3, how={"http2": http2}) as events:
            while (job := events.job_if_any(1.5)) is not None:
                assert ack(own, topic, job)["acked"] == 1
                done.append(job["$seq"])
        return done

    with ThreadPoolExecutor(4) as pool:
        done = [future.result() for future in [pool.submit(do, number % 2 == 1) for number in range(4)]]
    assert sorted(seq for each in done for seq in each) == list(range(1, 201))
    assert counts(client, topic) == (0, 0, 0)


def test_each_stream_that_has_a_place_gets_its_job(client: Client, topic: str) -> None:
    queue(client, topic)
    with all_at_work(working(client, topic, f"n{n}", how={"http2": n % 2 == 1}) for n in range(6)) as streams:
        client.append(topic, *range(6))
        found = [events.next().data for events in streams]
        assert sorted(seqs(found)) == [1, 2, 3, 4, 5, 6]
        assert counts(client, topic) == (0, 6, 0)


def test_a_hundred_streams_share_a_connection(client: Client, topic: str) -> None:
    queue(client, topic, lease_ms=HOUR_MS)
    with Http2(client) as connection:
        streams = [working(client, topic, f"n{n}", how={"http2": connection}) for n in range(100)]
        client.append(topic, *range(100))
        found = [events.job() for events in streams]
        assert sorted(seqs(found)) == list(range(1, 101))
        streams[7].close()
        come_to(client, topic, 1, 99, 0)
        (job,) = claim(client, topic, "x", max=10)
        assert (job["$seq"], job["deliveries"]) == (found[7]["$seq"], 2)
    come_to(client, topic, 99, 1, 0)


def test_one_job_goes_to_one_of_many(client: Client, topic: str) -> None:
    queue(client, topic)
    with all_at_work(working(client, topic, f"n{n}") for n in range(8)) as streams:
        for number in range(1, 4):
            client.append(topic, number)
            come_to(client, topic, 0, 1, 0)
            for events in streams:
                events.wait(0.2)
            holders = [n for n, events in enumerate(streams) if events.parser.frames]
            assert len(holders) == 1
            job = streams[holders[0]].next().data
            assert ack(client, topic, job, node=f"n{holders[0]}")["acked"] == 1


def test_streams_and_claimers_never_hold_the_same(client: Client, topic: str) -> None:
    queue(client, topic, *range(20), lease_ms=HOUR_MS)
    with working(client, topic, max=5) as events:
        found = claim(client, topic, "x", max=7) + events.jobs(5) + claim(client, topic, "y", max=20)
    assert sorted(seqs(found)) == list(range(1, 21))


def test_streams_of_a_connection_go_on_while_one_of_them_is_not_read(client: Client, topic: str) -> None:
    other = fresh_name()
    queue(client, topic, *(["x" * 500_000] * 10))
    queue(client, other, *range(20))
    with Http2(client) as connection:
        stopped = working(client, topic, max=10, how={"http2": connection})
        events = working(client, other, how={"http2": connection})
        for number in range(20):
            job = events.job()
            assert job["data"] == number
            ack(client, other, job)
        assert seqs(stopped.jobs(10)) == list(range(1, 11))


@dataclass
class Held:
    """A job as one connection had it."""

    deliveries: int
    came: float
    until: float
    """When it was given up, or else its deadline."""
    is_acked: bool = False


def work_as_it_comes(client: Client, topic: str, node: str, seed: int, ledger: dict[int, list[Held]]) -> None:
    """Open streams and claim, ack, give back, come too late and hang up, as the seed says."""
    rng = random.Random(seed)
    deadline = time.monotonic() + 90
    with Client(client.daemon) as own:
        while time.monotonic() < deadline and own.state(topic)["count"]:
            most, lease_ms = rng.randint(1, 6), rng.choice([150, 1000, 5000])
            if rng.random() < 0.3:
                jobs = claim(own, topic, node, max=most, lease_ms=lease_ms, wait_ms=100)
                treat(own, topic, node, rng, ledger, jobs)
                continue
            with working(own, topic, node, max=most, lease_ms=lease_ms, how={"http2": rng.random() < 0.5}) as events:
                held = []
                for _ in range(rng.randint(1, 12)):
                    if (job := events.job_if_any(0.2)) is not None:
                        held += treat(own, topic, node, rng, ledger, [job])
                for one in held:
                    one.until = min(one.until, time.time())


def treat(
    client: Client, topic: str, node: str, rng: random.Random, ledger: dict[int, list[Held]], jobs: list[Any]
) -> list[Held]:
    """Do one thing or another with each job; how long it was held at most."""
    held = []
    for job in jobs:
        one = Held(job["deliveries"], time.time(), job["deadline"] / 1000)
        ledger[job["$seq"]].append(one)
        held.append(one)
        match rng.choice(["ack", "ack", "ack", "nack", "extend", "late", "keep"]):
            case "ack":
                one.is_acked = ack(client, topic, job, node=node)["acked"] == 1
            case "nack":
                asked = time.time()
                # Another lease of the same node may have followed already.
                fields = {"lease_ids": [job["lease_id"]], "delay_ms": rng.choice([0, 50])}
                if nack(client, topic, job, node=node, **fields)["nacked"]:
                    one.until = min(one.until, asked)
            case "extend":
                fields = {"seqs": [job["$seq"]], "lease_ids": [job["lease_id"]], "lease_ms": 300}
                for deadline in call(client, topic, "extend", node, **fields)["deadlines"].values():
                    one.until = deadline / 1000
            case "late":
                time.sleep(0.2)
    return held


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.more)])
def test_a_job_never_has_two_holders_whatever_comes_and_goes(client: Client, topic: str, seed: int) -> None:
    queue(client, topic, *range(250))
    ledger: dict[int, list[Held]] = {seq: [] for seq in range(1, 251)}
    with ThreadPoolExecutor(5) as pool:
        works = [pool.submit(work_as_it_comes, client, topic, f"n{n}", 10 * seed + n, ledger) for n in range(5)]
        for work in works:
            work.result(120)
    come_to(client, topic, 0, 0, 0)
    for seq, holders in ledger.items():
        holders.sort(key=lambda held: held.deliveries)
        assert [held.is_acked for held in holders] == [False] * (len(holders) - 1) + [True], (seq, holders)
        for first, second in itertools.pairwise(holders):
            assert first.deliveries < second.deliveries, (seq, holders)
            assert second.came >= first.until - 0.02, (seq, first, second)


# The coalescing window


def taken_by(events: Work) -> list[int]:
    """Everything that comes until nothing has come for a while."""
    found = []
    while (job := events.job_if_any(1.5)) is not None:
        found.append(job["$seq"])
    return found


def test_streams_and_claimers_of_a_window_divide_evenly(client: Client, topic: str) -> None:
    queue(client, topic, *range(20), claim_jitter_ms=3000, lease_ms=HOUR_MS)
    with ThreadPoolExecutor(2) as pool:
        polls = [pool.submit(claim, client, topic, node, max=10) for node in ("a", "b")]
        with working(client, topic, "c", max=10) as first, working(client, topic, "d", max=10) as second:
            shares = [seqs(poll.result(40)) for poll in polls]
            shares += [taken_by(first), taken_by(second)]
    assert [len(share) for share in shares] == [5, 5, 5, 5]
    assert sorted(seq for share in shares for seq in share) == list(range(1, 21))


def test_a_share_is_bounded_by_max(client: Client, topic: str) -> None:
    queue(client, topic, *range(20), claim_jitter_ms=3000, lease_ms=HOUR_MS)
    with ThreadPoolExecutor(2) as pool:
        polls = [pool.submit(claim, client, topic, node, max=most) for node, most in (("a", 100), ("b", 1))]
        with working(client, topic, "c", max=2) as first, working(client, topic, "d", max=100) as second:
            shares = [seqs(poll.result(40)) for poll in polls]
            shares += [taken_by(first), taken_by(second)]
    lengths = [len(share) for share in shares]
    assert (lengths[1], lengths[2]) == (1, 2)
    assert sorted((lengths[0], lengths[3])) == [8, 9]
    assert sorted(seq for share in shares for seq in share) == list(range(1, 21))


def test_those_who_wait_together_divide_what_comes_evenly(client: Client, topic: str) -> None:
    queue(client, topic, claim_jitter_ms=1000, lease_ms=HOUR_MS)
    with (
        ThreadPoolExecutor(2) as pool,
        working(client, topic, "c", max=10) as first,
        working(client, topic, "d", max=10) as second,
    ):
        polls = [pool.submit(claim, client, topic, node, max=10, wait_ms=30_000) for node in ("a", "b")]
        time.sleep(1.5)
        client.append(topic, *range(20))
        shares = [seqs(poll.result(40)) for poll in polls]
        shares += [taken_by(first), taken_by(second)]
    assert [len(share) for share in shares] == [5, 5, 5, 5]
    assert sorted(seq for share in shares for seq in share) == list(range(1, 21))
