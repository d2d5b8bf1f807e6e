"""Tails, watches and streams of jobs against real daemons, across bad networks and restarts."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import islice
from random import Random
from typing import Any

import anyio
import msgspec
import pytest

from tests.client.conftest import StartDaemon
from tests.client.ports import free_port
from tests.client.proxy import Fate, Proxy
from tests.conformance.client import Daemon, fresh_name, until
from topics.client import (
    AsyncClient,
    CaughtUp,
    Client,
    Conflict,
    ConnectionFailed,
    NewRecord,
    NotFound,
    Record,
    Retry,
    Tombstone,
    TopicAdded,
    TopicDeleted,
)
from topics.client.streams.async_tails import AsyncTail
from topics.client.streams.tails import Tail

pytestmark = pytest.mark.slow

PATIENT = Retry(give_up_after=100.0)
"""Of a writer whose daemon is restarted. Below the idempotency window."""

LIMIT = 20
"""Records in a frame: small enough that some come whole before a connection is cut."""

OVERALL_S = 150
"""How long a test waits before it fails (s)."""


@pytest.fixture
def client(shared_daemon: Daemon) -> Iterator[Client]:
    with Client(shared_daemon.url, retry=PATIENT) as client:
        yield client


@pytest.fixture
def network(shared_daemon: Daemon) -> Iterator[Proxy]:
    """A network between a follower and the daemon of the module."""
    with Proxy(shared_daemon.port) as proxy:
        yield proxy


@contextmanager
def ended_in_time(stream: Any) -> Iterator[None]:
    """Close a stream that does not bring what it should, so that the test fails and does not hang."""
    timer = threading.Timer(OVERALL_S, stream.close)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


@contextmanager
def meanwhile(*tasks: Callable[[], None]) -> Iterator[None]:
    """Threads that do something until they are done; what they raise is raised at the end."""
    errors: list[BaseException] = []

    def run(task: Callable[[], None]) -> None:
        try:
            task()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(task,), daemon=True) for task in tasks]
    for thread in threads:
        thread.start()
    yield
    for thread in threads:
        thread.join(OVERALL_S)
        assert not thread.is_alive()
    if errors:
        raise errors[0]


def take(stream: Iterable[Any], count: int) -> list[Any]:
    """The next values, or fewer if it ends."""
    return list(islice(stream, count))


async def take_async(stream: AsyncTail, count: int) -> list[Any]:
    found: list[Any] = []
    with anyio.fail_after(OVERALL_S):
        while len(found) < count:
            found.append(await anext(stream))
    return found


def seqs(values: Iterable[Any]) -> list[int]:
    return [value.seq for value in values if isinstance(value, Record)]


def bad_network(seed: int) -> Callable[[int], Fate]:
    """Every connection is cut at some byte of what comes down, or of what goes up; some are slow."""
    rng = Random(seed)

    def fate(number: int) -> Fate:
        up = rng.randint(0, 400) if rng.random() < 0.1 else None
        down = rng.choice((rng.randint(0, 1000), rng.randint(0, 60_000), rng.randint(0, 60_000)))
        return Fate(up, down, rng.choice((0.0, 0.0, 0.002)), reset=rng.random() < 0.5)

    return fate


# --- misses nothing, repeats nothing ---------------------------------------------------------------------------------


def test_a_tail_misses_and_repeats_nothing_while_the_daemon_is_killed_four_times(daemon: Daemon, topic: str) -> None:
    batches, size = 400, 5
    all_killed, written = threading.Event(), threading.Event()

    def write() -> None:
        with Client(daemon.url, retry=PATIENT) as client:
            for batch in range(batches):
                client.append(topic, [[batch, number] for number in range(size)])
                time.sleep(0.005)  # the rate of the writer, so that the kills fall between its appends
            assert all_killed.wait(60)
            client.append(topic, ["the last"])
        written.set()

    def kill() -> None:
        for _ in range(4):
            time.sleep(0.3)  # kills are spread over what is written
            daemon.end(signal.SIGKILL)
            daemon.start().close()
        all_killed.set()

    with Client(daemon.url) as client:
        client.create(topic, durability="disk")
        with meanwhile(write, kill), client.tail(topic) as tail, ended_in_time(tail):
            values: list[Any] = []
            for value in tail:
                values.append(value)
                if isinstance(value, Record) and value.data == "the last":
                    break
    assert all(isinstance(value, Record) for value in values), [
        value for value in values if not isinstance(value, Record)
    ]
    expected = [[batch, number] for batch in range(batches) for number in range(size)]
    assert [value.data for value in values] == [*expected, "the last"]
    assert seqs(values) == sorted(set(seqs(values)))


def test_a_watch_misses_and_repeats_nothing_through_a_network_that_cuts(client: Client, network: Proxy) -> None:
    names = [fresh_name() for _ in range(3)]
    check_bad_network(client, names)
    network.fate = bad_network(1)
    with (
        meanwhile(lambda: write_slowly(client, names)),
        Client(network.url) as far,
        far.watch(names, limit=LIMIT) as watch,
        ended_in_time(watch),
    ):
        values = take(watch, 3 * 400)
    check_complete(values, names, 400)
    assert network.accepted > 10


def test_an_asynchronous_watch_does_so_too(backend: str, client: Client, network: Proxy) -> None:
    names = [fresh_name() for _ in range(3)]
    check_bad_network(client, names)
    network.fate = bad_network(2)

    async def main() -> list[Any]:
        async with AsyncClient(network.url) as far, far.watch(names, limit=LIMIT) as watch:
            return await take_async(watch, 3 * 400)

    with meanwhile(lambda: write_slowly(client, names)):
        values = anyio.run(main, backend=backend)
    check_complete(values, names, 400)


def check_bad_network(client: Client, names: list[str]) -> None:
    for name in names:
        client.append(name, [[number, "x" * (number % 300)] for number in range(300)])


def write_slowly(client: Client, names: list[str]) -> None:
    for number in range(300, 400):
        for name in names:
            client.append(name, [[number, "x"]])


def check_complete(values: list[Any], names: list[str], count: int) -> None:
    for name in names:
        mine = [value for value in values if value.topic == name]
        assert [value.data[0] for value in mine] == list(range(count))
        assert seqs(mine) == list(range(1, count + 1))


def test_a_hundred_topics_are_followed_across_breaks(client: Client, network: Proxy) -> None:
    names = [fresh_name() for _ in range(100)]
    for name in names:
        client.append(name, [0, 1])
    with Client(network.url) as far, far.watch(names) as watch, ended_in_time(watch):
        values = take(watch, 200)
        for number in (2, 3):
            network.cut()
            for name in names:
                client.append(name, [number])
            values += take(watch, 50)
        values += take(watch, 100)
    for name in names:
        assert [value.data for value in values if value.topic == name] == [0, 1, 2, 3]


def test_a_tail_that_is_not_read_for_long_is_cut_off_and_goes_on_where_it_was(client: Client, topic: str) -> None:
    for _ in range(10):
        client.append(topic, ["x" * 200_000] * 10)
    with client.tail(topic) as tail, ended_in_time(tail):
        values = take(tail, 1)
        # The daemon waits for 30 s for a client that takes nothing, and 5 s more for it to take that it is too slow.
        until(lambda: client.metrics()["topics_sse_connections"] == 0.0, within_s=80)
        values += take(tail, 99)
    assert seqs(values) == list(range(1, 101))


def test_a_stream_that_has_gone_silent_is_broken(client: Client, network: Proxy, topic: str) -> None:
    client.append(topic, [1])
    broken: list[object] = []

    def on_break(error: object, wait_s: float) -> None:
        broken.append(error)
        network.flow()

    with (
        Client(network.url) as far,
        far.tail(topic, heartbeat_ms=1000, on_break=on_break) as tail,
        ended_in_time(tail),
    ):
        take(tail, 1)
        network.stall()
        client.append(topic, [2])
        assert seqs(take(tail, 1)) == [2]
    assert broken


# --- what was lost, made again, deleted ------------------------------------------------------------------------------


def test_what_retention_takes_while_the_follower_is_away_is_a_tombstone(
    client: Client, network: Proxy, topic: str
) -> None:
    client.create(topic, cap_records=100)
    client.append(topic, list(range(50)))
    with Client(network.url) as far, far.tail(topic) as tail, ended_in_time(tail):
        values = take(tail, 50)
        network.sever()
        for _ in range(5):
            client.append(topic, list(range(200)))
        network.mend()
        gap, *rest = take(tail, 101)
        assert tail.position(topic).seq == 1050
    assert seqs(values) == list(range(1, 51))
    assert isinstance(gap, Tombstone)
    assert (gap.topic, gap.gap_from, gap.gap_to) == (topic, 51, 950)
    assert seqs(rest) == list(range(951, 1051))


@pytest.mark.parametrize("count", [0, 3, 20], ids=["empty", "below the old head", "past the old head"])
def test_a_topic_that_is_made_again_meanwhile_is_told_and_read_from_its_beginning(
    count: int, client: Client, network: Proxy, topic: str
) -> None:
    client.append(topic, ["old"] * 10)
    with Client(network.url) as far, far.tail(topic) as tail, ended_in_time(tail):
        take(tail, 10)
        old = tail.position(topic)
        network.sever()
        client.delete_topic(topic)
        client.create(topic)
        if count:
            client.append(topic, ["new"] * count)
        network.mend()
        (gap,) = take(tail, 1)
        assert isinstance(gap, Tombstone)
        assert (gap.reason, gap.gap_from, gap.gap_to, gap.head_seq) == ("recreated", 1, count, count)
        client.append(topic, ["new"])
        values = take(tail, count + 1)
        assert [(value.seq, value.data) for value in values] == [(seq, "new") for seq in range(1, count + 2)]
        assert tail.position(topic).epoch > old.epoch


def test_a_position_that_was_kept_goes_on_and_knows_another_instance(client: Client, topic: str) -> None:
    client.append(topic, [1, 2, 3])
    with client.tail(topic) as tail:
        take(tail, 2)
        kept = tail.position(topic)
    with client.watch({topic: kept}) as watch:
        assert seqs(take(watch, 1)) == [3]
    client.delete_topic(topic)
    client.append(topic, ["a", "b", "c", "d"])
    with client.watch({topic: kept}) as watch:
        gap, *values = take(watch, 5)
    assert isinstance(gap, Tombstone)
    assert seqs(values) == [1, 2, 3, 4]


def test_a_topic_that_is_deleted_meanwhile_is_told_and_the_others_go_on(client: Client, network: Proxy) -> None:
    gone, stays = fresh_name(), fresh_name()
    for name in (gone, stays):
        client.append(name, [1])
    with Client(network.url) as far, far.watch([gone, stays]) as watch, ended_in_time(watch):
        take(watch, 2)
        network.sever()
        client.delete_topic(gone)
        client.append(stays, [2])
        network.mend()
        values = take(watch, 2)
        assert sorted(type(value).__name__ for value in values) == ["Record", "TopicDeleted"]
        client.delete_topic(stays)
        assert take(watch, 9) == [TopicDeleted(topic=stays, head_seq=2)]


def test_a_deletion_whose_news_was_lost_on_the_way_is_told_all_the_same(client: Client, network: Proxy) -> None:
    gone, stays = fresh_name(), fresh_name()
    for name in (gone, stays):
        client.append(name, [1])
    broken: list[object] = []
    with (
        Client(network.url) as far,
        far.watch([gone, stays], caught_up=True, on_break=lambda *why: broken.append(why)) as watch,
        ended_in_time(watch),
    ):
        take(watch, 4)
        network.stall()
        client.delete_topic(gone)
        until(lambda: network.waiting > 0)
        network.cut()
        network.flow()
        assert take(watch, 1) == [TopicDeleted(topic=gone, head_seq=1)]
        client.append(stays, [2])
        assert seqs(take(watch, 1)) == [2]
    assert broken


def test_a_restart_without_the_records_is_told_and_no_seq_comes_again(start_daemon: StartDaemon, topic: str) -> None:
    daemon = start_daemon()
    with Client(daemon.url, retry=PATIENT) as client:
        client.create(topic, durability="ephemeral")
        client.append(topic, list(range(10)))
        with client.tail(topic) as tail, ended_in_time(tail):
            values = take(tail, 4)
            daemon.end(signal.SIGKILL)
            daemon.start().close()
            client.append(topic, ["after"])
            while not (values and isinstance(values[-1], Record) and values[-1].data == "after"):
                values += take(tail, 1)
    at = 0
    for value in values:
        begin, end = (value.seq, value.seq) if isinstance(value, Record) else (value.gap_from, value.gap_to)
        assert begin == at + 1
        at = end
    assert {value.reason for value in values if isinstance(value, Tombstone)} == {"lost"}


# --- beginning and ending --------------------------------------------------------------------------------------------


def test_a_tail_from_the_tail_yields_what_comes_after_it_was_entered(client: Client, topic: str) -> None:
    client.append(topic, [1])
    with client.tail(topic, tail=True) as tail, ended_in_time(tail):
        client.append(topic, [2])
        assert seqs(take(tail, 1)) == [2]


def test_being_caught_up_is_told_to_those_who_ask(client: Client, topic: str) -> None:
    client.append(topic, [1])
    with client.tail(topic, caught_up=True) as tail, ended_in_time(tail):
        assert take(tail, 2)[1:] == [CaughtUp(topic=topic, head_seq=1)]
        client.append(topic, [2])
        assert seqs(take(tail, 1)) == [2]


def test_data_with_characters_that_end_lines_elsewhere_comes_as_it_was_written(client: Client, topic: str) -> None:
    texts = [
        '"a\u2028b\u2029c\u0085d"',
        '"\\r\\n\\u000b\\u000c"',
        '{"id: x":"data: y"}',
        '"\u001f"'.replace("\x1f", "\\u001f"),
    ]
    client.append(
        topic, [NewRecord(msgspec.Raw(text.encode()), tag="t\u0085", meta={"k": "\r\n\u2028"}) for text in texts]
    )
    with client.tail(topic) as tail, ended_in_time(tail):
        values = take(tail, len(texts))
    assert [bytes(value.raw).decode() for value in values] == texts
    assert {value.tag for value in values} == {"t\u0085"}
    assert values[0].meta == {"k": "\r\n\u2028"}


def test_an_unknown_topic_is_an_error_and_an_absent_daemon_one_when_told_to_give_up(client: Client, topic: str) -> None:
    with pytest.raises(NotFound), client.tail(topic):
        pass
    with Client(f"http://127.0.0.1:{free_port()}") as nobody, pytest.raises(ConnectionFailed):
        next(nobody.tail(topic, give_up_after=0.2))


@pytest.fixture
def alarm() -> Iterator[None]:
    before = signal.getsignal(signal.SIGALRM)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def closed_by_thread(tail: Tail) -> None:
    threading.Timer(0.2, tail.close).start()


def closed_by_signal(tail: Tail) -> None:
    signal.signal(signal.SIGALRM, lambda *_: tail.close())
    signal.setitimer(signal.ITIMER_REAL, 0.2)


@pytest.mark.usefixtures("alarm")
@pytest.mark.parametrize("closed", [closed_by_thread, closed_by_signal])
@pytest.mark.parametrize("away", [False, True], ids=["reading", "waiting for the daemon"])
def test_closing_ends_whoever_waits(
    closed: Callable[[Tail], None], away: bool, client: Client, network: Proxy, topic: str
) -> None:
    client.append(topic, [1])
    with Client(network.url) as far, far.tail(topic) as tail:
        take(tail, 1)
        if away:
            network.sever()
        began = time.monotonic()
        closed(tail)
        assert take(tail, 1) == []
        assert take(tail, 1) == []
        assert time.monotonic() - began < 30


@pytest.mark.usefixtures("alarm")
def test_an_interrupted_tail_may_be_iterated_on(client: Client, topic: str) -> None:
    client.append(topic, [1])

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with client.tail(topic) as tail, ended_in_time(tail):
        take(tail, 1)
        signal.signal(signal.SIGALRM, interrupt)
        signal.setitimer(signal.ITIMER_REAL, 1)
        with pytest.raises(KeyboardInterrupt):
            next(tail)
        client.append(topic, [2])
        assert seqs(take(tail, 1)) == [2]


def test_several_threads_share_a_tail(client: Client, topic: str) -> None:
    client.append(topic, list(range(300)))
    found: list[int] = []
    with client.tail(topic) as tail, ended_in_time(tail):

        def read() -> None:
            found.extend(seqs(take(tail, 100)))

        with meanwhile(read, read, read):
            pass
    assert sorted(found) == list(range(1, 301))


def test_cancelling_costs_no_record_and_closing_ends_whoever_waits(backend: str, client: Client, topic: str) -> None:
    client.append(topic, [0])

    async def main() -> list[Any]:
        found: list[Any] = []
        async with AsyncClient(client.url) as other, other.tail(topic) as tail:
            with anyio.fail_after(OVERALL_S):
                for number in range(1, 30):
                    with anyio.move_on_after(0.001 * (number % 7)):
                        found.append(await anext(tail))
                    await other.append(topic, [number])
                while len(found) < 30:
                    found.append(await anext(tail))
                assert tail.position(topic).seq == 30
                async with anyio.create_task_group() as tasks:

                    async def close() -> None:
                        await anyio.sleep(0.1)
                        await tail.aclose()

                    tasks.start_soon(close)
                    assert [value async for value in tail] == []
        return found

    assert seqs(anyio.run(main, backend=backend)) == list(range(1, 31))


# --- jobs ------------------------------------------------------------------------------------------------------------


def test_jobs_of_a_broken_connection_come_again_and_acked_ones_do_not(
    client: Client, network: Proxy, topic: str
) -> None:
    client.create(topic, type="queue")
    client.append(topic, ["a", "b", "c"])
    with Client(network.url) as far, far.work(topic, "n", max=2) as jobs, ended_in_time(jobs):
        first, second = take(jobs, 2)
        assert (first.data, second.data) == ("a", "b")
        assert client.ack(topic, "n", [first.seq], lease_ids=[first.lease_id]).acked == 1
        network.cut()
        # In whichever order: the daemon may hear of the new connection before the end of the old one.
        again, third = sorted(take(jobs, 2), key=lambda job: job.seq)
        assert (again.data, again.deliveries, third.data) == ("b", 2, "c")
        assert client.ack(topic, "n", [second.seq], lease_ids=[second.lease_id]).skipped == [second.seq]
        assert client.ack(topic, "n", [again.seq, third.seq]).acked == 2
    state = client.state(topic)
    assert state.count == 0


def test_closing_a_stream_of_jobs_gives_them_to_others(backend: str, client: Client, topic: str) -> None:
    client.create(topic, type="queue")
    client.append(topic, ["a"])

    async def main() -> None:
        with anyio.fail_after(OVERALL_S):
            async with AsyncClient(client.url) as other:
                async with other.work(topic, "n") as jobs:
                    assert (await anext(jobs)).data == "a"
                async with other.work(topic, "m") as jobs:
                    assert (await anext(jobs)).deliveries == 2

    anyio.run(main, backend=backend)


def test_there_are_no_jobs_in_a_log_in_no_topic_and_in_one_that_goes(client: Client, topic: str) -> None:
    with pytest.raises(NotFound), client.work(topic, "n"):
        pass
    client.append(topic, [1])
    with pytest.raises(Conflict), client.work(topic, "n"):
        pass
    queue = fresh_name()
    client.create(queue, type="queue")
    with client.work(queue, "n") as jobs, ended_in_time(jobs):
        client.delete_topic(queue)
        with pytest.raises(NotFound):
            next(jobs)


# --- topics that are not there yet ------------------------------------------------------------------------------------


def test_a_topic_that_is_not_there_yet_is_followed_from_its_first_record_on(client: Client) -> None:
    topic, other = fresh_name(), fresh_name()
    client.append(other, [0])
    with client.watch({topic: "tail", other: 0}, create=True, heartbeat_ms=1000) as following:
        values = iter(following)
        first = next(values)
        assert isinstance(first, Record)
        assert (first.topic, first.data) == (other, 0)
        client.append(topic, list(range(50)))
        assert [value.data for value in islice(values, 50) if isinstance(value, Record)] == list(range(50))
        assert following.position(topic).epoch == client.state(topic).epoch
        client.delete_topic(topic)
        assert isinstance(next(values), TopicDeleted)


def test_without_create_it_is_not_found_and_following_makes_none(client: Client) -> None:
    topic = fresh_name()
    with pytest.raises(NotFound), client.tail(topic) as following:
        next(iter(following))
    with client.tail(topic, create=True) as following:
        following.position(topic)
        with pytest.raises(NotFound):
            client.state(topic)


async def wait_for_topic(url: str, topic: str, made: Callable[[], object]) -> list[Any]:
    async with AsyncClient(url) as client, client.tail(topic, create=True) as following:
        await anyio.to_thread.run_sync(made)
        data: list[Any] = []
        async for value in following:
            if isinstance(value, Record):
                data.append(value.data)
            if len(data) == 3:
                return data
    raise AssertionError("it has ended")


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_topic_that_is_not_there_yet_is_followed_by_tasks_too(
    shared_daemon: Daemon, client: Client, backend: str
) -> None:
    topic = fresh_name()
    made = partial(client.append, topic, [0, 1, 2])
    assert anyio.run(wait_for_topic, shared_daemon.url, topic, made, backend=backend) == [0, 1, 2]


# --- prefixes --------------------------------------------------------------------------------------------------------


def test_topics_that_a_prefix_matches_come_and_go_over_breaks_and_restarts(daemon: Daemon, topic: str) -> None:
    """A copy of them, made of what the watch yields, is what is there."""
    prefix = f"{topic}."
    copy: dict[str, list[int]] = {}
    with Client(daemon.url, retry=PATIENT) as client, client.watch(prefixes=[prefix]) as news, ended_in_time(news):

        def follow(wanted: dict[str, list[int]]) -> None:
            while copy != wanted:
                value = next(news)
                if isinstance(value, TopicAdded):
                    assert value.topic not in copy
                    copy[value.topic] = []
                elif isinstance(value, TopicDeleted):
                    del copy[value.topic]
                else:
                    assert isinstance(value, Record)
                    copy[value.topic].append(value.data)

        a, b, c = (f"{prefix}{letter}" for letter in "abc")
        client.append(a, [1, 2])
        follow({a: [1, 2]})
        daemon.end(signal.SIGKILL)
        daemon.start().close()
        client.append(b, [1])
        client.delete_topic(a)
        client.append(a, [3])
        follow({a: [3], b: [1]})
        client.append(c, [1, 2])
        client.delete_topic(b)
        follow({a: [3], c: [1, 2]})


def test_an_asynchronous_watch_has_prefixes_too(shared_daemon: Daemon, client: Client) -> None:
    prefix = fresh_name() + "."
    client.append(f"{prefix}a", [1])

    async def main() -> list[Any]:
        async with AsyncClient(shared_daemon.url) as far, far.watch(prefixes={prefix: "tail"}) as news:
            await far.append(f"{prefix}b", [7])
            return await take_async(news, 2)

    added, record = anyio.run(main)
    assert isinstance(added, TopicAdded)
    assert (added.topic, record.topic, record.data) == (f"{prefix}b", f"{prefix}b", 7)
