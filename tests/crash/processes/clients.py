"""Clients of all kinds, each a thread for as long as the daemon lives, that tell the ledgers what they are told.

Each is called once in every life of the daemon with that life and a source of random choices, and returns when the life
is over; what it has to remember from one to the next (cursors, leases, which topics it has made) is in itself. A call
that has no answer is left in doubt: the ledgers settle that after the restart. An answer that must not be is a Fault.
"""

from __future__ import annotations

import http.client
import json
import random
import threading
import time
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from tests.conformance import sse, websocket
from tests.conformance.client import Client as Http
from tests.conformance.client import Daemon
from tests.crash.processes.jobs import Holding, QueueLedger
from tests.crash.processes.ledger import Batch, CopyLedger, Fault, Numbering, TopicLedger, require
from tests.end_to_end.test_sigkill import Client

JSON: Final = "application/json"
LEFT: Final = (OSError, http.client.HTTPException, sse.Cut, sse.Ended, websocket.Closed)
"""How a connection ends whose daemon is gone."""

MOST_JOBS: Final = 600
"""Nobody appends more than workers can do in some seconds."""


class Gone(Exception):
    """There is no answer: the daemon has ended, or is about to."""


@dataclass
class Life:
    """One life of the daemon, as far as its clients are concerned."""

    number: int
    daemon: Daemon
    is_small: bool
    over: threading.Event = field(default_factory=threading.Event)
    """Nothing more is to be asked."""
    ending: threading.Event = field(default_factory=threading.Event)
    """It is being killed or stopped: connections may break."""
    problems: list[str] = field(default_factory=list)
    requests: int = 0

    @property
    def port(self) -> int:
        return self.daemon.port

    def rest(self, rng: random.Random, seconds: float) -> None:
        """Pause for up to this long (more where the whole is to be small)."""
        self.over.wait(rng.uniform(0, seconds) * (5 if self.is_small else 1))

    def run(self, client: Callable[[Life, random.Random], None], rng: random.Random) -> None:
        """What a thread does."""
        try:
            client(self, rng)
        except Gone:
            pass
        except LEFT as error:
            if not self.ending.is_set():
                self._note(f"a connection broke: {error!r}\n{traceback.format_exc()}")
        except BaseException:
            self._note(traceback.format_exc())

    def _note(self, problem: str) -> None:
        self.problems.append(problem)
        self.over.set()


class Caller:
    """The calls of one thread."""

    def __init__(self, life: Life) -> None:
        self._client = Client(life.port)
        self._life = life

    def send(self, method: str, path: str, body: Any = None, *, allowed: Iterable[int] = ()) -> tuple[int, Any]:
        """Status and answer: 200, 201, 429, or what is allowed. Raises Gone where the daemon is going."""
        status, answer = self._client.call(method, "/v0" + path, body)
        self._life.requests += 1
        if status == 0:
            # The sender of the signal says so before it sends it.
            require(self._life.ending.wait(0.5), path, "a connection broke, and the daemon lives")
            raise Gone
        if status == 503:
            require(self._life.ending.is_set(), path, "refused:", answer)
            raise Gone
        if status not in (200, 201, 429, *allowed):
            raise Fault(f"{method} {path} {str(body)[:300]}: {status} {str(answer)[:600]}")
        return status, answer

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """The answer of a call that has to succeed; asked again where it is throttled."""
        while True:
            status, answer = self.send(method, path, body)
            if status != 429:
                return answer
            if self._life.over.wait(0.05):
                raise Gone

    def append(self, ledger: TopicLedger, batch: Batch) -> None:
        """Append a batch that was let go, and tell the ledger."""
        status, answer = self.send("POST", f"/topics/{ledger.name}", append_body(batch))
        if status == 429:
            ledger.refused(batch)
        else:
            ledger.acked(batch, answer)


def append_body(batch: Batch) -> dict[str, Any]:
    body: dict[str, Any] = {"records": batch.records()}
    return body if batch.key is None else body | {"idempotency_key": batch.key}


def commit_body(batch: Batch) -> dict[str, Any]:
    return {"stages": stage_names(batch), "idempotency_key": batch.key}


def stage_names(batch: Batch) -> list[str]:
    return [f"stage-{batch.id}-{part}" for part in range(batch.stages)]


def exported(port: int, topic: str, query: str = "") -> list[Any]:
    """The lines of an export. Raises an OSError or HTTPException where it is cut off."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=40)
    try:
        connection.request("GET", f"/v0/topics/{topic}/records{query}")
        answer = connection.getresponse()
        lines = answer.read().splitlines()
        if answer.status == 503:
            raise ConnectionError("it is going")
        require(answer.status == 200, topic, "no export:", answer.status, lines[:1])
        return [json.loads(line) for line in lines]
    finally:
        connection.close()


def now_ms() -> float:
    return time.time_ns() / 1e6


# ----------------------------------------------------------------- writers


@dataclass
class Appender:
    """Single records and batches, some of them under keys."""

    ledger: TopicLedger
    pause: float = 0.02

    def __call__(self, life: Life, rng: random.Random) -> None:
        caller = Caller(life)
        while not life.over.is_set():
            if isinstance(self.ledger, QueueLedger) and self.ledger.backlog > MOST_JOBS:
                life.rest(rng, 0.2)
                continue
            count = rng.choice([1, 1, 2, 4, 12, rng.randint(1, 60)])
            caller.append(self.ledger, self.ledger.send(count, keyed=rng.random() < 0.3))
            life.rest(rng, self.pause)


@dataclass
class Publisher:
    """Appends over a WebSocket."""

    ledger: TopicLedger

    def __call__(self, life: Life, rng: random.Random) -> None:
        with Http(life.daemon) as http, websocket.WebSocket(http) as opened:
            while not life.over.is_set():
                batch = self.ledger.send(rng.randint(1, 6), keyed=rng.random() < 0.5)
                answer = opened.ask("publish", topic=self.ledger.name, **append_body(batch))
                life.requests += 1
                if answer["op"] == "ack":
                    self.ledger.acked(batch, answer)
                elif answer["code"] == "throttled":
                    self.ledger.refused(batch)
                else:
                    require(life.ending.is_set(), self.ledger.name, "refused:", answer)
                    return
                life.rest(rng, 0.03)


@dataclass
class Deleter:
    """Deletes what is old, all of it or what has a tag, and so keeps the topic at about `keep` records."""

    ledger: TopicLedger
    keep: int

    def __call__(self, life: Life, rng: random.Random) -> None:
        caller = Caller(life)
        while not life.over.is_set():
            life.rest(rng, 0.3)
            before = self.ledger.max_seq - rng.randint(0, 2 * self.keep)
            if before < 2:
                continue
            tag = rng.choice([None, None, "t0", "t1"])
            body: dict[str, Any] = {"before_seq": before}
            deletion = self.ledger.ask_deletion(before, tag)
            if tag is not None:
                body["match"] = ["tag", "Eq", tag]
            status, answer = caller.send("POST", f"/topics/{self.ledger.name}/delete", body)
            if status == 429:
                self.ledger.deletion_refused(deletion)
            else:
                self.ledger.deletion_acked(deletion, answer)


@dataclass
class Stager:
    """Fills stages, and commits most of them."""

    ledger: TopicLedger

    def __call__(self, life: Life, rng: random.Random) -> None:
        caller = Caller(life)
        path = f"/topics/{self.ledger.name}"
        while not life.over.is_set():
            stages = rng.randint(1, 3)
            batch = self.ledger.prepare(stages * rng.randint(1, 40), stages=stages)
            records, names = batch.records(), stage_names(batch)
            share = len(records) // stages
            for part, name in enumerate(names):
                caller.ask("POST", f"{path}?stage={name}", {"records": records[part * share : (part + 1) * share]})
            if rng.random() < 0.15:
                for name in names:
                    caller.ask("DELETE", f"{path}/stages/{name}")
                continue
            self.ledger.let_go(batch)
            answer = caller.ask("POST", f"{path}/commit", commit_body(batch))
            self.ledger.acked(batch, answer)
            if rng.random() < 0.2:
                self.ledger.repeated(batch, caller.ask("POST", f"{path}/commit", commit_body(batch)))
            life.rest(rng, 0.2)


@dataclass
class ComeAndGo:
    """A topic that is made, copied from, and deleted again and again, under the same few names."""

    sink: CopyLedger
    numbering: Numbering
    stem: str
    epoch: int = 0
    """The highest so far: no instance has an older one's."""
    cycles: int = 0
    left: str | None = None
    """What was there, or perhaps, when the daemon went."""
    ended: list[TopicLedger] = field(default_factory=list)
    """Instances that are deleted. They can be forgotten once the sink was judged."""

    def __call__(self, life: Life, rng: random.Random) -> None:
        caller = Caller(life)
        if self.left is not None:
            self._clear(caller, self.left)
        while not life.over.is_set():
            self.cycles += 1
            self.left = f"{self.stem}-{self.cycles % 3}"
            self._cycle(life, caller, rng, self.left)
            self.left = None
            life.rest(rng, 0.2)

    def _clear(self, caller: Caller, name: str) -> None:
        """What was in doubt is ended."""
        caller.ask("DELETE", f"/routers/{name}")
        caller.ask("DELETE", f"/topics/{name}")
        self.ended = list(self.sink.sources)
        self.left = None

    def _cycle(self, life: Life, caller: Caller, rng: random.Random, name: str) -> None:
        durability = rng.choice(["disk", "fsync", "memory"])
        made = caller.ask("PUT", f"/topics/{name}", {"durability": durability})
        require(made["created"], name, "an instance that was deleted is back:", made)
        epoch = caller.ask("GET", f"/topics/{name}")["epoch"]
        require(epoch > self.epoch, name, "an epoch was used again:", epoch, self.epoch)
        self.epoch = epoch
        router = {"source": name, "dest": self.sink.name, "from": "earliest"}
        require(caller.ask("PUT", f"/routers/{name}", router)["created"], name, "its router was there already")
        instance = TopicLedger(name, durability, self.numbering)
        with self.sink.lock:
            self.sink.sources.append(instance)
        batch = instance.send(rng.randint(1, 20))
        place = self.sink.max_seq
        caller.append(instance, batch)
        if batch.first_seq:
            self._wait_for(life, caller, batch, place)
        if rng.random() < 0.5:
            require(caller.ask("DELETE", f"/routers/{name}")["deleted"], name, "its router was not there")
            # Not known to the sink: nobody copies it.
            uncopied = TopicLedger(name, durability, self.numbering)
            status, _ = caller.send("POST", f"/topics/{name}", append_body(uncopied.send(3)))
            require(status in (200, 429), name, "made by an append, and it is there:", status)
        gone = caller.ask("DELETE", f"/topics/{name}")
        require(gone["deleted"], name, "it was not there")
        with self.sink.lock:
            self.ended.append(instance)

    def _wait_for(self, life: Life, caller: Caller, batch: Batch, place: int) -> None:
        """The copies are in the sink."""
        missing = set(batch.numbers)
        deadline = time.monotonic() + 20
        while missing:
            if life.over.wait(0.01):
                raise Gone
            require(time.monotonic() < deadline, self.sink.name, "not forwarded:", sorted(missing)[:5])
            page = caller.ask("GET", f"/topics/{self.sink.name}/diff?from_seq={place}&limit=200&include_tags=1")
            missing -= {self.sink.saw(record) for record in page["records"]}
            place = page["next_from_seq"]


# ----------------------------------------------------------------- workers


@dataclass
class Worker:
    """Claims jobs and does all that can be done with them. Some jobs nobody can do: they are always given back."""

    queue: QueueLedger
    name: str
    held: list[Holding] = field(default_factory=list)

    def __call__(self, life: Life, rng: random.Random) -> None:
        caller = Caller(life)
        while not life.over.is_set():
            if self.held:
                self._ack(life, caller, self.held)
                self.held = []
            body = {
                "node": self.name,
                "max": rng.randint(1, 8),
                "lease_ms": rng.choice([150, 600, 4000]),
                "wait_ms": 150,
            }
            status, answer = caller.send("POST", f"/topics/{self.queue.name}/claim", body)
            if status == 429:
                continue
            came = now_ms()
            claimed = [(self.queue.claimed(self.name, job, life.number, came), job) for job in answer["claimed"]]
            self._work(life, caller, rng, claimed)

    def _work(self, life: Life, caller: Caller, rng: random.Random, claimed: list[tuple[Holding, Any]]) -> None:
        # Without a limit of deliveries what is always given back would always come first, and nothing else ever.
        bad = [bool(self.queue.max_deliveries) and is_poison(job["data"]["n"]) for _, job in claimed]
        poisoned = [holding for (holding, _), is_bad in zip(claimed, bad, strict=True) if is_bad]
        rest = [holding for (holding, _), is_bad in zip(claimed, bad, strict=True) if not is_bad]
        if rng.random() < 0.2:
            poisoned += rest[:1]
            rest = rest[1:]
        if rest and rng.random() < 0.15:
            self._extend(caller, rest, rng.choice([150, 2000]))
        if rng.random() < 0.05:
            rest = rest[1:]  # forgotten: it comes back when its lease is over
        life.rest(rng, 0.03)
        if poisoned:
            body = self._body(poisoned) | {"delay_ms": rng.choice([0, 0, 60])}
            self.queue.ask_release(poisoned, now_ms())
            caller.ask("POST", f"/topics/{self.queue.name}/nack", body)
        self.held = rest
        if rest and not life.over.is_set():
            self._ack(life, caller, rest)
            self.held = []

    def _body(self, holdings: list[Holding]) -> dict[str, Any]:
        leases = [holding.lease_id for holding in holdings]
        return {"node": self.name, "seqs": [holding.seq for holding in holdings], "lease_ids": leases}

    def _extend(self, caller: Caller, holdings: list[Holding], lease_ms: int) -> None:
        self.queue.ask_extension(holdings, now_ms() + lease_ms)
        body = self._body(holdings) | {"lease_ms": lease_ms}
        answer = caller.ask("POST", f"/topics/{self.queue.name}/extend", body)
        self.queue.extended(holdings, answer["deadlines"])

    def _ack(self, life: Life, caller: Caller, holdings: list[Holding]) -> None:
        asked = now_ms()
        self.queue.ask_ack(holdings)
        answer = caller.ask("POST", f"/topics/{self.queue.name}/ack", self._body(holdings))
        self.queue.ack_answered(holdings, answer["skipped"], life.number, asked, now_ms())


def is_poison(number: int) -> bool:
    """A job that nobody can do, where a dead-letter topic takes it."""
    return number % 11 == 0


# ----------------------------------------------------------------- readers


@dataclass
class Watcher:
    """Follows topics from where it was, over SSE or WebSocket, and asserts that nothing is told twice or left out."""

    ledgers: dict[str, TopicLedger | CopyLedger]
    is_socket: bool
    places: dict[str, int] = field(default_factory=dict)
    """How far each topic is accounted for."""
    delivered: int = 0

    def __call__(self, life: Life, rng: random.Random) -> None:
        # It goes on until the daemon has gone: what is delivered during a drain counts, too.
        with Http(life.daemon) as http:
            frames = self._socket_frames if self.is_socket else self._stream_frames
            frames(life, http)

    def _start(self) -> dict[str, Any]:
        return {name: {"from_seq": self.places.get(name, 0)} for name in self.ledgers}

    def _stream_frames(self, life: Life, http: Http) -> None:
        body = {"topics": self._start(), "include_tags": True}
        url = Caller(life).ask("POST", "/watch", body)["stream_url"]
        with sse.connect(http, url) as events:
            if events.status == 503:
                raise Gone
            events.opened()
            while self._goes_on(life):
                events.wait(0.2)
                while events.parser.frames:
                    self.take(events.parser.frames.pop(0))

    def _socket_frames(self, life: Life, http: Http) -> None:
        with websocket.WebSocket(http) as opened:
            opened.subscribe(topics=self._start(), include_tags=True)
            while self._goes_on(life):
                opened.wait(0.2)
                while opened.messages:
                    message = opened.messages.pop(0)
                    if message.is_push:
                        self.take(message.frame)

    def _goes_on(self, life: Life) -> bool:
        return life.ending.is_set() or not life.over.is_set()

    def take(self, frame: sse.Frame) -> None:
        """A frame, or a push as one."""
        if frame.event == "error":
            require(frame.is_advice or frame.data["code"] == 503, "stream", "ended:", frame.data)
            return
        ledger = self.ledgers[frame.data["topic"]]
        place = self.places.get(ledger.name, 0)
        data = frame.data
        if frame.event == "record":
            require(data["from_seq"] <= place, ledger.name, "a stream that jumps:", place, data["from_seq"])
            seqs = [record["$seq"] for record in data["records"]]
            require(not seqs or seqs[0] > place, ledger.name, "told twice:", place, seqs[:3])
            for record in data["records"]:
                ledger.saw(record)
            self.delivered += len(seqs)
            ledger.check_silence(place + 1, data["to_seq"], seqs)
            self.places[ledger.name] = max(place, data["to_seq"])
        elif frame.event == "tombstone":
            require(data["gap_from"] <= place + 1, ledger.name, "a tombstone that jumps:", place, data)
            require(data["gap_to"] > place, ledger.name, "a tombstone told twice:", place, data)
            ledger.check_gap(data["reason"], data["gap_from"], data["gap_to"])
            self.places[ledger.name] = data["gap_to"]
        elif frame.event in ("caught-up", "caught_up"):
            ledger.check_silence(place + 1, data["head_seq"], ())
            self.places[ledger.name] = max(place, data["head_seq"])
        else:
            raise Fault(f"{ledger.name}: {frame.event} {data}")


@dataclass
class Reader:
    """Pages and exports of any topic, from anywhere."""

    ledgers: list[TopicLedger | CopyLedger]
    read: int = 0

    def __call__(self, life: Life, rng: random.Random) -> None:
        caller = Caller(life)
        while not life.over.is_set():
            ledger = rng.choice(self.ledgers)
            place = rng.randint(max(0, ledger.max_seq - 600), ledger.max_seq)
            if rng.random() < 0.5:
                query = f"from_seq={place}&limit={rng.randint(1, 400)}&include_tags=1"
                records = caller.ask("GET", f"/topics/{ledger.name}/diff?{query}")["records"]
            else:
                lines = exported(life.port, ledger.name, f"?from_seq={place}")
                life.requests += 1
                if not life.ending.is_set():
                    require(bool(lines) and "$end" in lines[-1], ledger.name, "an export that was cut off")
                records = [line for line in lines if "$seq" in line]
            seqs = [record["$seq"] for record in records]
            require(
                seqs == sorted(set(seqs)) and min(seqs, default=place + 1) > place, ledger.name, "odd order:", seqs[:9]
            )
            for record in records:
                ledger.saw(record)
            self.read += len(seqs)
            life.rest(rng, 0.1)


@dataclass
class Checkpointer:
    """Asks for checkpoints, with holds now and then, and for the figures."""

    taken: int = 0

    def __call__(self, life: Life, rng: random.Random) -> None:
        caller = Caller(life)
        while not life.over.is_set():
            life.rest(rng, 0.8)
            self.taken += 1
            caller.ask("POST", f"/admin/checkpoint?hold_ms={rng.choice([0, 0, 0, 150])}")
            caller.ask("GET", "/topics?page_size=1000")
