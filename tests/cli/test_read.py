"""`topics read` and `topics delete`: what is in a topic, byte for byte for programs, harmless for people."""

from __future__ import annotations

import json
import signal
import subprocess
from typing import Any

import pytest

from tests.cli.command_line import CommandLine
from tests.cli.here import Here
from tests.cli.terminal import Terminal
from tests.conformance.client import Client, Daemon, data_of
from tests.processes.forked import PROGRAM

pytestmark = pytest.mark.slow


@pytest.fixture
def here(daemon: Daemon, capsysbinary: pytest.CaptureFixture[bytes]) -> Here:
    return Here(daemon.url, capsysbinary)


def lines_of(done: subprocess.CompletedProcess[str]) -> list[Any]:
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def seqs_of(done: subprocess.CompletedProcess[str]) -> list[int]:
    return [line["$seq"] for line in lines_of(done)]


# ----------------------------------------------------------------- programs


def test_into_a_pipe_each_record_is_a_line_with_its_data_byte_for_byte(
    topics: CommandLine, here: Here, client: Client, topic: str
) -> None:
    datas = [b'{"a":  1.50}', b'"\xc2\x9b\xe2\x80\xa8 \\u0000"', b"[1e999]", b"null"]
    for data in datas:
        client.append_raw(topic, data)
    client.append(topic, records=[{"data": 5, "tag": "t", "node": "n", "meta": {"k": "v"}}])
    done = topics("read", topic)
    assert [line.partition(',"data":')[2] for line in done.stdout.split("\n")[:4]] == [
        data.decode() + "}" for data in datas
    ]
    whole = json.loads(done.stdout.split("\n")[4])
    assert 1_000_000_000_000 < whole.pop("$ts") < 10_000_000_000_000
    assert whole == {"$seq": 5, "$tag": "t", "$node": "n", "data": 5, "meta": {"k": "v"}}
    assert here("read", topic, "--data-only", "--to-seq", "4").stdout.encode() == b"".join(d + b"\n" for d in datas)
    assert "meta" not in here("read", topic, "--no-meta").stdout


def test_a_part_of_a_topic(here: Here, client: Client, topic: str) -> None:
    client.append(topic, *range(1, 2501))
    assert seqs_of(here("read", topic)) == list(range(1, 2501))
    assert seqs_of(here("read", topic, "--from-seq", "1200", "--to-seq", "1203")) == [1201, 1202, 1203]
    assert seqs_of(here("read", topic, "--last", "3")) == [2498, 2499, 2500]
    assert seqs_of(here("read", topic, "--from-seq", "7", "--limit", "2")) == [8, 9]
    assert here("read", topic, "--from-seq", "2500").stdout == ""


def test_one_record(here: Here, client: Client, topic: str) -> None:
    client.append(topic, records=[{"data": 1}, {"data": 2, "tag": "t", "meta": {"k": "v"}}])
    [record] = lines_of(here("read", topic, "--seq", "2"))
    assert (record["$seq"], record["$tag"], record["meta"]) == (2, "t", {"k": "v"})
    assert "meta" not in here("read", topic, "--seq", "2", "--no-meta").stdout
    assert here("read", topic, "--seq", "1", "--data-only").stdout == "1\n"
    missing = here("read", topic, "--seq", "3")
    assert missing.returncode != 0
    assert "not_yet" in missing.stderr
    for others in (["--limit", "1"], ["--tag", "t"], ["--filter", 'tag = "t"'], ["--node", "n"]):
        assert here("read", topic, "--seq", "1", *others).returncode == 2


def test_the_last_of_those_that_are_selected(here: Here, client: Client, topic: str) -> None:
    client.tagged(topic, "a:1", *["b"] * 100, "a:2", *["b"] * 10, "a:3", None)
    assert seqs_of(here("read", topic, "--tag", "a:2")) == [102]
    assert seqs_of(here("read", topic, "--tag-prefix", "a:", "--last", "2")) == [102, 113]
    assert seqs_of(here("read", topic, "--tag-prefix", "a:", "--last", "9")) == [1, 102, 113]
    client.delete_records(topic, match=["tag", "Eq", "b"])
    assert seqs_of(here("read", topic, "--last", "3")) == [102, 113, 114]
    client.append(topic, records=[{"data": 1, "node": "me"}, {"data": 2}])
    assert seqs_of(here("read", topic, "--node", "me", "--last", "2")) == [114, 116]


def test_a_gap_has_a_line_of_its_own(here: Here, client: Client, topic: str) -> None:
    client.put_topic(topic, cap_records=2)
    client.append(topic, 1, 2, 3, 4)
    first, *rest = lines_of(here("read", topic))
    assert {name: first["$tombstone"][name] for name in ("gap_from", "gap_to", "reason")} == {
        "gap_from": 1,
        "gap_to": 2,
        "reason": "cap",
    }
    assert [line["data"] for line in rest] == [3, 4]
    alone = here("read", topic, "--data-only")
    assert (alone.stdout, alone.stderr) == ("3\n4\n", "topics: records 1 to 2 are gone (cap)\n")


def test_failures_have_their_codes(here: Here, topic: str) -> None:
    missing = here("read", topic)
    assert (missing.returncode, missing.stdout) == (3, "")
    assert missing.stderr == f"topics: topic '{topic}' does not exist\n"
    assert here("read", topic, "--last", "1", "--from-seq", "2").returncode == 2


def test_a_reader_that_has_seen_enough_ends_it(topics: CommandLine, client: Client, topic: str) -> None:
    client.append(topic, *["x" * 1000] * 2000)
    process = topics.start("read", topic)
    assert process.stdout is not None
    assert process.stdout.readline().startswith(b'{"$seq":1,')
    process.stdout.close()
    assert process.wait(30) == 141
    assert process.stderr is not None
    assert process.stderr.read() == b""


def test_ctrl_c_ends_it_with_130(topics: CommandLine, client: Client, topic: str) -> None:
    client.append(topic, *["x" * 1000] * 2000)
    process = topics.start("read", topic)
    assert process.stdout is not None
    process.stdout.readline()
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert (process.returncode, errors) == (130, b"")


# ----------------------------------------------------------------- people


def test_on_a_terminal_a_record_is_a_line_that_does_nothing_to_it(
    topics: CommandLine, client: Client, topic: str
) -> None:
    client.put_topic(topic, cap_records=2)
    hostile = "\x1b[2J\x9b31m\x7f"
    client.append(topic, 0, 1, {})
    client.append_raw(topic, '"\x9b5m"'.encode())
    with Terminal([*PROGRAM, "read", topic], topics.environ) as terminal:
        assert terminal.wait() == 0
        gap, one, two = terminal.text.splitlines()
        assert gap == "--- records 1 to 2 are gone (cap)"
        assert one.split() == ["3", *one.split()[1:3], "-", "-", "{}"]
        assert two.endswith('"\\u009b5m"')
        assert "\x1b[33m--- records" in terminal.raw
    with Terminal([*PROGRAM, "read", topic, "--from-seq", "3", "--json"], topics.environ) as terminal:
        assert terminal.wait() == 0
        assert json.loads(terminal.text)["data"] == "\x9b5m"
        assert "\x9b" not in terminal.raw
    client.append(topic, records=[{"data": hostile, "tag": hostile, "node": hostile}])
    with Terminal([*PROGRAM, "read", topic, "--last", "1"], topics.environ | {"NO_COLOR": "1"}) as terminal:
        assert terminal.wait() == 0
        assert not set(terminal.raw) & {"\x1b", "\x9b", "\x7f"}
        assert "\\x1b[2J\\x9b31m\\x7f" in terminal.raw


# ----------------------------------------------------------------- delete


def test_records_are_deleted_by_seq_and_by_tag(here: Here, client: Client, topic: str) -> None:
    client.tagged(topic, "a:1", "b", "a:2", "a:1", "a:*", None)
    done = here("delete", topic, "--tag", "a:1", "--before-seq", "4")
    assert (done.returncode, done.stdout) == (0, f"1 record of '{topic}' deleted, 5 left\n")
    assert here.json("delete", topic, "--tag-prefix", "a:")["deleted"] == 3
    assert data_of(client.read(topic)) == ["b", None]
    assert here("delete", topic, "--before-seq", "3").stdout == f"1 record of '{topic}' deleted, 1 left\n"


def test_the_end_of_a_topic_and_what_is_older_than_a_time_are_deleted(here: Here, client: Client, topic: str) -> None:
    client.append(topic, 1, 2, 3, 4)
    assert here.json("delete", topic, "--after-seq", "3")["deleted"] == 1
    assert here.json("delete", topic, "--before-time", "2001-02-03T04:05", "--before-seq", "9")["deleted"] == 0
    assert here.json("delete", topic, "--before-time", "9999999999999", "--after-seq", "2")["deleted"] == 1
    assert here.json("delete", topic, "--before-time", "2100-01-01")["deleted"] == 2
    assert here("delete", topic, "--before-time", "yesterday").returncode == 2


def test_what_is_to_be_deleted_has_to_be_said(here: Here, topic: str) -> None:
    assert here("delete", topic).returncode == 2
    assert here("delete", topic, "--tag", "x").returncode == 3


def test_on_a_terminal_it_asks_first(topics: CommandLine, client: Client, topic: str) -> None:
    client.tagged(topic, "a", "b")
    with Terminal([*PROGRAM, "delete", topic, "--tag", "a"], topics.environ) as terminal:
        terminal.until(f"Delete the records of '{topic}' with the tag 'a'?")
        terminal.press("n\n")
        assert terminal.wait() == 1
    assert data_of(client.read(topic)) == ["a", "b"]
    with Terminal([*PROGRAM, "delete", topic, "--tag", "a", "--yes"], topics.environ) as terminal:
        assert terminal.wait() == 0
    assert data_of(client.read(topic)) == ["b"]
