"""Raw bytes over HTTP (`docs/spec/consumers.md` section 7): appending them, and giving them back as they came.

`topics.raw_bytes` describes the stored form. Browsers must not run stored bytes, so bytes are given back as a download,
of exactly their type, in a sandbox without any right.
"""

from __future__ import annotations

from typing import Final

import msgspec

from topics.engine.engine import Engine
from topics.http.accept import qualities
from topics.http.calls import Call, Response, append_answer, idempotency_header
from topics.http.handlers.stages import Stages
from topics.http.requests.raw_appends import check_raw_size, decode_raw_query
from topics.raw_bytes import (
    RAW_TYPES,
    STEP,
    bytes_in_steps,
    bytes_of_data,
    content_type_of,
    data_in_steps,
    data_of_bytes,
)
from topics.runtime.turns import BULK_BYTES

SAFE_HEADERS: Final = (
    (b"x-content-type-options", b"nosniff"),
    (b"content-disposition", b"attachment"),
    (b"content-security-policy", b"sandbox; default-src 'none'"),
    (b"cross-origin-resource-policy", b"same-origin"),
)
"""The headers with which bytes are given back. A page of another origin that `TOPICS_CORS_ORIGINS` allows can still
read them, because that policy does not concern requests with CORS."""

VARY: Final = (b"vary", b"accept")

_JSON_RANGES: Final = (b"application/json", b"application/*", b"*/*")
_NAMES: Final = tuple(kind.removesuffix("*").encode() for kind in RAW_TYPES)


class _Stored(msgspec.Struct):
    data: msgspec.Raw


_stored: Final = msgspec.json.Decoder(_Stored)


class RawBytes:
    """The handlers of raw bytes."""

    def __init__(self, engine: Engine, stages: Stages) -> None:
        self._engine = engine
        self._stages = stages

    async def append(self, call: Call, content_type: str) -> Response:
        """`POST /v0/topics/{topic}` with raw bytes of a type, in its normal form."""
        engine = self._engine
        found = decode_raw_query(call.query, engine.settings, idempotency_header(call))
        request = found.request
        check_raw_size(request, len(call.body), content_type, engine.settings)
        if len(call.body) < STEP:
            if len(call.body) >= BULK_BYTES:
                await engine.turns.take(len(call.body))
            data = data_of_bytes(call.body, content_type)
        else:
            data = await engine.turns.each(data_in_steps(call.body, content_type))
        request.datas = [data]
        call.waits = request.disable_backpressure
        if found.stage is not None:
            return await self._stages.append(call, found.stage, request)
        result = await engine.appends.append(call.params["topic"], request, call.perf)
        answer = append_answer(result, call.performance(engine.clock.perf_ns()), return_seqs=found.return_seqs)
        return Response(201 if result.created else 200, answer)

    async def answer(self, call: Call, record: bytes) -> Response:
        """The answer with a record, given its JSON: its bytes if it is raw bytes and `Accept` names their type, else
        the JSON."""
        accept = call.headers.get(b"accept", b"")
        accepted = qualities(accept) if _names_raw_type(accept) else {}
        if accepted:
            if len(record) >= BULK_BYTES:
                await self._engine.turns.take(len(record))
            data = bytes(_stored.decode(record).data)
            content_type = content_type_of(data)
            if content_type is not None and prefers_bytes(accepted, content_type):
                large = len(data) >= STEP
                content = await self._engine.turns.each(bytes_in_steps(data)) if large else bytes_of_data(data)
                return Response(200, content, content_type.encode(), [*SAFE_HEADERS, VARY])
        return Response(200, record, headers=[VARY])


def _names_raw_type(accept: bytes) -> bool:
    """Return True if an Accept may name a type of raw bytes. Nearly all name none."""
    lower = accept.lower()
    return any(name in lower for name in _NAMES)


def prefers_bytes(accepted: dict[bytes, float], content_type: str) -> bool:
    """Return True if an Accept names a type, as such or as `image/*` and the like, and does not prefer JSON.
    Parameters do not matter."""
    kind = content_type.partition(";")[0].encode()
    ranges = [kind] if kind.startswith(b"application/") else [kind, kind.partition(b"/")[0] + b"/*"]
    quality = next((accepted[name] for name in ranges if name in accepted), 0.0)
    json = next((accepted[name] for name in _JSON_RANGES if name in accepted), 0.0)
    return quality > 0 and quality >= json
