"""What a stream of jobs is told while its jobs cannot be read or claimed; and how it looks over each connection."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio

from topics.errors import ApiError
from topics.http.answers.sse import EVENTS
from topics.http.answers.websocket_messages import MESSAGES
from topics.http.handlers.queues import WorkStream
from topics.job_model import Job

pytestmark = pytest.mark.trio


class Outbox:
    """Keeps the events that are put in."""

    def __init__(self) -> None:
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.room_for_more = True

    async def room(self, size: int) -> bool:
        await trio.lowlevel.checkpoint()
        return True

    def has_room(self) -> bool:
        return self.room_for_more

    def put(self, data: bytes) -> None:
        for event in data.decode().split("\n\n")[:-1]:
            fields = dict(line.split(": ", 1) for line in event.split("\n"))
            self.events.append((fields["event"], json.loads(fields["data"])))

    @property
    def told(self) -> list[object]:
        """Codes of errors, seqs of jobs."""
        return [data["code"] if kind == "error" else data["$seq"] for kind, data in self.events]


class Queues:
    """Says what comes next: jobs, or an error."""

    def __init__(self, *answers: list[Job] | ApiError) -> None:
        self.answers = list(answers)

    async def next_jobs(self, _work: object) -> list[Job]:
        if not self.answers:
            await trio.sleep_forever()
        answer = self.answers.pop(0)
        if isinstance(answer, ApiError):
            raise answer
        return answer


class Topic:
    name = "q"


class Work:
    topic = Topic()
    queue = SimpleNamespace(group=None)


def job(seq: int) -> Job:
    return Job(seq, 1, 2, 3, b'"$seq":%d}' % seq)


def stream_of(*answers: list[Job] | ApiError) -> tuple[WorkStream, Outbox]:
    stream, outbox = WorkStream.__new__(WorkStream), Outbox()
    engine = SimpleNamespace(queues=Queues(*answers))
    stream._engine, stream._work, stream.outbox = cast(Any, engine), cast(Any, Work()), cast(Any, outbox)
    return stream, outbox


AWAY = ApiError("not_ready", "records of topic 'q' cannot be read now: gone")
FULL = ApiError("read_only", "the disk is full")


async def pumped(stream: WorkStream) -> None:
    with trio.move_on_after(60):
        await stream._pump()


@pytest.mark.parametrize("error", [AWAY, FULL])
async def test_a_stream_of_jobs_is_told_of_each_outage_once(error: ApiError, autojump_clock: Any) -> None:
    stream, outbox = stream_of(error, error, error, [job(1)], [job(2)], error, error, [job(3)])
    await pumped(stream)
    assert outbox.told == [504, 1, 2, 504, 3]
    said = outbox.events[0][1]
    assert said == {"code": 504, "error": error.message, "retry_after_ms": said["retry_after_ms"], "topics": ["q"]}
    assert said["retry_after_ms"] > 0


async def test_where_there_is_no_room_to_tell_it_is_told_later(autojump_clock: Any) -> None:
    stream, outbox = stream_of(*[AWAY] * 100)
    outbox.room_for_more = False
    with trio.move_on_after(5):
        await stream._pump()
    assert outbox.told == []
    outbox.room_for_more = True
    with trio.move_on_after(5):
        await stream._pump()
    assert outbox.told == [504]


async def test_how_it_looks_over_each_connection() -> None:
    event = EVENTS.held_up(["a", "b"], "why", 1000)
    assert event.startswith(b"event: error\ndata: ")
    assert json.loads(event.partition(b"data: ")[2]) == {
        "code": 504,
        "error": "why",
        "retry_after_ms": 1000,
        "topics": ["a", "b"],
    }
    assert json.loads(MESSAGES.held_up(["a"], "why", 1000)) == {
        "op": "error",
        "code": "not_ready",
        "message": "why",
        "detail": {"retry_after_ms": 1000, "topics": ["a"]},
    }
