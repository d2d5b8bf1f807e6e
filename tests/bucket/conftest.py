"""The stores of which the contract is tested, and the servers, one of each for all tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bucket.servers import S3Server, fresh_prefix, moto_server, opened, versity_server
from tests.bucket.simulated_objects import SimObjects
from topics.bucket.object_store import ObjectStore

STORES = ["simulated", "file", "moto", pytest.param("versitygw", marks=pytest.mark.slow)]


@pytest.fixture(scope="session")
def moto() -> Iterator[S3Server]:
    with moto_server() as server:
        yield server


@pytest.fixture(scope="session")
def versitygw(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with versity_server(tmp_path_factory.mktemp("versitygw")) as server:
        yield server


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    """An empty store of each kind."""
    if request.param == "simulated":
        return SimObjects()
    if request.param == "file":
        return opened(f"file://{tmp_path}", {})
    server: S3Server = request.getfixturevalue(request.param)
    return server.objects(fresh_prefix())
