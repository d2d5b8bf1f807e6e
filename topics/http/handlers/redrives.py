"""Redrives of dead-letter topics over HTTP (`docs/spec/consumers.md` section 5)."""

from __future__ import annotations

from topics.engine.engine import Engine
from topics.engine.redrives.redrives import RedriveProgress
from topics.http.answer_types import RedriveAnswer, RedriveFault
from topics.http.calls import Call, Response, json_response
from topics.http.requests.redrive_requests import decode_redrive


class RedriveHandlers:
    """The handlers of the calls."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def start(self, call: Call) -> Response:
        """`POST /v0/topics/{topic}/redrive`."""
        wish = decode_redrive(call.body)
        if wish.to is not None:
            call.grant.check_name(wish.to, "to")
        # Where letters came from is known when they are read; what the key does not cover then stays.
        return self._state(call, self._engine.redrives.start(call.params["topic"], wish, call.key.covers), 202)

    async def get(self, call: Call) -> Response:
        """`GET /v0/topics/{topic}/redrive`."""
        return self._state(call, self._engine.redrives.get(call.params["topic"]))

    async def stop(self, call: Call) -> Response:
        """`DELETE /v0/topics/{topic}/redrive`."""
        return self._state(call, await self._engine.redrives.stop(call.params["topic"]))

    def _state(self, call: Call, state: RedriveProgress, status: int = 200) -> Response:
        error = state.error
        answer = RedriveAnswer(
            topic=call.params["topic"],
            state=state.state,
            moved=state.moved,
            left=sum(state.left.values()),
            reasons={str(reason): letters for reason, letters in state.left.items()},
            error=None if error is None else RedriveFault(error.code, error.message),
            performance=call.performance(self._engine.clock.perf_ns()),
        )
        return json_response(answer, status)
