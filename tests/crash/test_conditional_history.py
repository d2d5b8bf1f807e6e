"""Conditional appends of many clients are linearizable, over crashes of the machine and kills of the daemon."""

from __future__ import annotations

import json
import random
import signal
import threading
import time
from pathlib import Path
from typing import Any, Final

import httpx
import msgspec
import pytest
import trio

from tests.conformance.client import Client, Daemon
from tests.crash.conditional_history import Attempt, History, check
from tests.engine.life import Life, living, records, settings
from tests.simulation.clock import SimClock
from tests.simulation.disk import SimFs
from tests.simulation.disk_state import CrashKind
from topics.errors import ApiError
from topics.model import AppendRequest, Conditions, Fence, Performance, RecordIn, TopicConfigPatch

KINDS: Final[list[CrashKind]] = ["drop", "keep", "tear", "reorder"]
TAGS = ["a", "b"]
FENCES = ["f", "g"]
NOTHING = Conditions()


class Guess:
    """What a client believes of the topic; right often enough that many appends succeed."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.head = 0
        self.newest = dict.fromkeys(TAGS, 0)
        self.tokens = dict.fromkeys(FENCES, 0)

    def next(self) -> tuple[Conditions, str | None, int]:
        """Conditions, tag and number of records of the next append."""
        rng, tag = self.rng, self.rng.choice([None, *TAGS])
        head, tags, fence = None, {}, None
        kind = rng.randrange(6)
        if kind < 2:
            head = self.head
        elif kind < 4:
            tags = {name: self.newest[name] for name in rng.sample(TAGS, rng.randrange(1, 3))}
        elif kind == 4:
            name = rng.choice(FENCES)
            fence = Fence(name, max(0, self.tokens[name] + rng.randrange(-1, 2)))
        return Conditions(head, tags, fence), tag, rng.randrange(1, 4)

    def refused(self, code: str, detail: Any) -> None:
        if code == "fenced":
            self.tokens[detail["name"]] = detail["token"]
        elif "tag" in detail:
            self.newest[detail["tag"]] = detail["actual"]
        else:
            self.head = detail["head_seq"]

    def acked(self, last_seq: int, tag: str | None) -> None:
        self.head = last_seq
        if tag is not None:
            self.newest[tag] = last_seq


def payload(attempt: Attempt) -> list[list[int]]:
    return [[attempt.number, i] for i in range(attempt.records)]


# ---------------------------------------------------------------------- the judge itself


def attempt(number: int, conditions: Conditions, invoked: int, answered: int | None, **more: Any) -> Attempt:
    return Attempt(number, conditions, more.pop("tag", None), more.pop("records", 1), invoked, answered, **more)


HEAD_0, HEAD_1 = Conditions(head_seq=0), Conditions(head_seq=1)


def failed(head: int) -> tuple[str, dict[str, Any]]:
    return "condition_failed", {"head_seq": head}


def test_histories_that_can_have_happened() -> None:
    assert check([], []) == {}
    one = attempt(0, HEAD_0, 1, 3, first_seq=1)
    check([one, attempt(1, HEAD_0, 2, 4, refused=failed(1))], [[0, 0]])
    check([one, attempt(1, HEAD_1, 2, 4, first_seq=2)], [[0, 0], [1, 0]])
    check([attempt(0, HEAD_0, 1, None), attempt(1, HEAD_0, 2, None)], [[1, 0]])
    fenced = attempt(0, Conditions(fence=Fence("f", 3)), 1, 2, first_seq=1)
    refused = attempt(1, Conditions(fence=Fence("f", 1)), 3, 4, refused=("fenced", {"name": "f", "token": 3}))
    assert check([fenced, refused], [[0, 0]]) == {"f": 3}


@pytest.mark.parametrize(
    ("attempts", "log"),
    [
        # Two that expected the same head.
        ([attempt(0, HEAD_0, 1, 3, first_seq=1), attempt(1, HEAD_0, 2, 4, first_seq=2)], [[0, 0], [1, 0]]),
        # One that was acked and is gone; one that is somewhere else; one that was refused and is there.
        ([attempt(0, HEAD_0, 1, 2, first_seq=1)], []),
        ([attempt(0, NOTHING, 1, 2, first_seq=2), attempt(1, NOTHING, 1, None)], [[0, 0], [1, 0]]),
        ([attempt(0, HEAD_0, 1, 2, refused=failed(1))], [[0, 0]]),
        # Half of one.
        ([attempt(0, NOTHING, 1, None, records=2)], [[0, 0]]),
        # The order in time is another one.
        ([attempt(0, NOTHING, 3, 4, first_seq=1), attempt(1, NOTHING, 1, 2, first_seq=2)], [[0, 0], [1, 0]]),
        # Refusals that tell of a state that was over, not yet there, never there, or as it was expected.
        ([attempt(0, NOTHING, 1, 2, first_seq=1), attempt(1, HEAD_1, 3, 4, refused=failed(0))], [[0, 0]]),
        ([attempt(0, NOTHING, 3, 4, first_seq=1), attempt(1, HEAD_0, 1, 2, refused=failed(1))], [[0, 0]]),
        ([attempt(0, NOTHING, 1, 4, first_seq=1), attempt(1, HEAD_0, 2, 3, refused=failed(2))], [[0, 0]]),
        ([attempt(0, NOTHING, 1, 4, first_seq=1), attempt(1, HEAD_1, 2, 3, refused=failed(1))], [[0, 0]]),
        # A tag, and a fence.
        ([attempt(0, NOTHING, 1, 2, first_seq=1, tag="a"), attempt(1, Conditions(tag_seqs={"a": 0}), 3, None)],
         [[0, 0], [1, 0]]),
        ([attempt(0, Conditions(fence=Fence("f", 2)), 1, 2, first_seq=1),
          attempt(1, Conditions(fence=Fence("f", 1)), 3, None)], [[0, 0], [1, 0]]),
    ],
)  # fmt: skip
def test_histories_that_cannot_have_happened(attempts: list[Attempt], log: list[list[int]]) -> None:
    with pytest.raises(AssertionError):
        check(attempts, log)


# ---------------------------------------------------------------------- the engine, and crashes of the machine


async def client_of_engine(life: Life, history: History, rng: random.Random, appends: int) -> None:
    guess, unread = Guess(rng), 0
    for _ in range(appends):
        conditions, tag, count = guess.next()
        mine = history.begin(conditions, tag, count)
        wanted = [RecordIn(data=msgspec.Raw(json.dumps(data).encode()), tag=tag) for data in payload(mine)]
        request = AppendRequest(records=wanted, conditions=conditions if conditions != NOTHING else None, create=False)
        try:
            result = await life.engine.appends.append("t", request, Performance())
        except ApiError as error:
            history.refused(mine, error.code, error.detail)
            guess.refused(error.code, error.detail)
            told = error.detail.get("head_seq", error.detail.get("actual", 0))
            unread += told > life.engine.registry.topics["t"].log.head_seq
        else:
            history.acked(mine, result.first_seq)
            guess.acked(result.last_seq, tag)
    assert not unread, "refusals tell of what cannot be read yet"


@pytest.mark.trio
@pytest.mark.parametrize("seed", range(6))
async def test_crashes_of_the_machine(seed: int) -> None:
    rng = random.Random(seed)
    fs, clock, history = SimFs(seed), SimClock(), History()
    crashes: list[tuple[SimFs, list[Attempt]]] = []

    async def watch(done: trio.Event) -> None:
        while not done.is_set():
            for _ in range(rng.randrange(1, 60)):
                await trio.lowlevel.checkpoint()
            kind: CrashKind = rng.choice(KINDS)
            crashes.append((fs.after_machine_crash(kind, rng.randrange(1000)), history.so_far()))
            crashes.append((fs.after_process_kill(), history.so_far()))

    config = settings(segment_max_events=16)
    async with living(config, fs=fs, clock=clock) as life, trio.open_nursery() as nursery:
        await life.engine.topic_lifecycle.put("t", TopicConfigPatch(durability="fsync"))
        done = trio.Event()
        nursery.start_soon(watch, done)
        async with trio.open_nursery() as clients:
            for _ in range(6):
                clients.start_soon(client_of_engine, life, history, random.Random(rng.random()), 25)
        await life.compactor.checkpoint()
        done.set()
    crashes.append((fs, history.so_far()))
    acked = sum(one.first_seq is not None for one in history.attempts)
    assert 20 < acked < len(history.attempts) - 20, "both outcomes happen"
    for crashed, known in rng.sample(crashes[:-1], min(12, len(crashes) - 1)) + crashes[-1:]:
        async with living(config, fs=crashed, clock=clock) as life:
            answer = await life.read("t", limit=10_000)
            found = records(answer)
            assert [record["$seq"] for record in found] == list(range(1, len(found) + 1))
            expected = check(known, [record["data"] for record in found])
            fences = life.engine.registry.topics["t"].fences
            assert (fences.published if fences is not None else {}) == expected
            assert (await life.append("t", [0, 0], conditions=Conditions(head_seq=len(found)))).count == 1


# ---------------------------------------------------------------------- real processes


def client_of_daemon(daemon: Daemon, history: History, rng: random.Random, stop: threading.Event) -> None:
    guess = Guess(rng)
    while not stop.is_set():
        try:
            with httpx.Client(base_url=daemon.url, trust_env=False, verify=False, timeout=20) as client:
                while not stop.is_set():
                    one_append(client, history, guess)
        except (httpx.HTTPError, Away):
            time.sleep(0.02)


class Away(Exception):
    """The daemon is not ready."""


def one_append(client: httpx.Client, history: History, guess: Guess) -> None:
    conditions, tag, count = guess.next()
    mine = history.begin(conditions, tag, count)
    extra = {"tag": tag} if tag is not None else {}
    body: dict[str, Any] = {"records": [{"data": data, **extra} for data in payload(mine)], "create": False}
    if conditions.head_seq is not None:
        body["expected_head_seq"] = conditions.head_seq
    if conditions.tag_seqs:
        body["expected_tag_seqs"] = conditions.tag_seqs
    if conditions.fence is not None:
        body["fence"] = msgspec.to_builtins(conditions.fence)
    answer = client.post("/v0/topics/t", json=body)
    if answer.status_code == 200:
        said = answer.json()
        history.acked(mine, said["first_seq"])
        guess.acked(said["last_seq"], tag)
        return
    error = answer.json()["error"]
    if answer.status_code != 409:
        raise Away(error)
    history.refused(mine, error["code"], error["detail"])
    guess.refused(error["code"], error["detail"])
    if guess.rng.random() < 0.1 and "head_seq" in error["detail"]:
        read = client.post("/v0/topics/t/diff", json={"from_seq": error["detail"]["head_seq"], "limit": 1})
        assert read.json()["head_seq"] >= error["detail"]["head_seq"], "it cannot be read from"


def everything(client: Client) -> list[list[int]]:
    found: list[dict[str, Any]] = []
    while True:
        page = client.read("t", len(found), limit=1000)
        found += page["records"]
        if page["caught_up"]:
            assert [record["$seq"] for record in found] == list(range(1, len(found) + 1))
            return [record["data"] for record in found]


@pytest.mark.slow
@pytest.mark.parametrize("durability", ["disk", "fsync"])
def test_kills_of_the_daemon(tmp_path: Path, durability: str) -> None:
    daemon, history, stop = Daemon(tmp_path), History(), threading.Event()
    client = daemon.start()
    try:
        client.put_topic("t", durability=durability)
        rng = random.Random(durability)
        arguments = [(daemon, history, random.Random(rng.random()), stop) for _ in range(8)]
        threads = [threading.Thread(target=client_of_daemon, args=one) for one in arguments]
        for thread in threads:
            thread.start()
        for _ in range(4):
            before = len(history.so_far())
            deadline = time.monotonic() + 30
            while len(history.so_far()) < before + 150:
                assert time.monotonic() < deadline
                time.sleep(0.02)
            client = daemon.restart(signal.SIGKILL)
        stop.set()
        for thread in threads:
            thread.join()
        fences = check(history.so_far(), everything(client))
        assert client.state("t")["fences"] == fences
        assert sum(one.first_seq is not None for one in history.attempts) > 100
        assert sum(one.refused is not None for one in history.attempts) > 100
    finally:
        stop.set()
        daemon.kill()
