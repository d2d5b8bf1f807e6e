"""Logging: one stream on stderr, for people on a terminal and as JSON lines everywhere else.

Records of the standard library (hypercorn, quart) take the same way out, so that a line is a line whoever wrote it.
What is logged is events with fields, not prose; keys that hold credentials are blanked here once more, although
nobody should log them in the first place.
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import MutableMapping
from typing import Any, Final, TextIO

import structlog

SECRET_KEYS: Final = frozenset({"token", "authorization", "api_key", "api_keys", "password", "secret"})
_TOKEN_IN_TEXT = re.compile(r"(?i)(\btoken=|\bbearer\s+)[^\s&\"']+")

Event = MutableMapping[str, Any]


def get_logger(name: str) -> structlog.stdlib.BoundLogger:
    """The logger of a module: `log = get_logger(__name__)`, then `log.info("event", field=value)`."""
    logger: structlog.stdlib.BoundLogger = structlog.stdlib.get_logger(name)
    return logger


def setup_logging(level: str, form: str, stream: TextIO | None = None) -> None:
    """Send everything at or above `level` to `stream` (stderr) as `form`: `human`, `json`, or `auto` by terminal.

    May be called again; the last call counts.
    """
    stream = sys.stderr if stream is None else stream
    human = stream.isatty() if form == "auto" else form == "human"
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.stdlib.PositionalArgumentsFormatter(),
        structlog.processors.StackInfoRenderer(),
    ]
    render: list[structlog.typing.Processor]
    if human:
        render = [structlog.dev.ConsoleRenderer(colors=stream.isatty())]
    else:
        render = [structlog.processors.dict_tracebacks, structlog.processors.JSONRenderer(default=repr)]
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, structlog.stdlib.ExtraAdder()],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, _blank_secrets, *render],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    # An access log line per request would cost more than the request; errors of the framework are still heard.
    for name in ("hypercorn.access", "httpx", "httpcore"):
        logging.getLogger(name).setLevel(logging.WARNING)
    for name in ("hypercorn.error", "quart.app", "quart.serving"):
        logger = logging.getLogger(name)
        logger.handlers.clear()
        logger.propagate = True
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,
    )


def _blank_secrets(_logger: Any, _method: str, event: Event) -> Event:
    for key, value in event.items():
        if key.lower() in SECRET_KEYS:
            event[key] = "(hidden)"
        elif isinstance(value, str):
            event[key] = _TOKEN_IN_TEXT.sub(r"\1(hidden)", value)
    return event
