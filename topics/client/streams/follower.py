"""The state of a tail or watch: the position in each topic, and the next call after an answer, a frame or a break.

Theory of operation. A follower has a *place* in each of its topics: the last seq that the caller has taken, and the
epoch that the seq belongs to. It keeps its places itself. A session of the daemon is only a way to get what comes after
them:

    no session     POST /v0/watch from the places. The answer has the epoch of each topic. Where the epoch is another
                   than the place's, or the head lies before the place, the topic was made again: the follower yields a
                   tombstone (`recreated`), sets the place to the beginning of the new instance, and makes another POST.
                   A topic that does not exist any more was deleted: the follower yields that, and makes another POST
                   for the other topics.
    session        GET the stream of the session, after the id of the last frame if there was one. Frames become values.
    break          After a frame with an id, GET the stream of the same session again. Where the daemon does not know
                   the session any more (404, 410: the daemon was restarted, or the session has expired), drop it.

A watch may have prefixes. Topics that begin so get a place when the daemon adds them. When such a session is dropped,
the next one names the topics that have a place, and the prefixes for the others; those that are new in its answer were
made meanwhile. A topic that came by a prefix and was made again is deleted and added.

Four kinds of session are dropped after a break: one with prefixes, because that is simplest, and three because the
daemon cannot repeat what the break has lost. A session without a frame: the daemon may take frames for delivered that
have not arrived, and only an id takes it back. A session of more than 64 topics: its ids do not name their topics, and
a lost `topic-deleted` shows only in that the next id does not name the topic. A session that has reported `recreated`:
it does not report the epoch of the new instance.

A frame is decoded whole, so the follower meets a break only after the caller has taken everything before it. The place
of a topic moves with each value that is taken. A record that the daemon sends a second time is skipped by its seq.

Pure: no I/O, no clock. The shells in `topics.client.streams.tails` and `topics.client.streams.async_tails` make the
calls, hand in the bytes, and wait.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any, Final, Literal, NamedTuple, TypedDict

import msgspec

from topics.client import calls
from topics.client.calls import ClientCall
from topics.client.errors import ApiError, NotFound, ProtocolError, Throttled, TopicsError
from topics.client.results import (
    CaughtUp,
    Record,
    Tombstone,
    TopicAdded,
    TopicDeleted,
    TopicsLeftOut,
    Watch,
    WatchedTopic,
)
from topics.client.streams.reconnection import OnBreak, OnResume, Reconnection, decoded, ended, error_event, silence_s
from topics.client.streams.sse import Event, EventDecoder

GONE: Final = frozenset({404, 410})
"""The codes with which the daemon answers or ends the stream of a session that does not exist any more."""

TAKEN_OVER: Final = 409
"""The code with which the daemon ends a stream when a newer one of the same session is opened. The newer one may be
answered with it too, while the older one ends."""


class Position(NamedTuple):
    """How far a topic was taken: the last seq that was taken, and the instance of the topic that the seq belongs to.
    `epoch` is 0 while the instance is not known."""

    seq: int
    epoch: int = 0


Start = int | tuple[int, int] | Literal["tail"]
"""Where to begin in a topic: after a seq; at a `Position`, which shows whether the topic was made again since; or, with
`"tail"`, at the head."""

Followed = Record | Tombstone | TopicAdded | TopicDeleted | TopicsLeftOut | CaughtUp
"""A value that a tail or watch yields. The field `topic` is always set, except in TopicsLeftOut."""


class WatchOptions(TypedDict):
    """The options of a session, as `calls.create_watch` takes them."""

    node: str | Iterable[str]
    limit: int | None
    max_batch_bytes: int | None
    heartbeat_ms: int | None
    include_data: bool
    include_meta: bool
    include_tags: bool
    consistency: Literal["eventual", "strong", "remote"]
    filter: calls.Filter | None


def tail(
    topic: str,
    from_seq: int | tuple[int, int] = 0,
    *,
    tail: bool = False,
    node: str | Iterable[str] = (),
    limit: int | None = None,
    max_batch_bytes: int | None = None,
    heartbeat_ms: int | None = None,
    include_data: bool = True,
    include_meta: bool = True,
    include_tags: bool = True,
    consistency: Literal["eventual", "strong", "remote"] = "eventual",
    create: bool = False,
    filter: calls.Filter | None = None,
    caught_up: bool = False,
    give_up_after: float | None = None,
    on_break: OnBreak | None = None,
    on_resume: OnResume | None = None,
) -> Follower:
    """The records of a topic after `from_seq`, and then those that are appended, without end: `watch` of one topic.

    `from_seq` is a seq or a `Position`. With `tail=True` it is ignored, and only records come that are appended after
    the iterator was entered (`with`), or first asked for a value. The other parameters are those of `watch`.
    """
    return watch(
        {topic: "tail" if tail else from_seq},
        node=node,
        limit=limit,
        max_batch_bytes=max_batch_bytes,
        heartbeat_ms=heartbeat_ms,
        include_data=include_data,
        include_meta=include_meta,
        include_tags=include_tags,
        consistency=consistency,
        create=create,
        filter=filter,
        caught_up=caught_up,
        give_up_after=give_up_after,
        on_break=on_break,
        on_resume=on_resume,
    )


def watch(
    topics: Mapping[str, Start] | Iterable[str] = (),
    *,
    prefixes: Mapping[str, int | Literal["tail"]] | Iterable[str] = (),
    lenient: bool = False,
    node: str | Iterable[str] = (),
    limit: int | None = None,
    max_batch_bytes: int | None = None,
    heartbeat_ms: int | None = None,
    include_data: bool = True,
    include_meta: bool = True,
    include_tags: bool = True,
    consistency: Literal["eventual", "strong", "remote"] = "eventual",
    create: bool = False,
    filter: calls.Filter | None = None,
    caught_up: bool = False,
    give_up_after: float | None = None,
    on_break: OnBreak | None = None,
    on_resume: OnResume | None = None,
) -> Follower:
    """The records of several topics, and then those that are appended, without end; each topic in the order of seqs.

    `topics` are names, which begin with the first record, or a mapping of names to where to begin: after a seq, at a
    `Position`, or at the head (`"tail"`). Yields a Record; a Tombstone for records that are gone (`recreated`: the
    topic was deleted and made again, and its records follow from the first); TopicDeleted, after which nothing comes of
    that topic; and with `caught_up=True` a CaughtUp whenever all records of a topic have come. The iterator ends when
    all topics are deleted, and when it is closed.

    `prefixes` adds the topics whose names begin so: names, or a mapping of them to where to begin in the topics that
    exist now (0 or `"tail"`). A topic that is made later is announced by a TopicAdded, and its records come from the
    first one; if it is deleted and made again, TopicDeleted and TopicAdded come. With prefixes the iterator ends only
    when it is closed. The daemon bounds the topics of one watch (`TOPICS_MAX_WATCH_TOPICS`); TopicsLeftOut names those
    that are not followed, also when it is connected again.

    It survives restarts of the daemon and broken connections: no record is left out without a tombstone, and none comes
    twice. It tries to connect again without end, with waits of up to 5 s; with `give_up_after` it raises the last
    failure when it has not reached the daemon for so many seconds. In the thread or task that iterates, it calls
    `on_break(error, wait_s)` after each failure that it survives, and `on_resume()` when it is connected again.

    A topic that does not exist raises NotFound at the beginning. With `lenient` it is left out (BadRequest if none
    exists). With `create` it is waited for, and followed from its first record once another call has created it, also
    with `"tail"`. Unauthorized, Forbidden and BadRequest are raised whenever they occur.

    `node` leaves out the records of these writers, `filter` those that do not match it. `limit` (records) and
    `max_batch_bytes` bound a frame, and with it what is read ahead. With `consistency="strong"` a record is delivered
    when it is on disk. A connection that brings no byte for three heartbeats (`heartbeat_ms`; None: 15 s) counts as
    broken.
    """
    nodes = node if isinstance(node, str) else list(node)
    options = WatchOptions(
        node=nodes,
        limit=limit,
        max_batch_bytes=max_batch_bytes,
        heartbeat_ms=heartbeat_ms,
        include_data=include_data,
        include_meta=include_meta,
        include_tags=include_tags,
        consistency=consistency,
        filter=filter,
    )
    if isinstance(topics, str) or isinstance(prefixes, str):
        raise TypeError("topics are names, not one name; for one there is tail()")
    begins = dict(prefixes) if isinstance(prefixes, Mapping) else dict.fromkeys(prefixes, 0)
    starts = topics if isinstance(topics, Mapping) else dict.fromkeys(topics, 0)
    reconnection = Reconnection(give_up_after=give_up_after, on_break=on_break, on_resume=on_resume)
    return Follower(
        starts,
        options,
        prefixes=begins,
        lenient=lenient,
        create=create,
        caught_up=caught_up,
        reconnection=reconnection,
    )


class _FollowedTopic:
    """Where a follower is in one topic."""

    __slots__ = (
        "at",
        "before",
        "by_prefix",
        "caught_up",
        "ended",
        "found",
        "from_tail",
        "made_again",
        "name",
        "told",
        "untold",
    )

    def __init__(self, name: str, start: Start, *, by_prefix: bool = False) -> None:
        self.name = name
        self.by_prefix = by_prefix
        self.untold = False
        """A TopicAdded is decoded, and not taken yet."""
        self.before: _FollowedTopic | None = None
        """The older instance of which a TopicDeleted is not taken yet."""
        self.from_tail = start == "tail"
        """The place is the head, whose seq is not known yet."""
        self.at = Position(0)
        """How far the caller has taken values."""
        if isinstance(start, int):
            self.at = Position(start)
        elif not isinstance(start, str):
            self.at = Position(*start)
        self.told = self.at.seq
        """The seq of `at` once the caller has taken all values that are decoded."""
        self.caught_up: int | None = None
        """The head of the last `caught-up` frame."""
        self.made_again = False
        """The daemon has reported that the topic was made again, but not the epoch of the new instance."""
        self.found = False
        """The topic exists, or has existed."""
        self.ended = False
        """A TopicDeleted is decoded, and not taken yet."""


class _RecordFrame(msgspec.Struct):
    topic: str
    records: list[Record]
    to_seq: int


class _FrameSubject(msgspec.Struct):
    topic: str


class _LeftOut(msgspec.Struct):
    left_out: int = 0
    topics: list[str] = []


_about: Final = msgspec.json.Decoder(_FrameSubject)
_record_frame: Final = msgspec.json.Decoder(_RecordFrame)
_tombstone: Final = msgspec.json.Decoder(Tombstone)
_caught_up: Final = msgspec.json.Decoder(CaughtUp)
_topic_deleted: Final = msgspec.json.Decoder(TopicDeleted)
_topic_added: Final = msgspec.json.Decoder(TopicAdded)
_left_out: Final = msgspec.json.Decoder(_LeftOut)
_cursors: Final = msgspec.json.Decoder(dict[str, int])


class Follower:
    """The state machine of a tail or watch.

    The shell that drives it calls `take` until it returns None, and ends when `ended`. Else it makes `next_call` if no
    stream is open, and passes the result to `answered`; or it opens the stream, reports that (`opened`) and passes
    pieces to `feed`, until the stream ends or `over` is set (`finished`). Errors are passed to `failed`. Not
    thread-safe.
    """

    def __init__(
        self,
        starts: Mapping[str, Start],
        options: WatchOptions,
        *,
        prefixes: Mapping[str, int | Literal["tail"]] | None = None,
        lenient: bool = False,
        create: bool = False,
        caught_up: bool = False,
        reconnection: Reconnection | None = None,
    ) -> None:
        if not starts and not prefixes:
            raise ValueError("topics: there is none")
        self._prefixes = dict(prefixes or {})
        self.begun = False
        """The daemon has accepted the topics, and the seqs at which `"tail"` begins are known."""
        self.silence_s = silence_s(options["heartbeat_ms"])
        """How long a stream may bring no byte before it counts as broken, in seconds."""
        self.over = False
        """The open stream is of no more use: close it and call `finished`."""
        self.tells_epochs = False
        """Tell the daemon the epochs of places, because it may be a standby that does not know them yet."""
        self._options = options
        self._lenient = lenient
        self._create = create
        self._awaited: set[str] = set()
        """Topics that did not exist when the session was made. The session does not report their epochs when they are
        created."""
        self._tells_caught_up = caught_up
        self._reconnection = reconnection or Reconnection()
        self._places = {name: _FollowedTopic(name, start) for name, start in starts.items()}
        self._values: deque[tuple[Followed | None, _FollowedTopic, Position]] = deque()
        """Decoded values, each with its place and the position in it once the value is taken. At most those of one
        piece of the stream."""
        self._stream_url: str | None = None
        """Of the session; None: there is no session."""
        self._asked = False
        """The stream of the session was asked for."""
        self._last_id: str | None = None
        self._resuming = False
        """The stream was asked for again, and no id has come on it yet."""
        self._final: TopicsError | None = None
        """The error with which the daemon has ended the stream."""
        self._events = EventDecoder()

    # -- what the user sees ------------------------------------------------------------------------------------------

    def take(self) -> Followed | None:
        """Return the next value, and count it as taken; None if no value is decoded."""
        while self._values:
            value, place, at = self._values.popleft()
            place.at = at
            if isinstance(value, TopicDeleted) and self._places.get(place.name) is place:
                del self._places[place.name]
            elif isinstance(value, TopicAdded):
                place.untold, place.before = False, None
            if value is not None:
                return value
        return None

    @property
    def ended(self) -> bool:
        """Return True if all topics are deleted and all values are taken."""
        return self.begun and not self._prefixes and not self._places and not self._values

    def position(self, topic: str) -> Position:
        """How far a topic was taken. Raises KeyError for a topic that is not followed or was deleted, and for one that
        begins at its head while the head is not known."""
        place = self._places[topic]
        if place.from_tail:
            raise KeyError(topic)
        return place.at

    # -- what to do --------------------------------------------------------------------------------------------------

    def next_call(self) -> ClientCall[Any]:
        """The next call, for when there is nothing to take and no stream is open: one with a type for its answer, which
        goes to `answered`; or one without, which is to be opened as a stream."""
        if self._asked and (self._prefixes or not self._names_all(self._last_id)):
            self._stream_url = None
        if self._stream_url is not None:
            self._resuming = self._asked
            self._asked = True
            self._events = EventDecoder()
            self._final = None
            self.over = False
            return calls.open_watch(self._stream_url, self._last_id)
        starts: dict[str, dict[str, object]] = {
            place.name: {"tail": True} if place.from_tail else self._start(place.at) for place in self._places.values()
        }
        # Once all are there, one that is not there any more was deleted, and the daemon says so.
        create = self._create and not all(place.found for place in self._places.values())
        lenient = self._lenient and not self.begun
        prefixes: dict[str, dict[str, object]] = {
            prefix: {} if self.begun else {"tail": True} if start == "tail" else {"from_seq": start}
            for prefix, start in self._prefixes.items()
        }
        return calls.create_watch(starts, prefixes=prefixes, lenient=lenient, create=create, **self._options)

    def _start(self, at: Position) -> dict[str, object]:
        """Where a topic begins, as `calls.create_watch` takes it."""
        return {"from_seq": at.seq, "epoch": at.epoch} if self.tells_epochs and at.epoch else {"from_seq": at.seq}

    def answered(self, session: Watch) -> None:
        """Take the answer to the POST that makes a session. Raises ProtocolError if it is about other topics."""
        if self._lenient and not self.begun:
            self._places = {name: place for name, place in self._places.items() if name in session.topics}
        others = session.topics.keys() - self._places.keys()
        missing = self._places.keys() - session.topics.keys()
        if missing or ((others or not self._places) and not self._prefixes):
            raise ProtocolError("the answer to a watch is about other topics")
        for name, place in list(self._places.items()):
            self._found(place, session.topics[name])
        changed = bool(self._values)
        for name in session.topics:
            if name in others:
                self._add(name, session.topics[name], tell=self.begun)
        self.begun = True
        if changed:
            return  # a place has changed: it takes another session
        self._stream_url = session.stream_url
        self._asked = False
        self._last_id = None

    def _found(self, place: _FollowedTopic, topic: WatchedTopic) -> None:
        """Compare a place with what a new session reports of its topic: the same instance, a new one, or none."""
        if topic.epoch is None:
            if place.found:
                self._end(place, place.at.seq)
            elif place.from_tail:  # all that will be in it comes after now
                place.from_tail = False
                place.at = Position(0)
            if not place.found:
                self._awaited.add(place.name)
            return
        if place.name in self._awaited and place.at.seq:
            place.made_again = True  # what was read was in another instance
        self._awaited.discard(place.name)
        place.found = True
        if place.from_tail:
            place.from_tail = False
            place.at = Position(topic.from_seq, topic.epoch)
            place.told = topic.from_seq
            return
        seq, epoch = place.at
        if not place.made_again and epoch in (0, topic.epoch) and seq <= topic.head_seq:
            place.at = Position(seq, topic.epoch)
            return
        if place.by_prefix:
            self._end(place, place.at.seq)
            self._add(place.name, topic, tell=True)
            return
        gap = Tombstone(
            topic=place.name,
            gap_from=1,
            gap_to=topic.head_seq,
            reason="recreated",
            earliest_seq=topic.earliest_seq,
            head_seq=topic.head_seq,
        )
        place.told, place.caught_up, place.made_again = 0, None, False
        self._values.append((gap, place, Position(0, topic.epoch)))

    def _add(self, name: str, topic: WatchedTopic, *, tell: bool) -> None:
        """Make a place for a topic that a prefix has found. With `tell` it is new, and the caller is told."""
        place = _FollowedTopic(name, 0, by_prefix=True)
        place.found = True
        place.before, self._places[name] = self._places.get(name), place
        begin = Position(0 if tell else topic.from_seq, topic.epoch or 0)
        place.at, place.told, place.untold = begin, begin.seq, tell
        if tell:
            added = TopicAdded(topic=name, epoch=begin.epoch, head_seq=topic.head_seq, earliest_seq=topic.earliest_seq)
            self._values.append((added, place, begin))

    def opened(self, now: float) -> None:
        """Note that the stream is open, at `now` (seconds of any clock that does not jump)."""
        self._reconnection.opened(now)

    def feed(self, piece: bytes, now: float) -> None:
        """Take a piece of the stream. Raises ProtocolError for bytes that no daemon sends."""
        events = False
        for event in self._events.feed(piece):
            events = True
            self._take_up(event)
            if self.over:
                break
        self._reconnection.heard(now, events=events)

    def finished(self, now: float) -> float:
        """Note that the stream has ended, or was closed because it is `over`. Returns how long to wait before the next
        call, in seconds. Raises the TopicsError that ends the tail or watch, as `failed` does."""
        if self.over and self._final is None:
            return 0.0
        return self.failed(self._final or ended(), now)

    def failed(self, error: TopicsError, now: float) -> float:
        """Note that the call or the stream has failed. Returns how long to wait before the next call, in seconds.
        Raises the error if another call cannot help, or if it is time to give up."""
        if self._stream_url is not None:
            if isinstance(error, ApiError) and error.status in GONE:
                self._stream_url = None
            elif isinstance(error, Throttled) and self._last_id is None:
                self._asked = False  # refused before it was opened: nothing was sent
            return self._reconnection.after(error, now, passing={*GONE, TAKEN_OVER})
        if isinstance(error, NotFound) and self.begun:
            place = self._places.get(str(error.detail.get("topic")))
            if place is not None:
                self._end(place, place.at.seq)
                return 0.0
        return self._reconnection.after(error, now, passing={TAKEN_OVER})

    def forget(self) -> None:
        """Forget the values that are not taken, and ask for them again in a new session: for when the shell was
        interrupted while it handed in a piece."""
        self._values.clear()
        self._drop_session()
        for name, place in list(self._places.items()):
            while place.untold:  # its TopicAdded is lost, and so is the TopicDeleted of the instance before it
                if place.before is None:
                    del self._places[name]
                    break
                place = self._places[name] = place.before
            place.told, place.caught_up, place.ended = place.at.seq, None, False

    # -- frames ------------------------------------------------------------------------------------------------------

    def _take_up(self, event: Event) -> None:
        says_it_is_there = event.name in ("record", "tombstone", "caught-up")
        if self._awaited and says_it_is_there and decoded(_about, event).topic in self._awaited:
            self._drop_session()  # the next session reports the epoch of the topic
            return
        if event.name == "record":
            self._take_up_records(decoded(_record_frame, event))
        elif event.name == "tombstone":
            self._take_up_gap(decoded(_tombstone, event))
        elif event.name == "caught-up":
            self._take_up_head(decoded(_caught_up, event))
        elif event.name == "topic-deleted":
            deleted = decoded(_topic_deleted, event)
            place = self._followed(deleted.topic)
            if place is not None:
                self._end(place, deleted.head_seq)
        elif event.name == "topic-added":
            self._take_up_added(decoded(_topic_added, event))
        elif event.name == "error":
            left_out = decoded(_left_out, event)
            if left_out.left_out:
                told = TopicsLeftOut(topics=left_out.topics, count=left_out.left_out)
                self._values.append((told, _FollowedTopic("", 0), Position(0)))
            self._final = error_event(event)
            self.over = self._final is not None
        if event.id is not None and not self.over:
            self._take_up_id(event.id)

    def _followed(self, topic: str) -> _FollowedTopic | None:
        place = self._places.get(topic)
        return None if place is None or place.ended else place

    def _take_up_records(self, frame: _RecordFrame) -> None:
        place = self._followed(frame.topic)
        if place is None:
            return
        epoch = place.at.epoch
        for record in frame.records:
            if record.seq > place.told:
                place.told = record.seq
                record.topic = frame.topic
                self._values.append((record, place, Position(record.seq, epoch)))
        self._pass_over(place, frame.to_seq)

    def _take_up_gap(self, gap: Tombstone) -> None:
        place = self._followed(gap.topic)
        if place is None:
            return
        if gap.reason == "recreated":
            place.made_again = True
            self._drop_session()
        elif gap.gap_to > place.told:
            place.told = gap.gap_to
            self._values.append((gap, place, Position(gap.gap_to, place.at.epoch)))

    def _take_up_added(self, added: TopicAdded) -> None:
        place = self._followed(added.topic)
        if place is not None:
            if place.at.epoch == added.epoch:
                return
            self._end(place, place.told)
        at = WatchedTopic(from_seq=0, head_seq=added.head_seq, earliest_seq=added.earliest_seq, epoch=added.epoch)
        self._add(added.topic, at, tell=True)

    def _take_up_head(self, head: CaughtUp) -> None:
        place = self._followed(head.topic)
        if place is None:
            return
        self._pass_over(place, head.head_seq)
        if self._tells_caught_up and place.caught_up != head.head_seq:
            self._values.append((head, place, Position(place.told, place.at.epoch)))
        place.caught_up = head.head_seq

    def _pass_over(self, place: _FollowedTopic, seq: int) -> None:
        """Move a place to `seq`, if it lies before: no value of the topic comes up to there."""
        if seq > place.told:
            place.told = seq
            self._values.append((None, place, Position(seq, place.at.epoch)))

    def _end(self, place: _FollowedTopic, head_seq: int) -> None:
        self._awaited.discard(place.name)
        place.ended = True
        deleted = TopicDeleted(topic=place.name, head_seq=head_seq)
        self._values.append((deleted, place, Position(place.told, place.at.epoch)))

    def _take_up_id(self, last_id: str) -> None:
        self._last_id = last_id
        if self._resuming:
            self._resuming = False
            if not self._names_all(last_id):
                self._drop_session()

    def _names_all(self, last_id: str | None) -> bool:
        """Return True if an id names every topic that is followed."""
        if last_id is None:
            return False
        names = named(last_id)
        return all(place.ended or name in names for name, place in self._places.items())

    def _drop_session(self) -> None:
        self._stream_url = None
        self.over = True


def named(last_id: str) -> frozenset[str]:
    """The topics that the id of a frame names; empty for an id that does not name them."""
    try:
        return frozenset(_cursors.decode(urlsafe_b64decode(last_id + "=" * (-len(last_id) % 4))))
    except (ValueError, msgspec.MsgspecError):
        return frozenset()
