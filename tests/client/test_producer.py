"""`Producer` and `AsyncProducer` on real daemons: killed, throttled, read-only, and behind a bad network."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal

import anyio
import pytest

from tests.client.conftest import StartDaemon
from tests.client.ports import free_port
from tests.client.proxy import Fate, Proxy
from tests.conformance.client import Daemon, until
from topics.client import AsyncClient, Client, Record, Retry
from topics.client.errors import BadRequest, ConnectionFailed, NotFound
from topics.client.producers.producer import (
    AsyncDelivery,
    AsyncProducer,
    BufferFull,
    Delivery,
    DeliveryFailed,
    Producer,
    ProducerClosed,
)
from topics.client.results import NewRecord

pytestmark = pytest.mark.slow

NEVER_MS = 600_000.0
"""A linger that is not over before any test."""
NEVER_S = 120.0
"""What nothing in a test that passes waits for to its end."""
KEPT_MS = 600_000
"""An idempotency window."""


@pytest.fixture
def client(shared_daemon: Daemon) -> Iterator[Client]:
    with Client(shared_daemon.url) as client:
        yield client


@pytest.fixture
def network(shared_daemon: Daemon) -> Iterator[Proxy]:
    """A network between a test and the daemon of all, kind until the test says otherwise."""
    with Proxy(shared_daemon.port) as proxy:
        yield proxy


def read(client: Client, topic: str) -> list[Record]:
    """All records of a topic, which has no gaps."""
    records = []
    for record in client.read(topic):
        assert isinstance(record, Record)
        records.append(record)
    assert [record.seq for record in records] == list(range(1, len(records) + 1))
    return records


def data_in(client: Client, topic: str) -> list[Any]:
    return [record.data for record in read(client, topic)]


Sent = dict[str, list[tuple[list[int], Delivery]]]
"""Topic to records (number of the sender, number of the record) and their deliveries, in the order of each sender."""


def send_from_threads(producer: Producer, topics: list[str], threads: int, count: int) -> Sent:
    """Have `threads` senders send `count` records each, to the topics in turns. Returns when all are sent."""

    def send(sender: int) -> Sent:
        sent: Sent = defaultdict(list)
        for number in range(count):
            topic = topics[number % len(topics)]
            sent[topic].append(([sender, number], producer.send(topic, [sender, number])))
        return sent

    with ThreadPoolExecutor(threads) as pool:
        parts = list(pool.map(send, range(threads)))
    return {topic: [one for part in parts for one in part[topic]] for topic in topics}


def check_exactly_once(client: Client, sent: Sent) -> None:
    """Each record is there once, at the seq of its delivery, and those of each sender are in order."""
    for topic, records in sent.items():
        found = data_in(client, topic)
        assert len(found) == len(records)
        last: dict[int, int] = {}
        for data, delivery in records:
            seq = delivery.result(0)
            assert found[seq - 1] == data
            assert seq > last.get(data[0], 0)
            last[data[0]] = seq


# --- bad times -------------------------------------------------------------------------------------------------------


def test_records_are_there_once_and_in_order_across_three_kills(start_daemon: StartDaemon) -> None:
    daemon = start_daemon()
    topics: dict[str, Literal["disk", "fsync"]] = {"x": "disk", "y": "fsync", "z": "disk"}
    with Client(daemon.url) as client:
        for topic, durability in topics.items():
            client.create(topic, durability=durability, idempotency_window_ms=KEPT_MS)
    threads, count = 4, 25_000
    delivered = 0

    def on_delivery(_: Delivery) -> None:
        nonlocal delivered
        delivered += 1

    def kill_and_start() -> None:
        for share in (0.2, 0.45, 0.7):
            until(lambda share=share: delivered >= share * threads * count, within_s=NEVER_S)  # type: ignore[misc]
            daemon.restart(signal.SIGKILL).close()

    killer = threading.Thread(target=kill_and_start)
    killer.start()
    bounds: dict[str, Any] = {"batch_records": 500, "max_buffered_records": 5000}
    impatient = Client(daemon.url, retry=Retry(longest_wait=0.2))
    with impatient, Producer(impatient, give_up_after=NEVER_S, on_delivery=on_delivery, **bounds) as producer:
        sent = send_from_threads(producer, list(topics), threads, count)
        producer.flush(NEVER_S)
    killer.join(NEVER_S)
    assert delivered == threads * count
    with Client(daemon.url) as client:
        check_exactly_once(client, sent)


def cut_before_the_answer(number: int) -> Fate:
    """The daemon has acted, and nobody hears of it; or a request arrives in part; or an answer does."""
    rng = random.Random(number)
    if number >= 40:
        return Fate()
    delay_s = rng.choice([0.0, 0.002])
    return rng.choice(
        [
            Fate(down=0, delay_s=delay_s),
            Fate(down=rng.randrange(1, 900), delay_s=delay_s, reset=rng.random() < 0.5),
            Fate(up=rng.randrange(1, 9000), delay_s=delay_s, reset=rng.random() < 0.5),
        ]
    )


def test_a_network_that_swallows_answers_doubles_nothing(daemon: Daemon) -> None:
    with Proxy(daemon.port, cut_before_the_answer) as proxy:
        client = Client(proxy.url, retry=Retry(longest_wait=0.1))
        with client, Producer(client, batch_records=50, max_buffered_records=500) as producer:
            sent = send_from_threads(producer, ["x", "y", "z"], threads=2, count=3000)
            producer.flush(NEVER_S)
        assert proxy.accepted > 40
    with Client(daemon.url) as client:
        check_exactly_once(client, sent)


def test_a_throttled_producer_goes_as_fast_as_it_may(start_daemon: StartDaemon) -> None:
    daemon = start_daemon(api_keys="fast,slow", rate_per_key="8")
    with Producer(Client(daemon.url, "slow"), batch_records=10, linger_ms=NEVER_MS) as producer:
        sent = send_from_threads(producer, ["x", "y"], threads=2, count=100)
        producer.flush(NEVER_S)
    with Client(daemon.url, "fast") as client:
        assert b'status="429"' in client.metrics_text().encode()
        check_exactly_once(client, sent)


def test_a_daemon_that_is_read_only_is_waited_for(start_daemon: StartDaemon) -> None:
    full = start_daemon(min_free_bytes="1000TiB")
    emptied = Daemon(full.root, port=full.port)
    with contextlib.ExitStack() as stack:
        client = stack.enter_context(Client(full.url, retry=Retry(longest_wait=0.1)))
        producer = stack.enter_context(Producer(client, batch_records=2, max_buffered_records=4, send_timeout=0.05))
        deliveries = [producer.send("t", number) for number in range(4)]
        with pytest.raises(BufferFull):
            producer.send("t", 4)
        assert not any(delivery.done for delivery in deliveries)
        full.end()
        stack.callback(emptied.kill)
        emptied.start().close()
        producer.flush(NEVER_S)
        assert [delivery.result() for delivery in deliveries] == [1, 2, 3, 4]
        assert data_in(client, "t") == [0, 1, 2, 3]


def test_a_batch_is_given_up_in_the_end(topic: str) -> None:
    client = Client(f"http://127.0.0.1:{free_port()}", retry=Retry(longest_wait=0.01))
    with client, Producer(client, give_up_after=0.1) as producer:
        delivery = producer.send(topic, 1)
        with pytest.raises(ConnectionFailed):
            delivery.result(NEVER_S)


def test_a_client_that_repeats_nothing_has_a_producer_that_repeats_nothing(topic: str) -> None:
    client = Client(f"http://127.0.0.1:{free_port()}", retry=None)
    with client, Producer(client, give_up_after=NEVER_S) as producer, pytest.raises(ConnectionFailed):
        producer.send(topic, 1).result(NEVER_S / 2)


# --- what is sent ----------------------------------------------------------------------------------------------------


def test_records_arrive_as_they_were_sent(client: Client, topic: str) -> None:
    value = {"n": 1}
    with Producer(client) as producer:
        first = producer.send(topic, value, tag="t", node="n", meta={"k": "v"})
        value["n"] = 2
        second = producer.send(topic, NewRecord(None, tag="u"))
        assert (first.result(NEVER_S), second.result(NEVER_S)) == (1, 2)
        assert (first.topic, first.done) == (topic, True)
    one, two = read(client, topic)
    assert (one.data, one.tag, one.node, one.meta) == ({"n": 1}, "t", "n", {"k": "v"})
    assert (two.data, two.tag, two.node, two.meta) == (None, "u", None, {})


def test_what_is_no_json_is_refused_where_it_is_sent(client: Client, topic: str) -> None:
    with Producer(client) as producer:
        for data in (object(), {1, object()}, "\ud800"):
            with pytest.raises((TypeError, ValueError)):
                producer.send(topic, data)
        assert producer.buffered == 0
        assert producer.send(topic, 1).result(NEVER_S) == 1


def test_a_record_that_no_buffer_holds_is_refused(client: Client, topic: str) -> None:
    with Producer(client, max_buffered_bytes=100) as producer, pytest.raises(ValueError, match="never fits"):
        producer.send(topic, "x" * 100)


def test_a_batch_lingers_and_no_longer(client: Client, topic: str) -> None:
    with Producer(client, linger_ms=10.0) as producer:
        assert producer.send(topic, 1).result(NEVER_S) == 1
        assert producer.send(topic, 2).result(NEVER_S) == 2


def test_the_key_of_a_client_is_its_producers_and_is_not_shown(start_daemon: StartDaemon) -> None:
    secret = "s3cr3t"
    daemon = start_daemon(api_keys=secret)
    with Client(daemon.url, secret) as client, Producer(client) as producer:
        delivery = producer.send("t", 1)
        assert delivery.result(NEVER_S) == 1
        assert secret not in repr(producer) + repr(delivery)


# --- bounds ----------------------------------------------------------------------------------------------------------


def test_a_full_buffer_holds_up_the_sender_until_there_is_room(client: Client, network: Proxy, topic: str) -> None:
    network.stall()
    with Client(network.url) as other, Producer(other, max_buffered_records=3, linger_ms=NEVER_MS) as producer:
        early = [producer.send(topic, number) for number in range(3)]
        with ThreadPoolExecutor(1) as pool:
            late = pool.submit(producer.send, topic, 3)
            with pytest.raises(TimeoutError):
                late.result(0.2)
            network.flow()
            delivery = late.result(NEVER_S)
        producer.flush(NEVER_S)
        assert [one.result(0) for one in [*early, delivery]] == [1, 2, 3, 4]


def test_a_sender_that_has_waited_long_enough_is_told(client: Client, network: Proxy, topic: str) -> None:
    network.stall()
    options: dict[str, Any] = {"max_buffered_records": 2, "send_timeout": 0.05}
    with Client(network.url) as other, Producer(other, **options) as producer:
        producer.send(topic, 0)
        producer.send(topic, 1)
        with pytest.raises(BufferFull, match="2 wait"):
            producer.send(topic, 2)
        network.flow()
        producer.flush(NEVER_S)
        assert producer.buffered == 0, "whoever has given up keeps no room"
        producer.send(topic, 3)
    assert data_in(client, topic) == [0, 1, 3]


def test_many_senders_share_a_small_buffer(client: Client, topic: str) -> None:
    options: dict[str, Any] = {"batch_records": 4, "max_buffered_records": 5, "max_in_flight": 2, "linger_ms": NEVER_MS}
    with Producer(client, **options) as producer:
        sent = send_from_threads(producer, [f"{topic}-{n}" for n in range(3)], threads=12, count=60)
        producer.flush(NEVER_S)
    check_exactly_once(client, sent)


# --- failures --------------------------------------------------------------------------------------------------------


def test_a_batch_that_fails_is_left_out_and_the_next_goes_on(client: Client, topic: str) -> None:
    with Producer(client) as producer:
        bad = producer.send(topic, 1, tag="t" * 300)
        beside = producer.send(topic, 2)
        for delivery in (bad, beside):
            with pytest.raises(BadRequest) as failure:
                delivery.result(NEVER_S)
            assert failure.value.code == "invalid_request"
        assert producer.send(topic, 3).result(NEVER_S) == 1
    assert data_in(client, topic) == [3]


def test_failures_that_nobody_has_seen_are_raised_by_the_next_flush(client: Client, topic: str) -> None:
    with Producer(client, create=False) as producer:
        seen = producer.send(topic, 1)
        producer.send(topic, 2)
        producer.send(topic, 3)
        with pytest.raises(NotFound):
            seen.result(NEVER_S)
        with pytest.raises(DeliveryFailed, match="2 records were not delivered") as failure:
            producer.flush(NEVER_S)
        assert isinstance(failure.value.error, NotFound)
        assert failure.value.records == 2
        producer.flush(NEVER_S)


def test_failures_that_nobody_has_seen_are_raised_at_the_end(client: Client, topic: str) -> None:
    with pytest.raises(DeliveryFailed), Producer(client, create=False) as producer:
        producer.send(topic, 1)


def test_an_error_in_the_block_is_not_hidden_by_failures(client: Client, topic: str) -> None:
    def main() -> None:
        with Producer(client, create=False) as producer:
            producer.send(topic, 1)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) as error:
        main()
    assert "1 record was not delivered" in error.value.__notes__[0]


def test_an_error_in_the_block_does_not_lose_what_was_sent(client: Client, topic: str) -> None:
    def main() -> None:
        with Producer(client, linger_ms=NEVER_MS) as producer:
            producer.send(topic, 1)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        main()
    assert data_in(client, topic) == [1]


def test_a_producer_that_halts_leaves_no_hole(client: Client, topic: str) -> None:
    with Producer(client, halt_on_failure=True, batch_records=2, linger_ms=NEVER_MS) as producer:
        numbers = [producer.send(topic, number, tag="t" * 300 if number == 3 else None) for number in range(6)]
        assert [one.result(NEVER_S) for one in numbers[:2]] == [1, 2]
        for one in numbers[2:4]:
            with pytest.raises(BadRequest):
                one.result(NEVER_S)
        for one in numbers[4:]:
            with pytest.raises(ProducerClosed, match="before it"):
                one.result(NEVER_S)
        with pytest.raises(ProducerClosed):
            producer.send(topic, 7)
    assert data_in(client, topic) == [0, 1]


def test_whoever_asked_to_be_told_is_told_of_each_record_in_order(client: Client, topic: str) -> None:
    told: list[tuple[Delivery, int | type[Exception]]] = []

    def on_delivery(delivery: Delivery) -> None:
        try:
            told.append((delivery, delivery.result()))
        except Exception as error:
            told.append((delivery, type(error)))

    with Producer(client, on_delivery=on_delivery, batch_records=2) as producer:
        deliveries = [producer.send(topic, number) for number in range(5)]
        producer.flush(NEVER_S)
        assert told == list(zip(deliveries, range(1, 6), strict=True))
        told.clear()
        failed = producer.send(topic, 5, tag="t" * 300)
        producer.flush(NEVER_S)
        assert told == [(failed, BadRequest)]


def test_what_the_callback_raises_is_raised_by_the_next_flush(client: Client, topic: str) -> None:
    def on_delivery(delivery: Delivery) -> None:
        if delivery.result() == 2:
            raise ZeroDivisionError

    with Producer(client, on_delivery=on_delivery) as producer:
        deliveries = [producer.send(topic, number) for number in range(3)]
        with pytest.raises(ZeroDivisionError):
            producer.flush(NEVER_S)
        assert [one.result(0) for one in deliveries] == [1, 2, 3]
        producer.flush(NEVER_S)


def test_the_callback_cannot_wait_for_deliveries(client: Client, topic: str) -> None:
    raised: list[type[Exception]] = []

    def on_delivery(_: Delivery) -> None:
        calls: list[Callable[[], object]] = [lambda: producer.send(topic, 1), producer.flush, producer.close]
        for call in calls:
            try:
                call()
            except (BufferFull, RuntimeError) as error:
                raised.append(type(error))

    with Producer(client, on_delivery=on_delivery, max_buffered_records=1) as producer:
        producer.send(topic, 0)
        producer.flush(NEVER_S)
    assert raised == [BufferFull, RuntimeError, RuntimeError]


# --- flush and close -------------------------------------------------------------------------------------------------


def test_a_flush_does_not_linger_and_waits_for_everything(client: Client, topic: str) -> None:
    with Producer(client, linger_ms=NEVER_MS, max_in_flight=2) as producer:
        deliveries = [producer.send(f"{topic}-{number}", number) for number in range(5)]
        producer.flush(NEVER_S)
        assert all(delivery.done for delivery in deliveries)
        assert producer.buffered == 0


def test_a_flush_of_nothing_returns_at_once(client: Client) -> None:
    with Producer(client) as producer:
        producer.flush(0)


def test_waiting_is_bounded(client: Client, network: Proxy, topic: str) -> None:
    network.stall()
    with Client(network.url) as other, Producer(other) as producer:
        delivery = producer.send(topic, 1)
        with pytest.raises(TimeoutError):
            producer.flush(0.05)
        with pytest.raises(TimeoutError):
            delivery.result(0.05)
        network.flow()
        assert delivery.result(NEVER_S) == 1


def test_closing_is_bounded_and_what_is_left_fails(client: Client, network: Proxy, topic: str) -> None:
    network.stall()
    with Client(network.url) as other:
        producer = Producer(other, batch_records=1)
        under_way, waiting = producer.send(topic, 1), producer.send(topic, 2)
        until(lambda: network.waiting > 0)
        with pytest.raises(DeliveryFailed, match="2 records"):
            producer.close(0.05)
        with pytest.raises(ProducerClosed, match="before it was known"):
            under_way.result(0)
        with pytest.raises(ProducerClosed, match="before the record was sent"):
            waiting.result(0)


def test_a_closed_producer_has_delivered_everything_and_takes_nothing(client: Client, topic: str) -> None:
    producer = Producer(client, linger_ms=NEVER_MS)
    delivery = producer.send(topic, 1)
    producer.close()
    assert delivery.result(0) == 1
    with pytest.raises(ProducerClosed):
        producer.send(topic, 2)
    producer.close()
    producer.flush()
    assert data_in(client, topic) == [1]


def test_closing_wakes_those_who_wait_for_room(client: Client, network: Proxy, topic: str) -> None:
    network.stall()
    with Client(network.url) as other, ThreadPoolExecutor(1) as pool:
        producer = Producer(other, max_buffered_records=1)
        delivery = producer.send(topic, 1)
        waiting = pool.submit(producer.send, topic, 2)
        with pytest.raises(TimeoutError):
            waiting.result(0.1)
        with pytest.raises(DeliveryFailed):
            producer.close(0.05)
        with pytest.raises(ProducerClosed):
            waiting.result(NEVER_S)
        assert delivery.done


def test_a_producer_does_not_survive_a_fork(client: Client, topic: str) -> None:
    with Producer(client) as producer:
        child = os.fork()
        if not child:
            try:
                producer.send(topic, 1)
            except RuntimeError:
                producer.close()
                os._exit(0)
            os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
        assert producer.send(topic, 1).result(NEVER_S) == 1


# --- asynchronous ----------------------------------------------------------------------------------------------------


def run(backend: str, main: Callable[[], Any]) -> None:
    """Run `main` on trio or asyncio; it ends in time."""

    async def bounded() -> None:
        with anyio.fail_after(NEVER_S):
            await main()

    anyio.run(bounded, backend=backend)


def test_tasks_share_an_asynchronous_producer(client: Client, topic: str, backend: str) -> None:
    topics = [f"{topic}-{number}" for number in range(3)]
    sent: dict[str, list[tuple[list[int], AsyncDelivery]]] = defaultdict(list)

    async def main() -> None:
        async with AsyncClient(client.url) as other:
            options: dict[str, Any] = {"batch_records": 40, "max_buffered_records": 100}
            async with AsyncProducer(other, **options) as producer, anyio.create_task_group() as tasks:

                async def send(sender: int) -> None:
                    for number in range(1000):
                        where = topics[number % 3]
                        sent[where].append(([sender, number], await producer.send(where, [sender, number])))

                for sender in range(4):
                    tasks.start_soon(send, sender)

    run(backend, main)
    for where, records in sent.items():
        found = data_in(client, where)
        assert len(found) == len(records)
        last: dict[int, int] = {}
        for data, delivery in records:
            seq = delivery.result()
            assert found[seq - 1] == data
            assert seq > last.get(data[0], 0)
            last[data[0]] = seq


def test_an_asynchronous_delivery_can_be_waited_for(client: Client, topic: str, backend: str) -> None:
    async def main() -> None:
        async with AsyncClient(client.url) as other, AsyncProducer(other, linger_ms=NEVER_MS) as producer:
            delivery = await producer.send(topic, 1)
            with pytest.raises(RuntimeError, match="not delivered yet"):
                delivery.result()
            with anyio.move_on_after(0.05):
                await delivery.wait()
            assert not delivery.done
            with pytest.raises(TimeoutError):
                await producer.flush(0)
            await producer.flush()
            assert await delivery.wait() == delivery.result() == 1
            bad = await producer.send(topic, 2, tag="t" * 300)
            with pytest.raises(DeliveryFailed):
                await producer.flush()
            with pytest.raises(BadRequest):
                await bad.wait()

    run(backend, main)


def test_an_asynchronous_producer_that_is_cancelled_sends_nothing_more(
    client: Client, network: Proxy, topic: str, backend: str
) -> None:
    network.stall()
    deliveries: list[AsyncDelivery] = []

    async def main() -> None:
        async with AsyncClient(network.url) as other:
            with anyio.CancelScope() as scope:
                async with AsyncProducer(other, batch_records=1) as producer:
                    deliveries.append(await producer.send(topic, 1))
                    deliveries.append(await producer.send(topic, 2))
                    while not network.waiting:  # noqa: ASYNC110 - of another thread
                        await anyio.sleep(0.01)
                    scope.cancel()
                    await anyio.sleep_forever()

    run(backend, main)
    with pytest.raises(ProducerClosed, match="before it was known"):
        deliveries[0].result()
    with pytest.raises(ProducerClosed, match="before the record was sent"):
        deliveries[1].result()


def test_an_error_in_an_asynchronous_block_comes_out_as_it_is(client: Client, topic: str, backend: str) -> None:
    async def main() -> None:
        async with AsyncClient(client.url) as other, AsyncProducer(other, linger_ms=NEVER_MS) as producer:
            await producer.send(topic, 1)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run(backend, main)
    assert data_in(client, topic) == [1]


def test_failures_come_out_of_an_asynchronous_block_as_they_are(client: Client, topic: str, backend: str) -> None:
    async def main() -> None:
        async with AsyncClient(client.url) as other, AsyncProducer(other, create=False) as producer:
            await producer.send(topic, 1)

    with pytest.raises(DeliveryFailed):
        run(backend, main)


def test_an_asynchronous_sender_waits_for_room(client: Client, network: Proxy, topic: str, backend: str) -> None:
    async def main() -> None:
        network.stall()
        options: dict[str, Any] = {"max_buffered_records": 2, "send_timeout": 0.05}
        async with AsyncClient(network.url) as other, AsyncProducer(other, **options) as producer:
            await producer.send(topic, 0)
            await producer.send(topic, 1)
            with pytest.raises(BufferFull):
                await producer.send(topic, 2)
            with anyio.move_on_after(0.01):
                await producer.send(topic, 3)
            network.flow()
            await producer.flush()
            assert producer.buffered == 0, "whoever has given up keeps no room"
            await producer.send(topic, 4)

    run(backend, main)
    assert data_in(client, topic) == [0, 1, 4]


def test_an_asynchronous_producer_can_be_closed_in_its_block(
    client: Client, network: Proxy, topic: str, backend: str
) -> None:
    async def main() -> None:
        async with AsyncClient(network.url) as other, AsyncProducer(other, linger_ms=NEVER_MS) as producer:
            delivery = await producer.send(topic, 1)
            await producer.close()
            assert delivery.result() == 1
            with pytest.raises(ProducerClosed):
                await producer.send(topic, 2)
        network.stall()
        async with AsyncClient(network.url) as other, AsyncProducer(other) as producer:
            await producer.send(topic, 3)
            with pytest.raises(DeliveryFailed):
                await producer.close(0.05)

    run(backend, main)


def test_an_asynchronous_producer_survives_a_kill(start_daemon: StartDaemon, backend: str) -> None:
    daemon = start_daemon()
    with Client(daemon.url) as client:
        client.create("t", durability="disk", idempotency_window_ms=KEPT_MS)

    async def main() -> None:
        impatient = AsyncClient(daemon.url, retry=Retry(longest_wait=0.2))
        async with impatient as client, AsyncProducer(client, batch_records=20) as producer:
            for number in range(200):
                await producer.send("t", number)
                if number == 100:
                    await anyio.to_thread.run_sync(lambda: daemon.restart(signal.SIGKILL).close())

    run(backend, main)
    with Client(daemon.url) as client:
        assert data_in(client, "t") == list(range(200))
