"""A daemon with keys, and its callers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.conformance.access.entries import ENTRIES
from tests.conformance.client import Client, body_of, running
from tests.conformance.keys import BOSS, Callers, bearer, callers_of


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """A client that may do everything."""
    with running(tmp_path_factory.mktemp("daemon"), api_keys=",".join(ENTRIES)) as client:
        client.headers.update(bearer(BOSS))
        yield client


@pytest.fixture(scope="module")
def callers(client: Client) -> Iterator[Callers]:
    with callers_of(client) as callers:
        yield callers


@pytest.fixture(scope="module")
def routers(client: Client) -> dict[str, str]:
    """By whether name, source and dest are within the prefix `mine-`."""
    made = {}
    for number, inside in enumerate(["nsd", "ns", "nd", "sd", "n", "s", "d", ""]):
        name, source, dest = (
            f"{'mine-' if letter in inside else 'their-'}{kind}{number}"
            for letter, kind in zip("nsd", ("router", "source", "dest"), strict=True)
        )
        body_of(client.put(f"/v0/routers/{name}", json={"source": source, "dest": dest}), 201)
        made[inside] = name
    return made
