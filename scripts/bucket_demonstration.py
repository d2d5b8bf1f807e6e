"""`scripts/demo --bucket`: a year of flights, the loss of the data directory in the middle of loading them, and the
proof that the bucket had everything that it says it has.

1. A server that speaks S3 is started on loopback, and a daemon that archives to it. The flights that left New York in
   2013 go into an `fsync` topic.
2. After a third of them the load pauses until the bucket has everything: the moment for step 6.
3. In the middle of a request the daemon is killed (SIGKILL), and its data directory is removed.
4. `topics restore` makes the directory again. What was acked before the cut of the last round has to be in it. A daemon
   starts on it and takes the bucket over (`--take`); readers are told of the records behind the last round.
5. The load goes on with the first flight that is missing. Everything is read back and compared: every seq, tag, node
   and byte of data. The directory and the bucket are verified.
6. The state of the moment of step 2 is restored into another directory, and compared as well.

Exits with 0 only if all of it is exactly so.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, Final

import click
import httpx
import msgspec
from demonstration import (
    BATCH,
    FLIGHTS,
    Disagreement,
    Flight,
    agree,
    answer,
    append,
    batches_of,
    client_of,
    load_flights,
    progress,
    read_all,
)
from rich.console import Console

from daemon_process import DaemonProcess
from s3_server import S3Place, environment, s3_server

TOPIC: Final = "flights"
PREFIX: Final = "flights"
RESENT_BATCHES: Final = 5
SKIPPED: Final = 1 << 42
"""How far the first start of a restored directory raises the head of each topic."""

ROUND_MS: Final = 2000
BASE_MS: Final = 5000
"""Shorter than the default of ten minutes, so that there is more than one base."""

WITHIN_S: Final = 900
"""How long all of it may take. It takes a minute where nothing else runs."""

WAITED_S: Final = 60.0
COMMAND_S: Final = 300.0

console = Console(highlight=False)


def say(text: str) -> None:
    console.print(text, soft_wrap=True)


@dataclass(slots=True)
class Acked:
    """What the daemon has acknowledged, and when."""

    batches: int = 0
    times_ms: list[float] = field(default_factory=list)
    """When the ack of each batch was here (epoch ms)."""

    def before(self, time_ms: float) -> int:
        """How many batches were acknowledged before a time."""
        return sum(at < time_ms for at in self.times_ms)


@dataclass(frozen=True, slots=True)
class Moment:
    """A time to which the directory is restored later, and how many batches there were."""

    time_ms: int
    batches: int


@dataclass(frozen=True, slots=True)
class Seqs:
    """Where the flights are: the first `kept` of them from seq 1 on, the others from `second` on."""

    kept: int
    second: int

    def of_batch(self, number: int) -> int:
        """The first seq of a batch."""
        at = number * BATCH
        return at + 1 if at < self.kept else self.second + at - self.kept

    def of(self, flights: list[Flight]) -> dict[int, Flight]:
        """The flights by their seqs."""
        return {
            self.of_batch(0) + at if at < self.kept else self.second + at - self.kept: one
            for at, one in enumerate(flights)
        }


class Bucket:
    """The bucket as the command `topics` sees it."""

    def __init__(self, place: S3Place) -> None:
        self.url = place.url(PREFIX)
        self.variables = place.variables()

    def command(self, *words: str) -> str:
        """What a command prints. Raises Disagreement if it fails."""
        done = subprocess.run(
            [sys.executable, "-m", "topics", *words],
            env=environment(self.variables),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=COMMAND_S,
            check=False,
        )
        if done.returncode != 0:
            raise Disagreement(f"topics {' '.join(words)}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stdout

    def status(self) -> Any:
        """What is in it."""
        return msgspec.json.decode(self.command("bucket", "status", self.url, "--json"))

    def restore(self, directory: Path, *target: str) -> Any:
        """Make a directory of it. Returns what the command says of it, and the seconds that took."""
        began = time.monotonic()
        figures = msgspec.json.decode(
            self.command("restore", self.url, "--data-dir", str(directory), "--full", "--json", *target)
        )
        return {**figures, "seconds": time.monotonic() - began}

    def daemon(self, directory: Path, **settings: object) -> DaemonProcess:
        """A daemon that archives to it."""
        settings = {"bucket": self.url, "bucket_round_ms": ROUND_MS, "bucket_base_ms": BASE_MS, **settings}
        daemon = DaemonProcess(directory, log_level="warning", **settings)
        daemon.variables = dict(self.variables)
        return daemon


# ----------------------------------------------------------------- the steps


def wait_until(what: str, holds: Callable[[], bool]) -> None:
    end = time.monotonic() + WAITED_S
    while not holds():
        if time.monotonic() > end:
            raise Disagreement(f"{what}: not after {WAITED_S:.0f} s")
        time.sleep(0.1)


def archive_of(client: httpx.Client) -> Mapping[str, Any]:
    """What readiness says of the bucket."""
    state: Mapping[str, Any] = answer(client.get("/v0/ready"))["bucket"]
    return state


def everything_is_archived(client: httpx.Client) -> bool:
    state = archive_of(client)
    return bool(state["state"] == "working" and state["lag_bytes"] == 0)


def load(client: httpx.Client, batches: list[list[Flight]], first: int, last: int, acked: Acked) -> None:
    """Load the batches from `first` on, before `last`."""
    for number, batch in progress(batches[:last], first, "loading"):
        result = append(client, TOPIC, batch, f"flights-{number}")
        acked.times_ms.append(time.time() * 1000)
        agree("first seq", result["first_seq"], number * BATCH + 1)
        agree("records stored", result["count"], len(batch))
        acked.batches += 1


def load_and_lose(daemon: DaemonProcess, batches: list[list[Flight]], acked: Acked) -> Moment:
    """Load a third, wait for the bucket, load to the half, and lose the directory with a request in flight."""
    with client_of(daemon) as client:
        load(client, batches, 0, len(batches) // 3, acked)
        wait_until("the bucket has what was loaded", lambda: everything_is_archived(client))
        time.sleep(0.01)
        moment = Moment(int(time.time() * 1000), acked.batches)
        time.sleep(0.01)
        state = archive_of(client)
        say(f"paused after {moment.batches} batches: the bucket has them, its last round is {state['round']}")
        load(client, batches, acked.batches, len(batches) // 2, acked)
        number = acked.batches
        # While the request below is on its way, in the middle of the daemon's work on it.
        killer = threading.Timer(0.005, daemon.kill)
        killer.start()
        try:
            append(client, TOPIC, batches[number], f"flights-{number}")
            acked.times_ms.append(time.time() * 1000)
            acked.batches += 1
        except httpx.TransportError:
            pass
        killer.join()
    shutil.rmtree(daemon.data_dir)
    say(f"[bold]killed, and the data directory removed[/], after {acked.batches} acknowledged batches")
    return moment


def show_restored(client: httpx.Client, figures: Mapping[str, Any], acked: Acked) -> int:
    """Say what came back, after looking that no other batch had to. Returns the number of batches."""
    count = answer(client.get(f"/v0/topics/{TOPIC}"))["count"]
    agree("flights of half a batch", count % BATCH, 0)
    kept: int = count // BATCH
    promised = acked.before(figures["time"])
    if not promised <= kept <= acked.batches + 1:
        raise Disagreement(f"{kept} batches came back; {promised} were acked before the cut, {acked.batches} in all")
    say(
        f"of {acked.batches * BATCH:,} acked flights, {promised * BATCH:,} were acked before the last round was cut,"
        f" and {kept * BATCH:,} came back"
    )
    behind = max((acked.times_ms[-1] - figures["time"]) / 1000, 0.0)
    say(
        f"[bold]{lost_records(kept, acked):,} acked after the last round are lost[/]"
        f" (the last ack came {behind:.1f} s after its cut)"
    )
    return kept


def lost_records(kept: int, acked: Acked) -> int:
    return max(acked.batches - kept, 0) * BATCH


def show_tombstone(client: httpx.Client, kept: int, lost: int) -> int:
    """What readers see of it. Returns the seq behind which the topic goes on."""
    head: int = answer(client.get(f"/v0/topics/{TOPIC}"))["head_seq"]
    if head < kept + SKIPPED:
        raise Disagreement(f"head {head} after a restore of {kept} records")
    tombstones = {diff.tombstone["gap_to"]: diff.tombstone for diff in read_all(client, TOPIC) if diff.tombstone}
    agree("tombstones", list(tombstones), [head])
    agree("tombstone", [tombstones[head][name] for name in ("gap_from", "reason")], [kept + 1, "lost"])
    say(f"a reader from the start gets {kept:,} flights, then one tombstone: {kept + 1:,} to {head:,} are lost")
    body = {"from_seq": kept + lost, "limit": 1000}
    seen = answer(client.post(f"/v0/topics/{TOPIC}/diff", content=msgspec.json.encode(body)))["tombstone"]
    agree("tombstone of a reader that was ahead", [seen["gap_to"], seen["reason"]], [head, "lost"])
    say(f"a reader that had read all {kept + lost:,} gets the same from there on; no seq is given a second time")
    return head


def go_on(client: httpx.Client, batches: list[list[Flight]], first: int, seqs: Seqs) -> int:
    """Load the rest from batch `first` on. The keys make what is there already no matter. Returns how many were."""
    repeated = 0
    for number, batch in progress(batches, first, "going on"):
        result = append(client, TOPIC, batch, f"flights-{number}")
        agree("first seq", result["first_seq"], seqs.of_batch(number))
        agree("records stored", result["count"], len(batch))
        repeated += result["deduped"]
    return repeated


def compare(client: httpx.Client, expected: Mapping[int, Flight]) -> None:
    """What is live is `expected`, by seq: the same records in the same order, and nothing else."""
    left = iter(expected.items())
    for diff in read_all(client, TOPIC):
        for record in diff.records:
            seq, flight = next(left, (0, None))
            agree("seq", record.seq, seq)
            assert flight is not None
            found = record.tag, record.node, bytes(record.data)
            agree(f"record {seq}", found, (flight.tag, flight.node, flight.data))
    agree("first flight that was not read", next(left, None), None)
    agree("count", answer(client.get(f"/v0/topics/{TOPIC}"))["count"], len(expected))


def show_moment(bucket: Bucket, directory: Path, flights: list[Flight], moment: Moment) -> None:
    """The directory of a time, in another place, without a bucket."""
    figures = bucket.restore(directory, "--to", str(moment.time_ms))
    with DaemonProcess(directory, log_level="warning") as daemon:
        daemon.start()
        with client_of(daemon) as client:
            compare(client, dict(enumerate(flights[: moment.batches * BATCH], 1)))
        daemon.stop()
    say(
        f"[bold]restored to the moment of the pause[/] in {figures['seconds']:.1f} s (round {figures['round']}):"
        f" {moment.batches * BATCH:,} flights, byte for byte, and none that came later"
    )


# ----------------------------------------------------------------- all of it


def run(scratch: Path, count: int, server: str) -> None:
    flights = load_flights()[:count]
    batches = batches_of(flights)
    say(f"{len(flights):,} flights, {len(batches)} batches")
    acked = Acked()
    with s3_server(scratch / "s3", server) as place:
        bucket = Bucket(place)
        with bucket.daemon(scratch / "data") as daemon:
            say(f"daemon ready after {daemon.start():.2f} s")
            say(f"it archives to {bucket.url} ({place.name}) every {ROUND_MS / 1000:g} s")
            wait_until("the bucket has a base", lambda: has_base(bucket))
            with client_of(daemon) as client:
                config = {"durability": "fsync", "idempotency_window_ms": 3_600_000}
                answer(client.put(f"/v0/topics/{TOPIC}", content=msgspec.json.encode(config)))
            moment = load_and_lose(daemon, batches, acked)
        status = bucket.status()
        figures = bucket.restore(scratch / "data")
        say(
            f"[bold]restored[/] in {figures['seconds']:.1f} s: {figures['bytes'] / 1e6:.1f} MB read, the state at the"
            f" end of round {figures['round']} of {status['last_round']}"
        )
        with bucket.daemon(scratch / "data", bucket_take=1) as daemon:
            say(f"started on it with --take, ready after {daemon.start():.2f} s: the bucket belongs to it now")
            with client_of(daemon) as client:
                kept = show_restored(client, figures, acked)
                if kept < moment.batches:
                    raise Disagreement(f"{kept} batches came back, {moment.batches} were in the bucket at the pause")
                head = show_tombstone(client, kept * BATCH, lost_records(kept, acked))
                seqs = Seqs(kept * BATCH, head + 1)
                repeated = go_on(client, batches, max(kept - RESENT_BATCHES, 0), seqs)
                agree("batches recognised as repeats", repeated, min(RESENT_BATCHES, kept))
                say(f"loaded; {repeated} batches sent twice were recognised by their keys")
                compare(client, seqs.of(flights))
                say(f"read back and compared: {len(flights):,} seqs, tags, nodes and their bytes agree")
            daemon.stop()
        say(bucket.command("verify", str(scratch / "data")).splitlines()[-1] + " (topics verify)")
        say(bucket.command("bucket", "verify", bucket.url).splitlines()[-1] + " (topics bucket verify)")
        show_moment(bucket, scratch / "before", flights, moment)


def has_base(bucket: Bucket) -> bool:
    try:
        return bucket.status()["newest_base"] is not None
    except Disagreement:  # there is nothing in it yet
        return False


def give_up(_number: int, _frame: FrameType | None) -> None:
    raise Disagreement(f"not done after {WITHIN_S} s")


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--flights",
    type=click.IntRange(10 * BATCH, FLIGHTS),
    default=FLIGHTS,
    metavar="N",
    help="Only the first N flights, at least 10,000.  [all]",
)
@click.option(
    "--server",
    type=click.Choice(["versitygw", "moto"]),
    default=None,
    help="The S3 server.  [versitygw where there is Go, else moto]",
)
def main(flights: int, server: str | None) -> None:
    """Load a year of flights into a daemon with a bucket, remove its data directory meanwhile, and restore it."""
    began = time.monotonic()
    signal.signal(signal.SIGALRM, give_up)
    signal.alarm(WITHIN_S)
    with tempfile.TemporaryDirectory(prefix="topics-demo-") as scratch:
        try:
            run(Path(scratch), flights, server or "")
        except (Disagreement, httpx.HTTPError, RuntimeError, OSError, subprocess.SubprocessError) as error:
            console.print("[bold red]failed:[/]", str(error), soft_wrap=True)
            sys.exit(1)
    say(f"[bold green]all of it agrees[/] ({time.monotonic() - began:.0f} s)")


if __name__ == "__main__":
    main()
