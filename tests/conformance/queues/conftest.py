"""A queue, and each of the calls on one."""

from __future__ import annotations

import pytest

from tests.conformance.client import Client
from tests.conformance.queue_client import Queue, new_queue
from tests.conformance.queues.calls import BY_SEQS, CALLS


@pytest.fixture(params=CALLS)
def call(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=BY_SEQS)
def call_by_seqs(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def queue(client: Client) -> Queue:
    return new_queue(client)
