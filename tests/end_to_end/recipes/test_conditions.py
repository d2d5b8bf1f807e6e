"""Recipes that append on conditions."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable
from typing import Any

import pytest

from tests.conformance.client import Daemon
from tests.end_to_end.recipes.terminals import LONG_S, Place, data_of
from topics.client import Client

pytestmark = pytest.mark.slow


def ended(jobs: list[subprocess.Popen[bytes]]) -> list[int]:
    """The exit codes of programs that end by themselves, ascending."""
    return sorted(job.wait(LONG_S) for job in jobs)


def test_an_account_is_never_overdrawn(daemon: Daemon, open_place: Callable[..., Place]) -> None:
    place = open_place("Event-sourced aggregate", daemon.url)
    place.write_all()
    with Client(daemon.url) as client:
        client.append("account-7", [{"amount": 4}])
        assert ended([place.start("python account.py -1") for _ in range(8)]) == [0] * 4 + [1] * 4
        assert [event["amount"] for event in data_of(client, "account-7")] == [4, -1, -1, -1, -1]


def test_an_account_goes_on_behind_seqs_without_an_event(daemon: Daemon, open_place: Callable[..., Place]) -> None:
    place = open_place("Event-sourced aggregate", daemon.url)
    place.write_all()
    with Client(daemon.url) as client:
        client.append("account-7", [{"amount": 4}, {"amount": 100}])
        client.delete_records("account-7", after_seq=1)
        assert ended([place.start("python account.py -5")]) == [1]
        assert ended([place.start("python account.py -3")]) == [0]
        assert [event["amount"] for event in data_of(client, "account-7")] == [4, -3]


def test_a_leader_that_was_away_writes_nothing_more(daemon: Daemon, open_place: Callable[..., Place]) -> None:
    place = open_place("One leader", daemon.url)
    place.write_all()
    with Client(daemon.url) as client:
        client.create("decisions")

        def decisions() -> list[str]:
            return data_of(client, "decisions")

        ann = place.start("exec python leader.py ann 1000")
        place.until(lambda: len(decisions()) > 2)
        os.killpg(ann.pid, signal.SIGSTOP)
        others = [place.start(f"exec python leader.py {name} 5") for name in ("bob", "cid", "dan")]
        place.until(lambda: decisions()[-1].split()[0] != "ann")
        os.killpg(ann.pid, signal.SIGCONT)
        assert ended([ann]) == [1]
        assert 0 in ended(others), "the newest has written to the end"
        leaders = data_of(client, "elections")
        tokens = [leaders.index(decision.split()[0]) for decision in decisions()]
        assert tokens == sorted(tokens), "nobody writes after a newer one"


def test_a_name_is_given_once(daemon: Daemon, open_place: Callable[..., Place]) -> None:
    place = open_place("Unique user names", daemon.url)
    place.write_all()
    programs = [place.start(f"python register.py {name} {i}@x") for i in range(4) for name in ("ann", "bob")]
    assert ended(programs) == [0] * 2 + [1] * 6
    with Client(daemon.url) as client:
        assert sorted(user["name"] for user in data_of(client, "users")) == ["ann", "bob"]


def test_state_and_event_are_stored_together_and_once_whoever_dies(
    daemon: Daemon, open_place: Callable[..., Place]
) -> None:
    """All writers are killed in the middle of their race and do it again; then the daemon dies under them."""
    place = open_place("Outbox without an outbox", daemon.url)
    place.write_all()
    place.type(place.sh("topics create levels"))
    changes = {"delivery-1": 100} | {f"sale-{n}": -n for n in range(1, 9)}
    with Client(daemon.url) as client:

        def events() -> list[dict[str, Any]]:
            return data_of(client, "movements")

        def race() -> list[subprocess.Popen[bytes]]:
            return [place.start(f"python stock.py {name} apples {change}") for name, change in changes.items()]

        writers = race()
        place.until(lambda: len(events()) > 1)
        for writer in writers:
            place.kill(writer)
        seen = len(events())
        writers = race()
        place.until(lambda: len(events()) > seen or all(writer.poll() is not None for writer in writers))
        daemon.end(signal.SIGKILL)
        daemon.start().close()
        assert ended(writers) == [0] * len(writers)

        left = 0
        for event in events():
            left += event["change"]
            assert event["left"] == left, "decided by the state before it"
        assert {event["movement"]: event["change"] for event in events()} == changes
        assert len(events()) == len(changes), "each movement once"
        assert data_of(client, "levels") == [{"item": "apples", "left": event["left"]} for event in events()]
