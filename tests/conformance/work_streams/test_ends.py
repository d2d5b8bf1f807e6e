"""Section 9: how a work stream ends, and clients that do not read or are not there any more."""

from __future__ import annotations

import ctypes
import fcntl
import signal
import socket
import struct
import termios
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.conformance.client import Client, Daemon, fresh_name, until
from tests.conformance.sse import Cut, Http1, Http2, Transport, connect
from tests.conformance.work_stream_client import (
    HOUR_MS,
    ack,
    call,
    claim,
    come_to,
    counts,
    nack,
    queue,
    seqs,
    work_path,
    working,
)

SMALL = 4096


# Its end


def close_in_order(client: Client, topic: str) -> Callable[[], None]:
    events = working(client, topic, max=2)
    events.jobs(2)
    return events.close


def reset(client: Client, topic: str) -> Callable[[], None]:
    events = working(client, topic, max=2)
    events.jobs(2)
    assert isinstance(events.transport, Http1)
    events.transport._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    return events.close


def cancel_stream(client: Client, topic: str) -> Callable[[], None]:
    connection = Http2(client)
    events = working(client, topic, max=2, how={"http2": connection})
    events.jobs(2)
    return events.close


def close_connection(client: Client, topic: str) -> Callable[[], None]:
    events = working(client, topic, max=2, how={"http2": True})
    events.jobs(2)
    return events.close


def leave_unread(client: Client, topic: str) -> Callable[[], None]:
    """Nothing of what was sent has been taken from the socket."""
    events = working(client, topic, max=2)
    come_to(client, topic, 1, 2, 0)
    return events.close


@pytest.mark.parametrize("leave", [close_in_order, reset, cancel_stream, close_connection, leave_unread])
def test_what_a_connection_held_is_released_when_it_ends(
    client: Client, topic: str, leave: Callable[[Client, str], Callable[[], None]]
) -> None:
    queue(client, topic, 1, 2, 3, lease_ms=HOUR_MS)
    close = leave(client, topic)
    assert counts(client, topic) == (1, 2, 0)
    close()
    come_to(client, topic, 3, 0, 0)
    jobs = claim(client, topic, "another", max=10)
    assert [(job["$seq"], job["deliveries"]) for job in jobs] == [(1, 2), (2, 2), (3, 1)]
    assert ack(client, topic, *jobs, node="another")["acked"] == 3


def test_who_waits_gets_what_is_released(client: Client, topic: str, http2: bool) -> None:
    queue(client, topic, 1, lease_ms=HOUR_MS)
    with working(client, topic, "another", how={"http2": http2}) as next_one, ThreadPoolExecutor(1) as pool:
        job = next_one.job()
        poll = pool.submit(claim, client, topic, "third", wait_ms=30_000)
        time.sleep(0.3)
        assert not poll.done()
        next_one.close()
        (again,) = poll.result(40)
    assert (again["$seq"], again["deliveries"]) == (1, 2)
    assert again["lease_id"] != job["lease_id"]


def test_what_was_released_is_held_no_more(client: Client, topic: str) -> None:
    queue(client, topic, 1, lease_ms=HOUR_MS)
    with working(client, topic) as events:
        job = events.job()
    come_to(client, topic, 1, 0, 0)
    for fenced in (True, False):
        answer = ack(client, topic, job, fenced=fenced)
        assert (answer["acked"], answer["skipped"]) == (0, [1])
    answer = call(client, topic, "extend", seqs=[1], lease_ms=1000)
    assert (answer["extended"], answer["skipped"], answer["deadlines"]) == (0, [1], {})


def test_what_was_acked_does_not_come_back(client: Client, topic: str) -> None:
    queue(client, topic, 1, 2)
    with working(client, topic, max=2) as events:
        first, _ = events.jobs(2)
        ack(client, topic, first)
    come_to(client, topic, 1, 0, 0)
    assert seqs(claim(client, topic, max=10)) == [2]


def test_what_its_node_claimed_otherwise_stays_leased(client: Client, topic: str) -> None:
    queue(client, topic, *range(1, 5), lease_ms=HOUR_MS)
    before = claim(client, topic)
    with working(client, topic) as events, working(client, topic) as other:
        mine, theirs = events.job(), other.job()
        after = claim(client, topic)
        assert sorted(seqs([*before, mine, theirs, *after])) == [1, 2, 3, 4]
        events.close()
        come_to(client, topic, 1, 3, 0)
        assert seqs(claim(client, topic, "x", max=10)) == [mine["$seq"]]
        answer = ack(client, topic, *before, theirs, *after)
        assert (answer["acked"], answer["skipped"]) == (3, [])


def test_what_its_node_took_over_by_a_claim_stays_leased(client: Client, topic: str) -> None:
    """The stream held the job once, but what is released at its end is what it holds then."""
    queue(client, topic, 1, 2, lease_ms=HOUR_MS)
    with working(client, topic) as events:
        nack(client, topic, events.job(), delay_ms=300)
        assert events.job()["$seq"] == 2
        (taken,) = claim(client, topic, wait_ms=10_000)
        assert (taken["$seq"], taken["deliveries"]) == (1, 2)
    come_to(client, topic, 1, 1, 0)
    assert ack(client, topic, taken)["acked"] == 1


def test_a_topic_that_is_deleted_ends_its_streams(client: Client, topic: str) -> None:
    queue(client, topic, 1)
    with (
        working(client, topic) as first,
        working(client, topic) as second,
        working(client, topic, how={"http2": True}) as third,
    ):
        come_to(client, topic, 0, 1, 0)
        client.delete_topic(topic)
        for events in (first, second, third):
            frames = events.final(404)
            assert all(frame.event == "job" for frame in frames)
    with connect(client, work_path(topic)) as refused:
        refused.refused(404, "topic_not_found")


def test_a_topic_that_is_made_anew_is_another(client: Client, topic: str) -> None:
    queue(client, topic)
    with working(client, topic) as events:
        client.delete_topic(topic)
        queue(client, topic, "new")
        assert events.final(404) == []
    with working(client, topic) as events:
        job = events.job()
        assert (job["$seq"], job["data"], job["deliveries"]) == (1, "new", 1)


def test_a_stop_ends_streams_with_503_and_releases_what_they_held(tmp_path: Path) -> None:
    daemon = Daemon(tmp_path, drain_ms=5000)
    try:
        client = daemon.start()
        names = ["plain", "durable"]
        for name in names:
            queue(client, name, 1, 2, 3, lease_ms=HOUR_MS, leases_durable=name == "durable", durability="fsync")
        with (
            working(client, "plain") as first,
            working(client, "plain", how={"http2": True}) as second,
            working(client, "durable", max=2) as third,
        ):
            held = {"plain": [first.job(), second.job()], "durable": third.jobs(2)}
            daemon.send_signal(signal.SIGTERM)
            for events in (first, second, third):
                assert events.final(503) == []
            assert daemon.wait() == 0
        client = daemon.start()
        for name in names:
            assert counts(client, name) == (3, 0, 0)
            jobs = claim(client, name, "x", max=10)
            assert seqs(jobs) == [1, 2, 3]
            if name == "durable":
                assert [job["deliveries"] for job in jobs] == [2, 2, 1]
            assert ack(client, name, *held[name])["acked"] == 0
            assert ack(client, name, *jobs, node="x")["acked"] == 3
    finally:
        daemon.kill()


def test_a_kill_cuts_streams_off_and_what_they_held_comes_again(tmp_path: Path) -> None:
    daemon = Daemon(tmp_path)
    try:
        client = daemon.start()
        names = ["plain", "durable"]
        for name in names:
            queue(client, name, 1, 2, leases_durable=name == "durable", durability="fsync")
        with working(client, "plain", lease_ms=2000) as first, working(client, "durable", lease_ms=2000) as second:
            held = {"plain": first.job(), "durable": second.job()}
            daemon.end(signal.SIGKILL)
            for events in (first, second):
                with pytest.raises(Cut):
                    events.next()
        client = daemon.start()
        for name in names:
            found = claim(client, name, "x", max=10)
            while len(found) < 2:
                found += claim(client, name, "x", max=10, wait_ms=10_000)
            assert sorted(seqs(found)) == [1, 2]
            assert ack(client, name, held[name])["skipped"] == [1]
    finally:
        daemon.kill()


# Who does not read, and who is not there any more


def test_who_does_not_read_holds_up_nobody(client: Client, topic: str, http2: bool) -> None:
    queue(client, topic, lease_ms=HOUR_MS)
    total = 64
    with working(client, topic, "stopped", max=1000, how={"http2": http2, "receive_buffer": SMALL}):
        for start in range(0, total, 16):
            client.append(topic, *(["x" * 1_000_000] * 16))
            assert client.state(topic)["head_seq"] == start + 16
        with working(client, topic, "reads", max=4) as events:
            found = events.jobs(4)
            ack(client, topic, *found, node="reads")
            found += events.jobs(4)
        (other,) = claim(client, topic, "claims", wait_ms=30_000)
        assert other["$seq"] <= total
        # It holds what lies between the daemon and it, and not all there is.
        assert counts(client, topic)[1] < total - 8
    ack(client, topic, other, node="claims")
    come_to(client, topic, total - 5, 0, 0)


def test_who_reads_late_gets_everything(client: Client, topic: str, http2: bool) -> None:
    queue(client, topic, lease_ms=HOUR_MS)
    for _ in range(3):
        client.append(topic, *(["x" * 1_000_000] * 10))
    with working(client, topic, max=1000, how={"http2": http2, "receive_buffer": SMALL}) as events:
        time.sleep(1)
        found = events.jobs(30)
        assert seqs(found) == list(range(1, 31))
        assert ack(client, topic, *found)["acked"] == 30


def test_who_takes_nothing_for_30_s_loses_what_it_held(client: Client, topic: str) -> None:
    queue(client, topic, lease_ms=HOUR_MS)
    for _ in range(3):
        client.append(topic, *(["x" * 1_000_000] * 10))
    how = {"receive_buffer": SMALL}
    with working(client, topic, max=1000, how=how) as first, working(client, topic, how=how | {"http2": True}, max=5):
        until(lambda: counts(client, topic)[1] > 0)
        come_to(client, topic, 30, 0, 0, within_s=90)
        frames, last = first.rest()
        assert all(frame.event == "job" for frame in frames)
        assert last is None or last.data["code"] == 408


def vanish(transport: Transport) -> None:
    """From now on the kernel drops all packets for this connection: it neither answers nor ends it.

    What it has sent before has arrived by then, or it would be sent again and again, which is a sign of life.
    """

    class Program(ctypes.Structure):
        _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_void_p))

    return_0 = ctypes.create_string_buffer(struct.pack("HBBI", 6, 0, 0, 0))
    program = Program(1, ctypes.addressof(return_0))
    connection = transport.connection if not isinstance(transport, Http1) else transport  # type: ignore[attr-defined]
    attach_filter = 26
    until(lambda: fcntl.ioctl(connection._socket, termios.TIOCOUTQ, bytes(4)) == bytes(4))
    connection._socket.setsockopt(socket.SOL_SOCKET, attach_filter, bytes(program))


def test_who_vanished_is_noticed_and_loses_what_it_held(client: Client, topic: str) -> None:
    """Nothing ends these connections. One is idle, and the other ones are sent to when they are gone already."""
    busy, busy_h2 = fresh_name(), fresh_name()
    held = {topic: 1, busy: 2, busy_h2: 2}
    for name in held:
        queue(client, name, 1, lease_ms=HOUR_MS)
    with (
        working(client, topic) as first,
        working(client, busy, max=3) as second,
        working(client, busy_h2, max=3, how={"http2": True}) as third,
    ):
        for events in (first, second, third):
            events.job()
            vanish(events.transport)
        for name in (busy, busy_h2):
            client.append(name, 2)
        began = time.monotonic()
        released: dict[str, float] = {}
        while len(released) < len(held) and time.monotonic() < began + 90:
            for name, number in held.items():
                if name not in released and counts(client, name) == (number, 0, 0):
                    released[name] = time.monotonic() - began
            time.sleep(0.1)
        assert released.keys() == held.keys(), released
