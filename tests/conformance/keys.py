"""Callers with keys, what a refused call must leave as it was, and daemons that are not to start."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from tests.conformance.client import Client, body_of, error_of, running

BOSS = "boss"
"""May do everything."""

LETTERS = {"r": "read", "w": "write", "d": "delete", "a": "admin"}

COMBINATIONS = ["".join(some) for count in range(1, 5) for some in itertools.combinations(LETTERS, count)]
"""Every set of scopes that an entry can name, written as in `rw`."""


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


class Callers:
    """Clients of one daemon, one for each key; `callers["reader"]` sends the key `reader`, `callers[None]` none."""

    def __init__(self, client: Client) -> None:
        self._daemon = client.daemon
        self._clients: dict[str | None, Client] = {}

    def __getitem__(self, key: str | None) -> Client:
        if key not in self._clients:
            self._clients[key] = Client(self._daemon)
            self._clients[key].headers.update(bearer(key) if key is not None else {})
        return self._clients[key]

    def close(self) -> None:
        for client in self._clients.values():
            client.close()


@contextmanager
def callers_of(client: Client) -> Iterator[Callers]:
    callers = Callers(client)
    try:
        yield callers
    finally:
        callers.close()


def forbidden(response: httpx.Response, *named: str) -> Any:
    """It is 403, and the detail names what is missing."""
    error = error_of(response, 403, "forbidden")
    for name in named:
        assert name in json.dumps(error["detail"]), error
    return error


def unauthorized(response: httpx.Response) -> Any:
    """It is 401, and says how to authenticate."""
    error = error_of(response, 401, "unauthorized")
    assert response.headers["www-authenticate"].split()[0].lower() == "bearer"
    return error


PASSING = {"effective_priority", "lag"}
"""What changes by itself."""


def picture(client: Client, *names: str) -> Any:
    """All topics and routers as they are, and of the topics that are named the config and the queue."""
    topics = pages(client, "topics")
    routers = pages(client, "routers")
    states = [client.get(f"/v0/topics/{name}", params={"touch": "false"}).json() for name in names]
    kept = [
        {name: state.get(name) for name in ("config", "queue", "last_write_ts", "last_read_ts")} for state in states
    ]
    return [{name: value for name, value in one.items() if name not in PASSING} for one in [*topics, *routers]], kept


@contextmanager
def nothing_changes(client: Client, *names: str) -> Iterator[None]:
    before = picture(client, *names)
    yield
    assert picture(client, *names) == before


def pages(client: Client, kind: str, page_size: int = 1000, **query: Any) -> list[Any]:
    """Everything that a list holds, page after page; none but the last is short, and none but an only one is empty."""
    found: list[Any] = []
    cursor: dict[str, str] = {}
    while True:
        answer = body_of(client.get(f"/v0/{kind}", params={"page_size": page_size, **query, **cursor}))
        page = answer[kind]
        found += page
        assert page or not cursor, "an empty page was announced"
        if "next_cursor" not in answer:
            return found
        assert len(page) == page_size
        cursor = {"cursor": answer["next_cursor"]}


def names_of(entries: list[Any], field: str = "topic") -> list[str]:
    return [entry[field] for entry in entries]


def refused_start(root: Path, secret: str = "", **settings: object) -> str:
    """What the daemon says when it does not start for a mistake of the configuration, the secret not among it."""
    environ = {name: text for name, text in os.environ.items() if not name.startswith("TOPICS_")}
    environ |= {"TOPICS_DATA_DIR": str(root / "data"), "TOPICS_PORT": "0"}
    environ |= {f"TOPICS_{name.upper()}": str(value) for name, value in settings.items()}
    command = [sys.executable, "-m", "topics"]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2, (done.returncode, done.stderr)
    assert "Traceback" not in done.stderr
    assert not secret or secret not in done.stdout + done.stderr
    assert not (root / "data").exists()
    return done.stderr


def asked_by_three(directory: Path, prepare: Callable[[Client], Any], ask: Callable[[Client], httpx.Response]) -> Any:
    """A daemon is asked for the same by a key that may read and write, by one that may do everything with other
    topics, and by one that may do everything; the first also prepares. Return the statuses, and the lines of the audit
    log."""
    keys = directory / "keys"
    keys.write_text("writer:r+w\nboss\nother:r+w+a:other-\n")
    keys.chmod(0o600)
    audit = directory / "audit.log"
    statuses = []
    with running(directory, api_keys_file=keys, audit_log=audit) as client:
        for key in ("writer", "other", "boss"):
            client.headers["authorization"] = f"Bearer {key}"
            if key == "writer":
                prepare(client)
            statuses.append(ask(client).status_code)
    return statuses, [json.loads(line) for line in audit.read_text().splitlines()]
