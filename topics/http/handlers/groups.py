"""Groups of a log over HTTP (`docs/spec/consumers.md` section 4): making, looking, listing, deleting. Their claims,
acks and streams are in `queues`."""

from __future__ import annotations

from msgspec import UNSET
from msgspec.structs import asdict

from topics.engine.engine import Engine
from topics.http.answer_types import GroupAnswer, GroupDeletedAnswer, GroupListAnswer
from topics.http.calls import Call, Response, json_response
from topics.http.requests.group_requests import (
    ALL_GROUP_CURSORS,
    GROUP_CURSORS,
    decode_all_groups,
    decode_group_list,
    decode_put_group,
)
from topics.http.requests.topic_requests import pair_of
from topics.model import GroupState, Performance


class GroupHandlers:
    """The handlers of the calls about groups themselves."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def put(self, call: Call) -> Response:
        """`PUT /v0/topics/{topic}/groups/{group}`."""
        patch = decode_put_group(call.body)
        call.grant.check_targets(patch.terms)
        state, created = await self._engine.groups.put(call.params["topic"], call.params["group"], patch, call.perf)
        return self._state(call, state, 201 if created else 200)

    async def get(self, call: Call) -> Response:
        """`GET /v0/topics/{topic}/groups/{group}`."""
        return self._state(call, await self._engine.groups.state(call.params["topic"], call.params["group"]), 200)

    async def page(self, call: Call) -> Response:
        """`GET /v0/topics/{topic}/groups`."""
        page = decode_group_list(call.query)
        found, more = await self._engine.groups.page(call.params["topic"], page.prefix, page.after, page.page_size)
        cursor = GROUP_CURSORS.encode(found[-1].group) if more and found else UNSET
        return json_response(GroupListAnswer(groups=found, next_cursor=cursor, performance=self._performance(call)))

    async def all(self, call: Call) -> Response:
        """`GET /v0/groups`."""
        page = decode_all_groups(call.query)
        found, more = await self._engine.groups.page_of_all(page.prefix, pair_of(page.after), page.page_size, call.key)
        cursor = ALL_GROUP_CURSORS.encode(f"{found[-1].topic}/{found[-1].group}") if more and found else UNSET
        return json_response(GroupListAnswer(groups=found, next_cursor=cursor, performance=self._performance(call)))

    async def delete(self, call: Call) -> Response:
        """`DELETE /v0/topics/{topic}/groups/{group}`."""
        topic, group = call.params["topic"], call.params["group"]
        deleted = await self._engine.groups.delete(topic, group, call.perf)
        answer = GroupDeletedAnswer(topic=topic, group=group, deleted=deleted, performance=self._performance(call))
        return json_response(answer)

    def _state(self, call: Call, state: GroupState, status: int) -> Response:
        return json_response(GroupAnswer(**asdict(state), performance=self._performance(call)), status)

    def _performance(self, call: Call) -> Performance:
        return call.performance(self._engine.clock.perf_ns())
