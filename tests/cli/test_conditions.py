"""Appends under conditions, and fences, on the command line."""

from __future__ import annotations

import pytest

from tests.cli.here import Here
from tests.conformance.client import Client, Daemon, data_of, fresh_name

pytestmark = pytest.mark.slow


@pytest.fixture
def here(daemon: Daemon, capsysbinary: pytest.CaptureFixture[bytes]) -> Here:
    return Here(daemon.url, capsysbinary)


def test_conditions_of_an_append(here: Here, client: Client) -> None:
    name = fresh_name()
    append = ("append", name, "--tag", "t")
    assert here(*append, "a", "--expected-head-seq", "0", "--expected-tag-seq", "t=0").returncode == 0
    refused = here(*append, "b", "--expected-head-seq", "0")
    assert (refused.returncode, "expected_head_seq" in refused.stderr) == (5, True)
    assert here(*append, "b", "--expected-tag-seq", "u=0", "--expected-tag-seq", "t=0").returncode == 5
    assert here(*append, "b", "--expected-tag-seq", "u=0", "--expected-tag-seq", "t=1", "--key", "k").returncode == 0
    assert data_of(client.read(name)) == ["a", "b"]
    for wrong in (("--expected-tag-seq", "t"), ("--fence", "=1"), ("--fence", "f=-1"), ("--expected-head-seq", "x")):
        assert here(*append, "c", *wrong).returncode == 2
    assert here(*append, "--expected-head-seq", "2").returncode == 2


def test_fences(here: Here, client: Client) -> None:
    name = fresh_name()
    assert here("append", name, "a", "--fence", "a=b=7").returncode == 0
    assert here("append", name, "b", "--fence", "a=b=6").returncode == 5
    assert "fence" in here("show", name).stdout
    assert "a=b: 7" in here("show", name).stdout
    assert here("fence", "rm", "--yes", name, "a=b").stdout == "a=b: removed\n"
    assert here("fence", "rm", "--yes", name, "a=b").returncode == 3
    assert here("append", name, "b", "--fence", "a=b=6").returncode == 0
    assert client.state(name)["fences"] == {"a=b": 6}
