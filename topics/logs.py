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

import json
import logging
import math
import os
import re
import select
import sys
import threading
import time
import traceback
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from types import TracebackType
from typing import Any, Final, TextIO

import structlog

SECRET_KEYS: Final = frozenset({"token", "authorization", "api_key", "api_keys", "password", "secret"})
HIDDEN: Final = "(hidden)"

MAX_LINE: Final = 16 << 10
MAX_WAITING: Final = 4 << 20
PER_SECOND: Final = 10
FLUSH_S: Final = 2.0

_MAX_VALUE: Final = 64 << 10
_MAX_DEPTH: Final = 8
_BATCH_BYTES: Final = 64 << 10

_NOT_VISIBLE: Final = re.compile("[^ -~]")

_FIRST: Final = ("timestamp", "level", "event", "logger", "request_id")
"""In this order at the beginning of a line; what is left of one that cannot be cut otherwise."""

_PROVOKED: Final = ("topics.http", "topics.watching", "hypercorn", "quart")
"""Loggers of events that clients can bring about as often as they like. Quart's own lines come from `topics`."""

Event = MutableMapping[str, Any]


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
    render = _HumanRenderer(colors=stream.isatty()) if human else render_json
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


# --- what goes into a line -------------------------------------------------------------------------------------------


def render_json(_logger: Any, _method: str, event: Event) -> str:
    """The line as one JSON object, ASCII only. The last processor of a chain."""
    line = hide_credentials(_dumps(_unified(event)))
    return line if len(line) <= MAX_LINE else _cut_json(line)


def _dumps(value: Any) -> str:
    return escape_ascii(json.dumps(value))


def escape_ascii(line: str) -> str:
    """A line of JSON in visible ASCII: with nothing that a terminal would obey or a reader take for the end of it."""
    return _NOT_VISIBLE.sub(lambda found: json.dumps(found[0])[1:-1].replace("\x7f", "\\u007f"), line)


class _HumanRenderer:
    """The line as a person reads it."""

    def __init__(self, colors: bool) -> None:
        self._render = structlog.dev.ConsoleRenderer(colors=colors)

    def __call__(self, logger: Any, method: str, event: Event) -> str:
        event = _unified(event)
        below = [str(event.pop(name)) for name in ("stack", "exception") if name in event]
        shown: Event = {_escaped(key): value if key in _FIRST else _Shown(value) for key, value in event.items()}
        for key in _FIRST:
            if key in shown:
                shown[key] = _escaped(str(shown[key]))
        head = str(self._render(logger, method, shown))
        lines = [head, *("    " + _escaped(line) for text in below for line in text.splitlines())]
        text = hide_credentials("\n".join(lines), as_json=False)
        if len(text) <= MAX_LINE:
            return text
        return _middle_left_out(text, MAX_LINE - 64, f" ... (cut: it has {len(text)} characters) ... ")


class _Shown:
    """A value as the console shows it: without characters that a terminal would obey."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def __repr__(self) -> str:
        value = self._value
        if not isinstance(value, str):
            return _escaped(repr(value))
        plain = value.isprintable() and value and not set(value) & set(" ='\"")
        return value if plain else repr(value)


def _escaped(text: str) -> str:
    return text if text.isprintable() else repr(text)[1:-1]


def _unified(event: Mapping[str, Any]) -> Event:
    """The event with nothing in it but what JSON has, without the values of secret keys, a traceback as text."""
    known = {name: _plain(event[name]) for name in _FIRST if name in event}
    rest = {
        str(name): HIDDEN if _is_secret(name) else _plain(value)
        for name, value in event.items()
        if name not in known and name != "exc_info"
    }
    error = _exception_of(event.get("exc_info"))
    if error is not None:
        rest["exception"] = _shortened("".join(traceback.format_exception(error)).rstrip("\n"))
    return known | rest


def _exception_of(exc_info: Any) -> BaseException | None:
    if isinstance(exc_info, BaseException):
        return exc_info
    if isinstance(exc_info, tuple):
        error = exc_info[1]
        return error if isinstance(error, BaseException) else None
    return sys.exc_info()[1] if exc_info else None


def _is_secret(key: Any) -> bool:
    if isinstance(key, bytes):
        key = key.decode("latin-1")
    return isinstance(key, str) and key.lower().replace("-", "_") in SECRET_KEYS


def _plain(value: Any, depth: int = 0) -> Any:
    if isinstance(value, str):
        return _shortened(value)
    if value is None or isinstance(value, int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else repr(value)
    if depth < _MAX_DEPTH:
        if isinstance(value, Mapping):
            return {str(key): HIDDEN if _is_secret(key) else _plain(inner, depth + 1) for key, inner in value.items()}
        if isinstance(value, list | tuple) and len(value) == 2 and _is_secret(value[0]):
            return [_plain(value[0]), HIDDEN]  # a header
        if isinstance(value, list | tuple | set | frozenset):
            return [_plain(inner, depth + 1) for inner in value]
    return _shortened(repr(value))


def _shortened(text: str) -> str:
    """Short enough to be searched and cut in no time."""
    return (
        text if len(text) <= _MAX_VALUE else _middle_left_out(text, _MAX_VALUE, f" ... ({len(text)} characters) ... ")
    )


def _middle_left_out(text: str, room: int, instead: str) -> str:
    """The beginning and, of the same length, the end: where a traceback says what it is about."""
    return text[: room // 2] + instead + text[len(text) - room // 2 :]


def _cut_json(line: str) -> str:
    """The object with its long values cut until the line is short enough; `cut` says how long it was."""
    event = json.loads(line)
    room = MAX_LINE
    while room > 64:
        room //= 2
        short = _dumps({name: _cut_value(value, room) for name, value in event.items()} | {"cut": len(line)})
        if len(short) <= MAX_LINE:
            return short
    kept = {name: _cut_value(event[name], 512) for name in _FIRST if name in event}
    return _dumps(kept | {"cut": len(line)})


def _cut_value(value: Any, room: int) -> Any:
    text = value if isinstance(value, str) else _dumps(value)
    return value if len(text) <= room else _middle_left_out(text, room, " ... ")


# --- credentials -----------------------------------------------------------------------------------------------------


def _spelled(word: str) -> str:
    """A word of which any letter may be percent-encoded, as it may be in the query of a URL."""
    return "".join(f"(?:{letter}|%{ord(letter):02x}|%{ord(letter.upper()):02x})" for letter in word)


def _within_json(end: str) -> str:
    """A value that ends at white space, also escaped, and at the end of the string. Other escapes stay whole."""
    return rf"(?:\\[^nrt]|[^\s{end}\"\\])+"


def _within_text(end: str) -> str:
    return rf"[^\s{end}]+"


def _pattern(quote: str, within: Callable[[str], str]) -> re.Pattern[bytes]:
    """What is hidden in a text in small letters: what follows `token=` in its many spellings, or `bearer`.

    `quote` is what quotation marks look like in this text. In JSON they have a backslash; one without ends the string,
    and nothing of a match lies beyond it, so that the line is valid JSON afterwards.
    """
    equals = r"(?:%(?:25)?3d|=)"
    colon = r"(?:%(?:25)?3a|:)"
    gap = r"\s{0,8}"
    blanks = r"(?:\s|\\t|\+|%(?:25)?20){1,8}"
    name = rf"(?:{_spelled('token')}|password|secret)"
    keys = r"api[_-]?keys?"
    before = (
        rf"{name}{gap}(?:{equals}|{colon}){gap}",
        # What is wrong with the setting TOPICS_API_KEYS is told after its name and a colon.
        rf"{keys}{gap}{equals}{gap}",
        rf"(?:{name}|{keys}){quote}{gap}[:,=]{gap}",
    )
    # There are schemes of more words than one.
    header = rf"authorization{quote}?{gap}(?:{equals}|[:,]){gap}({within('')}(?:{blanks}{within('')}){{0,64}})"
    opening = rf"(?:b?{quote})?(?:(?:bearer|basic){blanks})?"
    return re.compile(rf"{header}|(?:{'|'.join(before)}){opening}({within('&')})|bearer{blanks}({within('')})".encode())


_IN_JSON: Final = _pattern(r"(?:\\+\"|\\*')", _within_json)
_IN_TEXT: Final = _pattern(r"\\*[\"']", _within_text)
_JSON_MEMBER: Final = re.compile(rb'"(?:token|authorization|api_keys?|password|secret)"\s*:\s*"((?:\\.|[^"\\])*)')
# Patterns are matched where they may begin: to search for them takes a hundred times as long.
_STARTS: Final = re.compile(rb"token|t(?:o|ok|oke)?%|%[57]4|authorization|password|secret|api|bearer")
_WORDS: Final = (b"token", b"authorization", b"password", b"secret", b"api", b"bearer", b"%")


def hide_credentials(text: str, *, as_json: bool = True) -> str:
    """The text with what looks like a credential blanked. What is valid JSON (on one line) stays so; with `as_json`
    false it is taken for a text in which quotation marks mean nothing."""
    data = text.encode("utf-8", "surrogatepass")
    small = data.lower()
    if not any(word in small for word in _WORDS):
        return text
    pattern = _IN_JSON if as_json else _IN_TEXT
    data = _blanked(data, _matches(pattern, small))
    if as_json:
        data = _blanked(data, _JSON_MEMBER.finditer(data.lower()))
    return data.decode("utf-8", "surrogatepass")


def _matches(pattern: re.Pattern[bytes], small: bytes) -> Iterator[re.Match[bytes]]:
    at = 0
    while (start := _STARTS.search(small, at)) is not None:
        match = pattern.match(small, start.start())
        if match is None:
            at = start.start() + 1
        else:
            yield match
            at = match.end()


def _blanked(data: bytes, matches: Iterable[re.Match[bytes]]) -> bytes:
    pieces = []
    end = 0
    for match in matches:
        group = match.lastindex or 0
        pieces += [data[end : match.start(group)], HIDDEN.encode()]
        end = match.end(group)
    return b"".join([*pieces, data[end:]])


# --- how many lines --------------------------------------------------------------------------------------------------


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


# --- the way out -----------------------------------------------------------------------------------------------------


class LineHandler(logging.Handler):
    """Writes lines to a stream from a thread of its own; see the module.

    A stream without a file descriptor (in memory) is written to at once.
    """

    def __init__(self, stream: TextIO) -> None:
        super().__init__()
        self._stream = stream
        self._fd = _descriptor_of(stream)
        # Reentrant: the collector may run anywhere, and what it finalises may log.
        self._changed = threading.Condition(threading.RLock())
        self._lines: deque[bytes] = deque()
        self._bytes = 0
        self._writing = False
        self._dropped = 0
        self._closed = False
        self._thread: threading.Thread | None = None

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = self.format(record)
        except Exception as error:
            line = self._own_line("log_line_failed", logger=record.name, error=type(error).__name__)
        if self._fd is None:
            self._stream.write(line + "\n")
            self._stream.flush()
        else:
            self._put(line.encode("utf-8", "backslashreplace") + b"\n")

    def flush(self) -> None:
        """Wait until what has been logged is written, for `FLUSH_S` at most."""
        with self._changed:
            self._changed.wait_for(lambda: not self._lines and not self._writing and not self._dropped, FLUSH_S)

    def close(self) -> None:
        """Take no more. What is left is written as long as the process lives; `flush` waits for it."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        super().close()

    def _put(self, line: bytes) -> None:
        with self._changed:
            if self._closed:
                return
            if self._dropped or self._bytes + len(line) > MAX_WAITING:
                self._dropped += 1
                return
            self._lines.append(line)
            self._bytes += len(line)
            if self._thread is None:
                self._thread = threading.Thread(target=self._write_all, name="log", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def _write_all(self) -> None:
        """The thread. It waits in system calls only, so that the process may end whatever it waits for."""
        assert self._fd is not None
        while True:
            with self._changed:
                self._writing = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._lines or self._dropped or self._closed)
                if self._lines:
                    batch = self._take()
                elif self._dropped:
                    # In the place where they are missing: nothing is taken while there are any.
                    dropped, self._dropped = self._dropped, 0
                    batch = self._own_line("log_lines_dropped", count=dropped).encode() + b"\n"
                else:
                    return
                self._writing = True
            try:
                _write(self._fd, batch)
            except OSError:
                pass  # there is nobody to tell

    def _take(self) -> bytes:
        taken = [self._lines.popleft()]
        size = len(taken[0])
        while self._lines and size + len(self._lines[0]) <= _BATCH_BYTES:
            taken.append(self._lines.popleft())
            size += len(taken[-1])
        self._bytes -= size
        return b"".join(taken)

    def _own_line(self, event: str, **fields: Any) -> str:
        message = {"event": event, "level": "error", "logger": __name__} | fields
        message["timestamp"] = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        formatter = self.formatter
        if isinstance(formatter, structlog.stdlib.ProcessorFormatter):
            return str(formatter.processors[-1](None, "error", message))
        return json.dumps(message)


def _descriptor_of(stream: TextIO) -> int | None:
    try:
        return stream.fileno()
    except (OSError, AttributeError, ValueError):
        return None


def _write(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(fd, view) :]
        except BlockingIOError:  # somebody who shares the terminal has made it so
            select.select([], [fd], [], 1.0)


# --- what Python would print -----------------------------------------------------------------------------------------


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
