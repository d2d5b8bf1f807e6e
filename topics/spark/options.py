"""The options of `format("topics")`: parsed and checked once, and from then on plain values (`docs/pipeline.md`).

Spark hands over texts, in a mapping that ignores case. An unknown option is refused by name; an invalid value raises an
OptionError that names the option and its values. The results are frozen and can be pickled; they hold an API key only
if it was given literally (`topics.spark.secrets`).
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Literal
from urllib.parse import quote_plus

import msgspec

from topics.bucket.bucket_location import BucketLocationError, parse_location
from topics.client import Client, Retry
from topics.client.transport import DaemonEndpoint
from topics.filters.filter_error import FilterError
from topics.filters.filter_text import json_of
from topics.filters.record_filter import parse_filter
from topics.spark.schema import COLUMNS, GAP_COLUMNS
from topics.spark.secrets import NO_SECRET, Secret

Edge = int | Literal["earliest", "latest"]
"""Where a topic's range begins or ends: a seq, or `earliest` or `latest` until the daemon is asked."""

CONNECTION_OPTIONS: Final = ("url", "token", "tokenEnv", "tokenFile")
READ_OPTIONS: Final = (
    *CONNECTION_OPTIONS,
    "path",
    "coldPath",
    "asOf",
    "pinMs",
    "topic",
    "topics",
    "topicPrefix",
    "startingSeq",
    "endingSeq",
    "recordsPerPartition",
    "maxRecordsPerTrigger",
    "failOnDataLoss",
    "tombstones",
    "pushdown",
    "columns",
    "node",
    "filter",
)
WRITE_OPTIONS: Final = (*CONNECTION_OPTIONS, "topic", "jobId")
SPARKS_OWN: Final = ("checkpointLocation", "queryName")
"""Options that Spark adds to those of a sink."""

BUCKET_SCHEMES: Final = ("s3://", "gs://", "az://", "file://")
"""A `path` that begins with one of these is the URL of a bucket; behind `file://` there may be a data directory."""

PIN_MS: Final = 6 * 3_600_000
MIN_PIN_MS: Final = 60_000
MAX_PIN_MS: Final = 7 * 86_400_000
"""How long a pin keeps what a query reads, unless it is renewed: the default, and the bounds of `pinMs` (ms)."""

FIRST_TIME: Final = 10**11
"""`asOf`: from this number on it is a time (1973, in epoch ms), below it is a round. A round every second for three
thousand years is less."""

RECORDS_PER_PARTITION: Final = 100_000
MAX_SEQ: Final = 2**63 - 1
MAX_NODES: Final = 1000

MAX_FILTER_BYTES: Final = 32 << 10
"""The longest `filter`, in bytes of a URL: httpx makes none of more than 64 KiB, and other options are in it too."""

REPEAT_FOR_S: Final = 60.0
"""How long a call, or an export that brings no more records, is repeated while the daemon cannot be reached, starts, or
asks to wait, in seconds. Then the task fails, and Spark decides whether to run it again."""

SILENCE_S: Final = 60.0
"""How long a connection may bring no byte, in seconds. The daemon may pause an export for up to 40 s."""

_TOPIC: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,254}")
_PREFIX: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,254}|")
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class OptionError(ValueError):
    """An option is missing, unknown, or has an invalid value. The message begins with its name."""


@dataclass(frozen=True, slots=True)
class DaemonAccess:
    """The daemon's address, and where its API key is found."""

    url: str
    secret: Secret = NO_SECRET

    def connect(self, *, repeat_for: float = REPEAT_FOR_S) -> Client:
        """A new client with the current API key, which the caller must close. It repeats calls for `repeat_for`
        seconds. TOPICS_URL and TOPICS_TOKEN are ignored, because executors have another environment than the driver.
        Raises MissingSecret."""
        return Client(self.url, self.secret.resolve(), timeout=SILENCE_S, retry=Retry(give_up_after=repeat_for))


@dataclass(frozen=True, slots=True)
class Bound:
    """The value of `startingSeq` or `endingSeq`: one for all topics, or one for each topic."""

    default: Edge
    named: tuple[tuple[str, Edge], ...] = ()

    def of(self, topic: str) -> Edge:
        return dict(self.named).get(topic, self.default)


@dataclass(frozen=True, slots=True)
class AsOf:
    """The value of `asOf`: the newest base that is not beyond a round, or a time (epoch ms)."""

    kind: Literal["round", "time"]
    value: int


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """The options of a read. Exactly one of `daemon` and `path` is set, and exactly one of `topics` and `prefix`."""

    daemon: DaemonAccess | None
    path: str | None
    """A directory of segment files, or the URL of a bucket. No URL has a credential in it."""
    topics: tuple[str, ...] | None
    """In the order given, each once."""
    prefix: str | None
    starting: Bound = Bound("earliest")
    ending: Bound = Bound("latest")
    records_per_partition: int = RECORDS_PER_PARTITION
    max_records_per_trigger: int | None = None
    """A bound in seqs, over all topics; None: no bound."""
    fail_on_data_loss: bool = True
    tombstones: bool = False
    pushdown: bool = False
    columns: tuple[str, ...] = COLUMNS
    """The columns of a row, in this order."""
    nodes: tuple[str, ...] = ()
    """The nodes whose records are left out."""
    filter: str | None = None
    """The JSON of a filter (`docs/filters.md`): records that do not match are left out."""
    cold_path: str | None = None
    """The cold directory that belongs to the data directory `path`, if it has one."""
    as_of: AsOf | None = None
    """Which base of a bucket is read; None: the newest."""
    pin_ms: int | None = None
    """How long a pin in a bucket lasts; 0: no pin; None: `PIN_MS`."""

    @classmethod
    def parsed(cls, options: Mapping[str, str]) -> ReadOptions:
        """Raises OptionError."""
        given = _GivenOptions(options, READ_OPTIONS)
        path = given.text("path")
        daemon = _daemon(given, required=path is None)
        if path is not None and daemon is not None:
            raise OptionError("path: is read without a daemon, so it excludes `url`; give one of them")
        cold_path = given.text("coldPath")
        if cold_path is not None and path is None:
            raise OptionError("coldPath: is of use with `path` only, the data directory that it belongs to")
        if path is not None and path.startswith(BUCKET_SCHEMES):
            _check_bucket(path, cold_path)
        topics, prefix = _topics(given)
        tombstones = given.boolean("tombstones", False)
        return cls(
            daemon=daemon,
            path=path,
            topics=topics,
            prefix=prefix,
            starting=_bound(given, "startingSeq", "earliest", topics),
            ending=_bound(given, "endingSeq", "latest", topics),
            records_per_partition=given.integer("recordsPerPartition") or RECORDS_PER_PARTITION,
            max_records_per_trigger=given.integer("maxRecordsPerTrigger"),
            # A gap that arrives as a row is no silent loss, so asking for rows is asking to go on.
            fail_on_data_loss=given.boolean("failOnDataLoss", not tombstones),
            tombstones=tombstones,
            pushdown=given.boolean("pushdown", False),
            columns=_columns(given, tombstones),
            nodes=_nodes(given),
            filter=_filter(given),
            cold_path=cold_path,
            as_of=_as_of(given, path),
            pin_ms=_pin_ms(given, path),
        )

    def check_streaming(self) -> None:
        """Raise OptionError for an option that only a batch has."""
        if self.path is not None:
            raise OptionError("path: files and buckets are read by batches; a stream needs the `url` of a daemon")
        if self.ending != Bound("latest"):
            raise OptionError("endingSeq: a stream has no end; leave it out, or read a batch")
        if self.pushdown:
            raise OptionError("pushdown: Spark pushes no filters into streams; leave it out, or read a batch")

    def check_batch(self) -> None:
        """Raise OptionError for an option that only a stream has."""
        if "latest" in (self.starting.default, *(edge for _, edge in self.starting.named)):
            raise OptionError("startingSeq: `latest` is what comes after the query begins, which only a stream reads")

    def check_directory(self) -> None:
        """Raise OptionError for an option that only a bucket has."""
        for name, value in (("asOf", self.as_of), ("pinMs", self.pin_ms)):
            if value is not None:
                raise OptionError(f"{name}: is of use with a bucket only, and {self.path} is a directory of files")

    def check_bucket(self) -> None:
        """Raise OptionError for an option that only a directory of files has."""
        if self.cold_path is not None:
            raise OptionError("coldPath: is of use with a data directory only: a bucket has all segments")

    def narrowed(self, columns: tuple[str, ...]) -> ReadOptions:
        """The same options with these columns. Raises OptionError for a column that does not exist."""
        _check_columns(columns, self.tombstones)
        return dataclasses.replace(self, columns=columns)


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """The options of a write."""

    daemon: DaemonAccess
    topic: str | None
    """The topic of all rows; None: the column `topic` of each row names it."""
    job_id: str | None = None
    """Two batches with the same id are the same batch, which is published once."""
    sparks: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    """Options that Spark has added."""

    @classmethod
    def parsed(cls, options: Mapping[str, str]) -> WriteOptions:
        """Raises OptionError."""
        given = _GivenOptions(options, (*WRITE_OPTIONS, *SPARKS_OWN))
        daemon = _daemon(given, required=True)
        assert daemon is not None
        topic = given.text("topic")
        if topic is not None:
            _check_topic("topic", topic)
        job_id = given.text("jobId")
        if job_id is not None and not 1 <= len(job_id) <= 200:
            raise OptionError("jobId: takes 1 to 200 characters")
        sparks = tuple((name, text) for name in SPARKS_OWN if (text := given.text(name)) is not None)
        return cls(daemon=daemon, topic=topic, job_id=job_id, sparks=sparks)


class _GivenOptions:
    """The texts that were given, by the names that there are. Spark ignores case, and so does this."""

    def __init__(self, options: Mapping[str, str], known: Iterable[str]) -> None:
        names = {name.lower(): name for name in known}
        self._texts: dict[str, str] = {}
        for key, text in options.items():
            name = names.get(key.lower())
            if name is None:
                raise OptionError(f"{key}: is no option of topics here; there are {', '.join(names.values())}")
            self._texts[name] = text

    def text(self, name: str, *, may_be_empty: bool = False) -> str | None:
        """Return the value that was given, without blanks at its ends; None if none was."""
        text = self._texts.get(name)
        if text is None:
            return None
        if not text.strip() and not may_be_empty:
            raise OptionError(f"{name}: is empty")
        return text.strip()

    def has(self, name: str) -> bool:
        return name in self._texts

    def boolean(self, name: str, otherwise: bool) -> bool:
        text = self.text(name)
        if text is None:
            return otherwise
        if text.lower() not in ("true", "false"):
            raise OptionError(f"{name}: takes true or false")
        return text.lower() == "true"

    def integer(self, name: str) -> int | None:
        text = self.text(name)
        if text is None:
            return None
        number = _number(text)
        if number is None or number < 1:
            raise OptionError(f"{name}: takes a whole number from 1 on")
        return number


def _number(text: str) -> int | None:
    if not re.fullmatch(r"[0-9]{1,19}", text) or int(text) > MAX_SEQ:
        return None
    return int(text)


def _daemon(given: _GivenOptions, *, required: bool) -> DaemonAccess | None:
    secrets = [(name, text) for name in ("tokenEnv", "tokenFile", "token") if (text := given.text(name)) is not None]
    if len(secrets) > 1:
        raise OptionError(f"{secrets[1][0]}: excludes `{secrets[0][0]}`; give one of them")
    url = given.text("url")
    if url is None:
        if required:
            raise OptionError("url: is missing; it takes the address of the daemon, like http://host:4000")
        if secrets:
            raise OptionError(f"{secrets[0][0]}: is of use with `url` only")
        return None
    try:
        DaemonEndpoint.made(url, "", timeout=SILENCE_S, retry=None, gzip=False)
    except ValueError as error:
        raise OptionError(str(error)) from None
    return DaemonAccess(url, _secret(*secrets[0]) if secrets else NO_SECRET)


def _check_bucket(path: str, cold_path: str | None) -> None:
    try:
        # Without the variables of the provider: each process has its own, and looks there when it opens the bucket.
        location = parse_location(path, {}, "path")
    except BucketLocationError as error:
        raise OptionError(str(error)) from None
    if location.scheme != "file" and cold_path is not None:
        raise OptionError("coldPath: is of use with a data directory only: a bucket has all segments")


def _as_of(given: _GivenOptions, path: str | None) -> AsOf | None:
    text = given.text("asOf")
    if text is None:
        return None
    if path is None:
        raise OptionError("asOf: is of use with the `path` of a bucket only")
    if re.fullmatch(r"[0-9]{1,15}", text):
        return AsOf("time" if int(text) >= FIRST_TIME else "round", int(text))
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None or len(text) < len("2026-11-24T09:59Z"):
        raise OptionError(
            "asOf: takes the number of a round, or a time like 2026-11-24T09:59:00Z (with `Z` or an offset) or in "
            "milliseconds since 1970"
        )
    return AsOf("time", (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1))


def _pin_ms(given: _GivenOptions, path: str | None) -> int | None:
    text = given.text("pinMs")
    if text is None:
        return None
    if path is None:
        raise OptionError("pinMs: is of use with the `path` of a bucket only")
    number = _number(text)
    if number is None or (number and not MIN_PIN_MS <= number <= MAX_PIN_MS):
        raise OptionError(f"pinMs: takes {MIN_PIN_MS} to {MAX_PIN_MS} milliseconds, or 0 for no pin")
    return number


def _secret(name: str, text: str) -> Secret:
    if name == "tokenEnv":
        if not _VARIABLE.fullmatch(text):
            # Not repeated: it may be the key itself, given by mistake.
            raise OptionError("tokenEnv: takes the name of an environment variable, and not the key")
        return Secret("env", text)
    if name == "tokenFile":
        return Secret("file", text)
    if not text.isascii() or not text.isprintable():
        raise OptionError("token: has characters that no key has")
    return Secret("literal", text)


def _check_topic(name: str, topic: str) -> None:
    if not _TOPIC.fullmatch(topic):
        raise OptionError(f"{name}: {topic!r} is no name of a topic: letters, digits and `._:-`, at most 255")


def _topics(given: _GivenOptions) -> tuple[tuple[str, ...] | None, str | None]:
    chosen = [name for name in ("topic", "topics", "topicPrefix") if given.has(name)]
    if len(chosen) != 1:
        raise OptionError("topic: give exactly one of `topic`, `topics` (separated by commas) and `topicPrefix`")
    text = given.text(chosen[0], may_be_empty=chosen[0] == "topicPrefix")  # every name begins with nothing
    assert text is not None
    if chosen[0] == "topicPrefix":
        if not _PREFIX.fullmatch(text):
            raise OptionError(f"topicPrefix: no topic begins with {text!r}")
        return None, text
    names = [text] if chosen[0] == "topic" else [part.strip() for part in text.split(",")]
    for name in names:
        _check_topic(chosen[0], name)
    return tuple(dict.fromkeys(names)), None


def _bound(
    given: _GivenOptions, name: str, default: Literal["earliest", "latest"], topics: tuple[str, ...] | None
) -> Bound:
    takes = f"{name}: takes a seq from 1 on, `{default}`{', `latest`' if name == 'startingSeq' else ''}, "
    takes += 'or JSON like {"topic": seq}'
    text = given.text(name)
    if text is None:
        return Bound(default)
    if not text.startswith("{"):
        return Bound(_edge(text, name, takes))
    try:
        values: dict[str, Any] = msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.MsgspecError:
        raise OptionError(takes) from None
    for topic in values:
        if topics is not None and topic not in topics:
            raise OptionError(f"{name}: names {topic!r}, which is not read")
    return Bound(default, tuple((topic, _edge(value, name, takes)) for topic, value in values.items()))


def _edge(value: object, name: str, takes: str) -> Edge:
    if value == "latest":
        return "latest"
    if value == "earliest" and name == "startingSeq":
        return "earliest"
    if isinstance(value, str | int) and not isinstance(value, bool) and (number := _number(str(value))):
        return number
    raise OptionError(takes)


def _columns(given: _GivenOptions, tombstones: bool) -> tuple[str, ...]:
    text = given.text("columns")
    if text is None:
        return COLUMNS + GAP_COLUMNS if tombstones else COLUMNS
    names = tuple(part.strip() for part in text.split(","))
    _check_columns(names, tombstones)
    return names


def _check_columns(names: tuple[str, ...], tombstones: bool) -> None:
    there_are = COLUMNS + GAP_COLUMNS if tombstones else COLUMNS
    for name in names:
        if name not in there_are:
            raise OptionError(f"columns: {name!r} is none; it takes some of {', '.join(there_are)}")
    if len(set(names)) != len(names):
        raise OptionError("columns: names one twice")
    if tombstones and not set(names) & set(GAP_COLUMNS):
        raise OptionError(f"columns: with `tombstones` it needs one of {', '.join(GAP_COLUMNS)}, or gaps do not show")


def _nodes(given: _GivenOptions) -> tuple[str, ...]:
    text = given.text("node")
    if text is None:
        return ()
    if not text.startswith("["):
        return (text,)
    try:
        names = msgspec.json.decode(text, type=list[str])
    except msgspec.MsgspecError:
        names = []
    if not 1 <= len(names) <= MAX_NODES or not all(names):
        raise OptionError(f'node: takes the name of a writer, or JSON like ["a", "b"] with at most {MAX_NODES} of them')
    return tuple(dict.fromkeys(names))


def _filter(given: _GivenOptions) -> str | None:
    text = given.text("filter")
    if text is None:
        return None
    try:
        found = parse_filter(text).text if text.startswith("[") else json_of(text)
    except FilterError as error:
        raise OptionError(f"filter: {error}") from None
    size = len(quote_plus(found))
    if size > MAX_FILTER_BYTES:
        raise OptionError(f"filter: has {size} bytes in a URL, at most {MAX_FILTER_BYTES} are allowed")
    return found
