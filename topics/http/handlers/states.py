"""The state of a topic and of the daemon: calls that are made so often that Quart's cost matters (`docs/spec/api.md`
sections 3 and 11)."""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import asdict

from topics import __version__
from topics.engine.engine import Engine
from topics.errors import ApiError
from topics.http.answer_types import BucketState, HealthAnswer, ReadyAnswer, TopicStateAnswer
from topics.http.calls import Call, Response, json_response
from topics.http.requests.query_strings import decode_touch


class States:
    """The handlers of states. `refusal` returns the error with which the gate refuses requests in the present phase of
    the daemon."""

    def __init__(self, engine: Engine, refusal: Callable[[], ApiError | None]) -> None:
        self._engine = engine
        self._refusal = refusal

    async def get_topic(self, call: Call) -> Response:
        """`GET /v0/topics/{topic}`."""
        engine = self._engine
        state = await engine.topic_states.of(call.params["topic"], touch=decode_touch(call.query))
        return json_response(TopicStateAnswer(**asdict(state), performance=call.performance(engine.clock.perf_ns())))

    async def health(self, _: Call) -> Response:
        """`GET /v0/health`: says that the process answers."""
        uptime = self._engine.clock.monotonic_ms() - self._engine.status.started_ms
        return json_response(HealthAnswer(status="ok", version=__version__, uptime_ms=uptime))

    async def ready(self, _: Call) -> Response:
        """`GET /v0/ready`: says whether the daemon accepts requests."""
        refusal = self._refusal()
        if refusal is not None:
            raise refusal
        self._engine.store.right.check()
        topics = len(self._engine.registry.topics)
        answer = ReadyAnswer(status="ready", wal_replay_complete=True, topics=topics)
        look = self._engine.metrics.bucket
        if look is not None:
            seen = look()
            answer.bucket = BucketState(
                state=seen.state,
                epoch=seen.epoch,
                round=seen.round,
                lag_bytes=seen.lag_bytes,
                lag_ms=seen.lag_ms,
                has_base=seen.has_base,
                base=seen.base,
                base_age_ms=seen.base_age_ms,
            )
        return json_response(answer)
