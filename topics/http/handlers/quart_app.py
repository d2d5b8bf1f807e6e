"""The Quart-Trio application: routes of the control plane to its views.

This module alone imports Quart. It is imported when the daemon is ready, or by the first call that needs it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any, Final

from quart import Response as QuartResponse
from quart import request
from quart_trio import QuartTrio
from werkzeug.exceptions import HTTPException

from topics.errors import ApiError
from topics.http.calls import Response
from topics.http.routes import ROUTES, Plane

View = Callable[..., Awaitable[Response]]

_FAILURE: Final = "topics.failure"


class QuartApp:
    """An ASGI application of the views of all control-plane routes, by the name of the route. It raises what a view
    raises, and ApiError for a request that Quart itself refuses."""

    def __init__(self, views: Mapping[str, View]) -> None:
        self._app = QuartTrio("topics", static_folder=None)
        # The gate limits bodies. There is no limit on the time of a request.
        self._app.config.update(MAX_CONTENT_LENGTH=None, BODY_TIMEOUT=None, RESPONSE_TIMEOUT=None)
        for route in ROUTES:
            if route.plane is Plane.CONTROL:
                self._app.add_url_rule(
                    route.template.replace("{", "<").replace("}", ">"),
                    route.name,
                    _as_quart_view(views[route.name]),
                    methods=[route.method],
                    provide_automatic_options=False,
                )
        self._app.register_error_handler(Exception, _carry_out)

    async def __call__(
        self,
        scope: MutableMapping[str, Any],
        receive: Callable[[], Awaitable[Any]],
        send: Callable[[Any], Awaitable[None]],
    ) -> None:
        await self._app(scope, receive, send)  # type: ignore[arg-type]
        if (failure := scope.get(_FAILURE)) is not None:
            raise _from_werkzeug(failure) if isinstance(failure, HTTPException) else failure


def _as_quart_view(view: View) -> Callable[..., Awaitable[QuartResponse]]:
    async def quart_view(**params: Any) -> QuartResponse:
        answer = await view(**params)
        headers = {name.decode(): value.decode() for name, value in answer.headers}
        return QuartResponse(answer.body, answer.status, headers, content_type=answer.content_type.decode())

    return quart_view


async def _carry_out(error: Exception) -> QuartResponse:
    request.scope[_FAILURE] = error  # type: ignore[typeddict-unknown-key]
    return QuartResponse(b"", 500)


def _from_werkzeug(error: HTTPException) -> ApiError:
    """The error for a request that Quart itself refuses because of its form."""
    code = {404: "not_found", 405: "method_not_allowed", 413: "payload_too_large", 415: "unsupported_media_type"}
    status = error.code or 500
    return ApiError(code.get(status, "invalid_request" if status < 500 else "internal"), error.name)
