"""`topics evidence`: checkpoints, proofs in files, and checking them without the daemon; `topics verify --against`."""

from __future__ import annotations

import json
import signal
from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest

from tests.cli.command_line import CommandLine
from tests.cli.here import Here
from tests.conformance.client import Client, Daemon, fresh_name, running
from topics.evidence.signed_note import NoteSigner

pytestmark = pytest.mark.slow


@pytest.fixture
def here(daemon: Daemon, capsysbinary: pytest.CaptureFixture[bytes]) -> Here:
    return Here(daemon.url, capsysbinary)


@pytest.fixture
def topic(client: Client) -> str:
    """A topic with three records."""
    name = fresh_name()
    client.put_topic(name, durability="fsync", evidence=True)
    client.append(name, records=[{"data": {"b": 1, "a": "ä"}, "tag": "t", "node": "n", "meta": {"k": "v"}}])
    client.append(name, 2, 3)
    return name


def kept(path: Path, here: Here, *arguments: str) -> Path:
    """A file with what a command prints."""
    done = here(*arguments)
    assert (done.returncode, done.stderr) == (0, "")
    path.write_text(done.stdout)
    return path


def key_of(here: Here) -> str:
    return here("evidence", "key").stdout.strip()


def test_a_record_is_proved_to_somebody_who_has_the_key_alone(here: Here, topic: str, tmp_path: Path) -> None:
    key, alone = key_of(here), CommandLine(TOPICS_URL="http://127.0.0.1:9")
    for seq in ("1", "2", "3"):
        proof = kept(tmp_path / seq, here, "evidence", "prove", topic, seq)
        done = alone("evidence", "check", str(proof), "--key", key)
        assert done.returncode == 0, done.stderr
        assert f"the record with seq {seq} is among them" in done.stdout
    proven = json.loads((tmp_path / "1").read_text())["record"]
    assert proven == {
        "seq": 1,
        "ts": proven["ts"],
        "node": "n",
        "tag": "t",
        "meta": '{"k":"v"}',
        "data": '{"b":1,"a":"ä"}',
    }


def test_a_topic_is_shown_to_have_only_grown(here: Here, client: Client, topic: str, tmp_path: Path) -> None:
    key = key_of(here)
    first = kept(tmp_path / "first", here, "evidence", "checkpoint", topic)
    client.append(topic, 4)
    proof = kept(tmp_path / "proof", here, "evidence", "prove", topic, "4", "--earlier", str(first))
    done = here("evidence", "check", str(first), str(proof), "--key", key, "--json")
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert (done.returncode, [one["size"] for one in found], found[1]["earlier_size"]) == (0, [3, 4], 3)
    assert found[1]["record"]["data"] == "4"
    again = kept(tmp_path / "again", here, "evidence", "prove", topic, "--earlier", str(proof))
    assert here("evidence", "check", str(again), "--key", key).returncode == 0
    fresh = kept(tmp_path / "fresh", here, "evidence", "prove", topic, "--earlier", str(again))
    assert "first 4 of them" in here("evidence", "check", str(fresh), "--key", key).stdout


def changed(proof: dict[str, Any], where: str) -> dict[str, Any]:
    """A proof with one thing changed."""
    copy = json.loads(json.dumps(proof))
    record, path = copy["record"], copy["inclusion"]
    if where in record:
        record[where] = record[where] + 1 if isinstance(record[where], int) else f"{record[where]} "
    elif where == "index":
        path["index"] += 1
    elif where == "hashes":
        path["hashes"] = path["hashes"][:-1]
    elif where == "checkpoint":
        copy["checkpoint"] = copy["checkpoint"].replace("\n3\n", "\n4\n")
    elif where == "earlier":
        copy["earlier"], copy["consistency"] = copy["checkpoint"], {"hashes": path["hashes"][:1]}
    return dict(copy)


def test_a_proof_of_which_anything_was_changed_is_none(here: Here, topic: str, tmp_path: Path) -> None:
    key = key_of(here)
    proof = json.loads(kept(tmp_path / "proof", here, "evidence", "prove", topic, "1").read_text())
    forged = tmp_path / "forged"
    for where in ("seq", "ts", "node", "tag", "meta", "data", "index", "hashes", "checkpoint", "earlier"):
        forged.write_text(json.dumps(changed(proof, where)))
        done = here("evidence", "check", str(forged), "--key", key)
        assert (done.returncode, done.stdout) == (1, ""), where
        assert "forged" in done.stderr
    for text in ("", "{}", "[1]", "{" * 2000, '{"topics_evidence":1,"checkpoint":""}', "a\n\nb\n"):
        forged.write_text(text)
        assert here("evidence", "check", str(forged), "--key", key).returncode == 1, text
    forged.write_bytes(b"\xff\xfe")
    assert here("evidence", "check", str(forged), "--key", key).returncode == 1
    other = str(NoteSigner.generate().verifier)
    refused = here("evidence", "check", str(tmp_path / "proof"), "--key", other)
    assert (refused.returncode, "not signed by the key" in refused.stderr) == (1, True)
    assert here("evidence", "check", str(tmp_path / "proof"), "--key", key[:-2]).returncode == 2


def test_what_cannot_be_proved_is_said(here: Here, client: Client, topic: str, tmp_path: Path) -> None:
    assert here("evidence", "prove", topic).returncode == 2
    assert here("evidence", "prove", topic, "9").returncode == 3
    client.append("plain", 1)
    assert (done := here("evidence", "checkpoint", "plain")).returncode == 5, done.stderr
    assert "evidence: true" in done.stderr
    other = fresh_name()
    assert here("create", other, "--durability", "fsync", "--evidence").returncode == 0
    assert here("evidence", "prove", other, "1").returncode == 3
    of_other = kept(tmp_path / "other", here, "evidence", "checkpoint", other)
    assert (done := here("evidence", "prove", topic, "--earlier", str(of_other))).returncode == 1
    assert "of another log" in done.stderr
    assert "deleted and made again" in done.stderr
    assert here("config", topic, "--no-evidence").returncode != 0


def test_a_directory_is_compared_with_kept_checkpoints(
    tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    with running(tmp_path, segment_max_events=5) as client:
        here = Here(client.daemon.url, capsysbinary)
        client.put_topic("t", durability="fsync", evidence=True)
        files = []
        for i in range(4):
            client.append("t", *range(4))
            client.post("/v0/admin/checkpoint")
            files.append(kept(tmp_path / f"kept-{i}", here, "evidence", "checkpoint", "t"))
        files.append(kept(tmp_path / "proof", here, "evidence", "prove", "t", "7"))
        client.daemon.end(signal.SIGTERM)
        directory, verify = str(tmp_path / "data"), CommandLine()
        against = [argument for path in files for argument in ("--against", str(path))]
        assert (done := verify("verify", directory, *against)).returncode == 0, done.stdout
        assert "0 damages, 0 notes" in done.stdout
        text = files[-2].read_text()
        root = text.splitlines()[2]
        (tmp_path / "wrong").write_text(text.replace(root, b64encode(bytes(32)).decode()))
        done = verify("verify", directory, "--against", str(tmp_path / "wrong"))
        assert (done.returncode, "another root than the checkpoint" in done.stdout) == (1, True), done.stdout
        (tmp_path / "later").write_text(text.replace("\n16\n", "\n17\n"))
        done = verify("verify", directory, "--against", str(tmp_path / "later"))
        assert (done.returncode, "17 leaves" in done.stdout) == (1, True)
        (tmp_path / "elsewhere").write_text(text.replace("/t/", "/u/"))
        done = verify("verify", directory, "--against", str(tmp_path / "elsewhere"))
        assert (done.returncode, "no topic 'u'" in done.stdout) == (1, True)
        assert verify("verify", directory, "--against", str(tmp_path / "log")).returncode == 2
        client.daemon.start().close()
