"""A real daemon, real files, real HTTP, all features at once, and SIGKILL at random moments, for minutes.

    scripts/torment --minutes 3 --seed 7
    scripts/torment --minutes 3 --transactions --shards 3
    scripts/torment --minutes 3 --replicas 3    (an owner and standbys: `replicas`)

A round is a life of the daemon: clients of all kinds work on it (`clients`), until it is killed, killed while it stops
or recovers, or stopped in order. After the restart everything that the clients were told is compared with what is there
(`ledger`, `jobs`). The seed decides what clients do and when a signal is sent, but not what the operating system makes
of it: a failure names a history to look at, not one to run again. Its data directory is kept, and its place printed.

Processes are ended by their pid, and a directory in which no fault was found is removed.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.conformance import sse, websocket
from tests.conformance.client import Client as Http
from tests.conformance.client import Daemon
from tests.crash.processes.clients import (
    Appender,
    Caller,
    Checkpointer,
    ComeAndGo,
    Deleter,
    Life,
    Publisher,
    Reader,
    Stager,
    Watcher,
    Worker,
    append_body,
    commit_body,
    exported,
)
from tests.crash.processes.jobs import QueueLedger
from tests.crash.processes.ledger import CopyLedger, Fate, Fault, Numbering, TopicLedger, View, require, tag_of
from tests.crash.processes.replicas import ReplicaPlan, torment_replicas
from tests.crash.processes.transactions import TRIMMED_ABOVE, TransactionLedger, Transactor
from tests.end_to_end.test_sigkill import Client as Plain
from tests.end_to_end.test_sigkill import read_all

IDLE_S: Final = 90.0
JOIN_S: Final = 90.0
COPIES_KEPT: Final = 1500
LEDGERS: Final = {"sales": "fsync", "stock": "disk", "bills": "fsync", "parts": "disk"}
"""Topics for transactions, from which nothing is taken while they are used."""
WINDOW: Final = {"idempotency_window_ms": 3_600_000}
SETTINGS: Final[dict[str, object]] = {
    "wal_file_bytes": 128 << 10,
    "segment_max_events": 60,
    "segment_max_age_ms": 2000,
    "cache_bytes": 200_000,
    "checkpoint_ms": 150,
    "reclaim_ms": 150,
    "relocate_ms": 150,
    "hot_retain_segments": 1,
    "drain_ms": 40_000,
}


@dataclass
class Plan:
    """What was asked for. It is over after so many minutes or kills, whichever comes first."""

    seed: int
    minutes: float
    kills: int | None = None
    is_small: bool = False
    only_transactions: bool = False
    """Nobody but those who send transactions, append beside them, and read."""
    shards: int | None = None
    """The same number in all lives; None for one that changes."""


class Victim(Daemon):
    """A daemon that may have ended by itself."""

    @property
    def has_process(self) -> bool:
        return self._process is not None

    def last_words(self) -> str:
        """The end of its log."""
        return self._end_of_log()


class Site:
    """A data directory, the daemon on it, all clients, and what they know."""

    def __init__(self, root: Path, plan: Plan) -> None:
        self.root = root
        self.plan = plan
        self.rng = random.Random(plan.seed)
        self.ended: Counter[str] = Counter()
        """Lives, by how they ended."""
        self.lives = self.requests = self.verified = self.agreements = 0
        self.numbering = Numbering()
        self._shards = plan.shards or 2
        self._daemon: Victim | None = None
        self._make_ledgers()
        self._make_clients()

    def _make_ledgers(self) -> None:
        def topic(name: str, durability: str, **config: int) -> TopicLedger:
            return TopicLedger(name, durability, self.numbering, **config)

        self.orders, self.events = topic("orders", "fsync"), topic("events", "disk")
        self.hot, self.live = topic("hot", "memory"), topic("live", "ephemeral")
        self.capped, self.short = topic("capped", "fsync", cap=200), topic("short", "disk", ttl_ms=2500)
        self.jobs = QueueLedger("jobs", "fsync", self.numbering, leases_durable=True, max_deliveries=4)
        self.chores = QueueLedger("chores", "disk", self.numbering, leases_durable=False)
        complete = [topic(name, durability) for name, durability in LEDGERS.items()]
        taken_from = [self.orders, self.events, self.capped, self.short]
        self.transactions = TransactionLedger(complete, taken_from, self.numbering)
        self.topics = [*taken_from, self.hot, self.live, self.jobs, self.chores, *complete]
        orders = [self.orders]
        self.copies = [
            CopyLedger("left", "disk", list(orders)),
            CopyLedger("right", "fsync", list(orders)),
            CopyLedger("meet", "disk", list(orders)),
            CopyLedger("picked", "fsync", list(orders), passes=lambda number: tag_of(number) == "t1"),
            CopyLedger("faint", "memory", [self.events]),
            CopyLedger("kept", "fsync", [self.hot]),
            CopyLedger("archive", "disk", [self.live], is_complete=False),
        ]
        self.sink = CopyLedger("sink", "disk", [], is_complete=False, may_trim=True)
        self.dead = CopyLedger("dead", "fsync", [self.jobs], may_repeat=True, is_complete=False)

    def _everything(self) -> list[TopicLedger | CopyLedger]:
        return [*self.topics, *self._fed()]

    def _fed(self) -> list[CopyLedger]:
        """What clients do not append to."""
        return [*self.copies, self.sink, self.dead]

    def _make_clients(self) -> None:
        self.clients: list[Callable[[Life, random.Random], None]]
        self.passing = ComeAndGo(self.sink, self.numbering, "passing")
        watched = {ledger.name: ledger for ledger in self._everything()}
        self.watchers = [Watcher(watched, is_socket) for is_socket in (False, True)]
        self.workers = [Worker(self.jobs, f"jobs-{number}") for number in range(3)]
        self.workers += [Worker(self.chores, f"chores-{number}") for number in range(2)]
        self.readers = [Reader([*self.topics, *self.copies]) for _ in range(1 if self.plan.is_small else 2)]
        self.checkpointer = Checkpointer()
        deleted = ((self.orders, 600), (self.events, 500), (self.hot, 400), (self.live, 300))
        self.transactors = [Transactor(self.transactions) for _ in range(2)]
        if self.plan.only_transactions:
            self.workers, used = [], [*self.transactions.complete, self.capped]
            self.clients = [*self.transactors, *(Transactor(self.transactions) for _ in range(4))]
            self.clients += [*(Appender(ledger) for ledger in used), *self.watchers, self.checkpointer]
            return
        self.clients = [
            *self.transactors,
            *(Appender(ledger) for ledger in self.topics),
            *(Appender(ledger) for ledger in (self.orders, self.events, self.hot)),
            Publisher(self.orders),
            Publisher(self.hot),
            *(Deleter(ledger, keep) for ledger, keep in deleted),
            *(Stager(ledger) for ledger in (self.orders, self.events, self.hot)),
            self.passing,
            *self.watchers,
            *self.workers,
            *self.readers,
            self.checkpointer,
        ]

    # -- the daemon ----------------------------------------------------------------------------------------------------

    @property
    def daemon(self) -> Victim:
        assert self._daemon is not None
        return self._daemon

    def launch(self) -> Life:
        """Start it, now and then with another number of shards; returns when it listens."""
        if self.lives and self.rng.random() < 0.1 and self.plan.shards is None:
            self._shards = self.rng.choice([1, 2, 3])
        settings = SETTINGS | {"cold_dir": self.root / "cold", "wal_shards": self._shards}
        self._daemon = Victim(self.root, **settings)
        self._daemon.launch()
        self.lives += 1
        return Life(self.lives, self._daemon, self.plan.is_small)

    def until_ready(self) -> None:
        client = Plain(self.daemon.port)
        deadline = time.monotonic() + IDLE_S
        while client.call("GET", "/v0/ready")[0] != 200:
            require(time.monotonic() < deadline, "daemon", "is not ready:", self.daemon.last_words())
            time.sleep(0.02)

    def end(self) -> None:
        """End all processes, also after an error."""
        if self._daemon is not None and self._daemon.has_process:
            self._daemon.end(signal.SIGKILL)

    # -- rounds --------------------------------------------------------------------------------------------------------

    def create(self, life: Life) -> None:
        caller = Caller(life)
        for ledger in self.topics:
            config: dict[str, Any] = {"durability": ledger.durability, **WINDOW}
            config |= {"cap_records": ledger.cap, "ttl_ms": ledger.ttl_ms}
            if isinstance(ledger, QueueLedger):
                config |= {"type": "queue", "leases_durable": ledger.leases_durable}
            if ledger is self.jobs:
                config |= {"max_deliveries": ledger.max_deliveries, "dead_letter": self.dead.name}
            caller.ask("PUT", f"/topics/{ledger.name}", config)
        for copies in self._fed():
            caller.ask("PUT", f"/topics/{copies.name}", {"durability": copies.durability})
        once = {"guarantee": "exactly_once", "allow_cycle": True}
        routers: list[tuple[str, str, dict[str, Any]]] = [
            ("orders", "left", {}),
            ("orders", "right", {"guarantee": "exactly_once"}),
            ("left", "meet", once),
            ("right", "meet", once),
            ("orders", "picked", {"filter": ["tag", "Eq", "t1"]}),
            ("events", "faint", {}),
            ("hot", "kept", {}),
            ("live", "archive", {}),
        ]
        for source, dest, more in routers:
            caller.ask("PUT", f"/routers/{source}>{dest}", {"source": source, "dest": dest, "from": "earliest", **more})

    def run(self) -> None:
        """All rounds. Raises a Fault."""
        deadline = time.monotonic() + self.plan.minutes * 60
        life = self.launch()
        self.until_ready()
        self.create(life)
        while True:
            fate = self.live_through(life)
            life = self.restart(fate)
            self.check(life, fate)
            kills = sum(self.ended.values()) - self.ended["stopped"]
            if time.monotonic() > deadline or (self.plan.kills is not None and kills >= self.plan.kills):
                break
        self.finish(life)

    def live_through(self, life: Life) -> Fate:
        """Let the clients work on it until it is ended; how it was."""
        seeds = [self.rng.random() for _ in self.clients]
        how = self.rng.choices(["killed", "killed while it stopped", "stopped"], [8, 1, 1])[0]
        is_short = self.plan.is_small or self.rng.random() < 0.3
        seconds = self.rng.uniform(0.3, 1.5 if is_short else 6)
        after_signal = self.rng.uniform(0, 0.4)
        threads = [
            threading.Thread(target=life.run, args=(client, random.Random(seed)), name=type(client).__name__)
            for client, seed in zip(self.clients, seeds, strict=True)
        ]
        for thread in threads:
            thread.start()
        try:
            life.over.wait(seconds)
            life.ending.set()
            self._end_life(how, after_signal)
        finally:
            # Also after an error no thread goes on for ever: those that read end with the daemon.
            life.ending.set()
            life.over.set()
        for thread in threads:
            thread.join(JOIN_S)
        stuck = [thread.name for thread in threads if thread.is_alive()]
        require(not stuck, "clients", "hang:", stuck)
        self.requests += life.requests
        if life.problems:
            raise Fault("\n".join(life.problems[:3]))
        self.ended[how] += 1
        return "stop" if how == "stopped" else "kill"

    def _end_life(self, how: str, after_signal: float) -> None:
        if how == "killed":
            code = self.daemon.end(signal.SIGKILL)
            require(code == -signal.SIGKILL, "daemon", "ended by itself:", code, self.daemon.last_words())
            return
        self.daemon.send_signal(signal.SIGTERM)
        if how == "killed while it stopped":
            time.sleep(after_signal)
            self.daemon.send_signal(signal.SIGKILL)
            code = self.daemon.wait()
            require(code in (0, -signal.SIGKILL), "daemon", "did not stop:", code, self.daemon.last_words())
        else:
            code = self.daemon.wait()
            require(code == 0, "daemon", "did not stop in order:", code, self.daemon.last_words())

    def restart(self, fate: Fate) -> Life:
        """Look at the files now and then, kill some recoveries, and start it at last."""
        if self.rng.random() < 0.15:
            self.verify()
        for _ in range(self.rng.choices([0, 1, 2, 3], [6, 2, 1, 1])[0]):
            self.launch()
            time.sleep(self.rng.choice([0, self.rng.uniform(0, 0.25)]))
            self.daemon.end(signal.SIGKILL)
            self.ended["killed while it started"] += 1
        life = self.launch()
        self.until_ready()
        return life

    def verify(self) -> None:
        """`topics verify` finds no damage in what is left by the end of a life."""
        command = [
            sys.executable,
            "-m",
            "topics",
            "verify",
            str(self.root / "data"),
            "--cold-dir",
            str(self.root / "cold"),
        ]
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=300)
        require(done.returncode == 0, "verify", "finds damage:", done.stdout[-1200:], done.stderr[-300:])
        self.verified += 1

    # -- checks --------------------------------------------------------------------------------------------------------

    def check(self, life: Life, fate: Fate) -> None:
        """Compare everything with what was told, and let go of what need not be known any more."""
        caller = Caller(life)
        self._until_idle(caller)
        # A job that becomes a dead letter meanwhile is seen at least once: the topic with those comes last.
        views = {ledger.name: self.view(caller, ledger.name) for ledger in self._everything()}
        self.jobs.bury(views["dead"].records.values())
        for ledger in self.topics:
            ledger.judge(views[ledger.name], fate)
        for copies in self._fed():
            copies.judge(views[copies.name], fate)
        self._check_passing(caller)
        self._check_transactions(caller)
        self._check_agreement(life, views)
        for ledger in self.topics:
            ledger.forget()
        self._repeat(caller)
        self._trim(caller)

    def view(self, caller: Caller, name: str) -> View:
        """A complete read, with the figures of the state."""
        began = time.time_ns() / 1e6
        records, gaps, head = read_all(Plain(self.daemon.port), name)
        state = caller.ask("GET", f"/topics/{name}")
        require(state["head_seq"] == head, name, "a head that moves at rest:", head, state["head_seq"])
        return View(records, gaps, head, state["earliest_seq"], state["count"], began)

    def _until_idle(self, caller: Caller) -> None:
        """No router has anything left to do."""
        deadline = time.monotonic() + IDLE_S
        while True:
            routers = caller.ask("GET", "/routers?page_size=1000")["routers"]
            late = {router["router"]: router["lag"] for router in routers if router["lag"]}
            if not late:
                return
            require(time.monotonic() < deadline, "routers", "do not come to rest:", late)
            time.sleep(0.02)

    def _check_passing(self, caller: Caller) -> None:
        """What was deleted is not there, nor is its router. Its instances were judged by the sink."""
        left = {self.passing.left} - {None}
        listed = caller.ask("GET", "/topics?prefix=passing-")["topics"]
        require({one["topic"] for one in listed} <= left, "passing", "deleted topics are back:", listed)
        routers = caller.ask("GET", "/routers?prefix=passing-")["routers"]
        require({one["router"] for one in routers} <= left, "passing", "deleted routers are back:", routers)
        self.sink.sources = [source for source in self.sink.sources if source not in self.passing.ended]
        self.passing.ended.clear()

    def _check_transactions(self, caller: Caller) -> None:
        """Each is there whole or not at all, and has raised its fence or not."""
        self.transactions.judge()
        for ledger in self.transactions.complete:
            state = caller.ask("GET", f"/topics/{ledger.name}?touch=false")
            self.transactions.check_fences(ledger.name, state.get("fences", {}))

    def _check_agreement(self, life: Life, views: dict[str, View]) -> None:
        """Diff, export, SSE and WebSocket tell the same of a topic."""
        names = [name for name in views if name not in ("short", "jobs", "dead")]
        name = self.rng.choice(names)
        view = views[name]
        told = {seq: record["data"]["n"] for seq, record in view.records.items()}
        gone = {seq for first, last, _ in view.gaps for seq in range(first, last + 1)}
        lines = exported(life.port, name)
        gaps = [line["$tombstone"] for line in lines if "$tombstone" in line]
        records = [line for line in lines if "$seq" in line]
        self._agree(name, "export", told, gone, records, gaps)
        with Http(life.daemon) as http:
            path = sse.stream_path(name, from_seq=0, include_tags="1")
            with sse.connect(http, path) as events:
                frames = events.opened().until_caught_up(name)
            self._agree_frames(name, "SSE", told, gone, frames)
            with websocket.WebSocket(http) as opened:
                opened.subscribe(topics={name: {"from_seq": 0}}, include_tags=True)
                frames = opened.until_caught_up(name)
            self._agree_frames(name, "WebSocket", told, gone, frames)
        self.agreements += 1

    def _agree_frames(
        self, name: str, how: str, told: dict[int, int], gone: set[int], frames: Sequence[sse.Frame]
    ) -> None:
        records = [record for frame in frames if frame.event == "record" for record in frame.data["records"]]
        gaps = [frame.data for frame in frames if frame.event == "tombstone"]
        self._agree(name, how, told, gone, records, gaps)

    @staticmethod
    def _agree(name: str, how: str, told: dict[int, int], gone: set[int], records: list[Any], gaps: list[Any]) -> None:
        found = {record["$seq"]: record["data"]["n"] for record in records}
        require(found == told, name, how, "and diff do not agree:", sorted(found.items() ^ told.items())[:10])
        covered = {seq for gap in gaps for seq in range(gap["gap_from"], gap["gap_to"] + 1)}
        require(covered == gone, name, how, "and diff announce other gaps:", sorted(covered ^ gone)[:10], gaps)

    def _repeat(self, caller: Caller) -> None:
        """Keyed appends and commits are sent again: those that are there are known."""
        for ledger in self.topics:
            for batch in ledger.to_repeat():
                path, body = f"/topics/{ledger.name}", append_body(batch)
                if batch.is_commit:
                    path, body = path + "/commit", commit_body(batch)
                ledger.repeated(batch, caller.ask("POST", path, body))
        for transaction in self.transactions.to_repeat():
            allowed = (409,) if self.transactions.is_late(transaction) else ()
            status, answer = caller.send("POST", "/transactions", transaction.body(), allowed=allowed)
            require(status != 429, "transactions", "throttled at rest:", answer)
            if status == 200:
                self.transactions.repeated(transaction, answer)
            else:
                require(answer["error"]["code"] == "fenced", "transactions", "a repeat is refused:", answer)

    def _trim(self, caller: Caller) -> None:
        """Delete copies whose source is gone, and what transactions have left, so that the whole does not grow without
        end."""
        for ledger in self.transactions.complete:
            if len(ledger.present) > TRIMMED_ABOVE:
                deletion = ledger.ask_deletion(ledger.max_seq, None)
                body = {"before_seq": deletion.before}
                ledger.deletion_acked(deletion, caller.ask("POST", f"/topics/{ledger.name}/delete", body))
        for copies in self._fed():
            before = copies.first_live()
            if len(copies.copies) > COPIES_KEPT and before > 1:
                caller.ask("POST", f"/topics/{copies.name}/delete", {"before_seq": before})
                copies.trimmed(before)

    # -- the end -------------------------------------------------------------------------------------------------------

    def finish(self, life: Life) -> None:
        """Let workers work everything off and watchers catch up, stop in order, and look at it a last time."""
        last: list[Callable[[Life, random.Random], None]] = [*self.workers, *self.watchers]
        threads = [threading.Thread(target=life.run, args=(client, random.Random(n))) for n, client in enumerate(last)]
        for thread in threads:
            thread.start()
        caller = Caller(life)
        try:
            self._wait(life, lambda: self._is_worked_off(caller), "queues are not worked off")
            self._wait(life, lambda: self._has_caught_up(caller), "watchers do not catch up")
        finally:
            life.over.set()
            life.ending.set()
            code = self.daemon.end(signal.SIGTERM)
            for thread in threads:
                thread.join(JOIN_S)
        self.requests += life.requests
        require(not life.problems, "the end", "\n".join(life.problems[:3]))
        require(code == 0, "daemon", "did not stop in order:", code, self.daemon.last_words())
        self.ended["stopped"] += 1
        self.verify()
        life = self.launch()
        self.until_ready()
        self.check(life, "stop")
        for queue in (self.jobs, self.chores):
            require(not queue.present, queue.name, "are left:", len(queue.present))
        require(self.daemon.end(signal.SIGTERM) == 0, "daemon", "did not stop in order:", self.daemon.last_words())

    def _wait(self, life: Life, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + IDLE_S
        while not condition() and not life.problems:
            require(time.monotonic() < deadline, "the end", what)
            time.sleep(0.05)

    def _is_worked_off(self, caller: Caller) -> bool:
        names = (self.jobs.name, self.chores.name)
        return all(caller.ask("GET", f"/topics/{name}?touch=false")["count"] == 0 for name in names)

    def _has_caught_up(self, caller: Caller) -> bool:
        heads = {one["topic"]: one["head_seq"] for one in caller.ask("GET", "/topics?page_size=1000")["topics"]}
        return all(watcher.places.get(name) == heads[name] for watcher in self.watchers for name in watcher.ledgers)

    def figures(self) -> dict[str, Any]:
        return {
            "seed": self.plan.seed,
            "rounds": sum(count for how, count in self.ended.items() if how != "killed while it started"),
            "kills": sum(self.ended.values()) - self.ended["stopped"],
            "lives": self.lives,
            **{f"lives {how}": count for how, count in sorted(self.ended.items())},
            "requests": self.requests,
            "records acked": sum(ledger.counts.acked for ledger in self.topics),
            "records checked": sum(ledger.counts.checked for ledger in self._everything()),
            "memory records lost, and announced": self.hot.counts.lost,
            "keys repeated": sum(ledger.counts.repeats for ledger in self.topics),
            "transactions acked": self.transactions.acked,
            "transactions there after a restart": self.transactions.settled,
            "transactions undone": self.transactions.undone,
            "records delivered to watchers": sum(watcher.delivered for watcher in self.watchers),
            "records read": sum(reader.read for reader in self.readers),
            "jobs claimed": self.jobs.claims + self.chores.claims,
            "jobs acked": self.jobs.done + self.chores.done,
            "dead letters": self.dead.max_seq,
            "topics made and deleted": self.passing.cycles,
            "checkpoints asked for": self.checkpointer.taken,
            "topics compared over diff, export, SSE and WebSocket": self.agreements,
            "directories verified": self.verified,
        }


def torment(plan: Plan, root: Path) -> dict[str, Any]:
    """All of it in this directory, which is left as it is; the figures. Raises a Fault (or what it met instead)."""
    site = Site(root, plan)
    began = time.monotonic()
    try:
        site.run()
    finally:
        site.end()
    return site.figures() | {"seconds": round(time.monotonic() - began, 1), "faults": 0}


def _figures(options: argparse.Namespace, seed: int, root: Path) -> dict[str, Any]:
    if options.replicas:
        replicas = ReplicaPlan(seed, options.minutes, options.replicas, options.kills, options.small)
        return torment_replicas(replicas, root)
    plan = Plan(seed, options.minutes, options.kills, options.small, options.transactions, options.shards)
    return torment(plan, root)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="scripts/torment", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=3.0, help="how long, about (3)")
    parser.add_argument("--seed", type=int, default=None, help="of the choices; without one, a fresh one")
    parser.add_argument("--kills", type=int, default=None, help="stop after so many, if that is sooner")
    parser.add_argument("--small", action="store_true", help="less load, for a machine that has other things to do")
    parser.add_argument("--transactions", action="store_true", help="nothing but transactions and appends beside them")
    parser.add_argument("--shards", type=int, default=None, help="of all lives; without it, a number that changes")
    parser.add_argument("--replicas", type=int, default=0, help="an owner and standbys: so many daemons (0)")
    parser.add_argument("--json", action="store_true", help="the figures as JSON")
    options = parser.parse_args(arguments)
    seed = random.SystemRandom().randrange(1 << 31) if options.seed is None else options.seed
    print(f"seed {seed}", file=sys.stderr, flush=True)
    root = Path(tempfile.mkdtemp(prefix="topics-torment-"))
    try:
        figures = _figures(options, seed, root)
    except (Exception, AssertionError) as error:
        print(f"seed {seed}: {type(error).__name__}: {error}\nThe data directory is kept: {root}", file=sys.stderr)
        if not isinstance(error, Fault):
            raise
        return 1
    except BaseException:
        shutil.rmtree(root, ignore_errors=True)
        raise
    shutil.rmtree(root)
    if options.json:
        print(json.dumps(figures, indent=2))
    else:
        print("\n".join(f"{name:<55} {value:>12}" for name, value in figures.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
