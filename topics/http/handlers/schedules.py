"""Schedules over HTTP (`docs/spec/consumers.md` section 5)."""

from __future__ import annotations

from msgspec import UNSET
from msgspec.structs import asdict

from topics.engine.engine import Engine
from topics.http.answer_types import (
    ScheduleAnswer,
    ScheduleDeletedAnswer,
    ScheduleListAnswer,
    ScheduleRunAnswer,
)
from topics.http.calls import Call, Response, json_response
from topics.http.requests import schedule_requests
from topics.model import AppendResult, Performance, ScheduleState


class ScheduleHandlers:
    """The handlers of the calls about schedules. The gate has checked that the key covers the name; they check the
    topic."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def put(self, call: Call) -> Response:
        """`PUT /v0/schedules/{schedule}`."""
        patch = schedule_requests.decode_put_schedule(call.body, self._engine.settings)
        call.grant.check_name(patch.topic, "topic")
        state, created = await self._engine.schedules.put(self._name(call), patch, call.perf)
        return self._state(call, state, 201 if created else 200)

    async def get(self, call: Call) -> Response:
        """`GET /v0/schedules/{schedule}`."""
        return self._state(call, self._engine.schedules.state(self._name(call)))

    async def page(self, call: Call) -> Response:
        """`GET /v0/schedules`."""
        page = schedule_requests.decode_schedule_list(call.query)
        found, more = self._engine.schedules.page(page.prefix, page.after, page.page_size, call.key)
        cursor = schedule_requests.SCHEDULE_CURSORS.encode(found[-1].schedule) if more and found else UNSET
        answer = ScheduleListAnswer(schedules=found, next_cursor=cursor, performance=self._performance(call))
        return json_response(answer)

    async def delete(self, call: Call) -> Response:
        """`DELETE /v0/schedules/{schedule}`."""
        name = self._name(call)
        deleted = await self._engine.schedules.delete(name, call.perf)
        return json_response(ScheduleDeletedAnswer(schedule=name, deleted=deleted, performance=self._performance(call)))

    async def run(self, call: Call) -> Response:
        """`POST /v0/schedules/{schedule}/run`."""
        name = self._name(call)
        done = await self._engine.schedules.run(name, call.perf)
        answer = ScheduleRunAnswer(
            schedule=name, topic=done.topic, seq=_seq_of(done), performance=self._performance(call)
        )
        return json_response(answer)

    async def pause(self, call: Call) -> Response:
        """`POST /v0/schedules/{schedule}/pause`."""
        return self._state(call, await self._engine.schedules.pause(self._name(call), call.perf, paused=True))

    async def resume(self, call: Call) -> Response:
        """`POST /v0/schedules/{schedule}/resume`."""
        return self._state(call, await self._engine.schedules.pause(self._name(call), call.perf, paused=False))

    def _name(self, call: Call) -> str:
        """Return the name of the schedule. Raises `403 forbidden` if the key does not cover its present topic."""
        name = call.params["schedule"]
        topic = self._engine.schedules.topic_of(name)
        if topic is not None:
            call.grant.check_name(topic, "topic")
        return name

    def _state(self, call: Call, state: ScheduleState, status: int = 200) -> Response:
        return json_response(ScheduleAnswer(**asdict(state), performance=self._performance(call)), status)

    def _performance(self, call: Call) -> Performance:
        return call.performance(self._engine.clock.perf_ns())


def _seq_of(done: AppendResult) -> int:
    """Return the seq of the record of a run: that of the job that is there, if the record has a unique key."""
    return done.duplicates[0] if done.duplicates else done.first_seq
