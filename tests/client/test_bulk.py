"""Exports and uploads by the clients: what the lines mean, and what a bad network does to them."""

from __future__ import annotations

import random
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from itertools import pairwise
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import anyio
import httpx
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.client.proxy import Fate, Proxy
from tests.conformance.client import Daemon
from topics.client import (
    ApiError,
    AsyncClient,
    BadRequest,
    Client,
    ConnectionFailed,
    NewRecord,
    NotFound,
    ProtocolError,
    Record,
    Retry,
    Tombstone,
)
from topics.client.bulk import (
    ARROW,
    PIECE_BYTES,
    STEP,
    ExportDownload,
    ExportOptions,
    UploadPieces,
    export_stream,
    ingest,
    stage,
    staged,
)
from topics.client.calls import ClientCall

LINES = (
    b'{"$tombstone":{"gap_from":1,"gap_to":3,"reason":"cap","missed_estimate":3,"earliest_seq":4,"head_seq":9}}\n'
    b'{"$seq":4,"$ts":7,"data":"a\xe2\x80\xa8b"}\n'
    b'{"$tag":"t","$seq":6,"$ts":8,"data":{"$end":1},"meta":{"k":"v"}}\n'
    b'{"$end":{"next_from_seq":9,"head_seq":9,"earliest_seq":4,"epoch":1}}\n'
)


def reading() -> ExportDownload:
    return ExportDownload("t", 0, 9, 1)


def seqs(values: Any) -> list[int]:
    return [value.seq if isinstance(value, Record) else -value.gap_to for value in values]


# ----------------------------------------------------------------- what the lines mean


@given(st.sets(st.integers(1, len(LINES) - 1), max_size=8))
def test_the_pieces_do_not_matter(cuts: set[int]) -> None:
    places = [0, *sorted(cuts), len(LINES)]
    reader = reading()
    found = [value for a, b in pairwise(places) for value in reader.feed(LINES[a:b])]
    reader.finished()
    gap, first, second = found
    assert isinstance(gap, Tombstone)
    assert isinstance(first, Record)
    assert isinstance(second, Record)
    assert (gap.topic, gap.gap_to, gap.reason) == ("t", 3, "cap")
    assert (first.topic, first.data, first.tag, first.meta) == ("t", "a\u2028b", None, {})
    assert (second.data, second.tag, second.meta) == ({"$end": 1}, "t", {"k": "v"})
    assert reader.position == 9


@given(st.integers(0, LINES.rindex(b"\n") - 1))
def test_one_that_is_cut_off_goes_on_behind_what_came(end: int) -> None:
    reader = reading()
    found = seqs(reader.feed(LINES[:end]))
    with pytest.raises(ConnectionFailed):
        reader.finished()
    assert f"from_seq={abs(found[-1]) if found else 0}&to_seq=9" in reader.call().target
    # What was half there does not stay in the way.
    assert seqs(reader.feed(LINES)) == [-3, 4, 6]


def test_a_topic_that_was_made_again_is_read_from_its_beginning() -> None:
    reader = reading()
    gap = {"gap_from": 1, "gap_to": 5, "reason": "recreated", "missed_estimate": 5, "earliest_seq": 1, "head_seq": 5}
    list(reader.feed(b'{"$seq":8,"$ts":7,"data":1}\n'))
    list(reader.feed(msgspec.json.encode({"$tombstone": gap}) + b"\n"))
    assert reader.position == 0


@pytest.mark.parametrize(
    "line", [b"<html>", b'{"$seq":"x"}', b'{"$tombstone":1}', b'{"$end":{}}', b'{"$seq":1,"\xff"}']
)
def test_what_is_no_export_is_told(line: bytes) -> None:
    with pytest.raises(ProtocolError):
        list(reading().feed(line + b"\n"))


@given(st.lists(st.integers(0, PIECE_BYTES // 2), max_size=12))
def test_pieces_of_an_upload_hold_every_record_once(sizes: list[int]) -> None:
    gathered = UploadPieces()
    pieces = [piece for size in sizes if (piece := gathered.add("x" * size)) is not None]
    pieces += [piece] if (piece := gathered.rest()) is not None else []
    lines = b"".join(pieces).splitlines()
    assert [len(msgspec.json.decode(line)["data"]) for line in lines] == sizes
    assert all(len(piece) < 2 * PIECE_BYTES for piece in pieces)


def test_a_record_of_several_lines_is_one_line() -> None:
    gathered = UploadPieces()
    gathered.add(NewRecord(msgspec.Raw(b'{\r\n  "a": 1\n}')))
    rest = gathered.rest()
    assert rest is not None
    assert rest.count(b"\n") == 1
    assert msgspec.json.decode(rest) == {"data": {"a": 1}}


def test_everything_that_is_asked_for_is_in_the_call() -> None:
    options = ExportOptions(1, 2, match="x*", node=("n", "m"), include_tags=False, include_meta=False)
    call = ExportDownload("a:b", 3, 9, 7, options).call()
    assert (call.method, call.accept) == ("GET", "application/x-ndjson")
    assert call.target == (
        "/v0/topics/a:b/records?from_seq=3&to_seq=9&from_ts=1&to_ts=2&match=x%2A&node=n&node=m"
        "&include_tags=false&include_meta=false&epoch=7"
    )
    assert export_stream("a", include_data=False, accept=ARROW).target == (
        "/v0/topics/a/records?from_seq=0&include_tags=true&include_meta=true&include_data=false"
    )
    upload = ingest("a", [], node="n", idempotency_key="k", create=False, disable_backpressure=True)
    assert (upload.method, upload.content_type) == ("POST", "application/x-ndjson")
    assert upload.target == "/v0/topics/a?node=n&create=false&disable_backpressure=true"
    assert upload.headers == {"Idempotency-Key": "k"}
    assert not upload.repeatable


def test_what_goes_to_a_stage_is_lines_that_may_be_sent_again_under_their_key() -> None:
    call = stage("a", "s:1", [1, NewRecord({"x": 2}, tag="t")], node="n", create=False, disable_backpressure=True)
    assert (call.method, call.content_type) == ("POST", "application/x-ndjson")
    assert call.target == "/v0/topics/a?stage=s%3A1&node=n&create=false&disable_backpressure=true"
    assert call.body == b'{"data":1}\n{"data":{"x":2},"tag":"t"}\n'
    assert call.repeatable
    assert call.headers.keys() == {"Idempotency-Key"}
    assert call.headers != stage("a", "s:1", [1]).headers
    assert not stage("a", "s:1", [1], idempotency_key=None).repeatable
    again = staged("a", "s:1", b'{"data":1}\n', "7")
    assert (again.body, again.headers) == (b'{"data":1}\n', {"Idempotency-Key": "7"})


# ----------------------------------------------------------------- where next to nothing matches


class Sparse:
    """A daemon with one topic of which few records are wanted, behind something that cuts an answer off when nothing
    has come of `patience` seqs that were looked at."""

    def __init__(self, head: int, wanted: list[int], *, patience: int, epoch: int = 1) -> None:
        self.head = head
        self.wanted = wanted
        self.patience = patience
        self.epoch = epoch
        self.streams = 0

    def answer(self, call: ClientCall[bytes]) -> bytes:
        """What a client receives of an answer."""
        self.streams += 1
        asked = {name: int(value) for name, value in parse_qsl(urlsplit(call.target).query) if value.isdigit()}
        position, last = asked["from_seq"], min(asked["to_seq"], self.head)
        lines: list[Any] = []
        if asked["epoch"] != self.epoch or position > self.head:
            gap = {"gap_from": 1, "gap_to": position, "reason": "recreated", "earliest_seq": 1, "head_seq": self.head}
            lines.append({"$tombstone": gap})
            position = 0
        for seq in [*(seq for seq in self.wanted if position < seq <= last), None]:
            if (seq or last) - position > self.patience:
                return b"".join(msgspec.json.encode(line) + b"\n" for line in lines)
            if seq is not None:
                lines.append({"$seq": seq, "$ts": 1, "data": seq})
                position = seq
        position = max(position, last)
        lines.append(
            {"$end": {"next_from_seq": position, "head_seq": self.head, "earliest_seq": 1, "epoch": self.epoch}}
        )
        return b"".join(msgspec.json.encode(line) + b"\n" for line in lines)


def export_all(reader: ExportDownload, daemon: Sparse, most_streams: int) -> list[int]:
    """The seqs that an export brings (negative: where a gap ends), over as many streams as it takes."""
    found: list[int] = []
    while not reader.done:
        assert daemon.streams < most_streams, f"no end after {daemon.streams} streams"
        found += seqs(reader.feed(daemon.answer(reader.call())))
        with suppress(ConnectionFailed):
            reader.finished()
    return found


ONLY_SOME = ExportOptions(match="rare")


@given(st.lists(st.integers(1, 200_000), max_size=6, unique=True), st.integers(150_000, 250_000))
def test_what_matches_rarely_comes_once_and_in_order_however_long_nothing_comes(wanted: list[int], head: int) -> None:
    wanted = sorted(seq for seq in wanted if seq <= head)
    daemon = Sparse(head, wanted, patience=STEP)
    assert export_all(ExportDownload("t", 0, head, 1, ONLY_SOME), daemon, 20) == wanted


def test_steps_are_for_those_exports_alone_that_nothing_may_come_of_and_that_have_broken() -> None:
    head = 10 * STEP
    patient = Sparse(head, [1, head], patience=head)
    assert export_all(ExportDownload("t", 0, head, 1, ONLY_SOME), patient, 1) == [1, head]
    whole = ExportDownload("t", 0, head, 1)
    whole.call()
    assert f"to_seq={head}" in whole.call().target
    some = ExportDownload("t", 0, head, 1, ONLY_SOME)
    some.call()
    assert f"to_seq={STEP}" in some.call().target


@pytest.mark.parametrize(
    "options", [ExportOptions(match="a"), ExportOptions(node=["n"]), ExportOptions(filter=["Tag"])]
)
def test_records_may_be_left_out_by_tag_by_node_and_by_filter(options: ExportOptions) -> None:
    assert options.leaves_out
    assert not ExportOptions(from_ts=1, to_ts=2, include_data=False).leaves_out


@pytest.mark.parametrize("head", [5, 3 * STEP, 30 * STEP])
def test_a_topic_that_was_made_again_is_told_once_between_two_steps(head: int) -> None:
    """Its new instance is read to the end that the export began with."""
    reader = ExportDownload("t", 0, 10 * STEP, 1, ONLY_SOME)
    old = Sparse(10 * STEP, [], patience=STEP)
    for _ in range(3):  # one that is cut off, and two steps
        assert not seqs(reader.feed(old.answer(reader.call())))
        with suppress(ConnectionFailed):
            reader.finished()
    assert reader.position == 2 * STEP
    wanted = [1, 5, STEP + 1, 10 * STEP]
    new = Sparse(head, [seq for seq in wanted if seq <= head], patience=STEP, epoch=2)
    new.patience = 3 * STEP  # the first answer begins at its beginning
    assert export_all(reader, new, 10) == [-2 * STEP, *new.wanted]


# ----------------------------------------------------------------- with a daemon


COUNT = 30_000


@pytest.mark.slow
def test_an_export_survives_breaks_and_a_killed_daemon(daemon: Daemon, proxy: Proxy, topic: str) -> None:
    rng = random.Random(5)
    with Client(daemon.url) as client:
        client.ingest(topic, ({"n": n, "x": "x" * 100} for n in range(COUNT)))
        # Each of the first connections is cut somewhere, and none of them brings all of it.
        proxy.fate = lambda number: Fate(down=rng.randrange(700_000)) if number < 8 else Fate()
        killed = False
        found = []
        with Client(proxy.url, retry=Retry(give_up_after=60)) as reader:
            for record in reader.export(topic):
                assert isinstance(record, Record)
                found.append(record.data["n"])
                if len(found) == COUNT // 2 and not killed:
                    killed = True
                    daemon.end(signal.SIGKILL)
                    daemon.start().close()
        assert found == list(range(COUNT))
        assert proxy.accepted > 3


@pytest.mark.slow
def test_an_export_ends_at_the_head_of_its_beginning(shared_daemon: Daemon, topic: str) -> None:
    with Client(shared_daemon.url) as client:
        client.append(topic, range(5))
        values = client.export(topic, 1)
        first = next(values)
        client.append(topic, range(5))
        assert seqs([first, *values]) == [2, 3, 4, 5]
        assert seqs(client.export(topic, to_seq=7)) == [1, 2, 3, 4, 5, 6, 7]
        with pytest.raises(NotFound):
            list(client.export("nothing"))


@pytest.mark.slow
def test_an_upload_that_broke_is_completed_by_its_repeat(daemon: Daemon, proxy: Proxy, topic: str) -> None:
    def records() -> Iterator[NewRecord]:
        return (NewRecord({"n": n}, tag=f"t{n % 3}", meta={"n": str(n)}) for n in range(COUNT))

    proxy.fate = lambda number: Fate(up=1_000_000) if number == 0 else Fate(down=0) if number == 1 else Fate()
    with Client(proxy.url) as client:
        for _ in range(2):
            with pytest.raises(ConnectionFailed) as caught:
                client.ingest(topic, records(), idempotency_key="upload")
            assert caught.value.outcome_unknown
        done = client.ingest(topic, records(), idempotency_key="upload")
        assert done.deduped_batches == done.batches == 30
        found = list(client.export(topic, match="t1"))
        assert [value.data["n"] for value in found if isinstance(value, Record)] == list(range(1, COUNT, 3))
        assert client.state(topic).head_seq == COUNT


@pytest.mark.slow
def test_a_bad_line_says_how_far_the_upload_came(shared_daemon: Daemon, topic: str) -> None:
    with Client(shared_daemon.url) as client:
        with pytest.raises(BadRequest) as caught:
            client.ingest(topic, [*range(2500), NewRecord(msgspec.Raw(b"{bad"))])
        detail = caught.value.detail
        assert (detail["line"], detail["committed"], detail["last_seq"]) == (2501, 2000, 2000)
        assert client.state(topic).head_seq == 2000


@pytest.mark.slow
def test_what_ends_in_the_middle_stores_whole_batches_only(shared_daemon: Daemon, topic: str) -> None:
    def broken() -> Iterator[int]:
        yield from range(1500)
        raise RuntimeError("the source is broken")

    with Client(shared_daemon.url) as client:
        client.create(topic)
        with pytest.raises(RuntimeError, match="the source is broken"):
            client.ingest(topic, broken())
        assert client.state(topic).head_seq in (0, 1000)


@pytest.mark.slow
def test_the_asynchronous_client_does_the_same(shared_daemon: Daemon, topic: str, backend: str) -> None:
    async def numbers() -> AsyncIterator[int]:
        for n in range(3000):
            yield n

    async def story() -> None:
        async with AsyncClient(shared_daemon.url) as client:
            assert (await client.ingest(topic, numbers())).count == 3000
            assert (await client.ingest(topic, range(3000), node="n")).count == 3000
            found = [value.data async for value in client.export(topic, node="n") if isinstance(value, Record)]
            assert found == list(range(3000))

    anyio.run(story, backend=backend)


@pytest.mark.slow
def test_an_export_comes_as_it_is_sent_in_the_format_that_is_asked_for(
    shared_daemon: Daemon, topic: str, backend: str
) -> None:
    async def concurrently() -> bytes:
        async with AsyncClient(shared_daemon.url) as client, client.export_stream(topic, 1, match="t") as pieces:
            return b"".join([piece async for piece in pieces])

    with Client(shared_daemon.url) as client:
        client.append(topic, [NewRecord(n, tag="t") for n in range(3)])
        with client.export_stream(topic, 1, match="t") as pieces:
            lines = b"".join(pieces).splitlines()
        assert [msgspec.json.decode(line).get("data") for line in lines] == [1, 2, None]
        assert anyio.run(concurrently, backend=backend).splitlines()[:2] == lines[:2]
        with client.export_stream(topic, accept=ARROW, include_data=False) as pieces:
            assert b"".join(pieces).startswith(b"\xff\xff\xff\xff")
        with pytest.raises(ApiError) as caught, client.export_stream(topic, accept="text/plain"):
            pass
        assert caught.value.status == 406
        (first, *_) = client.export(topic, include_data=False)
        assert isinstance(first, Record)
        assert (first.tag, bytes(first.raw)) == ("t", b"")


@pytest.mark.slow
def test_the_failure_of_another_call_within_a_stream_stays_what_it_is(
    shared_daemon: Daemon, topic: str, backend: str
) -> None:
    """For instance of one that sends what is exported somewhere else, with httpx too."""

    def broken(request: httpx.Request) -> httpx.Response:
        raise httpx.ReadError("elsewhere", request=request)

    async def concurrently() -> None:
        async with (
            AsyncClient(shared_daemon.url) as client,
            httpx.AsyncClient(transport=elsewhere) as other,
            client.export_stream(topic) as pieces,
        ):
            async for piece in pieces:
                await other.post("http://elsewhere.invalid", content=piece)

    elsewhere = httpx.MockTransport(broken)
    with Client(shared_daemon.url) as client, httpx.Client(transport=elsewhere) as other:
        client.append(topic, [1])
        with pytest.raises(httpx.ReadError, match="elsewhere"), client.export_stream(topic) as pieces:
            other.post("http://elsewhere.invalid", content=b"".join(pieces))
        assert client.diff(topic).records[0].data == 1
    with pytest.raises(httpx.ReadError, match="elsewhere"):
        anyio.run(concurrently, backend=backend)


@pytest.mark.slow
def test_what_is_staged_is_published_once_and_what_is_dropped_never(shared_daemon: Daemon, topic: str) -> None:
    with Client(shared_daemon.url) as client:
        assert client.stage(topic, "a", range(3)).count == 3
        assert client.stage(topic, "a", [3]).count == 4
        assert client.stage(topic, "b", [NewRecord("b", tag="t")], idempotency_key="k").count == 1
        assert client.stage(topic, "b", [NewRecord("b", tag="t")], idempotency_key="k").count == 1
        client.stage(topic, "dropped", ["x"])
        assert [client.delete_stage(topic, "dropped").deleted for _ in range(2)] == [True, False]
        with pytest.raises(NotFound) as caught:
            client.commit(topic, ["a", "dropped"], "key")
        assert caught.value.code == "stage_not_found"
        done = client.commit(topic, ["b", "a"], "key")
        assert (done.first_seq, done.last_seq, done.count, done.deduped) == (1, 5, 5, False)
        assert client.commit(topic, ["b", "a"], "key").deduped
        assert [value.data for value in client.read(topic) if isinstance(value, Record)] == ["b", 0, 1, 2, 3]
