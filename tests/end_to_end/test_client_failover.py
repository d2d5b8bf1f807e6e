"""Clients of an owner and its standbys, with real daemons over one bucket: the owner is killed in the middle of appends
and of watches, and everything goes on at another daemon with each record once."""

from __future__ import annotations

import functools
import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from tests.client.ports import free_port
from tests.conformance.client import Daemon, until
from topics.client import (
    AsyncClient,
    AsyncProducer,
    CaughtUp,
    Client,
    ConnectionFailed,
    NotFound,
    Record,
    Retry,
    Tail,
    TopicsError,
    Unavailable,
)

pytestmark = pytest.mark.slow

LEASE_MS = 2000
LONG_LEASE_MS = 12_000
"""Of tests that look at what is so while there is no owner."""
PATIENT = Retry(give_up_after=60, longest_wait=0.5)
OVERALL_S = 90


class Group:
    """Daemons with the same settings over one bucket. The first one that was started owns it."""

    def __init__(self, root: Path, count: int, lease_ms: int) -> None:
        (root / "bucket").mkdir()
        self.daemons = []
        for number in range(count):
            (root / str(number)).mkdir()
            port = free_port()
            settings: dict[str, object] = {
                "port": port,
                "bucket": f"file://{root}/bucket",
                "bucket_takeover": 1,
                "bucket_lease_ms": lease_ms,
                "bucket_round_ms": 100,
                "bucket_poll_ms": 50,
                "role": "standby",
                "advertised_url": f"http://127.0.0.1:{port}",
            }
            daemon = Daemon(root / str(number), **settings)
            daemon.port = port
            self.daemons.append(daemon)

    @property
    def urls(self) -> list[str]:
        return [daemon.url for daemon in self.daemons]

    def start(self) -> None:
        for daemon in self.daemons:
            daemon.start().close()

    def end(self) -> None:
        for daemon in self.daemons:
            if daemon._process is not None:
                daemon.send_signal(signal.SIGCONT)
                daemon.end(signal.SIGKILL)

    def role(self, daemon: Daemon) -> str:
        try:
            with Client(daemon.url, retry=None, timeout=5) as client:
                return "owner" if client.ready().standby is None else "standby"
        except TopicsError:
            return "none"

    def owner(self) -> Daemon | None:
        return next((one for one in self.daemons if one._process is not None and self.role(one) == "owner"), None)


@contextmanager
def group(root: Path, lease_ms: int = LEASE_MS, count: int = 2) -> Iterator[Group]:
    made = Group(root, count, lease_ms)
    try:
        made.start()
        yield made
    except BaseException:
        for daemon in made.daemons:
            print(f"--- {daemon.url}\n{daemon._end_of_log()}")
        raise
    finally:
        made.end()


def datas(tail: Tail, count: int) -> list[Any]:
    """The data of the next values, which are records."""
    found = list(itertools.islice(tail, count))
    assert all(isinstance(item, Record) for item in found), found
    return [item.data for item in found if isinstance(item, Record)]


def has(client: Client, head: int) -> bool:
    """Return True if the topic is there up to `head`."""
    return [topic.head_seq for topic in client.list().topics] == [head]


def numbers(client: Client, topic: str) -> list[Any]:
    return [record.data for record in client.read(topic) if isinstance(record, Record)]


def test_appends_and_a_watch_go_on_when_the_owner_is_killed_again_and_again(tmp_path: Path) -> None:
    """The class is `remote`: nothing that was acked is lost, so both have each record once."""
    with group(tmp_path) as daemons, Client(daemons.urls, retry=PATIENT) as client:
        client.create("r", durability="remote")
        stop = threading.Event()
        acked: list[tuple[int | None, int]] = []
        failures: list[BaseException] = []

        def write() -> None:
            try:
                with Client(",".join(daemons.urls), retry=PATIENT) as writer:
                    for number in itertools.count():
                        if stop.is_set():
                            return
                        done = writer.append("r", [number])
                        acked.append((done.first_seq, number))
            except BaseException as error:
                failures.append(error)

        def more(before: int) -> bool:
            return len(acked) > before + 20 or bool(failures)

        seen: list[Record] = []

        def follow(tail: Any) -> None:
            try:
                for item in tail:
                    assert isinstance(item, Record), item
                    seen.append(item)
            except BaseException as error:
                failures.append(error)

        breaks: list[TopicsError] = []
        with client.tail("r", on_break=lambda error, _: breaks.append(error), heartbeat_ms=1000) as tail:
            threads = [threading.Thread(target=write), threading.Thread(target=follow, args=(tail,))]
            for thread in threads:
                thread.start()
            try:
                for _ in range(2):
                    until(functools.partial(more, len(acked)), within_s=OVERALL_S)
                    owner = daemons.owner()
                    assert owner is not None
                    owner.end(signal.SIGKILL)
                    until(functools.partial(more, len(acked)), within_s=OVERALL_S)
                    owner.start().close()
                    assert daemons.role(owner) == "standby"
            finally:
                stop.set()
                threads[0].join(OVERALL_S)
            until(lambda: len(seen) >= len(acked) or bool(failures), within_s=OVERALL_S)
            tail.close()
            threads[1].join(OVERALL_S)
        assert not failures, failures
        assert breaks
        assert [record.data for record in seen] == [number for _, number in acked]
        assert [record.seq for record in seen] == [seq for seq, _ in acked]
        assert numbers(client, "r") == [number for _, number in acked]


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_an_asynchronous_producer_and_tail_fail_over(tmp_path: Path, backend: str) -> None:
    count = 400

    async def story(daemons: Group) -> None:
        async with AsyncClient(daemons.urls, retry=PATIENT) as client, client.tail("r", heartbeat_ms=1000) as tail:
            seen: list[int] = []

            async def follow() -> None:
                async for item in tail:
                    assert isinstance(item, Record)
                    seen.append(item.data)
                    if len(seen) == count:
                        return

            with anyio.fail_after(OVERALL_S):
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(follow)
                    async with AsyncProducer(client, give_up_after=60) as producer:
                        for number in range(count):
                            await producer.send("r", number)
                            await anyio.sleep(0.005)
                            if number == count // 2:
                                owner = daemons.owner()
                                assert owner is not None
                                owner.end(signal.SIGKILL)
            assert seen == list(range(count))

    with group(tmp_path) as daemons:
        with Client(daemons.urls) as client:
            client.create("r", durability="remote")
        anyio.run(functools.partial(story, daemons), backend=backend)


def test_with_any_a_watch_goes_on_at_a_standby_while_there_is_no_owner(tmp_path: Path) -> None:
    with group(tmp_path, LONG_LEASE_MS) as daemons:
        first, second = daemons.daemons
        with Client(daemons.urls) as client:
            client.create("r", durability="remote")
            client.append("r", list(range(10)))
        with Client(second.url) as client:
            until(lambda: has(client, 10))
        with Client(daemons.urls, any=True, retry=PATIENT) as client:
            client._daemons._reads.at = 0
            with client.tail("r", heartbeat_ms=1000) as tail:
                assert datas(tail, 5) == [0, 1, 2, 3, 4]
                first.send_signal(signal.SIGSTOP)
                with Client(daemons.urls, any=True, retry=None, timeout=1) as other:
                    assert other.state("r").head_seq == 10, "the standby answers"
                with (
                    Client(daemons.urls, retry=None, timeout=0.3) as other,
                    pytest.raises((Unavailable, ConnectionFailed)),
                ):
                    other.state("r")
                assert datas(tail, 5) == [5, 6, 7, 8, 9]
                until(lambda: daemons.role(second) == "owner", within_s=OVERALL_S)
                client.append("r", ["new"])
                assert datas(tail, 1) == ["new"]


def test_with_any_a_standby_that_does_not_have_a_topic_yet_ends_nothing(tmp_path: Path) -> None:
    """A topic that is made and read at once, and made again and read on: the owner knows better than the standby."""
    with group(tmp_path) as daemons, Client(daemons.urls) as changes:
        for number in range(10):
            changes.create("new")
            changes.append("new", [number])
            with Client(daemons.urls, any=True) as client:
                assert client.state("new").topic == "new"
                with client.tail("new", (1, changes.state("new").epoch), caught_up=True) as tail:
                    assert isinstance(next(tail), CaughtUp)
            changes.delete_topic("new")
        with Client(daemons.urls, any=True) as client, pytest.raises(NotFound):
            client.state("never")


def test_commands_find_the_owner(tmp_path: Path) -> None:
    def topics(*words: str, urls: list[str], stdin: str = "") -> subprocess.CompletedProcess[str]:
        environ = {name: text for name, text in os.environ.items() if not name.startswith("TOPICS_")}
        environ["TOPICS_URL"] = ",".join(urls)
        command = [sys.executable, "-m", "topics", *words]
        return subprocess.run(
            command, env=environ, input=stdin, capture_output=True, text=True, timeout=OVERALL_S, check=False
        )

    with group(tmp_path, LONG_LEASE_MS) as daemons:
        first, second = daemons.daemons
        backwards = daemons.urls[::-1]
        assert topics("create", "r", "--durability", "remote", urls=backwards).returncode == 0
        assert topics("append", "r", "one", urls=backwards).returncode == 0
        with Client(second.url) as client:
            until(lambda: has(client, 1))
        status = json.loads(topics("bucket", "status", f"file://{tmp_path}/bucket", "--json", urls=[]).stdout)
        assert status["owner"]["url"] == first.url
        assert [(one["url"], one["state"]) for one in status["standbys"]] == [(second.url, "following")]
        first.end(signal.SIGKILL)
        done = topics("show", "r", urls=daemons.urls)
        assert (done.returncode, done.stdout) == (6, "")
        assert done.stderr.startswith("topics: no daemon answers as the owner: ")
        assert all(url in done.stderr for url in daemons.urls)
        done = topics("read", "r", "--json", "--any", urls=daemons.urls)
        assert [json.loads(line)["data"] for line in done.stdout.splitlines()] == ["one"]
        until(lambda: daemons.role(second) == "owner", within_s=OVERALL_S)
        assert topics("append", "r", urls=daemons.urls, stdin="two\n").returncode == 0
        shown = topics("bucket", "status", f"file://{tmp_path}/bucket", urls=[]).stdout
        assert second.url in shown
        assert "standby" not in [line.split()[0] for line in shown.splitlines()]
        done = topics("read", "r", "--json", urls=daemons.urls)
        assert [json.loads(line)["data"] for line in done.stdout.splitlines()] == ["one", "two"]


def test_a_paused_owner_is_left_for_its_successor(tmp_path: Path) -> None:
    """It hangs instead of refusing; and it comes back, and must not be believed."""
    with group(tmp_path) as daemons, Client(daemons.urls, timeout=1, retry=PATIENT) as client:
        first, second = daemons.daemons
        client.create("r", durability="remote")
        client.append("r", [1])
        first.send_signal(signal.SIGSTOP)
        client.append("r", [2])
        first.send_signal(signal.SIGCONT)
        assert client.url == second.url
        with Client(daemons.urls, retry=PATIENT) as other:  # which asks the former one first
            for number in range(3, 8):
                other.append("r", [number])
                time.sleep(0.05)
        assert numbers(client, "r") == [1, 2, 3, 4, 5, 6, 7]
