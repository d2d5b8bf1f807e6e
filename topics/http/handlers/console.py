"""The files of the console (`docs/spec/console.md`). With `TOPICS_CONSOLE=0` there are none, and every call is 404."""

from __future__ import annotations

import trio

from topics.config import Settings
from topics.errors import ApiError
from topics.http.calls import NOT_MODIFIED, Call, Response
from topics.http.console.assets import PAGE, assets
from topics.http.entity_tags import matches


class ConsoleHandlers:
    """The handlers of the page and its files."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    async def page(self, call: Call) -> Response:
        """`GET /console`."""
        return await self._answer(call, PAGE)

    async def asset(self, call: Call) -> Response:
        """`GET /console/{asset}` and `GET /console/{folder}/{asset}`."""
        names = (call.params.get("folder"), call.params["asset"])
        return await self._answer(call, "/".join(name for name in names if name is not None))

    async def _answer(self, call: Call, name: str) -> Response:
        if not self._settings.console:
            raise ApiError("not_found", "the console is off (TOPICS_CONSOLE=0)")
        asset = (await trio.to_thread.run_sync(assets)).get(name)
        if asset is None:
            raise ApiError("not_found", "the console has no such file")
        if matches(call.headers.get(b"if-none-match"), asset.etag):
            return Response(NOT_MODIFIED, b"", asset.content_type, asset.headers)
        return Response(200, asset.body, asset.content_type, asset.headers)
