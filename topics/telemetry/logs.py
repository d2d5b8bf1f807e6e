"""Logging: one stream on stderr, in a form for people on a terminal and as JSON lines everywhere else.

Events with fields are logged, not prose. Records of the standard library's `logging` (hypercorn, quart, warnings) go
through the same handler, so that every line has the same form.

Rules for every line:

- No credentials. No code should log them in the first place. In addition, the values of keys that hold credentials are
  replaced at any depth, and the finished line is searched, which also covers bytes, `repr` texts and tracebacks.
  Tracebacks do not show local variables, because these hold headers and payloads.
- One event is one line. On a terminal only tracebacks have more lines, and these are indented, so that each line at the
  left edge is an event. Control characters from a request are escaped.
- A line has at most `MAX_LINE` characters; a longer one is cut and says so. An event that clients can cause is logged
  at most `PER_SECOND` times a second; the next line of it has the number of those left out (`unlogged`).
- Writing never blocks the loop. A thread writes the lines, and at most `MAX_WAITING` bytes of them wait in memory. If
  stderr is a pipe that nobody reads, further lines are dropped, and their number is logged when it is read again
  (`log_lines_dropped`): the daemon must not stop for its log. Lines are written without delay, but a process that is
  killed may lose its last few. When the process ends normally or by an exception, all lines are written first (within
  `FLUSH_S`). Code that calls `os._exit` calls `flush` before.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
import warnings
from collections.abc import Callable
from types import TracebackType
from typing import Any, Final, TextIO

import structlog

from topics.telemetry.log_lines import HumanRenderer, render_json
from topics.telemetry.log_writer import LineHandler

PER_SECOND: Final = 10
"""Lines a second of one event that clients can cause."""

_PROVOKED: Final = ("topics.http", "topics.engine.delivery", "hypercorn", "quart")
"""Loggers of events that clients can cause as often as they like. Quart itself logs as `topics`."""


def get_logger(name: str) -> structlog.stdlib.BoundLogger:
    """The logger of a module: `log = get_logger(__name__)`, then `log.info("event", field=value)`."""
    logger: structlog.stdlib.BoundLogger = structlog.stdlib.get_logger(name)
    return logger


def setup_logging(level: str, form: str, stream: TextIO | None = None) -> None:
    """Log everything at or above `level` to `stream` (stderr). `form` is `human`, `json`, or `auto`, which is `human`
    on a terminal.

    May be called again; the last call counts. Without a `stream`, Python warnings and uncaught exceptions are logged
    from now on, instead of being printed.
    """
    if stream is None:
        stream = sys.stderr
        _log_strays()
    human = stream.isatty() if form == "auto" else form == "human"
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.stdlib.PositionalArgumentsFormatter(),
        structlog.processors.StackInfoRenderer(),
    ]
    render = HumanRenderer(colors=stream.isatty()) if human else render_json
    handler = LineHandler(stream)
    handler.addFilter(EventRateFilter())
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, structlog.stdlib.ExtraAdder()],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, render],
        )
    )
    root = logging.getLogger()
    for earlier in root.handlers:
        if isinstance(earlier, LineHandler):
            earlier.flush()
            earlier.close()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    # A line of the access log would cost more than the request itself. At the level debug the protocol libraries log
    # everything that a client sends. Errors of both are still logged.
    for name in ("hypercorn.access", "httpx", "httpcore", "hpack", "h2", "h11", "wsproto"):
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


def flush() -> None:
    """Blocking: wait until everything logged so far is written, but at most `FLUSH_S` seconds."""
    for handler in logging.getLogger().handlers:
        handler.flush()


class EventRateFilter(logging.Filter):
    """Passes at most `PER_SECOND` lines a second of each event that clients can cause.

    The first line of the event in a later second has the field `unlogged`, the number of lines that were left out.
    Lines of the level debug all pass: who turns that level on wants them.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._now = now
        self._seen: dict[tuple[str, object], list[float]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Return True if the record is to be logged."""
        if record.levelno <= logging.DEBUG or not (record.name == "topics" or record.name.startswith(_PROVOKED)):
            return True
        event = record.msg
        # Records of the standard library count by their place in the code: their texts may all be different.
        what = event.get("event") if isinstance(event, dict) else (record.pathname, record.lineno)
        now = self._now()
        seen = self._seen.setdefault((record.name, what), [now, 0.0])
        if now - seen[0] >= 1.0:
            unlogged = int(seen[1]) - PER_SECOND
            seen[:] = [now, 0.0]
            if unlogged > 0:
                if isinstance(event, dict):
                    event["unlogged"] = unlogged
                else:
                    record.unlogged = unlogged
        seen[1] += 1.0
        return seen[1] <= PER_SECOND


def _log_strays() -> None:
    """Log Python warnings and uncaught exceptions as events."""
    log = get_logger("topics.stray")

    def uncaught(kind: type[BaseException], error: BaseException, where: TracebackType | None) -> None:
        if issubclass(kind, KeyboardInterrupt):
            sys.__excepthook__(kind, error, where)
        else:
            log.critical("uncaught", exc_info=error)

    def uncaught_in_thread(args: threading.ExceptHookArgs) -> None:
        if not issubclass(args.exc_type, SystemExit):
            log.error("uncaught_in_thread", thread=args.thread and args.thread.name, exc_info=args.exc_value)

    def unraisable(args: sys.UnraisableHookArgs) -> None:
        log.error("uncaught_in_finalizer", what=args.err_msg, object=repr(args.object), exc_info=args.exc_value)

    def warned(message: Warning | str, category: type[Warning], filename: str, lineno: int, *_: Any) -> None:
        log.warning("python_warning", category=category.__name__, message=str(message), file=filename, line=lineno)

    sys.excepthook = uncaught
    threading.excepthook = uncaught_in_thread
    sys.unraisablehook = unraisable
    warnings.showwarning = warned  # type: ignore[assignment]
