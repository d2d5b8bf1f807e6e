"""A real owner and a real standby over a bucket: in a directory, and in an S3 server."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import signal
import threading
from base64 import b64decode
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.bucket.servers import BUCKET, moto_server
from tests.cli.command_line import CommandLine
from tests.end_to_end.test_cold_hangs import metric, until
from tests.end_to_end.test_sigkill import Client, Daemon
from tests.processes.forked import start_daemon
from topics.evidence.checkpoint_note import SignedCheckpoint, TreeHead
from topics.evidence.proofs import check_consistency
from topics.evidence.signed_note import NoteSigner, VerifierKey


@contextmanager
def pair(root: Path, url: str, variables: Mapping[str, str]) -> Iterator[tuple[Daemon, Daemon]]:
    """An owner and a standby, each with a directory of its own."""
    for name in ("owner", "standby"):
        (root / name).mkdir()
    both = {
        "TOPICS_BUCKET": url,
        "TOPICS_BUCKET_ROUND_MS": "100",
        "TOPICS_BUCKET_BASE_MS": "1000",
        "TOPICS_SEGMENT_MAX_EVENTS": "50",
        "TOPICS_RECLAIM_MS": "300",
    }
    owner = Daemon(root / "owner", **both, **variables)
    standby = Daemon(root / "standby", **both, **variables, TOPICS_ROLE="standby", TOPICS_BUCKET_POLL_MS="50")
    try:
        owner.start()
        yield owner, standby
    finally:
        standby.end()
        owner.end()


def diff(client: Client, topic: str, from_seq: int, wait_ms: int = 0, **query: Any) -> tuple[int, Any]:
    more = "".join(f"&{name}={value}" for name, value in query.items())
    return client.call("GET", f"/v0/topics/{topic}/diff?from_seq={from_seq}&wait_ms={wait_ms}&limit=1000{more}")


def append(client: Client, topic: str, *values: Any) -> int:
    status, answer = client.call("POST", f"/v0/topics/{topic}", {"records": [{"data": value} for value in values]})
    assert status in (200, 201), answer
    return int(answer["last_seq"])


def follows(client: Client, topic: str, head: int) -> None:
    until(lambda: diff(client, topic, head)[0] == 200, f"the standby does not get to seq {head} of {topic}")


def replicas(client: Client) -> list[Any]:
    return client.call("GET", "/v0/storage")[1]["replicas"] or []


def lists_one(client: Client, kind: str) -> bool:
    return len(client.call("GET", f"/v0/{kind}")[1][kind]) == 1


def check(owner: Daemon, standby: Daemon) -> None:
    """Reads, writes and waits of clients of both."""
    writer, reader = Client(owner.port), Client(standby.port)
    head = append(writer, "a", *range(120))
    follows(reader, "a", head)
    assert [one["data"] for one in diff(reader, "a", 0)[1]["records"]] == [*range(120)]
    ready = reader.call("GET", "/v0/ready")[1]["standby"]
    assert (ready["state"], ready["owner"]) == ("following", f"http://127.0.0.1:{owner.port}")
    assert metric(reader, "standby_round") == ready["round"]

    for _ in range(10):
        head = append(writer, "a", "told")
        status, answer = reader.call("POST", "/v0/watch", {"topics": {"a": {"from_seq": head}}})
        assert (status, answer["topics"]["a"]["head_seq"]) == (200, head), "a session begins when the standby is there"

    found: list[Any] = []
    waiting = threading.Thread(target=lambda: found.append(diff(Client(standby.port), "a", head, 30_000)))
    waiting.start()
    append(writer, "a", "news")
    waiting.join(60)
    assert [one["data"] for one in found[0][1]["records"]] == ["news"]

    for path in ("consumers/billing", "groups/packers"):
        assert writer.call("PUT", f"/v0/topics/a/{path}", {})[0] == 201
    for kind in ("consumers", "groups"):
        until(partial(lists_one, reader, kind), f"the standby does not list {kind}")

    until(lambda: len(replicas(writer)) == 2, "the owner does not list its standby")
    own, other = replicas(writer)
    assert (own["role"], own["state"], own["is_this"]) == ("owner", "owns", True)
    assert (other["role"], other["url"], other["is_this"]) == ("standby", f"http://127.0.0.1:{standby.port}", False)
    until(lambda: len(replicas(reader)) == 2, "the standby does not list itself")
    assert [one["is_this"] for one in replicas(reader)] == [False, True]

    status, answer = diff(reader, "a", head + 50, 200)
    assert (status, answer["error"]["code"]) == (503, "behind")
    status, answer = diff(reader, "a", 0, 200, epoch=1 << 40)
    assert (status, answer["error"]["code"]) == (503, "behind")
    for method, path, body in [
        ("POST", "/v0/topics/a", {"records": [{"data": 1}]}),
        ("PUT", "/v0/topics/b", {}),
        ("POST", "/v0/topics/a/claim", {"node": "n"}),
        ("POST", "/v0/topics/a/delete", {"before_seq": 3}),
    ]:
        status, answer = reader.call(method, path, body)
        assert (status, answer["error"]["code"]) == (503, "not_owner")
        assert answer["error"]["detail"]["owner"] == f"http://127.0.0.1:{owner.port}"
    connection = http.client.HTTPConnection("127.0.0.1", standby.port, timeout=30)
    connection.request("GET", "/v0/topics/a/records?from_seq=0")
    lines = connection.getresponse()
    assert lines.headers["Topics-Role"] == "standby"
    assert len(lines.read().splitlines()) >= 121


def check_restarts(owner: Daemon, standby: Daemon) -> None:
    """The standby is killed while the owner goes on, with checkpoints, bases and deletions."""
    writer = Client(owner.port)
    head = 0
    for turn in range(4):
        head = append(writer, "c", *({"turn": turn, "i": i, "x": "x" * 300} for i in range(300)))
        assert writer.call("POST", "/v0/topics/c/delete", {"before_seq": head - 100})[0] == 200
        if turn % 2:
            standby.terminate()
        else:
            standby.kill()
        head = append(writer, "c", "while it is down")
        standby.start()
        follows(Client(standby.port), "c", head)
        mine, theirs = (diff(Client(one.port), "c", 0)[1] for one in (standby, owner))
        assert mine["records"] == theirs["records"]
        assert mine["earliest_seq"] == theirs["earliest_seq"]


@pytest.mark.slow
def test_a_standby_follows_over_a_directory(tmp_path: Path) -> None:
    (tmp_path / "bucket").mkdir()
    with pair(tmp_path, f"file://{tmp_path}/bucket", {}) as (owner, standby):
        until(lambda: Client(owner.port).call("GET", "/v0/ready")[1]["bucket"]["has_base"], "there is no base")
        standby.start()
        check(owner, standby)
        check_restarts(owner, standby)
        standby.terminate()
        assert "Traceback" not in (standby.root / "log").read_text()


@pytest.mark.slow
def test_a_standby_follows_over_s3_and_waits_for_the_first_base(tmp_path: Path) -> None:
    with moto_server() as server, pair(tmp_path, f"s3://{BUCKET}/pair", server.variables()) as (owner, standby):
        standby.start()
        check(owner, standby)
        standby.kill()
        standby.start()
        follows(Client(standby.port), "a", 121)


def test_a_standby_that_waits_for_its_bucket_is_stopped_by_sigterm_and_not_by_sighup(tmp_path: Path) -> None:
    """It has no daemon yet that would take signals."""
    bucket, log = tmp_path / "bucket", tmp_path / "log"
    bucket.mkdir()
    (bucket / "owner").write_text("damaged")
    settings = {
        "TOPICS_BUCKET": f"file://{bucket}",
        "TOPICS_ROLE": "standby",
        "TOPICS_DATA_DIR": str(tmp_path / "data"),
        "TOPICS_PORT": "0",
    }
    with log.open("ab") as file:
        process = start_daemon(dict(os.environ) | settings, file)

    def attempts() -> int:
        return log.read_text().count("standby_not_begun")

    try:
        until(lambda: attempts() > 0, "it waits for its bucket")
        said = attempts()
        process.send_signal(signal.SIGHUP)
        until(lambda: attempts() > said, "it goes on")
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    finally:
        process.kill()


TAKEOVER = {"TOPICS_ROLE": "standby", "TOPICS_BUCKET_TAKEOVER": "1", "TOPICS_BUCKET_LEASE_MS": "3000"}


def get(daemon: Daemon, path: str) -> str:
    """The body of an answer, once there is one."""
    found: list[str] = []

    def answered() -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", daemon.port, timeout=30)
        connection.request("GET", path)
        answer = connection.getresponse()
        found.append(answer.read().decode())
        return answer.status == 200

    until(answered, f"no answer to {path}")
    return found[-1]


def checkpoint(daemon: Daemon, topic: str, at_least: int = 0) -> TreeHead:
    """A checkpoint that covers so many records, verified."""
    key = VerifierKey.parse(get(daemon, "/v0/evidence/key"))
    path = f"/v0/topics/{topic}/evidence"
    until(lambda: SignedCheckpoint.parse(get(daemon, path)).checkpoint.size >= at_least, f"{topic} is not covered")
    return SignedCheckpoint.parse(get(daemon, path)).verify(key)


def check_grown(daemon: Daemon, topic: str, earlier: TreeHead) -> None:
    """A daemon proves that the log of an earlier checkpoint has only grown."""
    now = checkpoint(daemon, topic, earlier.size)
    assert now.origin == earlier.origin
    proof = json.loads(get(daemon, f"/v0/topics/{topic}/evidence/consistency?from={earlier.size}&to={now.size}"))
    check_consistency(earlier.size, earlier.root, now.size, now.root, list(map(b64decode, proof["hashes"])))


def role_of(daemon: Daemon) -> str:
    ready = Client(daemon.port).call("GET", "/v0/ready")
    return "none" if ready[0] != 200 else "standby" if "standby" in ready[1] else "owner"


def owns(daemon: Daemon) -> bool:
    return role_of(daemon) == "owner"


def check_set_aside(former: Daemon, carried: list[dict[str, Any]], turn: int) -> None:
    """What the former owner had acked is with the new one, or in the directory that was set aside."""
    command = CommandLine()
    aside = max((former.root / "data").glob("diverged-*"), key=lambda path: int(path.name.rpartition("-")[2]))
    assert f"topics inspect --diverged {aside}" in (former.root / "log").read_text()
    found = command.json("inspect", "--diverged", str(aside))
    assert (found["exact"], found["refused"], found["findings"]) == (True, None, [])
    records = {topic["name"]: topic["records"] for topic in found["topics"]}
    assert not records.get("r"), "a record was acked as remote, and not carried over"
    lines = command("inspect", "--diverged", str(aside), "--records", "--topic", "e").stdout.splitlines()
    assert len(lines) == records.get("e", 0)
    wanted = f"not in the bucket, perhaps: {turn}"
    left = [line["data"] for line in map(json.loads, lines)]
    assert [*left, *(record["data"] for record in carried)].count(wanted) == 1


@pytest.mark.slow
def test_a_standby_takes_over_and_the_former_owner_follows(tmp_path: Path) -> None:
    """Both have the same settings: the first one owns the bucket. Then the owner is killed, again and again."""
    (tmp_path / "bucket").mkdir()
    key = tmp_path / "evidence-key.pem"
    key.write_bytes(NoteSigner.generate().to_pem())
    with pair(tmp_path, f"file://{tmp_path}/bucket", {"TOPICS_EVIDENCE_KEY_FILE": str(key)}) as (one, other):
        one.end()
        for daemon in (one, other):
            daemon.settings.update(TAKEOVER)
            shutil.rmtree(daemon.root / "data", ignore_errors=True)
        shutil.rmtree(tmp_path / "bucket")
        (tmp_path / "bucket").mkdir()
        one.start()
        other.start()
        assert (role_of(one), role_of(other)) == ("owner", "standby")
        client = Client(one.port)
        for name, durability in (("r", "remote"), ("e", "fsync")):
            config = {"durability": durability, "evidence": True}
            assert client.call("PUT", f"/v0/topics/{name}", config)[0] in (200, 201)
        remote: list[Any] = []
        head = 0
        for turn in range(3):
            for i in range(20):
                head = append(client, "r", [turn, i])
                remote.append([turn, i])
            append(client, "d", *({"turn": turn, "i": i} for i in range(200)))
            follows(Client(other.port), "e", append(client, "e", *range(30)))
            heads = [checkpoint(one, "r", head), checkpoint(one, "e", 1)]
            for topic, earlier in zip("re", heads, strict=True):
                check_grown(other, topic, earlier)
            append(client, "e", f"not in the bucket, perhaps: {turn}")
            one.kill()
            until(partial(owns, other), "nobody takes over")
            for topic, earlier in zip("re", heads, strict=True):
                check_grown(other, topic, earlier)
            client = Client(other.port)
            records = diff(client, "r", 0)[1]["records"]
            assert [record["data"] for record in records] == remote
            assert len({record["$seq"] for record in records}) == len(records)
            one.start()
            assert role_of(one) == "standby"
            check_set_aside(one, diff(client, "e", 0)[1]["records"], turn)
            follows(Client(one.port), "r", head)
            one, other = other, one
