"""Logging: one stream on stderr, for people on a terminal and as JSON lines everywhere else.

Records of the standard library (hypercorn, quart, warnings) take the same way out, so that a line is a line whoever
wrote it. What is logged is events with fields, not prose.

What every line keeps to:

- No credentials, although nobody should log them in the first place: keys that hold them are blanked at any depth, and
  the finished line is searched once more, which covers bytes, representations and tracebacks too. Tracebacks never
  show local variables: these are headers and payloads.
- One event is one line; on a terminal only tracebacks have more, and these are indented, so that what begins at the
  left edge is an event. Control characters out of a request are shown, not obeyed.
- At most `MAX_LINE` characters: a longer line is cut and says so. Whatever a client can provoke is logged `PER_SECOND`
  times a second for each event; the next such line says how many were left out (`unlogged`).
- Writing never holds up the loop. Lines wait in memory for a thread that writes them, `MAX_WAITING` bytes of them at
  most. When stderr is a pipe that nobody reads, what comes after that is dropped and counted, and the count is logged
  once somebody reads again (`log_lines_dropped`): a daemon that stands still for its log would be worse. Lines reach
  stderr within the moment, but a process that is killed at once may take its last few with it. At a normal end, also
  one by an exception, everything is written first (for at most `FLUSH_S`); before `os._exit` call `flush`.
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

_PROVOKED: Final = ("topics.http", "topics.engine.delivery", "hypercorn", "quart")
"""Loggers of events that clients can bring about as often as they like. Quart's own lines come from `topics`."""


def get_logger(name: str) -> structlog.stdlib.BoundLogger:
    """The logger of a module: `log = get_logger(__name__)`, then `log.info("event", field=value)`."""
    logger: structlog.stdlib.BoundLogger = structlog.stdlib.get_logger(name)
    return logger


def setup_logging(level: str, form: str, stream: TextIO | None = None) -> None:
    """Send everything at or above `level` to `stream` (stderr) as `form`: `human`, `json`, or `auto` by terminal.

    May be called again; the last call counts. Without a `stream`, warnings and exceptions that nobody has caught are
    logged from here on as well, in place of what Python prints.
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
    handler.addFilter(Sparing())
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
    # An access log line per request would cost more than the request; errors of the framework are still heard. And at
    # debug the protocols write down what they decode, which is everything that a client sends.
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
    """Wait until everything logged so far is written, but no longer than `FLUSH_S`. Blocking."""
    for handler in logging.getLogger().handlers:
        handler.flush()


class Sparing(logging.Filter):
    """Lets `PER_SECOND` lines a second pass of each event that clients can provoke. The first one after that has
    `unlogged`: how many there would have been in between. Lines of the level debug are wanted, and pass."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._now = now
        self._seen: dict[tuple[str, object], list[float]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno <= logging.DEBUG or not (record.name == "topics" or record.name.startswith(_PROVOKED)):
            return True
        event = record.msg
        # By the place in the code and not by the text, of which there may be any number.
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
    """Log warnings, and exceptions that nobody has caught, so that they are lines as well."""
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
