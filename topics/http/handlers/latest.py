"""The newest records of tags, over HTTP (`docs/spec/evidence.md` section 3)."""

from __future__ import annotations

from topics.engine.engine import Engine
from topics.http.calls import Call, Response, encode
from topics.http.requests.latest_requests import TAG_CURSORS, decode_latest
from topics.log.block import Projection
from topics.runtime.turns import BULK_BYTES


class LatestHandlers:
    """The handler of `GET /v0/topics/{topic}/latest`."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def get(self, call: Call) -> Response:
        """One record with `tag`, a page of records with `prefix`."""
        engine, topic = self._engine, call.params["topic"]
        tag, request = decode_latest(call.query, engine.settings)
        if tag is not None:
            projection = Projection(request.include_tags, request.include_meta)
            found = await engine.latest.one(topic, tag, projection, call.perf, touch=request.touch)
            call.gathered(len(found.records))
            answer = b'{"topic":"%b","epoch":%d,"record":%b,"head_seq":%d}'
            return Response(200, answer % (topic.encode(), found.epoch, found.records, found.head_seq))
        page = await engine.latest.page(topic, request, call.perf)
        call.gathered(len(page.records))
        if len(page.records) >= BULK_BYTES:
            await engine.turns.take(len(page.records))
        cursor = b""
        if page.next_after is not None:
            cursor = b'"next_cursor":"%b",' % TAG_CURSORS.encode(page.next_after).encode()
        answer = b'{"topic":"%b","epoch":%d,"records":[%b],"head_seq":%d,%b"performance":%b}' % (
            topic.encode(),
            page.epoch,
            page.records,
            page.head_seq,
            cursor,
            encode(call.performance(engine.clock.perf_ns())),
        )
        return Response(200, answer)
