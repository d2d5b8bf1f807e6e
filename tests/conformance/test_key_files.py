"""Section 12: what is refused at the start, the file of keys, and keys that come and go while the daemon runs."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.conformance.client import Client, RawConnection, body_of, fresh_name, running, until
from tests.conformance.keys import Callers, bearer, callers_of, forbidden, refused_start, unauthorized
from tests.conformance.sse import WITHIN_S, Cut, Ended, Events, Session, stream
from tests.conformance.websocket import Closed, WebSocket
from tests.conformance.work_stream_client import claim, counts, queue, working

SECRET = "sesame-4711"


def test_a_malformed_entry_refuses_the_start(tmp_path: Path) -> None:
    assert "TOPICS_API_KEYS" in refused_start(tmp_path, SECRET, api_keys=f"other:r,{SECRET}:root")


def test_a_bad_file_refuses_the_start(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    assert "TOPICS_API_KEYS_FILE" in refused_start(tmp_path, api_keys_file=path, api_keys="boss")
    path.write_text(f"other:r\n{SECRET}:root\n")
    assert "TOPICS_API_KEYS_FILE" in refused_start(tmp_path, SECRET, api_keys_file=path, api_keys="boss")


# The file


FILE = """
# who may read what
reader:r:a

   # the rest
writer:rw
worker:rw
stays:rw:a|b
"""


@dataclass
class Keyed:
    """A daemon with a file of keys."""

    client: Client
    callers: Callers
    path: Path

    @property
    def log(self) -> str:
        return (self.client.daemon.root / "log").read_text(errors="replace")

    def hang_up(self) -> None:
        self.client.daemon.send_signal(signal.SIGHUP)

    def put(self, text: str) -> None:
        """Replace the file as a whole, so that nobody reads a half of it."""
        new = self.path.with_suffix(".new")
        new.write_text(text)
        new.replace(self.path)

    def write(self, *lines: str, key: str = "stays", status: int = 200) -> None:
        """Put these lines into the file, and return when a key is answered so."""
        self.put("\n".join(lines))
        self.hang_up()
        until(lambda: self.callers[key].get("/v0/topics").status_code == status)


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Keyed]:
    root = tmp_path_factory.mktemp("daemon")
    path = root / "keys"
    path.write_text(FILE)
    with running(root, api_keys="boss", api_keys_file=path) as client, callers_of(client) as callers:
        client.headers.update(bearer("boss"))
        yield Keyed(client, callers, path)


@pytest.fixture
def keyed(started: Keyed) -> Keyed:
    """The daemon with `FILE` for its keys, and without any topics."""
    mark = fresh_name("mark")
    started.put(f"{FILE}{mark}")
    started.hang_up()
    until(lambda: started.callers[mark].get("/v0/topics").status_code == 200)
    for topic in started.client.get("/v0/topics").json()["topics"]:
        started.client.delete_topic(topic["topic"])
    return started


def ends(events: Events) -> None:
    """It ends soon, in any way, and without another record."""
    rest = b""
    with suppress(Cut, Ended):
        while part := events.transport.receive(WITHIN_S):
            rest += part
        raise AssertionError("it has not ended")
    assert b"event: record" not in rest
    assert b"event: job" not in rest


def test_the_file_adds_to_the_variable_and_is_read_again(keyed: Keyed) -> None:
    client, callers = keyed.client, keyed.callers
    client.append("a", 1)
    client.append("other", 1)
    body_of(callers["reader"].get("/v0/topics/a"))
    forbidden(callers["reader"].get("/v0/topics/other"))
    for nobody in ("#", "# who may read what", "the"):
        unauthorized(callers[nobody].get("/v0/topics"))
    body_of(callers["writer"].post("/v0/topics/a", json={"records": [{"data": 2}]}))
    # What is written is not in force before the signal.
    keyed.path.write_text("stays:rw:a|b\nnew:r\nreader:w:a\n")
    unauthorized(callers["new"].get("/v0/topics"))
    body_of(callers["writer"].get("/v0/topics"))
    keyed.hang_up()
    until(lambda: callers["new"].get("/v0/topics").status_code == 200)
    unauthorized(callers["writer"].get("/v0/topics"))
    forbidden(callers["reader"].get("/v0/topics/a"), "read")
    body_of(callers["reader"].post("/v0/topics/a", json={"records": [{"data": 3}]}))
    body_of(client.get("/v0/topics"))
    assert client.state("a")["head_seq"] == 3


def test_line_ends_and_space_around_entries_do_not_matter(keyed: Keyed) -> None:
    keyed.path.write_bytes(b"stays:rw:a|b\r\n# nothing\r\n\r\n\t spaced:r:a  \r\nlast:w")
    keyed.hang_up()
    until(lambda: keyed.callers["spaced"].get("/v0/topics").status_code == 200)
    forbidden(keyed.callers["last"].get("/v0/topics"), "read")
    forbidden(keyed.callers["spaced"].get("/v0/topics/b"))


def test_streams_of_keys_that_stay_go_on_and_those_of_others_end(keyed: Keyed) -> None:
    client = keyed.client
    client.append("a", 1)
    queue(client, "jobs", 1, 2)
    stays, writer, worker = (bearer(key) for key in ("stays", "writer", "worker"))
    session = Session(keyed.callers["stays"], "a")
    with (
        stream(client, "a", how={"headers": stays}) as first,
        session.open(headers=stays) as second,
        WebSocket(client, headers=stays.items()) as third,
        WebSocket(client, headers=bearer("boss").items()) as boss,
        stream(client, "a", how={"headers": writer}) as gone,
        Session(keyed.callers["writer"], "a").open(headers=writer) as gone_too,
        WebSocket(client, headers=writer.items()) as gone_socket,
        working(client, "jobs", how={"headers": worker}) as gone_worker,
    ):
        for events in (first, second, gone, gone_too):
            events.until_caught_up()
        for ws in (third, boss, gone_socket):
            ws.subscribe("a")
            ws.until_caught_up()
        gone_worker.job()
        assert counts(client, "jobs") == (1, 1, 0)
        keyed.write("new:r", "stays:rw:a|b", key="writer", status=401)
        for events in (gone, gone_too, gone_worker):
            ends(events)
        messages, _ = gone_socket.rest()
        assert not [message for message in messages if message.is_push]
        client.append("a", 2)
        for events in (first, second):
            assert events.until(lambda frame: frame.event == "record")[-1].seqs == [2]
        for ws in (third, boss):
            assert ws.until(lambda frame: frame.event == "record")[-1].seqs == [2]
        assert third.publish("a", 3)["first_seq"] == 3
        # What it held is given back at once.
        until(lambda: counts(client, "jobs") == (2, 0, 0))
    assert claim(client, "jobs")[0]["deliveries"] == 2


def test_a_stream_ends_that_its_key_could_not_open_any_more(keyed: Keyed) -> None:
    client = keyed.client
    client.append("a", 1)
    client.append("b", 1)
    stays = bearer("stays")
    with (
        stream(client, "a", how={"headers": stays}) as narrowed,
        stream(client, "b", how={"headers": stays}) as kept,
        Session(keyed.callers["stays"], "a", "b").open(headers=stays) as of_both,
        stream(client, "a", how={"headers": bearer("writer")}) as not_to_read,
    ):
        narrowed.until_caught_up()
        kept.until_caught_up()
        of_both.until_caught_up("a", "b")
        not_to_read.until_caught_up()
        keyed.write("stays:rw:b|c", "writer:w", key="writer", status=403)
        ends(narrowed)
        ends(of_both)
        ends(not_to_read)
        client.append("b", 2)
        assert kept.until(lambda frame: frame.event == "record")[-1].seqs == [2]


def test_a_socket_is_told_nothing_any_more_that_its_key_could_not_ask_for(keyed: Keyed) -> None:
    client = keyed.client
    client.append("a", 1)
    client.append("b", 1)
    with WebSocket(client, headers=bearer("stays").items()) as ws:
        ws.subscribe("a", "b")
        ws.until_caught_up("a", "b")
        keyed.write("stays:rw:b", "writer", key="reader", status=401)
        client.append("a", 2)
        client.append("b", 2)
        # It may as well end.
        with suppress(Closed, Cut):
            error = ws.ask("publish", topic="a", records=[{"data": 1}])
            assert error["code"] == "forbidden", error
        assert {message.frame.topic for message in ws.messages if message.is_push} <= {"b"}


def test_commands_of_a_socket_have_the_rights_of_its_key_as_they_are_now(keyed: Keyed) -> None:
    records = [{"data": 1}]
    with WebSocket(keyed.client, headers=bearer("stays").items()) as ws:
        ws.publish("a", 1)
        ws.refused("forbidden", "publish", topic="c", records=records)
        keyed.write("stays:rw:b|c", key="writer", status=401)
        ws.refused("forbidden", "publish", topic="a", records=records)
        ws.publish("b", 1)
        ws.publish("c", 1)
        keyed.write("stays:r", "writer:r", key="writer")
        ws.refused("forbidden", "publish", topic="b", records=records)
        assert set(ws.subscribe("a", "b")) == {"a", "b"}
    assert keyed.client.state("a")["head_seq"] == 1


@pytest.mark.parametrize("content", [f"{SECRET}:root\n", f"{SECRET}\n{SECRET}\n", ":\n", "\xff", None])
def test_a_file_that_is_no_good_changes_nothing(keyed: Keyed, content: str | None) -> None:
    client, callers = keyed.client, keyed.callers
    client.append("a", 1)
    with stream(client, "a", how={"headers": bearer("stays")}) as events:
        events.until_caught_up()
        if content is None:
            keyed.path.unlink()
        else:
            keyed.path.write_bytes(content.encode("latin-1"))
        said = len(keyed.log)
        keyed.hang_up()
        until(lambda: "KEYS" in keyed.log[said:].upper())
        assert SECRET not in keyed.log
        for key in ("reader", "writer", "stays", "boss"):
            body_of(callers[key].get("/v0/topics"))
        unauthorized(callers[SECRET].get("/v0/topics"))
        client.append("a", 2)
        assert events.until(lambda frame: frame.event == "record")[-1].seqs == [2]
    # And the next one counts again.
    keyed.write("new:r", key="new")
    unauthorized(callers["stays"].get("/v0/topics"))


def test_a_session_of_a_withdrawn_key_does_not_open(keyed: Keyed) -> None:
    keyed.client.append("a", 1)
    session = Session(keyed.callers["writer"], "a")
    keyed.write("stays:r:a", key="writer", status=401)
    with session.connect(headers=bearer("writer")) as events:
        events.refused(401, "unauthorized")
    with session.connect(headers=bearer("stays")) as events:
        events.refused(401, "unauthorized")


def test_a_session_of_a_key_with_less_rights_than_it_had_does_not_open(keyed: Keyed) -> None:
    keyed.client.append("a", 1)
    keyed.client.append("b", 1)
    stays = bearer("stays")
    both, one = Session(keyed.callers["stays"], "a", "b"), Session(keyed.callers["stays"], "b")
    keyed.write("stays:r:b", key="writer", status=401)
    with both.connect(headers=stays) as events:
        events.refused(403, "forbidden")
    with one.open(headers=stays) as events:
        events.until_caught_up()
    keyed.write("stays:w", status=403)
    with one.connect(headers=stays) as events:
        events.refused(403, "forbidden")


def test_calls_that_wait_end_when_their_key_does(keyed: Keyed) -> None:
    client = keyed.client
    client.append("a", 1)
    queue(client, "jobs")
    head = "POST {} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer writer\r\ncontent-type: {}\r\n"
    with RawConnection(client) as poll, RawConnection(client) as taker, RawConnection(client) as upload:
        for connection, path, body in [
            (poll, "/v0/topics/jobs/diff", b'{"wait_ms":30000}'),
            (taker, "/v0/topics/jobs/claim", b'{"node":"n","wait_ms":30000}'),
        ]:
            connection.send(head.format(path, "application/json").encode())
            connection.send(b"content-length: %d\r\n\r\n%b" % (len(body), body))
        upload.send(head.format("/v0/topics/a", "application/x-ndjson").encode())
        upload.send(b"transfer-encoding: chunked\r\n\r\n")
        lines = b'{"data":2}\n' * 1500
        upload.send(b"%x\r\n%b\r\n" % (len(lines), lines))
        until(lambda: client.state("a")["head_seq"] == 1001)
        said = len(keyed.log)
        keyed.write("stays:rw:a|b", key="writer", status=401)
        until(lambda: "calls_ended" in keyed.log[said:])
        assert poll.receive_error(401, "unauthorized")
        assert taker.receive_error(401, "unauthorized")
        detail = upload.receive_error(401, "unauthorized")["detail"]
        assert (detail["committed"], detail["last_seq"], detail["line"]) == (1000, 1001, 1501)
    assert client.state("a")["head_seq"] == 1001
    # Nothing was given to the one that waited for a job.
    client.append("jobs", 1)
    assert counts(client, "jobs") == (1, 0, 0)


def test_hang_ups_in_a_row_do_no_harm(keyed: Keyed) -> None:
    keyed.client.append("a", 1)
    with stream(keyed.client, "a", how={"headers": bearer("stays")}) as events:
        events.until_caught_up()
        for number in range(10):
            keyed.put(f"stays:rw:a|b\nnumber-{number}:r\n")
            keyed.hang_up()
        until(lambda: keyed.callers["number-9"].get("/v0/topics").status_code == 200)
        unauthorized(keyed.callers["number-8"].get("/v0/topics"))
        keyed.client.append("a", 2)
        assert events.until(lambda frame: frame.event == "record")[-1].seqs == [2]
