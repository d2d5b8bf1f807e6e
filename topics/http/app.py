"""Making the ASGI application, for the daemon and for tests."""

from __future__ import annotations

from topics.auth.keys import Keyring
from topics.engine.engine import Engine
from topics.http.gate import Gate
from topics.telemetry.audit_log import AuditLog


def make_app(engine: Engine, keyring: Keyring | None = None, audit: AuditLog | None = None) -> Gate:
    """The application that serves `engine` to clients with the keys of `keyring` (default: those of its settings). It
    may serve before the engine is ready: it refuses most calls then."""
    return Gate(engine, keyring, audit)
