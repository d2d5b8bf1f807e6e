"""Raw bytes on the command line: out of a file, and into one."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.cli.command_line import environment
from tests.cli.here import Here
from tests.cli.terminal import Terminal
from tests.conformance.client import Client, Daemon, data_of
from tests.conformance.test_raw_bytes import PNG, bytes_of, in_json
from tests.processes.forked import PROGRAM

pytestmark = pytest.mark.slow

IMAGE = ("--content-type", "image/png")


@pytest.fixture
def here(daemon: Daemon, capsysbinary: pytest.CaptureFixture[bytes]) -> Here:
    return Here(daemon.url, capsysbinary)


def test_from_a_file_into_a_file(daemon: Daemon, client: Client, topic: str, tmp_path: Path) -> None:
    source, copy = tmp_path / "a.png", tmp_path / "b.png"
    source.write_bytes(PNG)
    variables = environment(TOPICS_URL=daemon.url)
    with source.open("rb") as file:
        subprocess.run([*PROGRAM, "append", topic, *IMAGE], stdin=file, env=variables, check=True, timeout=60)
    with copy.open("wb") as file:
        command = [*PROGRAM, "read", topic, "--seq", "1", "--bytes"]
        subprocess.run(command, stdout=file, env=variables, check=True, timeout=60)
    assert copy.read_bytes() == PNG
    assert bytes_of(client, topic, 1).content == PNG


def test_standard_input_is_one_record_with_all_that_is_said_of_it(here: Here, client: Client, topic: str) -> None:
    append = ("append", topic, *IMAGE, "--tag", "t", "--node", "n", "--meta", "name=a b", "--key", "k")
    conditions = ("--expected-head-seq", "0", "--expected-tag-seq", "t=0", "--fence", "f=1")
    done = here(*append, *conditions, input=PNG)
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr == f"topics: 1 record appended to '{topic}' (seq 1)\n"
    (record,) = client.read(topic, include_tags=True)["records"]
    assert (record["data"], record["$tag"], record["$node"]) == (in_json(PNG), "t", "n")
    assert record["meta"] == {"name": "a b"}
    assert "earlier append" in here(*append, *conditions, input=PNG).stderr
    assert here(*append[:-1], "other", *conditions, input=PNG).returncode == 5
    assert here.json("append", topic, *IMAGE, input=b"")["last_seq"] == 2
    assert data_of(client.read(topic, 1)) == [in_json(b"")]


def test_a_key_of_other_records_is_a_conflict(here: Here, client: Client, topic: str) -> None:
    client.append(topic, 1, 2, idempotency_key="k")
    done = here("append", topic, *IMAGE, "--key", "k", input=PNG)
    assert (done.returncode, "used for 2 records" in done.stderr) == (5, True)


@pytest.mark.parametrize(
    "arguments",
    [
        ("x",), ("--ndjson",), ("--records",), ("--csv",), ("--tag-field", "a", "--ndjson"), ("--linger", "1s"),
    ],
)  # fmt: skip
def test_what_is_for_lines_does_not_go_with_it(here: Here, topic: str, arguments: tuple[str, ...]) -> None:
    assert here("append", topic, *IMAGE, *arguments, input=PNG).returncode == 2


def test_a_type_that_is_none(here: Here, client: Client, topic: str) -> None:
    assert here("append", topic, "--content-type", "text/plain", input=b"x").returncode == 1
    assert here("append", topic, "--content-type", "application/json", input=b"{}").returncode == 2
    assert client.get(f"/v0/topics/{topic}").status_code == 404


def test_a_record_without_bytes(here: Here, client: Client, topic: str) -> None:
    client.append(topic, {"a": 1})
    done = here("read", topic, "--seq", "1", "--bytes")
    assert (done.returncode, done.stdout, "is JSON" in done.stderr) == (1, "", True)
    assert here("read", topic, "--seq", "2", "--bytes").returncode == 3
    for arguments in ((), ("--seq", "1", "--json"), ("--seq", "1", "--data-only"), ("--seq", "1", "--no-meta")):
        assert here("read", topic, "--bytes", *arguments).returncode == 2


def test_bytes_are_not_written_to_a_terminal(daemon: Daemon, client: Client, topic: str) -> None:
    client.append(topic, 1)
    command = [*PROGRAM, "read", topic, "--seq", "1", "--bytes"]
    with Terminal(command, environment(TOPICS_URL=daemon.url)) as terminal:
        assert terminal.process.wait(60) == 2
