"""The stores of the benchmarks of the bucket, and the events that are put there."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import msgspec

from benchmarks.bench import append_request
from benchmarks.diff import BATCH
from benchmarks.references import wait_for_port
from s3_server import environment, s3_server

FILE, S3 = "file", "s3"
STORES: Final = (FILE, S3)

ENDPOINT: Final = "AWS_ENDPOINT_URL"

SETTLED_S: Final = 300.0
COMMAND_S: Final = 600.0


@dataclass(frozen=True, slots=True)
class Store:
    """A store in which there may be several buckets, each a prefix."""

    name: str
    base: str
    """The URL without a prefix."""
    variables: Mapping[str, str] = field(default_factory=dict)

    def url(self, prefix: str) -> str:
        return f"{self.base}/{prefix}"

    def command(self, *words: str) -> str:
        """What a command of `topics` prints. Raises RuntimeError if it fails."""
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
            raise RuntimeError(f"topics {' '.join(words)}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stdout

    def kinds(self, prefix: str) -> dict[str, tuple[int, int]]:
        """How many objects of each kind there are below a prefix, and their bytes."""
        status = msgspec.json.decode(self.command("bucket", "status", self.url(prefix), "--json"))
        return {one["kind"]: (one["objects"], one["bytes"]) for one in status["kinds"]}


@contextmanager
def made_stores(scratch: Path) -> Iterator[dict[str, Store]]:
    """A store in a directory, and one that a server of its own has, by their keys."""
    directory = scratch / "store"
    directory.mkdir()
    with s3_server(scratch / "server") as place:
        base = place.url("bench")
        yield {FILE: Store("a directory", f"file://{directory}"), S3: Store(place.name, base, place.variables())}


@contextmanager
def distant(store: Store, scratch: Path, delay_ms: float) -> Iterator[Store]:
    """A store in an S3 server as if each of its answers took `delay_ms` longer."""
    place = urlsplit(store.variables[ENDPOINT])
    port_file = scratch / "distant.port"
    where = [str(port_file), str(place.hostname), str(place.port), str(delay_ms)]
    process = subprocess.Popen([sys.executable, "-m", "benchmarks.distant", *where])
    try:
        port = wait_for_port(port_file, process)
        variables = {**store.variables, ENDPOINT: f"http://127.0.0.1:{port}"}
        yield replace(store, name=f"{store.name}, answers {delay_ms:g} ms later", variables=variables)
    finally:
        process.kill()
        process.wait()


def wait_until(what: str, holds: Callable[[], bool]) -> None:
    """Raises RuntimeError if it does not hold after `SETTLED_S`."""
    end = time.monotonic() + SETTLED_S
    while not holds():
        if time.monotonic() > end:
            raise RuntimeError(f"{what}: not after {SETTLED_S:.0f} s")
        time.sleep(0.05)


# --- events ----------------------------------------------------------------------------------------------------------


def event_data(number: int) -> str:
    """About 100 bytes, as a program would write them; a batch compresses to about a quarter."""
    digest = hashlib.blake2b(b"%d" % number, digest_size=8).digest()
    mixed = int.from_bytes(digest)
    return (
        f'{{"order":{1_000_000 + number},"customer":"c-{mixed % 90_000:05}","amount":{mixed % 89_989 / 100 + 100:.2f},'
        f'"state":"{("paid", "sent", "open")[number % 3]}","token":"{digest.hex()}"}}'
    )


def event_requests(topic: str, first: int, batches: int) -> list[bytes]:
    """Appends of 1000 events each."""
    return [
        append_request(topic, [f'{{"data":{event_data(at)}}}' for at in range(start, start + BATCH)])
        for start in range(first, first + batches * BATCH, BATCH)
    ]
