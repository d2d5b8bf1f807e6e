"""Every `TOPICS_*` setting: its default, its parser and its allowed values.

A setting is declared once, as a field of `Settings`. The environment variable (`TOPICS_MAX_BODY_BYTES`), the flag
(`--max-body-bytes`), the parser, the error message and the help page all follow from that declaration. A refused start
reports *all* mistakes in one message, so that an operator need not find them one restart at a time.

Nothing is opened, bound or created here. Whether a directory can be written is found out by the code that writes it.
"""

from __future__ import annotations

import dataclasses
import ipaddress
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from topics.auth.keys import Key, MalformedKeys, parse_keys

KIB: Final = 1 << 10
MIB: Final = 1 << 20
GIB: Final = 1 << 30
TIB: Final = 1 << 40

PREFIX: Final = "TOPICS_"
CLIENT_VARIABLES: Final = frozenset({"TOPICS_URL", "TOPICS_TOKEN"})
"""Variables that only clients read. They are no reason for a warning: a client may share the daemon's environment."""

MAX_DURATION_MS: Final = 365 * 86_400_000
"""A year. A longer interval is taken for a mistake, such as microseconds instead of milliseconds."""

MAX_COUNT: Final = 1_000_000_000
MAX_SIZE: Final = 1024 * TIB
"""Upper bounds for settings that only memory or the disk limits: more than anybody needs, and far from overflow."""

FILE_OFFSET_LIMIT: Final = 1 << 32
"""Offsets in WAL files have 32 bits in the index (`docs/spec/storage.md`). A file may be longer than its configured
size by one batch."""

FRAME_OVERHEAD: Final = 64
"""An upper bound for the fixed part of an Append frame (header, lengths and checksum), bytes."""


class ConfigError(Exception):
    """The configuration is refused. The message has a line for each mistake; `mistakes` are those lines."""

    def __init__(self, mistakes: list[str]) -> None:
        count = "a mistake" if len(mistakes) == 1 else f"{len(mistakes)} mistakes"
        super().__init__("\n".join([f"the configuration has {count}:", *(f"  {line}" for line in mistakes)]))
        self.mistakes = mistakes


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """The declaration of one setting: everything but its value."""

    name: str
    group: str
    help: str
    allowed: str
    """Which values are allowed, as the end of the sentence "the value must be ..."."""
    default: str
    """The default as a person would write it in the environment; empty for "not set"."""
    parse: Callable[[str], Any]
    """Converts a text to a value. Raises ValueError for a value that is not `allowed`."""
    secret: bool = False
    """The value is never printed, and there is no flag for it, because all local users can see command lines."""

    @property
    def variable(self) -> str:
        """The environment variable, such as `TOPICS_MAX_BODY_BYTES`."""
        return PREFIX + self.name.upper()

    @property
    def flag(self) -> str:
        """The command line flag, such as `--max-body-bytes`."""
        return "--" + self.name.replace("_", "-")


# --- kinds -----------------------------------------------------------------------------------------------------------

_DIGITS = re.compile(r"[0-9]{1,19}", re.ASCII)
_SIZE = re.compile(r"([0-9]{1,19})(KiB|MiB|GiB|TiB)?", re.ASCII)
_SHARE = re.compile(r"[01](\.[0-9]{1,9})?|\.[0-9]{1,9}", re.ASCII)
_UNITS = {None: 1, "KiB": KIB, "MiB": MIB, "GiB": GIB, "TiB": TIB}
_BOOLS = {"1": True, "true": True, "0": False, "false": False}


def format_size(size: int) -> str:
    """A size as a setting is written, in the largest unit that divides it: `64MiB`, `16KiB`, `1000`."""
    for unit, factor in (("TiB", TIB), ("GiB", GIB), ("MiB", MIB), ("KiB", KIB)):
        if size and size % factor == 0:
            return f"{size // factor}{unit}"
    return str(size)


def _field(value: Any, **facts: Any) -> Any:
    return dataclasses.field(default=value, metadata=facts, repr=not facts.get("secret", False))


def _within(value: int, low: int, high: int) -> int:
    if not low <= value <= high:
        raise ValueError
    return value


def _count(default: int, low: int, high: int, group: str, help: str, unit: str = "") -> Any:
    """A plain integer."""

    def parse(text: str) -> int:
        if _DIGITS.fullmatch(text) is None:
            raise ValueError
        return _within(int(text), low, high)

    what = f"an integer from {low} to {high}" + (f" ({unit})" if unit else "")
    return _field(default, group=group, help=help, allowed=what, default=str(default), parse=parse)


def _duration(default: int, low: int, group: str, help: str) -> Any:
    """A duration in whole milliseconds."""
    return _count(default, low, MAX_DURATION_MS, group, help, unit="milliseconds")


def _size(default: int, low: int, high: int, group: str, help: str) -> Any:
    """Bytes, as an integer or with a binary suffix."""

    def parse(text: str) -> int:
        match = _SIZE.fullmatch(text)
        if match is None:
            raise ValueError
        return _within(int(match[1]) * _UNITS[match[2]], low, high)

    what = f"a size from {format_size(low)} to {format_size(high)} (in bytes, or with KiB, MiB, GiB or TiB)"
    return _field(default, group=group, help=help, allowed=what, default=format_size(default), parse=parse)


def _share(default: float, group: str, help: str) -> Any:
    """A number from 0 to 1."""

    def parse(text: str) -> float:
        if _SHARE.fullmatch(text) is None or float(text) > 1:
            raise ValueError
        return float(text)

    return _field(default, group=group, help=help, allowed="a number from 0 to 1", default=str(default), parse=parse)


def _choice(default: str, choices: tuple[str, ...], group: str, help: str) -> Any:
    def parse(text: str) -> str:
        if text not in choices:
            raise ValueError
        return text

    what = f"one of {', '.join(choices)}"
    return _field(default, group=group, help=help, allowed=what, default=default, parse=parse)


def _bool(default: bool, group: str, help: str) -> Any:
    def parse(text: str) -> bool:
        if text not in _BOOLS:
            raise ValueError
        return _BOOLS[text]

    what = "one of 1, 0, true, false"
    return _field(default, group=group, help=help, allowed=what, default="1" if default else "0", parse=parse)


def _path(default: str | None, group: str, help: str) -> Any:
    """A path. If the default is None, an empty text also means None."""

    def parse(text: str) -> Path | None:
        if "\0" in text or (not text and default is not None):
            raise ValueError
        return Path(text) if text else None

    value = None if default is None else Path(default)
    return _field(value, group=group, help=help, allowed="a path", default=default or "", parse=parse)


def _text(default: str, allowed: str, group: str, help: str) -> Any:
    def parse(text: str) -> str:
        if not text or not text.isprintable() or text != text.strip():
            raise ValueError
        return text

    return _field(default, group=group, help=help, allowed=allowed, default=default, parse=parse)


_BUCKET_URL = re.compile(r"(s3|gs|az)://[^/\s@?#]+(/[^\s@?#]*)?|file:///[^?#]*")


def _url(group: str, help: str) -> Any:
    """The URL of a bucket; an empty text means none. `topics.bucket.bucket_location` looks at it more closely."""

    def parse(text: str) -> str:
        if text and (not text.isprintable() or _BUCKET_URL.fullmatch(text) is None):
            raise ValueError
        return text

    what = "s3://bucket/prefix, gs://bucket/prefix, az://container/prefix or file:///directory"
    return _field("", group=group, help=help, allowed=what, default="", parse=parse)


_HTTP_URL = re.compile(r"https?://[^/\s@?#]+(/[^\s?#]*)?")


def _http_url(group: str, help: str) -> Any:
    """The URL of a daemon; an empty text means none."""

    def parse(text: str) -> str:
        if text and (not text.isprintable() or _HTTP_URL.fullmatch(text) is None):
            raise ValueError
        return text.rstrip("/")

    return _field("", group=group, help=help, allowed="a URL such as http://topics-1:4000", default="", parse=parse)


def _keys(group: str, help: str) -> Any:
    """API keys. An empty text is refused: it probably means that a secret is missing."""
    what = "KEY[:SCOPES[:PREFIXES]], comma-separated; SCOPES joined by + of read, write, delete, admin, PREFIXES by |"
    return _field((), group=group, help=help, allowed=what, default="", parse=parse_keys, secret=True)


class Rate(NamedTuple):
    """How many requests and bytes a key may use in a second; 0 is no limit."""

    requests: int
    bytes: int


def _rate(group: str, help: str) -> Any:
    """Requests and bytes a second."""

    def parse(text: str) -> Rate:
        requests, slash, size = text.partition("/")
        if not text:
            return Rate(0, 0)
        if _DIGITS.fullmatch(requests or "0") is None or (slash and _SIZE.fullmatch(size) is None):
            raise ValueError
        match = _SIZE.fullmatch(size or "0")
        assert match is not None
        return Rate(_within(int(requests or 0), 0, MAX_COUNT), _within(int(match[1]) * _UNITS[match[2]], 0, MAX_SIZE))

    what = "REQUESTS, REQUESTS/BYTES or /BYTES a second (bytes plain or with KiB, MiB, GiB or TiB); 0 is off"
    return _field(Rate(0, 0), group=group, help=help, allowed=what, default="", parse=parse)


def _origins(group: str, help: str) -> Any:
    """A list of web origins."""

    def parse(text: str) -> tuple[str, ...]:
        origins = tuple(origin.strip().lower() for origin in text.split(",")) if text.strip() else ()
        if not all(origin == "*" or _is_origin(origin) for origin in origins):
            raise ValueError
        return origins

    what = "origins such as https://app.example.org, comma-separated, or *"
    return _field((), group=group, help=help, allowed=what, default="", parse=parse)


_HOST = re.compile(r"(?=.{1,253}\Z)[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?(\.[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?)*", re.ASCII)


def _hosts(group: str, help: str) -> Any:
    """A list of host names."""

    def parse(text: str) -> tuple[str, ...]:
        names = tuple(name.strip().lower() for name in text.split(",")) if text.strip() else ()
        if not all(_HOST.fullmatch(name) for name in names):
            raise ValueError
        return names

    what = "host names such as topics.example.org, without ports, comma-separated"
    return _field((), group=group, help=help, allowed=what, default="", parse=parse)


_NAME_PREFIX = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:>-]{0,254}", re.ASCII)


def _prefixes(group: str, help: str) -> Any:
    """A list of beginnings of names."""

    def parse(text: str) -> tuple[str, ...]:
        prefixes = tuple(prefix.strip() for prefix in text.split("|")) if text.strip() else ()
        if not all(_NAME_PREFIX.fullmatch(prefix) for prefix in prefixes):
            raise ValueError
        return prefixes

    what = "beginnings of names such as eu.|us., separated by |"
    return _field((), group=group, help=help, allowed=what, default="", parse=parse)


def _is_origin(text: str) -> bool:
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        return False
    rest = f"{parts.scheme}://{parts.hostname if ':' not in (parts.hostname or '') else f'[{parts.hostname}]'}"
    plain = text.isascii() and not any(character.isspace() for character in text)
    return bool(parts.scheme and parts.hostname) and plain and text == rest + (f":{port}" if port else "")


# --- the table -------------------------------------------------------------------------------------------------------

LISTENER, FILES, BUCKET, SEGMENTS, DELIVERY, MEMORY, LIMITS, CAPS, TIMES, ACCESS, LOGGING = (
    "Listener",
    "Files",
    "Bucket",
    "Segments",
    "Delivery",
    "Memory",
    "Limits of a request",
    "Caps of the daemon",
    "Times",
    "Access",
    "Logging",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The checked configuration of one daemon. Sizes are bytes, durations (`_ms`) whole milliseconds.

    `load_settings` makes and checks it. Tests may construct it directly; then nothing is checked, but a `wal_shards` of
    0 is still replaced by the number of CPUs.
    """

    host: str = _text(
        "127.0.0.1", "an address or a host name", LISTENER, "Address to listen on; beyond loopback only with API keys."
    )
    port: int = _count(4000, 0, 65535, LISTENER, "Port to listen on; 0 picks a free one.")
    port_file: Path | None = _path(None, LISTENER, "File that receives the port in use, once it listens.")
    http_lane: bool = _bool(
        True, LISTENER, "Serve plain HTTP/1.1 requests on the fast lane; if off, hypercorn serves all of them."
    )

    data_dir: Path = _path("./topics-data", FILES, "Directory of everything that is stored.")
    cold_dir: Path | None = _path(None, FILES, "Directory for old segments; unset: none are moved.")
    cold_adopt: bool = _bool(
        False, FILES, "For one start: take the cold directory as it is, though it has lost its IDENTITY or its content."
    )
    cold_timeout_ms: int = _duration(
        30_000, 100, FILES, "A call of the cold directory without progress for so long is given up."
    )
    wal_shards: int = _count(0, 0, 64, FILES, "Number of write-ahead logs; 0 means min(CPUs, 8).")
    wal_file_bytes: int = _size(
        64 * MIB, 64 * KIB, 2 * GIB, FILES, "Size at which a WAL file is rotated; below 1MiB is for tests."
    )
    wal_backlog_bytes: int = _size(
        2 * GIB, 1 * MIB, MAX_SIZE, FILES, "Log that no checkpoint covers yet; appends wait while there is more."
    )
    recovery: str = _choice(
        "strict",
        ("strict", "salvage"),
        FILES,
        "On damage before the synced end: strict refuses to start, salvage goes on without the damaged range.",
    )
    min_free_bytes: int = _size(256 * MIB, 0, MAX_SIZE, FILES, "Appends are refused while less is free on the disk.")
    min_free_inodes: int = _count(
        1000, 0, MAX_COUNT, FILES, "Appends are refused while fewer inodes (files) are free on the disk; 0 is off."
    )

    evidence_key_file: Path | None = _path(
        None, FILES, "Key that signs evidence (PEM, Ed25519); unset: made in the data directory when it is needed."
    )

    bucket: str = _url(BUCKET, "Bucket that has everything a second time; unset: none.")
    role: str = _choice(
        "owner",
        ("owner", "standby"),
        BUCKET,
        "owner takes appends; standby follows the bucket of another daemon, and serves reads.",
    )
    bucket_poll_ms: int = _duration(500, 10, BUCKET, "How often a standby looks for the next round.")
    bucket_take: bool = _bool(False, BUCKET, "For one start: take the bucket, though it belongs to another directory.")
    bucket_round_ms: int = _duration(2000, 10, BUCKET, "Interval of rounds: at most so much is not in the bucket yet.")
    bucket_backlog_bytes: int = _size(
        0, 0, MAX_SIZE, BUCKET, "Log that is kept for the bucket; 0 means 16GiB, or a third of the free space if less."
    )
    bucket_base_ms: int = _duration(600_000, 1000, BUCKET, "Interval of bases, from which a restore begins.")
    bucket_retain_ms: int = _duration(
        7 * 86_400_000, 0, BUCKET, "How far back the bucket can restore to; what is older is deleted."
    )
    bucket_takeover: bool = _bool(
        False, BUCKET, "The bucket is owned by lease: when this daemon is gone, another one takes over."
    )
    bucket_lease_ms: int = _duration(
        10_000, 300, BUCKET, "With takeover: another daemon takes over when the owner was not heard of for so long."
    )
    advertised_url: str = _http_url(
        BUCKET, "Where clients reach this daemon, as the object owner says; unset: its host and port."
    )
    bucket_timeout_ms: int = _duration(
        30_000, 100, BUCKET, "A call of the bucket is given up after so long, and the time that its bytes need."
    )

    segment_max_events: int = _count(10_000, 1, 1_000_000, SEGMENTS, "Records of a segment.")
    segment_max_bytes: int = _size(64 * MIB, 1 * KIB, 1 * GIB, SEGMENTS, "Bytes of a segment's records.")
    segment_max_age_ms: int = _duration(3_600_000, 0, SEGMENTS, "Age at which a segment is sealed; 0 is off.")
    segment_compression: str = _choice(
        "zstd", ("zstd", "off"), SEGMENTS, "Whether sealed segments are packed; topics may say otherwise."
    )
    rewrite_live_ratio: float = _share(0.5, SEGMENTS, "A segment with a smaller share of live bytes is rewritten.")
    hot_retain_segments: int = _count(4, 0, MAX_COUNT, SEGMENTS, "Newest sealed segments of a topic that stay hot.")
    hot_retain_bytes: int = _size(
        0, 0, MAX_SIZE, SEGMENTS, "Bytes of a topic's newest sealed segments that stay hot, if fewer; 0 is off."
    )
    reclaim_ms: int = _duration(5000, 1, SEGMENTS, "Interval at which the space of deleted records is freed.")
    relocate_ms: int = _duration(5000, 1, SEGMENTS, "Interval at which segments are moved to the cold directory.")

    delivery_workers: int = _count(2, 1, 64, DELIVERY, "Workers that deliver new records; each has a ready set.")

    cache_bytes: int = _size(256 * MIB, 0, MAX_SIZE, MEMORY, "Payloads kept in memory, all topics together.")
    max_inflight_bytes: int = _size(
        256 * MIB, 64 * KIB, MAX_SIZE, MEMORY, "Request bodies in memory, all requests together."
    )
    max_unsent_bytes: int = _size(
        256 * MIB, 1 * MIB, MAX_SIZE, MEMORY, "Answers that wait to be sent, all connections together."
    )
    max_unsent_bytes_per_key: int = _size(
        128 * MIB, 1 * MIB, MAX_SIZE, MEMORY, "Answers that wait to be sent to clients with the same API key."
    )
    max_unsent_bytes_per_connection: int = _size(
        32 * MIB, 1 * MIB, MAX_SIZE, MEMORY, "Answers that wait to be sent on one connection."
    )

    max_batch_records: int = _count(10_000, 1, 1_000_000, LIMITS, "Records of one append.")
    max_record_bytes: int = _size(1 * MIB, 1, 1 * GIB, LIMITS, "Data and meta of one record.")
    max_body_bytes: int = _size(64 * MIB, 1 * KIB, 1 * GIB, LIMITS, "One request body, decompressed.")
    max_call_bytes: int = _size(
        256 * KIB, 4 * KIB, 1 * GIB, LIMITS, "One body of a call that appends nothing, or command on a WebSocket."
    )
    max_meta_bytes: int = _size(16 * KIB, 2, 1 * GIB, LIMITS, "The meta of one record.")
    max_tag_bytes: int = _count(256, 1, 65_535, LIMITS, "A tag.", unit="bytes")
    max_node_bytes: int = _count(128, 1, 65_535, LIMITS, "A node name.", unit="bytes")
    max_limit: int = _count(1000, 1, 100_000, LIMITS, "Records of one read; larger requests are clamped.")
    max_scan: int = _count(10_000, 1, MAX_COUNT, LIMITS, "Records that one read with a filter looks at.")
    max_claim: int = _count(1000, 1, 10_000, LIMITS, "Jobs of one claim, and seqs of one ack, nack or extend.")

    max_topics: int = _count(100_000, 0, MAX_COUNT, CAPS, "Topics; 0 is off.")
    max_routers: int = _count(10_000, 0, MAX_COUNT, CAPS, "Routers; 0 is off.")
    max_total_bytes: int = _size(0, 0, MAX_SIZE, CAPS, "Live payload of all topics together; 0 is off.")
    max_idempotency_keys: int = _count(1_000_000, 0, MAX_COUNT, CAPS, "Idempotency keys remembered; 0 is off.")
    max_unique_keys: int = _count(1_000_000, 0, MAX_COUNT, CAPS, "Unique keys of jobs remembered; 0 is off.")
    max_stages: int = _count(10_000, 0, MAX_COUNT, CAPS, "Open stages of all topics together; 0 is off.")
    max_connections: int = _count(
        0, 0, MAX_COUNT, CAPS, "Connections of clients; 0 is three quarters of the files that may be open."
    )
    max_consumers: int = _count(10_000, 0, MAX_COUNT, CAPS, "Named consumers of all topics together; 0 is off.")
    max_schedules: int = _count(10_000, 0, MAX_COUNT, CAPS, "Schedules; 0 is off.")
    max_groups: int = _count(1000, 0, MAX_COUNT, CAPS, "Groups of all topics together; 0 is off.")
    max_watch_topics: int = _count(256, 1, 10_000, CAPS, "Topics of one watch session, or of one subscription.")
    max_watch_sessions: int = _count(10_000, 0, MAX_COUNT, CAPS, "Watch sessions; 0 is off.")
    max_sse_connections: int = _count(10_000, 0, MAX_COUNT, CAPS, "Open streams and WebSockets together; 0 is off.")
    max_sse_connections_per_key: int = _count(
        1000, 0, MAX_COUNT, CAPS, "Open streams and WebSockets of one API key; 0 is off."
    )
    max_inflight_per_key: int = _count(1000, 0, MAX_COUNT, CAPS, "Requests in progress for one API key; 0 is off.")
    key_share: float = _share(
        0.5, CAPS, "Share of all streams, sessions and body bytes that one of several API keys may take; 0 is off."
    )
    rate_per_key: Rate = _rate(CAPS, "Requests and bytes that one API key may use in a second.")

    sync_tick_ms: int = _duration(
        20, 1, TIMES, "Interval of background syncs: a crash of the machine may lose that much of `disk` and `memory`."
    )
    checkpoint_ms: int = _duration(10_000, 1, TIMES, "Interval of checkpoints while there are writes.")
    admission_ms: int = _duration(1000, 0, TIMES, "How long an append waits for room in a full WAL queue.")
    request_timeout_ms: int = _duration(
        0, 0, TIMES, "A call that has not begun its answer in this time is ended with 503; 0 is off."
    )
    session_ttl_ms: int = _duration(300_000, 1, TIMES, "How long a watch session lives without a stream.")
    stage_ttl_ms: int = _duration(3_600_000, 1, TIMES, "How long a stage lives without an append.")
    drain_ms: int = _duration(10_000, 0, TIMES, "Time for a clean stop.")

    api_keys: tuple[Key, ...] = _keys(ACCESS, "API keys; without any there is no access control.")
    api_keys_file: Path | None = _path(
        None, ACCESS, "File with more API keys, one entry a line; read again on SIGHUP. # begins a comment."
    )
    allow_insecure_no_auth: bool = _bool(False, ACCESS, "Allow listening beyond loopback without API keys.")
    probe_auth: bool = _bool(False, ACCESS, "Health and readiness need a key, too.")
    console: bool = _bool(True, ACCESS, "Serve the console, a page for browsers, at /console.")
    cors_origins: tuple[str, ...] = _origins(ACCESS, "Origins whose pages may call from a browser.")
    allowed_hosts: tuple[str, ...] = _hosts(
        ACCESS, "Names allowed in Host on loopback without API keys, beside localhost and addresses."
    )

    names: tuple[str, ...] = _prefixes(
        ACCESS, "Serve only topics, routers and schedules whose names begin with one of these; unset: all."
    )

    log_level: str = _choice("info", ("debug", "info", "warning", "error"), LOGGING, "The lowest level that is logged.")
    log_format: str = _choice(
        "auto", ("auto", "human", "json"), LOGGING, "Form of the log on stderr; auto is human on a terminal, else JSON."
    )

    slow_request_ms: int = _duration(
        1000, 0, LOGGING, "A request that takes longer is logged, unless it asked to wait; 0 is off."
    )
    audit_log: Path | None = _path(
        None, LOGGING, "File for a JSON line of each control-plane call and deletion; unset: none is written."
    )

    warnings: tuple[str, ...] = ()
    """Mistakes that are no reason to refuse a start; they are logged."""

    def __post_init__(self) -> None:
        if self.wal_shards == 0:
            object.__setattr__(self, "wal_shards", min(len(os.sched_getaffinity(0)), 8))


SETTINGS: Final[Mapping[str, Setting]] = {
    field.name: Setting(name=field.name, **field.metadata) for field in dataclasses.fields(Settings) if field.metadata
}
"""Every setting by its field name, in the order of declaration."""


# --- loading ---------------------------------------------------------------------------------------------------------


def load_settings(environ: Mapping[str, str], overrides: Mapping[str, str] | None = None) -> Settings:
    """The settings of an environment and a command line. `overrides` (texts by field name) win over `environ`.

    Raises `ConfigError` with all mistakes. An unknown `TOPICS_*` variable is only a warning: a variable of a later
    version, or one that was mistyped long ago, must not refuse a start that worked before.
    """
    overrides = overrides or {}
    mistakes: list[str] = []
    values: dict[str, Any] = {}
    for name, setting in SETTINGS.items():
        if name in overrides:
            source, text = setting.flag, overrides[name]
        elif setting.variable in environ:
            source, text = setting.variable, environ[setting.variable]
        else:
            continue
        try:
            values[name] = setting.parse(text)
        except MalformedKeys as error:
            mistakes.append(f"{source}: {error}; must be {setting.allowed}")
        except ValueError:
            mistakes.append(f"{source}={_shown(text)}: must be {setting.allowed}")
    mistakes.extend(
        f"--{name.replace('_', '-')}: there is no such setting" for name in overrides if name not in SETTINGS
    )

    # A setting that could not be parsed has its default here, so that the other rules can still be checked.
    settings = Settings(**values)
    mistakes.extend(_broken_rules(settings))
    if mistakes:
        raise ConfigError(mistakes)
    return dataclasses.replace(settings, warnings=(*_unknown_variables(environ), *_oddities(settings)))


def _shown(text: str) -> str:
    """A value as a message shows it: on one line, and cut if it is long."""
    text = text if text.isprintable() else repr(text)
    return text if len(text) <= 80 else text[:77] + "..."


def is_loopback(host: str) -> bool:
    """Return True if a socket that listens on `host` can be reached from this machine only. Of names, only `localhost`
    counts as such."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _broken_rules(settings: Settings) -> Iterator[str]:
    """The mistakes that single values do not show."""
    has_keys = settings.api_keys or settings.api_keys_file is not None
    if not is_loopback(settings.host) and not has_keys and not settings.allow_insecure_no_auth:
        yield (
            f"{_named('host')}={_shown(settings.host)}: can be reached from other machines, and there are no API keys: "
            f"set {_named('api_keys')} or {_named('api_keys_file')}, or {_named('allow_insecure_no_auth')}=1 if "
            "something else protects the port"
        )
    largest_batch = settings.max_body_bytes + settings.max_batch_records * (FRAME_OVERHEAD + settings.max_node_bytes)
    if settings.wal_file_bytes + largest_batch >= FILE_OFFSET_LIMIT:
        yield (
            f"{_named('wal_file_bytes')}={format_size(settings.wal_file_bytes)} plus the largest batch that "
            f"{_named('max_body_bytes')}, {_named('max_batch_records')} and {_named('max_node_bytes')} allow "
            f"({largest_batch} bytes): must stay below 4GiB, where offsets in a WAL file end"
        )

    if settings.cold_dir is not None and _overlap(settings.data_dir, settings.cold_dir):
        yield (
            f"{_named('cold_dir')}={_shown(str(settings.cold_dir))}: must be neither {_named('data_dir')}="
            f"{_shown(str(settings.data_dir))} nor inside of it or around it"
        )


def _overlap(one: Path, other: Path) -> bool:
    """Return True if one of the directories is the other, or is inside of it. Only the paths are compared: a directory
    that is not mounted, or does not answer, must not delay the start, so links are not followed."""
    paths = [Path(os.path.abspath(path)) for path in (one, other)]
    return paths[0].is_relative_to(paths[1]) or paths[1].is_relative_to(paths[0])


def _oddities(settings: Settings) -> Iterator[str]:
    """Warnings about limits that can never be reached because of another limit."""
    for small, large in (("max_record_bytes", "max_body_bytes"), ("max_body_bytes", "max_inflight_bytes")):
        if getattr(settings, small) > getattr(settings, large):
            yield (
                f"{_named(small)}={format_size(getattr(settings, small))} is above "
                f"{_named(large)}={format_size(getattr(settings, large))}, which is what counts"
            )


def _unknown_variables(environ: Mapping[str, str]) -> Iterator[str]:
    known = {setting.variable for setting in SETTINGS.values()} | CLIENT_VARIABLES
    for variable in sorted(environ):
        if variable.startswith(PREFIX) and variable not in known:
            yield f"{variable}: there is no such setting; it is ignored"


def _named(name: str) -> str:
    return SETTINGS[name].variable
