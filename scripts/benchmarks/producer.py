"""The client's Producer: records sent one by one, beside batches of the same size that are made by hand."""

from __future__ import annotations

import time

from benchmarks.bench import PLAIN_DATA, Bench, Control, append_request, plain_record
from benchmarks.client import Connection
from benchmarks.figures import Figure, figure
from benchmarks.references import echo_reference, sync_reference
from topics.client import Client
from topics.client.producers.producer import BATCH_RECORDS, Delivery, Producer

TOPIC = "bench"
DATA = PLAIN_DATA.strip('"')
DURABILITIES = ("disk", "fsync")


def run(bench: Bench) -> list[Figure]:
    """Records a second over one connection into one topic, and what the client's processor time is."""
    figures = [*sync_reference(bench), *echo_reference(bench)]
    with bench.daemon() as daemon, Client(daemon.url) as client:
        control = Control(daemon.port)
        for durability in DURABILITIES:
            bench.say(f"batches by hand, {durability}")
            times = bench.repetitions if durability == "disk" else bench.few
            by_hand = bench.repeat(_by_hand, bench, control, daemon.port, durability, times=times)
            bench.say(f"Producer, {durability}")
            runs = bench.repeat(_produced, bench, control, client, durability, times=times)
            rates = [rate for rate, _ in runs]
            hand = f"hand-{durability}"
            aim = 50_000 if durability == "disk" else None
            figures += [
                figure(
                    f"reference: batches of {BATCH_RECORDS:,} by hand, {durability}", "records/s", by_hand, key=hand
                ),
                figure(
                    f"Producer, send() for each record, {durability}",
                    "records/s",
                    rates,
                    key=durability,
                    at_least=aim,
                    references=(hand,),
                ),
                figure("... processor time of the client", "us/record", [used for _, used in runs], key="cpu"),
            ]
        bench.say("one record, send() and result()")
        control.create(TOPIC, durability="disk")
        p50 = bench.repeat(_one_by_one, bench, client)
        figures.append(figure("Producer, send() to result(), linger 0, disk, p50", "ms", p50, key="one-p50"))
        control.delete(TOPIC)
        control.close()
    return figures


def _by_hand(bench: Bench, control: Control, port: int, durability: str) -> float:
    """One connection, one request after the other, made beforehand."""
    control.create(TOPIC, durability=durability)
    request = append_request(TOPIC, [plain_record(number) for number in range(BATCH_RECORDS)])
    connection = Connection(port)
    sent = 0

    def send_for(seconds: float) -> float:
        nonlocal sent
        count, began = 0, time.perf_counter()
        while (took := time.perf_counter() - began) < seconds:
            connection.call(request).expect(200)
            count += BATCH_RECORDS
        sent += count
        return count / took

    send_for(bench.warm_up_s)
    rate = send_for(bench.measured_s)
    connection.close()
    control.expect_count(TOPIC, sent)
    control.delete(TOPIC)
    return rate


def _produced(bench: Bench, control: Control, client: Client, durability: str) -> tuple[float, float]:
    """Records a second, from the first `send` to the end of `flush`, and microseconds of processor time for each."""
    control.create(TOPIC, durability=durability)
    sent = 0
    last: Delivery

    def send_for(producer: Producer, seconds: float) -> tuple[float, float]:
        nonlocal sent, last
        count, began, used = 0, time.perf_counter(), time.process_time()
        while time.perf_counter() - began < seconds:
            for _ in range(1000):
                last = producer.send(TOPIC, DATA)
            count += 1000
        producer.flush()
        sent += count
        return count / (time.perf_counter() - began), 1e6 * (time.process_time() - used) / count

    with Producer(client) as producer:
        send_for(producer, bench.warm_up_s)
        measured = send_for(producer, bench.measured_s)
        if last.result() != sent:
            raise RuntimeError(f"{sent} records were sent, the last one is {last.result()}")
    control.expect_count(TOPIC, sent)
    control.delete(TOPIC)
    return measured


def _one_by_one(bench: Bench, client: Client) -> float:
    """The median of what a sender waits that waits for each record, in ms."""
    with Producer(client, linger_ms=0) as producer:
        producer.send(TOPIC, DATA).result()
        waits = []
        for _ in range(50 if bench.quick else 300):
            began = time.perf_counter()
            producer.send(TOPIC, DATA).result()
            waits.append(1000 * (time.perf_counter() - began))
    return sorted(waits)[len(waits) // 2]
