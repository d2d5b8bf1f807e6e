"""The state of a topic and of the daemon: calls that are made so often that Quart's cost matters (`docs/spec/api.md`
sections 3 and 11)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from msgspec.structs import asdict

from topics import __version__
from topics.engine.engine import Engine
from topics.errors import ApiError
from topics.http.answer_types import BucketState, HealthAnswer, ReadyAnswer, StandbyState, TopicStateAnswer
from topics.http.calls import Call, Response, json_response
from topics.http.requests.query_strings import decode_look
from topics.telemetry.figures import StandbyFigures

FOLLOWS_MS: Final = 60_000
"""A standby that lags by more is not ready: a proxy asks another one. It still answers."""


class States:
    """The handlers of states. `refusal` returns the error with which the gate refuses requests in the present phase of
    the daemon."""

    def __init__(self, engine: Engine, refusal: Callable[[], ApiError | None]) -> None:
        self._engine = engine
        self._refusal = refusal

    async def get_topic(self, call: Call) -> Response:
        """`GET /v0/topics/{topic}`."""
        engine = self._engine
        touch, places = decode_look(call.query)
        state = await engine.topic_states.of(call.params["topic"], touch=touch, places=places)
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
        if self._engine.status.following is not None:
            answer.standby = self._standby(self._engine.status.following())
        return json_response(answer)

    @staticmethod
    def _standby(seen: StandbyFigures) -> StandbyState:
        """Raises `503 not_ready` if it does not follow."""
        if seen.lag_ms > FOLLOWS_MS:
            raise ApiError(
                "not_ready",
                f"this standby has not heard of the bucket for {seen.lag_ms} ms: {seen.problem or 'no answer'}",
                detail={"lag_ms": seen.lag_ms, "round": seen.round},
                retry_after_s=1,
            )
        return StandbyState(
            state=seen.state,
            owner=seen.owner or None,
            epoch=seen.epoch,
            round=seen.round,
            at=seen.wall_ms,
            lag_ms=seen.lag_ms,
        )
