"""Named consumers over HTTP (`docs/spec/consumers.md` section 3)."""

from __future__ import annotations

from msgspec import UNSET
from msgspec.structs import asdict

from topics.engine.engine import Engine
from topics.http.answer_types import (
    AcquiredAnswer,
    ConsumerAnswer,
    ConsumerDeletedAnswer,
    ConsumerListAnswer,
    ConsumerMovedAnswer,
    ReleasedAnswer,
)
from topics.http.calls import Call, Response, json_response
from topics.http.requests import consumer_requests
from topics.http.requests.topic_requests import pair_of
from topics.model import ConsumerState, MovedConsumer, Performance


class ConsumerHandlers:
    """The handlers of the calls about consumers."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def put(self, call: Call) -> Response:
        """`PUT /v0/topics/{topic}/consumers/{consumer}`."""
        patch = consumer_requests.decode_put_consumer(call.body)
        topic, consumer = _names(call)
        state, created = await self._engine.consumers.put(topic, consumer, patch, call.perf)
        return self._state(call, state, 201 if created else 200)

    async def get(self, call: Call) -> Response:
        """`GET /v0/topics/{topic}/consumers/{consumer}`."""
        return self._state(call, self._engine.consumers.state(*_names(call)), 200)

    async def page(self, call: Call) -> Response:
        """`GET /v0/topics/{topic}/consumers`."""
        page = consumer_requests.decode_consumer_list(call.query)
        found, more = self._engine.consumers.page(call.params["topic"], page.prefix, page.after, page.page_size)
        cursor = consumer_requests.CONSUMER_CURSORS.encode(found[-1].consumer) if more and found else UNSET
        answer = ConsumerListAnswer(consumers=found, next_cursor=cursor, performance=self._performance(call))
        return json_response(answer)

    async def all(self, call: Call) -> Response:
        """`GET /v0/consumers`."""
        page = consumer_requests.decode_all_consumers(call.query)
        found, more = self._engine.consumers.page_of_all(page.prefix, pair_of(page.after), page.page_size, call.key)
        cursors = consumer_requests.ALL_CONSUMER_CURSORS
        cursor = cursors.encode(f"{found[-1].topic}/{found[-1].consumer}") if more and found else UNSET
        answer = ConsumerListAnswer(consumers=found, next_cursor=cursor, performance=self._performance(call))
        return json_response(answer)

    async def delete(self, call: Call) -> Response:
        """`DELETE /v0/topics/{topic}/consumers/{consumer}`."""
        topic, consumer = _names(call)
        deleted = await self._engine.consumers.delete(topic, consumer, call.perf)
        answer = ConsumerDeletedAnswer(
            topic=topic, consumer=consumer, deleted=deleted, performance=self._performance(call)
        )
        return json_response(answer)

    async def commit(self, call: Call) -> Response:
        """`POST /v0/topics/{topic}/consumers/{consumer}/commit`."""
        seq, move = consumer_requests.decode_commit_consumer(call.body)
        topic, consumer = _names(call)
        return self._moved(call, await self._engine.consumers.commit(topic, consumer, seq, move, call.perf))

    async def seek(self, call: Call) -> Response:
        """`POST /v0/topics/{topic}/consumers/{consumer}/seek`."""
        to, move = consumer_requests.decode_seek_consumer(call.body)
        topic, consumer = _names(call)
        return self._moved(call, await self._engine.consumers.seek(topic, consumer, to, move, call.perf))

    async def acquire(self, call: Call) -> Response:
        """`POST /v0/topics/{topic}/consumers/{consumer}/acquire`."""
        owner, lease_ms = consumer_requests.decode_acquire(call.body, self._engine.settings)
        topic, consumer = _names(call)
        epoch, generation, deadline = await self._engine.consumers.acquire(topic, consumer, owner, lease_ms, call.perf)
        answer = AcquiredAnswer(
            topic=topic,
            consumer=consumer,
            epoch=epoch,
            generation=generation,
            deadline=deadline,
            performance=self._performance(call),
        )
        return json_response(answer)

    async def release(self, call: Call) -> Response:
        """`POST /v0/topics/{topic}/consumers/{consumer}/release`."""
        generation = consumer_requests.decode_release(call.body)
        topic, consumer = _names(call)
        released = await self._engine.consumers.release(topic, consumer, generation, call.perf)
        answer = ReleasedAnswer(topic=topic, consumer=consumer, released=released, performance=self._performance(call))
        return json_response(answer)

    def _state(self, call: Call, state: ConsumerState, status: int) -> Response:
        return json_response(ConsumerAnswer(**asdict(state), performance=self._performance(call)), status)

    def _moved(self, call: Call, moved: MovedConsumer) -> Response:
        return json_response(ConsumerMovedAnswer(**asdict(moved), performance=self._performance(call)))

    def _performance(self, call: Call) -> Performance:
        return call.performance(self._engine.clock.perf_ns())


def _names(call: Call) -> tuple[str, str]:
    return call.params["topic"], call.params["consumer"]
