"""The ASGI application, for the daemon and for tests."""

from __future__ import annotations

from topics.http.calls import Engine
from topics.http.gate import Gate


def make_app(engine: Engine) -> Gate:
    """The application that serves `engine`. May be called, and serve, before the engine is ready."""
    return Gate(engine)
