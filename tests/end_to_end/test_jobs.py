"""A queue at work: real worker processes, and both they and the daemon killed again and again.

Every worker writes down what it does, each line before it goes on, so that what it did is known whenever it is killed.
Afterwards each job is told its story from the lines of all of them: it was done, and what was done twice was done twice
for a reason.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.test_sigkill import Client, Daemon

TOPIC = "jobs"
BATCH = 1000
WORKERS = 4
APPEND_FOR_S = 45.0
"""On a slow machine there are fewer jobs, so that the whole takes about as long."""
GIVE_UP_S = 150.0
SLACK_MS = 20
"""By how much a deadline may differ for a clock that was stepped a little, or rounded."""

WORKER = '''
import http.client, json, os, random, sys, time

directory, seed, least, most, lease_least, lease_most, variety = sys.argv[1:2] + [int(text) for text in sys.argv[2:8]]
rng = random.Random(seed)
node = f"worker-{seed}"
log = os.open(f"{directory}/worker-{seed}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
connection = None


def note(*events):
    """Write whole lines at once: they are there when this returns, even if this process is killed then."""
    os.write(log, "".join(json.dumps(event) + "\\n" for event in events).encode())


def now():
    return time.time_ns() / 1e6


def call(verb, **body):
    """The answer, or None when there was none; with when it was asked for and when it came."""
    global connection
    asked = now()
    try:
        if connection is None:
            with open(f"{directory}/current") as current:
                connection = http.client.HTTPConnection("127.0.0.1", int(current.read()), timeout=40)
        content = json.dumps({"node": node, **body})
        connection.request("POST", f"/v0/topics/jobs/{verb}", content, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        text = answer.read()
        if answer.status == 200:
            return asked, now(), json.loads(text)
        assert answer.status == 503, (answer.status, text)
    except (OSError, http.client.HTTPException):
        if connection is not None:
            connection.close()
        connection = None
    time.sleep(0.05)
    return asked, now(), None


while True:
    lease_ms = rng.randint(lease_least, lease_most)
    asked, came, answer = call("claim", max=rng.randint(least, most), lease_ms=lease_ms, wait_ms=300)
    if answer is None or not answer["claimed"]:
        if os.path.exists(f"{directory}/stop"):
            break
        continue
    jobs = answer["claimed"]
    note(*(["claim", asked, came, job["$seq"], job["data"]["n"], job["deadline"], job["deliveries"]] for job in jobs))
    note(*(["process", job["data"]["n"], os.getpid()] for job in jobs))
    time.sleep(0.015)
    left = {job["$seq"]: job["lease_id"] for job in jobs}
    if variety:
        # Some are given back, some are kept for longer, some are forgotten, and all of it takes its time.
        time.sleep(rng.choice([0, 0, 0, 0.1, lease_ms / 1000 + 0.05 if rng.random() < 0.2 else 0.05]))
        changes = ("nack", 0.1, {"delay_ms": rng.choice([0, 100])}), ("extend", 0.2, {"lease_ms": 600})
        for verb, share, fields in changes:
            chosen = [seq for seq in left if rng.random() < share]
            if chosen:
                note(["ask", now(), verb, chosen])
                _, came, answer = call(verb, seqs=chosen, lease_ids=[left[seq] for seq in chosen], **fields)
                deadlines = {} if answer is None else answer.get("deadlines", {})
                skipped = None if answer is None else answer["skipped"]
                note(["answer", came, verb, chosen, skipped, deadlines])
                if verb == "nack":
                    left = {seq: lease for seq, lease in left.items() if seq not in chosen}
        left = {seq: lease for seq, lease in left.items() if rng.random() > 0.03}
    chosen = list(left)
    for _ in range(40):
        if not chosen:
            break
        note(["ask", now(), "ack", chosen])
        _, came, answer = call("ack", seqs=chosen, lease_ids=list(left.values()))
        if answer is not None:
            note(["answer", came, "ack", chosen, answer["skipped"], {}])
            break
'''


# The story of a job


@dataclass
class Holding:
    """What one worker had of a job, from one claim of it."""

    worker: int
    asked: float
    came: float
    deadline: float
    deliveries: int
    released: float | None = None
    """When it was asked to give it back, if it was, and if that may have been heard."""
    acks: int = 0
    """How often it was asked to ack it: again, where there was no answer."""
    is_acked: bool = False
    is_skipped: bool = False
    """The first time it was asked, the answer was that it does not hold it."""


@dataclass
class Story:
    seq: int
    holdings: list[Holding] = field(default_factory=list)
    processed: int = 0


def told_by(directory: Path, workers: int) -> dict[int, Story]:
    """The story of each job, by its number."""
    stories: dict[int, Story] = {}
    for worker in range(1, workers + 1):
        path = directory / f"worker-{worker}.log"
        held: dict[int, Holding] = {}
        text = path.read_text() if path.exists() else ""
        # Of what was being written when it was killed the last line may be torn.
        for line in text[: text.rfind("\n") + 1].splitlines():
            match json.loads(line):
                case ["claim", asked, came, seq, number, deadline, deliveries]:
                    story = stories.setdefault(number, Story(seq))
                    assert story.seq == seq
                    held[seq] = Holding(worker, asked, came, deadline, deliveries)
                    story.holdings.append(held[seq])
                case ["process", number, _]:
                    stories[number].processed += 1
                case ["ask", at, verb, chosen]:
                    for seq in chosen:
                        ask(held[seq], at, verb)
                case ["answer", _, verb, chosen, skipped, deadlines]:
                    for seq in chosen:
                        take_answer(held[seq], verb, skipped, seq, deadlines)
    for story in stories.values():
        story.holdings.sort(key=lambda holding: holding.came)
    return stories


def ask(holding: Holding, at: float, verb: str) -> None:
    if verb == "nack":
        holding.released = at
    elif verb == "ack":
        holding.acks += 1
    else:
        # Until there is an answer it may be over after its old deadline or after the new one.
        holding.deadline = min(holding.deadline, at + 600)


def take_answer(holding: Holding, verb: str, skipped: Any, seq: int, deadlines: Any) -> None:
    if skipped is None:
        return
    if verb == "ack":
        holding.is_acked = seq not in skipped
        holding.is_skipped = seq in skipped and holding.acks == 1
    elif verb == "extend" and str(seq) in deadlines:
        holding.deadline = deadlines[str(seq)]
    elif verb == "nack" and seq in skipped:
        holding.released = None


def why_again(first: Holding, second: Holding, kills: list[tuple[float, float]], leases_durable: bool) -> str:
    """Why a job went to a second holder while, or after, it had a first."""
    if second.came >= first.deadline - SLACK_MS:
        return "its lease ran out"
    if first.released is not None and first.released <= second.came:
        return "it was given back"
    if not leases_durable and any(first.asked <= gone and began <= second.came for began, gone in kills):
        return "the daemon was killed"
    raise AssertionError(f"two holders: {first} {second} {kills}")


def explain(stories: dict[int, Story], kills: list[tuple[float, float]], leases_durable: bool) -> Counter[str]:
    """Check every story; how often a job went to another holder, by reason."""
    reasons: Counter[str] = Counter()
    for number, story in stories.items():
        done = [holding for holding in story.holdings if holding.is_acked]
        assert len(done) <= 1, f"job {number} was done by two: {story}"
        # What was acked, or may have been, is the last there was of it.
        last = story.holdings[-1]
        assert not done or done[0] is last, f"job {number} came again after it was done: {story}"
        assert last.acks, f"job {number} is gone, and who had it last did not ack it: {story}"
        assert not last.is_skipped, f"job {number} is gone, and its last ack was skipped: {story}"
        for first, second in zip(story.holdings, story.holdings[1:], strict=False):
            reasons[why_again(first, second, kills, leases_durable)] += 1
            if leases_durable:
                assert second.deliveries > first.deliveries, story
    return reasons


# What happens to them


class Site:
    """The daemon, its workers, and who appends."""

    def __init__(self, root: Path, jobs: int, worker_arguments: list[int], **config: Any) -> None:
        self.root = root
        self.jobs = jobs
        self.appended = 0
        self.daemon = Daemon(root, TOPICS_CHECKPOINT_MS="500", TOPICS_WAL_FILE_BYTES=str(1 << 20))
        self.kills: list[tuple[float, float]] = []
        self.started_workers = 0
        self._worker_arguments = worker_arguments
        self._workers: list[subprocess.Popen[bytes]] = []
        self._script = root / "worker.py"
        self._script.write_text(WORKER)
        self.start_daemon()
        status, _ = self.call("PUT", f"/v0/topics/{TOPIC}", {"type": "queue", "durability": "fsync", **config})
        assert status == 201
        self._appender = threading.Thread(target=self._append_all)
        self._is_over = False
        self._appender.start()
        for _ in range(WORKERS):
            self.start_worker()

    def start_daemon(self) -> None:
        self.daemon.start()
        new = self.root / "current.new"
        new.write_text(str(self.daemon.port))
        new.rename(self.root / "current")

    def kill_daemon(self) -> None:
        began = time.time_ns() / 1e6
        self.daemon.kill()
        self.kills.append((began, time.time_ns() / 1e6))
        self.start_daemon()

    def start_worker(self) -> None:
        self.started_workers += 1
        arguments = [str(self.root), str(self.started_workers), *map(str, self._worker_arguments)]
        with (self.root / "workers.err").open("ab") as errors:
            self._workers.append(
                subprocess.Popen(
                    [sys.executable, str(self._script), *arguments], stderr=errors, stdin=subprocess.DEVNULL
                )
            )

    def kill_worker(self, rng: random.Random) -> None:
        worker = self._workers.pop(rng.randrange(len(self._workers)))
        assert worker.poll() is None, self.errors()
        worker.kill()
        worker.wait(60)
        self.start_worker()

    def call(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        return Client(self.daemon.port).call(method, path, body)

    def _append_all(self) -> None:
        """Append in batches; one that had no answer is sent again under its key."""
        until = time.monotonic() + APPEND_FOR_S
        while self.appended < self.jobs and time.monotonic() < until and not self._is_over:
            first = self.appended
            body = {
                "records": [{"data": {"n": first + number}} for number in range(BATCH)],
                "idempotency_key": f"batch-{first}",
            }
            while not self._is_over:
                status, answer = self.call("POST", f"/v0/topics/{TOPIC}?return_seqs=false", body)
                if status == 200:
                    assert answer["count"] == BATCH
                    self.appended += BATCH
                    break
                time.sleep(0.05)

    @property
    def is_appending(self) -> bool:
        return self._appender.is_alive()

    def state(self) -> Any:
        status, state = self.call("GET", f"/v0/topics/{TOPIC}?touch=false")
        assert status == 200, state
        return state

    def done(self) -> int:
        """How many jobs are gone."""
        state = self.state()
        return int(state["head_seq"] - state["count"])

    def until_done(self, number: Callable[[], int], deadline: float) -> None:
        while self.done() < number():
            assert time.monotonic() < deadline, f"it does not come to an end: {self.state()}"
            assert all(worker.poll() is None for worker in self._workers), self.errors()
            time.sleep(0.05)

    def let_workers_end(self) -> None:
        (self.root / "stop").touch()
        for worker in self._workers:
            assert worker.wait(60) == 0, self.errors()
        self._workers.clear()

    def errors(self) -> str:
        return (self.root / "workers.err").read_text(errors="replace")[-3000:]

    def end(self) -> None:
        self._is_over = True
        for worker in self._workers:
            worker.kill()
            worker.wait(60)
        self._appender.join(60)
        self.daemon.end()


@contextmanager
def site_in(root: Path, jobs: int, worker_arguments: list[int], **config: Any) -> Iterator[Site]:
    site = Site(root, jobs, worker_arguments, **config)
    try:
        yield site
    finally:
        site.end()


def run(site: Site, seed: int, disturbances: int) -> None:
    """Kill the daemon or a worker each time some more has been done, and then let it come to its end."""
    rng = random.Random(seed)
    give_up = time.monotonic() + GIVE_UP_S
    for number in range(1, disturbances + 1):
        # Where not all of them could be appended in time there is nothing to wait for.
        step = site.jobs * number // (disturbances + 1)
        site.until_done(lambda step=step: step if site.is_appending else min(step, site.appended), give_up)  # type: ignore[misc]
        time.sleep(rng.uniform(0, 0.1))
        if number % 2:
            site.kill_daemon()
        else:
            site.kill_worker(rng)
    while site.is_appending:
        assert time.monotonic() < give_up
        time.sleep(0.05)
    site.until_done(lambda: site.appended, give_up)
    site.let_workers_end()


def check(site: Site, leases_durable: bool, record: Callable[[str, object], None]) -> None:
    state = site.state()
    assert (state["count"], state["head_seq"]) == (0, site.appended)
    assert state["queue"] == {"ready": 0, "in_flight": 0, "delayed": 0, "dead_lettered": 0, "paused": False}
    stories = told_by(site.root, site.started_workers)
    assert stories.keys() == set(range(site.appended)), "a job that nobody had, or that nobody appended"
    assert all(story.seq == number + 1 for number, story in stories.items())
    unprocessed = [number for number, story in stories.items() if not story.processed]
    assert not unprocessed, "a job that nobody did"
    reasons = explain(stories, site.kills, leases_durable)
    twice = sum(story.processed > 1 for story in stories.values())
    figures = {
        "jobs": site.appended,
        "done more than once": twice,
        "daemon killed": len(site.kills),
        "workers started": site.started_workers,
        **{f"again since {reason}": number for reason, number in sorted(reasons.items())},
    }
    for name, figure in figures.items():
        record(name, figure)
    print(figures)


@pytest.mark.slow
def test_every_job_is_done_whoever_is_killed(tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    with site_in(tmp_path, 20_000, [32, 100, 2000, 5000, 0]) as site:
        run(site, seed=1, disturbances=7)
        check(site, leases_durable=False, record=record_property)
        assert len(site.kills) == 4


@pytest.mark.slow
def test_with_durable_leases_a_job_never_has_two_holders(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """Workers that give back, extend, forget and come too late as well; that the daemon was killed explains nothing."""
    with site_in(tmp_path, 3_000, [8, 40, 500, 2000, 1], leases_durable=True) as site:
        run(site, seed=2, disturbances=6)
        check(site, leases_durable=True, record=record_property)
        assert len(site.kills) == 3
