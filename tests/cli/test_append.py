"""`topics append`, through pipes and on a terminal, against a daemon that may be killed meanwhile."""

from __future__ import annotations

import fcntl
import json
import re
import signal
import struct
import subprocess
import termios
import threading
import time
from pathlib import Path
from typing import IO, Any

import pytest

from tests.cli.command_line import CommandLine
from tests.cli.here import Here
from tests.cli.terminal import Terminal
from tests.client.ports import free_port
from tests.conformance.client import Client, Daemon, data_of, fresh_name, until
from tests.processes.forked import PROGRAM
from topics.cli.app import run

pytestmark = pytest.mark.slow


@pytest.fixture
def here(daemon: Daemon, capsysbinary: pytest.CaptureFixture[bytes]) -> Here:
    return Here(daemon.url, capsysbinary)


def records_of(client: Client, topic: str) -> list[Any]:
    """Everything in a topic, without seqs and times; they are contiguous from 1."""
    records: list[Any] = []
    while not (page := client.read(topic, len(records), limit=1000, include_tags=True))["caught_up"]:
        records += page["records"]
    records += page["records"]
    assert [record.pop("$seq") for record in records] == list(range(1, len(records) + 1))
    for record in records:
        del record["$ts"]
    return records


def head(client: Client, topic: str) -> int:
    answer = client.get(f"/v0/topics/{topic}")
    return int(answer.json()["head_seq"]) if answer.status_code == 200 else 0


def until_head(client: Client, topic: str, seq: int) -> None:
    """Wait until as much is appended. Asks seldom: the daemon has other work to do."""
    deadline = time.monotonic() + 120
    while head(client, topic) < seq:
        assert time.monotonic() < deadline, head(client, topic)
        time.sleep(0.1)


def drained(stream: IO[bytes] | None) -> list[bytes]:
    """A list that gets the lines of a stream, in a thread."""
    assert stream is not None
    lines: list[bytes] = []
    threading.Thread(target=lambda: lines.extend(iter(stream.readline, b"")), daemon=True).start()
    return lines


# ----------------------------------------------------------------- arguments


def test_arguments_become_one_append(here: Here, client: Client, topic: str) -> None:
    done = here("append", topic, "hello", "", '{"not": "json"}', "--tag", "t", "--node", "n", "--meta", "k=v=w")
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr == f"topics: 3 records appended to '{topic}' (seqs 1 to 3)\n"
    same = {"$tag": "t", "$node": "n", "meta": {"k": "v=w"}}
    assert records_of(client, topic) == [{"data": text, **same} for text in ("hello", "", '{"not": "json"}')]


def test_json_arguments_keep_their_bytes_and_name_their_tag(here: Here, client: Client, topic: str) -> None:
    assert here.json("append", topic, "--ndjson", '{"id":  1.50}', "--tag-field", "id") == {
        "topic": topic,
        "first_seq": 1,
        "last_seq": 1,
        "count": 1,
        "repeated": 0,
    }
    assert '"$tag":"1.50"' in client.get(f"/v0/topics/{topic}/diff?include_tags=1").text
    assert '{"id":  1.50}' in client.get(f"/v0/topics/{topic}/diff").text


def test_arguments_under_a_key_are_appended_once(here: Here, topic: str) -> None:
    assert here("append", topic, "a", "b", "--key", "k").returncode == 0
    again = here.json("append", topic, "a", "b", "--key", "k")
    assert again == {"topic": topic, "first_seq": 1, "last_seq": 2, "count": 2, "repeated": 2}


def test_other_arguments_under_a_key_that_was_used_are_no_success(here: Here, client: Client, topic: str) -> None:
    """They were taken for a repeat of what stood under the key, and the second record was lost without a word."""
    assert here("append", topic, "a", "--key", "k").returncode == 0
    done = here("append", topic, "a", "b", "--key", "k")
    assert done.returncode == 5
    assert "nothing was appended: the key 'k' was used for 1 records before, and these are 2" in done.stderr
    assert head(client, topic) == 1


@pytest.mark.parametrize("unknown", ['{"data": 1, "tagg": "x"}', '{"data": 1, "$nodes": "x"}'])
def test_a_misspelt_field_of_a_whole_record_is_refused(here: Here, client: Client, topic: str, unknown: str) -> None:
    done = here("append", topic, "--records", input=f'{{"data": 0, "tag": "t", "$seq": 7, "topic": "a"}}\n{unknown}\n')
    assert done.returncode == 1
    assert "line 2 is no record" in done.stderr
    assert "unknown field" in done.stderr
    assert data_of(client.read(topic)) == [0]


@pytest.mark.parametrize(
    "arguments",
    [
        ("--ndjson", "1", "{"),
        ("--csv", "a"),
        ("--tag-field", "a", "x"),
        ("--meta", "k", "x"),
        ("--key", "", "x"),
        ("--key", "k", "--linger", "5"),
        ("a", "--key", "k", "b", "--key", "l"),
        ("a", "--key", "--tag", "b"),
        ("--token-file", "-"),
    ],
)
def test_a_command_line_that_makes_no_sense_is_refused_before_anything_is_sent(
    arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["append", "t", "--url", "http://127.0.0.1:1", *arguments]) == 2
    output, errors = capsys.readouterr()
    assert output == ""
    assert errors.startswith("topics: ")


def test_a_topic_that_is_missing_is_created_unless_that_is_not_wanted(here: Here, topic: str) -> None:
    for given in (("x",), (), ("--key", "k")):
        done = here("append", topic, "--no-create", *given, input="a line\n")
        assert done.returncode == 3
        assert f"topic '{topic}' does not exist" in done.stderr


# ----------------------------------------------------------------- standard input


def test_each_line_is_a_string_and_a_last_one_without_an_end_counts(here: Here, client: Client, topic: str) -> None:
    done = here("append", topic, "--json", input=b"one\r\n\ntw\xc3\xb6\n\x1b[1mthree")
    assert json.loads(done.stdout) == {"topic": topic, "first_seq": 1, "last_seq": 4, "count": 4, "repeated": 0}
    assert data_of(client.read(topic)) == ["one", "", "twö", "\x1b[1mthree"]
    nothing = here.json("append", topic)
    assert nothing == {"topic": topic, "first_seq": None, "last_seq": None, "count": 0, "repeated": 0}


def test_what_was_read_can_be_appended(here: Here, client: Client, topic: str) -> None:
    client.put_topic(topic, cap_records=2)
    client.append(topic, records=[{"data": 0}, {"data": 1, "tag": "t"}, {"data": 2, "node": "n"}])
    printed = here("read", topic).stdout
    assert "$tombstone" in printed
    copy = fresh_name()
    assert here("append", copy, "--records", input=printed).returncode == 0
    assert records_of(client, copy) == [{"data": 1, "$tag": "t"}, {"data": 2, "$node": "n"}]


def test_rows_of_csv_become_objects(here: Here, client: Client, topic: str) -> None:
    done = here(
        "append", topic, "--csv", "--delimiter", "tab", "--tag-field", "city", input='id\tcity\n1\tBern\n2\t"a\nb"\n'
    )
    assert done.returncode == 0, done.stderr
    assert [(record["data"], record["$tag"]) for record in records_of(client, topic)] == [
        ({"id": "1", "city": "Bern"}, "Bern"),
        ({"id": "2", "city": "a\nb"}, "a\nb"),
    ]


def test_a_line_that_is_no_json_ends_the_input_and_those_before_it_are_appended(
    here: Here, client: Client, topic: str
) -> None:
    done = here("append", topic, "--ndjson", "--batch", "2", input="1\n\n2\n3\n{\n4\n")
    assert done.returncode == 1
    assert f"topics: 3 records appended to '{topic}' (seqs 1 to 3)\n" in done.stderr
    assert "topics: line 5 is not JSON: " in done.stderr
    assert data_of(client.read(topic)) == [1, 2, 3]


def test_lines_are_sent_without_waiting_for_more(topics: CommandLine, client: Client, topic: str) -> None:
    process = topics.start("append", topic, "--linger", "10ms")
    try:
        assert process.stdin is not None
        for n, piece in enumerate([b"first\nunfin", b"ished\n", b"third\n"], 1):
            process.stdin.write(piece)
            process.stdin.flush()
            until_head(client, topic, n)
        assert data_of(client.read(topic)) == ["first", "unfinished", "third"]
    finally:
        _, errors = process.communicate(timeout=30)
    assert process.returncode == 0
    assert b"3 records" in errors


def test_a_refused_record_is_named_by_its_line_and_nothing_after_it_is_appended(
    here: Here, client: Client, topic: str
) -> None:
    lines = ["1"] * 550 + ["[" * 600 + "]" * 600] + ["2"] * 20_000
    done = here("append", topic, "--ndjson", "--batch", "100", input="\n".join(lines))
    assert done.returncode == 1
    assert "lines 501 to 600 are not appended, and nothing after: line 551: records[50].data: " in done.stderr
    assert f"500 records appended to '{topic}' (seqs 1 to 500)" in done.stderr
    assert head(client, topic) == 500


def test_a_topic_that_is_full_ends_the_command_while_the_input_goes_on(
    topics: CommandLine, client: Client, topic: str
) -> None:
    client.put_topic(topic, cap_records=2, discard="reject")
    process = topics.start("append", topic, "--batch", "1")
    assert process.stdin is not None
    process.stdin.write(b"a\nb\nc\nd\n")
    process.stdin.flush()
    assert process.wait(30) == 5
    _, errors = process.communicate(timeout=30)
    assert b"line 3 is not appended, and nothing after: " in errors
    assert data_of(client.read(topic)) == ["a", "b"]


# ----------------------------------------------------------------- with a key


def test_an_upload_that_is_repeated_under_its_key_happens_once(here: Here, client: Client, topic: str) -> None:
    lines = [f"{n}\n" for n in range(25)]
    assert here("append", topic, "--key", "up", "--batch", "10", input="".join(lines[:20])).returncode == 0
    assert head(client, topic) == 20
    done = here("append", topic, "--key", "up", "--batch", "10", "--json", input="".join(lines))
    assert json.loads(done.stdout) == {"topic": topic, "first_seq": 1, "last_seq": 25, "count": 25, "repeated": 20}
    assert data_of(client.read(topic)) == [str(n) for n in range(25)]
    other = here("append", topic, "--key", "up", "--batch", "10", input="".join(lines) + "more\n")
    assert other.returncode == 5
    assert "not the same input" in other.stderr
    assert head(client, topic) == 25


def test_a_batch_that_is_not_whole_is_left_for_the_repeat(here: Here, client: Client, topic: str) -> None:
    done = here("append", topic, "--key", "k", "--batch", "2", "--ndjson", input="1\n2\n3\n?\n")
    assert done.returncode == 1
    assert "line 3 is not sent" in done.stderr
    assert "line 4 is not JSON" in done.stderr
    mended = here("append", topic, "--key", "k", "--batch", "2", "--ndjson", input="1\n2\n3\n4\n")
    assert mended.returncode == 0
    assert data_of(client.read(topic)) == [1, 2, 3, 4]


# ----------------------------------------------------------------- interruptions


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interruption_sends_what_was_read(
    topics: CommandLine, client: Client, topic: str, number: signal.Signals, code: int
) -> None:
    process = topics.start("append", topic, "--json", "--linger", "60s")
    assert process.stdin is not None
    process.stdin.write(b"first\nsecond\nunfin")
    process.stdin.flush()
    # What was read is gone from the pipe, and what waits for its linger is not in the topic.
    until(lambda: pending(process.stdin) == 0, within_s=30)
    process.send_signal(number)
    output, errors = process.communicate(timeout=30)
    assert process.returncode == code, errors
    assert json.loads(output)["count"] == 2
    assert data_of(client.read(topic)) == ["first", "second"]


def test_a_second_interruption_does_not_wait_for_the_daemon(
    topics: CommandLine, daemon: Daemon, client: Client, topic: str
) -> None:
    with topics.start("append", topic, "--linger", "1ms") as process:
        assert process.stdin is not None
        assert process.stderr is not None
        process.stdin.write(b"one\n")
        process.stdin.flush()
        until_head(client, topic, 1)
        daemon.send_signal(signal.SIGSTOP)
        try:
            process.stdin.write(b"two\n")
            process.stdin.flush()
            until(lambda: pending(process.stdin) == 0, within_s=30)
            process.send_signal(signal.SIGINT)
            assert (
                process.stderr.readline()
                == b"topics: still waiting for the daemon to take what was read (1 to go); Ctrl-C gives up\n"
            )
            process.send_signal(signal.SIGINT)
            assert process.wait(30) == 130
        finally:
            daemon.send_signal(signal.SIGCONT)
            process.kill()
        errors = process.stderr.read().decode()
    assert "line 2 is not known to be appended" in errors
    assert f"1 record appended to '{topic}' (seq 1)" in errors


def pending(stream: IO[bytes] | None) -> int:
    """Bytes that wait in a pipe."""
    assert stream is not None
    count: int = struct.unpack("i", fcntl.ioctl(stream.fileno(), termios.FIONREAD, b"\0\0\0\0"))[0]
    return count


@pytest.mark.parametrize("given", [(), ("x",), ("--key", "k")])
def test_a_daemon_that_is_not_there_is_tried_for_as_long_as_was_said(given: tuple[str, ...]) -> None:
    nowhere = CommandLine(TOPICS_URL=f"http://127.0.0.1:{free_port()}")
    process = nowhere.start("append", "t", *given, "--give-up-after", "300ms")
    code = process.wait(30)
    _, errors = process.communicate(timeout=30)
    assert code == 6
    assert (b"; trying for 0.3 s\n" in errors) == (given != ("x",))
    assert b"Traceback" not in errors


def test_arguments_are_tried_once_unless_something_else_is_said() -> None:
    nowhere = CommandLine(TOPICS_URL=f"http://127.0.0.1:{free_port()}")
    done = nowhere("append", "t", "x")
    assert done.returncode == 6
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("given", [(), ("x", "--give-up-after", "60s")])
def test_what_begins_before_the_daemon_does_is_appended_when_it_comes(
    topics: CommandLine, daemon: Daemon, client: Client, topic: str, given: tuple[str, ...]
) -> None:
    """As a shipper of logs does after the machine has been started."""
    daemon.end(signal.SIGKILL)
    with topics.start("append", topic, *given) as process:
        try:
            assert process.stdin is not None
            assert process.stderr is not None
            process.stdin.write(b"" if given else b"x\n")
            process.stdin.close()
            said = b"" if given else process.stderr.readline()
        finally:
            daemon.start().close()
        assert given or b"; trying for 60 s" in said
        assert process.wait(60) == 0
    assert data_of(client.read(topic)) == ["x"]


def test_a_daemon_that_is_killed_and_started_again_gets_each_line_once_in_order(
    topics: CommandLine, daemon: Daemon, client: Client, topic: str
) -> None:
    process = topics.start("append", topic, "--linger", "1ms", "--batch", "50")
    errors = drained(process.stderr)
    assert process.stdin is not None
    lines = 0
    for life in range(3):
        if life:
            daemon.end(signal.SIGKILL)
        for _ in range(2000):
            process.stdin.write(b"%d\n" % lines)
            lines += 1
        process.stdin.flush()
        if life:
            daemon.start().close()
        until_head(client, topic, 2000 * life + 100)
    process.stdin.close()
    assert process.wait(60) == 0, errors
    assert [record["data"] for record in records_of(client, topic)] == [str(n) for n in range(lines)]


# ----------------------------------------------------------------- much


def test_memory_does_not_follow_the_length_of_the_input(topics: CommandLine, client: Client, topic: str) -> None:
    """80,000 lines, of which the first half has shown how much memory it takes."""
    process = topics.start("append", topic, "--json")
    assert process.stdin is not None
    half = b"".join(b"%0499d\n" % n for n in range(40_000))
    process.stdin.write(half)
    process.stdin.flush()
    until_head(client, topic, 40_000)
    before = peak_kb(process)
    process.stdin.write(half)
    process.stdin.flush()
    until_head(client, topic, 80_000)
    grown = peak_kb(process) - before
    output, _ = process.communicate(timeout=120)
    assert json.loads(output) == {
        "topic": topic,
        "first_seq": 1,
        "last_seq": 80_000,
        "count": 80_000,
        "repeated": 0,
    }
    assert grown < 15_000, "kB more for 20 MB more"
    assert data_of(client.read(topic, 39_998, limit=4)) == [f"{n:0499}" for n in (39_998, 39_999, 0, 1)]


def peak_kb(process: subprocess.Popen[bytes]) -> int:
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{process.pid}/status").read_text())
    assert found is not None
    return int(found[1])


# ----------------------------------------------------------------- on a terminal


def test_what_is_typed_is_appended_line_by_line(topics: CommandLine, client: Client, topic: str) -> None:
    with Terminal([*PROGRAM, "append", topic], topics.environ) as terminal:
        terminal.press("hello\n")
        until_head(client, topic, 1)
        terminal.press("world\n\x04")
        assert terminal.wait() == 0
        assert "2 records appended" in terminal.text
        assert "━" not in terminal.text, "a bar has no place where somebody types"
    assert data_of(client.read(topic)) == ["hello", "world"]


def test_ctrl_c_on_a_terminal_tells_what_was_appended(topics: CommandLine, client: Client, topic: str) -> None:
    with Terminal([*PROGRAM, "append", topic], topics.environ) as terminal:
        terminal.press("hello\n")
        until_head(client, topic, 1)
        terminal.press("\x03")
        assert terminal.wait() == 130
        assert f"1 record appended to '{topic}' (seq 1)" in terminal.text
        assert "Traceback" not in terminal.text


def test_a_bar_shows_how_far_a_file_has_come_and_goes_away(topics: CommandLine, topic: str, tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_bytes((b"x" * 99 + b"\n") * 30_000)
    with path.open("rb") as file, Terminal([*PROGRAM, "append", topic], topics.environ, stdin=file) as terminal:
        assert terminal.wait() == 0
        assert "30,000 records appended" in terminal.text
        assert "/3.0 MB" in terminal.text
        assert terminal.echoes()


def test_on_a_terminal_nothing_from_the_input_acts_on_it(topics: CommandLine) -> None:
    with Terminal([*PROGRAM, "append", "\x1b[2Jname", "x"], topics.environ) as terminal:
        assert terminal.wait() == 1
        assert "\x1b[2J" not in terminal.raw
