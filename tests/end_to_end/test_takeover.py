"""Real daemons over one bucket: the owner is killed, stopped, or paused for longer than its lease, and another one goes
on with what the bucket has."""

from __future__ import annotations

import http.client
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.bucket.servers import fresh_prefix, moto_server
from tests.end_to_end.test_cold_hangs import metric, until
from tests.end_to_end.test_sigkill import Client, Daemon

LEASE_MS = 2000


class Pair:
    """Two daemons with directories of their own, the first of which is the owner."""

    def __init__(self, root: Path, settings: dict[str, str]) -> None:
        self.daemons = []
        for name in ("a", "b"):
            (root / name).mkdir()
            options = settings | {"TOPICS_BUCKET_TAKEOVER": "1", "TOPICS_BUCKET_LEASE_MS": str(LEASE_MS)}
            self.daemons.append(Daemon(root / name, **options, TOPICS_ADVERTISED_URL=f"http://{name}"))
        self.daemons[0].start()
        self.daemons[1].launch()

    @property
    def clients(self) -> tuple[Client, Client]:
        first, second = (Client(daemon.port) for daemon in self.daemons)
        return first, second

    def end(self) -> None:
        for daemon in self.daemons:
            daemon.end()


@contextmanager
def pair(root: Path, store: str) -> Iterator[Pair]:
    with ExitStack() as stack:
        if store == "s3":
            server = stack.enter_context(moto_server())
            settings = server.variables() | {"TOPICS_BUCKET": f"s3://{server.bucket}/{fresh_prefix()}"}
        else:
            (root / "bucket").mkdir()
            settings = {"TOPICS_BUCKET": f"file://{root}/bucket"}
        both = Pair(root, settings)
        stack.callback(both.end)
        yield both


def is_ready(client: Client) -> bool:
    return client.call("GET", "/v0/ready")[0] == 200


def waits_for(client: Client) -> object:
    return client.call("GET", "/v0/ready")[1]["error"]["detail"].get("owner")


def role_of(port: int) -> str | None:
    """What a daemon says of itself with each answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("GET", "/v0/health")
    return connection.getresponse().headers["Topics-Role"]


def fill(client: Client) -> None:
    for name in ("remote", "disk"):
        assert client.call("PUT", f"/v0/topics/{name}", {"durability": name})[0] == 201
        for i in range(5):
            assert client.call("POST", f"/v0/topics/{name}", {"records": [{"data": i}]})[0] == 200


def seqs(client: Client, name: str) -> list[int]:
    answer = client.call("GET", f"/v0/topics/{name}/diff?from_seq=0")[1]
    return [record["$seq"] for record in answer["records"]]


@pytest.mark.slow
@pytest.mark.parametrize("store", ["file", "s3"])
def test_another_daemon_goes_on_when_the_owner_is_killed(store: str, tmp_path: Path) -> None:
    with pair(tmp_path, store) as both:
        owner, other = both.clients
        fill(owner)
        until(
            lambda: other.call("GET", "/v0/ready")[1]["error"]["detail"].get("owner") == "http://a", "it does not wait"
        )
        time.sleep(2.5)  # a round
        assert 0 < metric(owner, "bucket_lease_left_ms") <= LEASE_MS * 5 / 6
        assert owner.call("POST", "/v0/topics/remote", {"records": [{"data": "last"}]})[0] == 200
        both.daemons[0].kill()
        began = time.monotonic()
        until(lambda: is_ready(other), "nobody takes over")
        assert time.monotonic() - began > LEASE_MS / 1000 * 5 / 6 - 1, "before the lease is over"
        assert seqs(other, "remote") == [1, 2, 3, 4, 5, 6]
        assert seqs(other, "disk") == [1, 2, 3, 4, 5]
        answer = other.call("POST", "/v0/topics/disk", {"records": [{"data": "new"}]})[1]
        assert answer["first_seq"] > 1000, "the former owner may have given out seqs up to its ceiling"
        assert other.call("POST", "/v0/topics/remote", {"records": [{"data": "new"}]})[1]["first_seq"] == 7


@pytest.mark.slow
def test_a_paused_owner_answers_nothing_and_ends_with_code_3(tmp_path: Path) -> None:
    with pair(tmp_path, "file") as both:
        owner, other = both.clients
        fill(owner)
        both.daemons[0].signal(signal.SIGSTOP)
        until(lambda: is_ready(other), "nobody takes over")
        both.daemons[0].signal(signal.SIGCONT)
        status, answer = owner.call("POST", "/v0/topics/disk", {"records": [{"data": "late"}]})
        assert (status, answer["error"]["code"]) == (503, "not_owner")
        assert owner.call("GET", "/v0/ready")[0] == 503
        assert seqs(owner, "remote") == [1, 2, 3, 4, 5], "reads go on for a while"
        assert role_of(both.daemons[0].port) == "former"
        for path in ("/v0/topics/remote/diff?from_seq=6", "/v0/topics/remote/records?from_seq=6"):
            status, answer = owner.call("GET", path)
            assert (status, answer["error"]["code"]) == (503, "not_owner"), "a reader that knows more is told nothing"
        status, answer = owner.call("POST", "/v0/watch", {"topics": {"remote": {"from_seq": 6}}})
        assert (status, answer["error"]["code"]) == (503, "not_owner")
        until(lambda: both.daemons[0].code == 3, "it does not end")
        assert seqs(other, "remote") == [1, 2, 3, 4, 5]


@pytest.mark.slow
def test_an_owner_that_stops_gives_the_bucket_up_and_leaves_no_holes(tmp_path: Path) -> None:
    with pair(tmp_path, "file") as both:
        owner, other = both.clients
        fill(owner)
        assert both.daemons[0].terminate()[0] == 0
        until(lambda: is_ready(other), "nobody takes over")
        for name in ("remote", "disk"):
            assert seqs(other, name) == [1, 2, 3, 4, 5]
            assert other.call("POST", f"/v0/topics/{name}", {"records": [{"data": 6}]})[1]["first_seq"] == 6
