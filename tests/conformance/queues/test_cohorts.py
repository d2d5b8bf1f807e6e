"""Section 9 and semantics 6: claims that wait, the order in which they are served, and windows that collect them."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.conformance.client import CLASSES, Client, body_of, error_of, running, until
from tests.conformance.queue_client import (
    LONG_MS,
    SHORT_MS,
    Claim,
    Counts,
    Queue,
    data_of,
    deliveries_of,
    new_queue,
    now_ms,
    seqs_of,
    waiting,
)
from tests.conformance.router_client import connect_topics
from tests.conformance.router_pairs import paired

WINDOW_MS = 1000
"""Long enough for a dozen claims to arrive in it on a busy machine."""


@pytest.fixture
def queue(client: Client) -> Queue:
    return new_queue(client)


@contextmanager
def in_order(queue: Queue, *nodes: str, most: int = 1, **fields: Any) -> Iterator[list[Claim]]:
    """Claims that wait, having arrived one after the other."""
    with ExitStack() as stack:
        claims = [stack.enter_context(Claim(queue, node, most, **{"wait_ms": 30_000, **fields})) for node in nodes]
        for claim in claims:
            claim.send().wait(0.12)
        yield claims


@contextmanager
def together(queue: Queue, *most: int, nodes: int = 0, **fields: Any) -> Iterator[list[Claim]]:
    """Claims of these maxima that arrive as close to one another as can be; of so many nodes, else one each."""
    with ExitStack() as stack:
        claims = [
            stack.enter_context(Claim(queue, f"worker-{number % (nodes or len(most))}", at_most, **fields))
            for number, at_most in enumerate(most)
        ]
        for claim in claims:
            claim.send()
        yield claims


def shares(claims: list[Claim]) -> list[list[int]]:
    """The seqs that each of the claims was given, none of them twice."""
    found = [seqs_of(claim.jobs()) for claim in claims]
    everything = [seq for share in found for seq in share]
    assert len(set(everything)) == len(everything), found
    return found


def sizes(claims: list[Claim]) -> list[int]:
    return [len(share) for share in shares(claims)]


# Long polls


def test_a_claim_does_not_wait_for_more_than_there_is(client: Client) -> None:
    queue = new_queue(client, 1, 2)
    with Claim(queue, "a", 10, wait_ms=30_000).send() as claim:
        assert seqs_of(claim.jobs()) == [1, 2]


def test_a_claim_that_finds_nothing_ends_after_its_time(client: Client) -> None:
    queue = new_queue(client, 1)
    queue.claim("holder")
    for wait_ms in (0, 50, 300):
        began = time.monotonic()
        answer = queue.call("claim", node="a", max=3, wait_ms=wait_ms)
        assert time.monotonic() - began >= (wait_ms - 20) / 1000
        assert (answer["claimed"], answer["count"], answer["ready"]) == ([], 0, 0)
    queue.append(2)
    assert queue.counts() == Counts(ready=1, in_flight=1)


def wake_by_append(queue: Queue) -> dict[int, int]:
    queue.append("x")
    return {2: 1}


def wake_by_nack(queue: Queue) -> dict[int, int]:
    queue.nack(1, node="holder")
    return {1: 2}


def wake_by_delay(queue: Queue) -> dict[int, int]:
    queue.nack(1, node="holder", delay_ms=300)
    return {1: 2}


def wake_by_extension(queue: Queue) -> dict[int, int]:
    """A lease that is made shorter is over sooner."""
    queue.extend(1, node="holder", lease_ms=200)
    return {1: 2}


WAKES = [wake_by_append, wake_by_nack, wake_by_delay, wake_by_extension]


@pytest.mark.parametrize("wake", WAKES, ids=lambda wake: wake.__name__)
def test_a_waiting_claim_wakes(client: Client, durability: str, wake: Callable[[Queue], dict[int, int]]) -> None:
    queue = new_queue(client, "held", durability=durability)
    queue.claim("holder")
    with waiting(queue, "a", 5) as claim:
        expected = wake(queue)
        jobs = claim.jobs()
        assert deliveries_of(jobs) == expected
        assert queue.ack(*expected, node="a", lease_ids=[jobs[0]["lease_id"]])["acked"] == 1


@pytest.mark.parametrize("http2", [False, True], ids=["h1", "h2"])
def test_a_waiting_claim_of_a_client_wakes(client: Client, queue: Queue, http2: bool) -> None:
    with Client(client.daemon, http2=http2) as other, ThreadPoolExecutor(1) as pool:
        pending = pool.submit(queue.seen_by(other).claim, "a", wait_ms=30_000)
        time.sleep(0.2)
        assert not pending.done()
        # Over HTTP/2 this goes on the same connection.
        queue.seen_by(other).append("x")
        assert data_of(pending.result(40)) == ["x"]


@pytest.mark.parametrize("leases_durable", [False, True])
def test_a_waiting_claim_wakes_when_the_lease_of_another_is_over(
    client: Client, durability: str, leases_durable: bool
) -> None:
    """Nobody else sends anything meanwhile."""
    queue = new_queue(client, 1, 2, durability=durability, leases_durable=leases_durable)
    began = now_ms()
    for holder in ("first", "second"):
        queue.claim(holder, lease_ms=350)
    with Claim(queue, "a", 1, wait_ms=30_000).send() as claim, Claim(queue, "b", 1, wait_ms=30_000).send() as other:
        assert {**deliveries_of(claim.jobs()), **deliveries_of(other.jobs())} == {1: 2, 2: 2}
        assert now_ms() >= began + 340
    assert queue.counts() == Counts(in_flight=2)


def test_a_waiting_claim_wakes_when_its_own_lease_is_over(client: Client) -> None:
    queue = new_queue(client, 1)
    first = queue.claim_one("a", lease_ms=SHORT_MS)
    (again,) = queue.claim("a", wait_ms=30_000)
    assert again["deliveries"] == 2
    assert again["lease_id"] != first["lease_id"]


def test_a_waiting_claim_wakes_as_soon_as_the_first_of_several_things_happens(client: Client) -> None:
    queue = new_queue(client, *range(4))
    queue.claim("a")
    queue.claim("b", lease_ms=LONG_MS)
    queue.claim("c", most=2)
    queue.nack(3, node="c", delay_ms=LONG_MS)
    queue.nack(4, node="c", delay_ms=29_000)
    with waiting(queue, "d", 9) as claim:
        queue.extend(2, node="b", lease_ms=SHORT_MS)
        assert deliveries_of(claim.jobs(20)) == {2: 2}


def test_a_lease_that_is_extended_wakes_nobody(client: Client) -> None:
    queue = new_queue(client, 1)
    queue.claim("holder", lease_ms=2000)
    with Claim(queue, "a", 1, wait_ms=2500).send() as claim:
        queue.extend(1, node="holder", lease_ms=LONG_MS)
        assert claim.jobs() == []


def test_an_acked_or_deleted_job_wakes_nobody(client: Client) -> None:
    queue = new_queue(client, 1, 2, 3)
    queue.claim("holder", most=3, lease_ms=2000)
    queue.nack(3, node="holder", delay_ms=2000)
    with waiting(queue, "a", 1, wait_ms=2500) as claim:
        queue.ack(1, node="holder")
        client.delete_records(queue.topic, before_seq=4)
        assert claim.jobs() == []
    assert queue.counts() == Counts()


def test_an_expired_job_is_given_to_nobody(client: Client) -> None:
    queue = new_queue(client, 1, ttl_ms=400)
    queue.claim("holder", lease_ms=600)
    with Claim(queue, "a", 1, wait_ms=1000).send() as claim:
        assert claim.jobs() == []


def test_a_waiting_claim_hears_of_what_routers_bring(client: Client, durability: str) -> None:
    pair = paired(client, {"durability": durability}, {"type": "queue", "durability": durability})
    queue = Queue(client, pair.dest)
    for number in range(3):
        with waiting(queue, "a", 5) as claim:
            pair.append(number)
            assert data_of(claim.jobs()) == [number]


def test_a_waiting_claim_hears_of_the_beginning_of_a_chain(client: Client) -> None:
    queues = [new_queue(client) for _ in range(3)]
    connect_topics(client, *[queue.topic for queue in queues])
    with waiting(queues[2], "a", 5) as claim:
        queues[0].append("x")
        assert data_of(claim.jobs()) == ["x"]


def test_a_waiting_claim_is_404_when_the_topic_goes(client: Client, durability: str) -> None:
    queue = new_queue(client, durability=durability)
    with in_order(queue, "a", "b") as claims:
        client.delete_topic(queue.topic)
        for claim in claims:
            claim.refused(404, "topic_not_found")
    error_of(client.get(f"/v0/topics/{queue.topic}"), 404, "topic_not_found")


def test_a_waiting_claim_knows_nothing_of_a_new_instance(client: Client, durability: str) -> None:
    queue = new_queue(client, durability=durability)
    with in_order(queue, "a", "b") as claims:
        client.delete_topic(queue.topic)
        client.put_topic(queue.topic, type="queue", durability=durability)
        queue.append("new")
        for claim in claims:
            claim.refused(404, "topic_not_found")
    assert queue.counts() == Counts(ready=1)
    assert queue.claim_one("c")["data"] == "new"


@pytest.mark.parametrize("jitter_ms", [0, 1000])
def test_a_stop_ends_waiting_claims_with_503(tmp_path: Path, jitter_ms: int) -> None:
    with running(tmp_path) as client:
        queue = new_queue(client, claim_jitter_ms=jitter_ms)
        with in_order(queue, "a", "b") as claims:
            client.daemon.send_signal(signal.SIGTERM)
            for claim in claims:
                status, headers, body = claim.connection.receive()
                error_of(httpx.Response(status, headers=headers, content=body), 503, "shutting_down")
                assert int(headers["retry-after"]) >= 0
        assert client.daemon.wait() == 0


def test_a_stop_while_many_work_is_answered_or_hung_up(tmp_path: Path) -> None:
    with running(tmp_path) as client, ThreadPoolExecutor(4) as pool:
        queue = new_queue(client, *range(2000), leases_durable=True)

        def work(number: int) -> list[int]:
            """The seqs whose acks were answered, until there was another answer or none."""
            acked: list[int] = []
            node = f"worker-{number}"
            with Client(client.daemon) as own:
                mine = queue.seen_by(own)
                try:
                    while (answer := mine.send("claim", node=node, max=3, wait_ms=5000)).status_code == 200:
                        seqs = seqs_of(answer.json()["claimed"])
                        answer = mine.send("ack", node=node, seqs=seqs)
                        if answer.status_code != 200:
                            break
                        assert answer.json()["acked"] == len(seqs)
                        acked += seqs
                except httpx.TransportError:
                    return acked
            error_of(answer, 503, "shutting_down")
            return acked

        done = [pool.submit(work, number) for number in range(4)]
        time.sleep(0.4)
        client.daemon.send_signal(signal.SIGTERM)
        acked = [seq for future in done for seq in future.result()]
        assert len(set(acked)) == len(acked) > 0
        assert client.daemon.wait() == 0


# Who is served


def test_waiting_claims_are_served_in_the_order_of_their_arrival(client: Client, durability: str) -> None:
    queue = new_queue(client, durability=durability)
    with in_order(queue, "a", "b", "c", "d") as claims:
        for number, claim in enumerate(claims):
            assert [one.is_waiting for one in claims[number:]] == [True] * (4 - number)
            queue.append(number)
            assert data_of(claim.jobs()) == [number]


def test_a_batch_is_for_all_who_wait(client: Client) -> None:
    queue = new_queue(client)
    with in_order(queue, *"abcde") as claims:
        queue.append(*range(4))
        assert [data_of(claim.jobs()) for claim in claims[:4]] == [[0], [1], [2], [3]]
        assert claims[4].is_waiting
        queue.append(4)
        assert data_of(claims[4].jobs()) == [4]


def test_without_a_window_who_came_first_is_given_all_it_asks_for(client: Client) -> None:
    queue = new_queue(client)
    with in_order(queue, "a", "b", "c", most=10) as claims:
        queue.append(*range(15))
        assert shares(claims[:2]) == [list(range(1, 11)), list(range(11, 16))]
        assert claims[2].is_waiting
    queue = new_queue(client, *range(50))
    assert [len(queue.claim(f"worker-{number}", 10)) for number in range(10)] == [10] * 5 + [0] * 5


def test_who_gave_up_is_not_served(client: Client, queue: Queue) -> None:
    with in_order(queue, "a", wait_ms=300) as [first], in_order(queue, "b") as [second]:
        assert first.jobs() == []
        assert second.is_waiting
        queue.append("x")
        assert data_of(second.jobs()) == ["x"]
    assert queue.counts() == Counts(in_flight=1)


@pytest.mark.parametrize("http2", [False, True], ids=["h1", "h2"])
def test_a_client_that_hangs_up_while_it_waits_takes_no_job(client: Client, queue: Queue, http2: bool) -> None:
    if http2:
        with Client(client.daemon, http2=True) as leaving:
            leaving.timeout = httpx.Timeout(30, read=0.3)
            with pytest.raises(httpx.ReadTimeout):
                queue.seen_by(leaving).send("claim", node="leaving", wait_ms=30_000)
    else:
        for _ in range(3):
            waiting(queue, "leaving").close()
    time.sleep(1)
    with waiting(queue, "staying", 9) as claim:
        queue.append(1, 2)
        jobs = claim.jobs()
    assert deliveries_of(jobs) == {1: 1, 2: 1}
    assert queue.counts() == Counts(in_flight=2)


def test_those_behind_a_client_that_hung_up_are_served(client: Client, queue: Queue) -> None:
    with in_order(queue, "a", "b", "c", most=2) as [first, second, third]:
        second.close()
        time.sleep(1)
        queue.append(*range(4))
        assert shares([first, third]) == [[1, 2], [3, 4]]


def test_a_hundred_waiting_claims_are_all_served(client: Client, queue: Queue) -> None:
    with together(queue, *[1] * 100, wait_ms=30_000) as claims:
        time.sleep(0.5)
        queue.append(*range(60))
        for number in range(60, 100):
            queue.append(number)
        found = shares(claims)
    assert sorted(found) == [[seq] for seq in range(1, 101)]
    assert queue.counts() == Counts(in_flight=100)


def test_jobs_go_from_one_to_the_next(client: Client) -> None:
    """Ten who wait share one job that everyone gives back."""
    queue = new_queue(client, 1)
    holder = queue.claim_one("worker-0")
    with in_order(queue, *[f"worker-{number}" for number in range(1, 10)]) as claims:
        for number, claim in enumerate(claims, 1):
            queue.nack(1, node=f"worker-{number - 1}", lease_ids=[holder["lease_id"]])
            (holder,) = claim.jobs()
            assert holder["deliveries"] == number + 1


def test_claims_that_wait_hold_up_nothing_else(client: Client, queue: Queue) -> None:
    other = new_queue(client, 1, 2)
    other.claim("a")
    with in_order(queue, *"abcde") as claims:
        assert seqs_of(other.claim("b", wait_ms=30_000)) == [2]
        assert other.ack(1, node="a")["acked"] == 1
        assert queue.call("claim", node="f")["claimed"] == []
        assert queue.counts() == Counts()
        queue.has_left()
        assert all(claim.is_waiting for claim in claims)


# Windows


@pytest.fixture(params=[0, 1, 3], ids=["own-nodes", "one-node", "three-nodes"])
def nodes(request: pytest.FixtureRequest) -> int:
    return int(request.param)


def test_a_cohort_shares_evenly(client: Client, nodes: int) -> None:
    queue = new_queue(client, *range(50), claim_jitter_ms=WINDOW_MS)
    with together(queue, *[10] * 10, nodes=nodes) as claims:
        found = shares(claims)
    assert [len(share) for share in found] == [5] * 10
    assert sorted(seq for share in found for seq in share) == list(range(1, 51))
    assert queue.counts() == Counts(in_flight=50)


@pytest.mark.parametrize("durability", CLASSES)
@pytest.mark.parametrize("leases_durable", [False, True])
def test_a_cohort_of_every_class_shares_evenly(client: Client, durability: str, leases_durable: bool) -> None:
    queue = new_queue(
        client, *range(12), claim_jitter_ms=WINDOW_MS, durability=durability, leases_durable=leases_durable
    )
    with together(queue, 9, 9, 9) as claims:
        assert sizes(claims) == [4, 4, 4]


@pytest.mark.parametrize(
    ("jobs", "most", "expected"),
    [
        (50, [1, 10, 10], [1, 10, 10]),
        (12, [1, 10, 10], [1, 5, 6]),
        (13, [10, 10, 1], [1, 6, 6]),
        (3, [10] * 10, [0] * 7 + [1] * 3),
        (23, [10] * 10, [2] * 7 + [3] * 3),
        (10, [2, 3, 100], [2, 3, 5]),
        (0, [5, 5], [0, 0]),
        (5, [5], [5]),
    ],
)
def test_a_cohort_shares_as_evenly_as_its_maxima_allow(
    client: Client, jobs: int, most: list[int], expected: list[int]
) -> None:
    queue = new_queue(client, *range(jobs), claim_jitter_ms=WINDOW_MS)
    with together(queue, *most) as claims:
        found = sizes(claims)
    assert sorted(found) == expected
    assert all(size <= at_most for size, at_most in zip(found, most, strict=True))
    assert queue.counts() == Counts(ready=jobs - sum(found), in_flight=sum(found))


def test_a_cohort_shares_what_was_given_back_and_what_is_fresh(client: Client) -> None:
    queue = new_queue(client, *range(8), claim_jitter_ms=WINDOW_MS)
    queue.claim("before", most=4)
    queue.nack(2, 4, node="before")
    with together(queue, 9, 9) as claims:
        found = shares(claims)
    assert sorted(len(share) for share in found) == [3, 3]
    assert sorted(found[0] + found[1]) == [2, 4, 5, 6, 7, 8]


def test_a_cohort_keeps_to_the_bytes_of_a_claim(client: Client) -> None:
    queue = new_queue(client, claim_jitter_ms=WINDOW_MS)
    for _ in range(4):
        queue.append(*["x" * ((1 << 20) - 2)] * 5)
    with together(queue, 20, 20) as claims:
        found = shares(claims)
    # What a job takes beside its data is not said.
    assert all(7 <= len(share) <= 8 for share in found)
    taken = len(found[0]) + len(found[1])
    assert queue.counts() == Counts(ready=20 - taken, in_flight=taken)
    rest = queue.claim("c", 20)
    assert sorted(found[0] + found[1] + seqs_of(rest)) == list(range(1, 21))
    assert set(deliveries_of(rest).values()) == {1}


def test_a_cohort_that_waits_shares_evenly_what_comes(client: Client, durability: str) -> None:
    queue = new_queue(client, claim_jitter_ms=WINDOW_MS, durability=durability)
    with together(queue, *[10] * 10, wait_ms=30_000) as claims:
        time.sleep(WINDOW_MS / 1000 + 0.3)
        assert all(claim.is_waiting for claim in claims)
        queue.append(*range(50))
        assert sizes(claims) == [5] * 10


def test_who_comes_after_a_window_is_given_what_is_left(client: Client) -> None:
    queue = new_queue(client, *range(30), claim_jitter_ms=WINDOW_MS)
    assert seqs_of(queue.claim("a", 10)) == list(range(1, 11))
    with together(queue, 15, 15) as claims:
        assert sizes(claims) == [10, 10]
    assert queue.claim("c", 10) == []


def test_a_window_may_be_opened_and_closed(client: Client) -> None:
    queue = new_queue(client, *range(30))
    assert len(queue.claim("a", 10)) == 10
    client.put_topic(queue.topic, claim_jitter_ms=WINDOW_MS)
    with together(queue, 20, 20) as claims:
        assert sizes(claims) == [10, 10]
    client.put_topic(queue.topic, claim_jitter_ms=0)
    with in_order(queue, "a", "b", most=20) as claims:
        queue.append(*range(20))
        assert len(claims[0].jobs()) == 20
        assert claims[1].is_waiting


@pytest.mark.parametrize("wait_ms", [0, 30_000])
def test_who_hangs_up_in_a_window_takes_nothing(client: Client, wait_ms: int) -> None:
    queue = new_queue(client, *range(10), claim_jitter_ms=2500)
    with together(queue, 10, 10, 10, wait_ms=wait_ms) as [staying, *leaving]:
        time.sleep(0.1)
        for claim in leaving:
            claim.close()
        jobs = staying.jobs()
    assert seqs_of(jobs) == list(range(1, 11))
    assert queue.counts() == Counts(in_flight=10)


def test_a_topic_that_goes_in_a_window_is_404(client: Client) -> None:
    queue = new_queue(client, *range(10), claim_jitter_ms=2500)
    with together(queue, 10, 10) as claims:
        time.sleep(0.1)
        client.delete_topic(queue.topic)
        for claim in claims:
            claim.refused(404, "topic_not_found")
    client.append(queue.topic, 1)
    error_of(Queue(client, queue.topic).send("claim", node="a"), 409, "not_a_queue")


def test_a_window_holds_up_nothing_but_claims(client: Client) -> None:
    queue = new_queue(client, *range(10), claim_jitter_ms=0)
    queue.claim("a", 3)
    client.put_topic(queue.topic, claim_jitter_ms=5000)
    with together(queue, 5, wait_ms=0) as [claim]:
        time.sleep(0.1)
        assert queue.nack(1, node="a")["nacked"] == 1
        assert queue.extend(2, node="a")["extended"] == 1
        assert queue.ack(2, 3, node="a")["acked"] == 2
        queue.append("more")
        assert queue.counts() == Counts(ready=9)
        assert len(body_of(client.get(f"/v0/topics/{queue.topic}/diff"))["records"]) == 9
        assert claim.is_waiting
        client.delete_topic(queue.topic)


def test_windows_go_on_for_ever(client: Client) -> None:
    """A claimer that comes back in every window has its share of each."""
    queue = new_queue(client, *range(400), claim_jitter_ms=500)
    taken: list[int] = [0, 0, 0, 0]

    def work(number: int) -> None:
        with Client(client.daemon) as own:
            mine = queue.seen_by(own)
            while jobs := mine.claim(f"worker-{number}", 20):
                assert mine.ack(*seqs_of(jobs), node=f"worker-{number}")["acked"] == len(jobs)
                taken[number] += len(jobs)

    with ThreadPoolExecutor(4) as pool:
        for future in [pool.submit(work, number) for number in range(4)]:
            future.result()
    assert sum(taken) == 400
    assert min(taken) >= 60, taken
    until(lambda: queue.counts() == Counts())


@pytest.mark.parametrize("jitter_ms", [0, 20])
def test_what_many_append_while_many_wait_is_taken_once(client: Client, durability: str, jitter_ms: int) -> None:
    queue = new_queue(client, durability=durability, claim_jitter_ms=jitter_ms)
    taken: list[int] = []
    end = time.monotonic() + 90

    def produce(number: int) -> None:
        with Client(client.daemon) as own:
            for place in range(40):
                queue.seen_by(own).append(100 * number + place)

    def consume(number: int) -> None:
        with Client(client.daemon) as own:
            mine = queue.seen_by(own)
            while len(taken) < 120:
                assert time.monotonic() < end
                jobs = mine.claim(f"worker-{number}", 4, wait_ms=100)
                assert set(deliveries_of(jobs).values()) <= {1}
                taken.extend(data_of(jobs))
                if jobs:
                    assert mine.ack(*seqs_of(jobs), node=f"worker-{number}")["acked"] == len(jobs)

    with ThreadPoolExecutor(7) as pool:
        done = [pool.submit(consume, number) for number in range(4)]
        done += [pool.submit(produce, number) for number in range(3)]
        for future in reversed(done):
            future.result()
    assert sorted(taken) == [100 * number + place for number in range(3) for place in range(40)]
    queue.has_left()
