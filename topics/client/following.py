"""What a tail or a watch knows: how far each topic was taken, and what comes next after an answer, a frame or a break.

Theory of operation. A follower has a *place* in each of its topics: the last seq that was taken and the epoch it is of.
Places are its own; a session of the daemon is only a way to get what comes after them:

    no session     POST /v0/watch from the places. The answer has the epoch of each topic: where it is another one than
                   the place's, or the head lies before the place, the topic was made again. That is told
                   (`recreated`), and its place is the beginning of the new instance: another POST. A topic that is
                   unknown now was deleted: told, and another POST for the others.
    session        GET its stream, from the id of the last frame if there was a frame. Frames become values.
    break          With an id, the same session is asked again; where the daemon does not know it any more (404, 410:
                   it was restarted, or the session has expired), it is dropped.

What a break can lose is known here, not guessed. A session without a frame is never asked twice: its daemon may think
that frames have arrived which have not, and only an id takes it back. Nor is one of more than 64 topics, since its ids
do not tell which topics they are about: a `topic-deleted` that was lost with its connection shows only in that the next
id does not name the topic. And a session that says `recreated` is dropped, because it does not say of what epoch the
new instance is.

Frames are taken up whole, so a break is met only when everything before it has been taken. The place of a topic moves
value by value, as they are taken; what the daemon says again all the same is passed over by its seq.

Pure: no I/O, no clock. The shells in `topics.client.tailing` make the calls, hand in what comes, and wait.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any, Final, Literal, NamedTuple, TypedDict

import msgspec

from topics.client import calls
from topics.client.calls import Call
from topics.client.errors import ApiError, NotFound, ProtocolError, Throttled, TopicsError
from topics.client.reconnecting import OnBreak, OnResume, Reconnects, decoded, ended, error_event, silence_s
from topics.client.results import CaughtUp, Record, Tombstone, TopicDeleted, Watch, WatchedTopic
from topics.client.sse import Event, EventDecoder

GONE: Final = frozenset({404, 410})
"""What the stream of a session that is not there any more is answered, or ended, with."""

TAKEN_OVER: Final = 409
"""What a stream is ended with when a newer one of its session is open; and it may be answered so while that ends."""


class Position(NamedTuple):
    """How far a topic was taken: the last seq, and the instance of the topic that it counts in. `epoch` is 0 as long as
    that is not known."""

    seq: int
    epoch: int = 0


Start = int | tuple[int, int] | Literal["tail"]
"""Where to begin in a topic: after a seq; at a `Position`, which is told from a topic of that name that was made again
since; or with what is appended from now on."""

Followed = Record | Tombstone | TopicDeleted | CaughtUp
"""What a follower yields. Everything has its `topic`."""


class WatchOptions(TypedDict):
    """What a session is asked for, as `calls.create_watch` takes it."""

    node: str | Iterable[str]
    limit: int | None
    max_batch_bytes: int | None
    heartbeat_ms: int | None
    include_data: bool
    include_meta: bool
    include_tags: bool
    consistency: Literal["eventual", "strong"]


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
    consistency: Literal["eventual", "strong"] = "eventual",
    create: bool = False,
    caught_up: bool = False,
    give_up_after: float | None = None,
    on_break: OnBreak | None = None,
    on_resume: OnResume | None = None,
) -> Following:
    """Everything in a topic after `from_seq`, and then what is appended, for ever: `watch` of a single topic.

    `from_seq` is a seq, exclusive, or a `Position`. `tail=True` wins over it: only what is appended from the moment
    that the iterator is entered (`with`), or first asked. With `create` a topic that is not there yet is waited for.
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
        caught_up=caught_up,
        give_up_after=give_up_after,
        on_break=on_break,
        on_resume=on_resume,
    )


def watch(
    topics: Mapping[str, Start] | Iterable[str],
    *,
    lenient: bool = False,
    node: str | Iterable[str] = (),
    limit: int | None = None,
    max_batch_bytes: int | None = None,
    heartbeat_ms: int | None = None,
    include_data: bool = True,
    include_meta: bool = True,
    include_tags: bool = True,
    consistency: Literal["eventual", "strong"] = "eventual",
    create: bool = False,
    caught_up: bool = False,
    give_up_after: float | None = None,
    on_break: OnBreak | None = None,
    on_resume: OnResume | None = None,
) -> Following:
    """What is in topics and what is appended to them, each in its own order, for ever.

    `topics` are names, or names with where to begin: a seq (exclusive), a `Position`, or `"tail"`. Yields Record,
    Tombstone (records that are gone; `recreated`: the topic was deleted and made again, and is read from the beginning
    of the new one), TopicDeleted, after which nothing comes of that topic, and with `caught_up=True` a CaughtUp
    whenever there is no more of a topic for the moment. It ends when all topics are deleted, and when it is closed.

    It survives restarts of the daemon and broken connections: whatever happens, no record is left out without a
    tombstone, and none comes twice. It waits for the daemon for ever, with pauses of up to 5 s; with `give_up_after`
    for so many seconds without a sign of it, then raises the last failure. `on_break(error, wait_s)` is called for each
    failure that it survives, `on_resume()` when it is connected again, both by whoever iterates.

    An unknown topic raises NotFound at the beginning, unless `lenient`; then it is left out, and BadRequest if none
    is left. With `create` it is waited for, and followed from its first record on, `"tail"` or not, once somebody
    has made it; following makes no topic. Unauthorized, Forbidden and BadRequest are raised whenever they occur.
    `node`: leave out what these writers have written. `limit` and `max_batch_bytes` bound one frame, which is also
    what is read ahead at most; `strong` delivers a record once it is on disk. A stream without a byte for three
    heartbeats (`heartbeat_ms`, 15 s) is broken.
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
    )
    if isinstance(topics, str):
        raise TypeError("topics are names, not one name; for one there is tail()")
    starts = topics if isinstance(topics, Mapping) else dict.fromkeys(topics, 0)
    reconnects = Reconnects(give_up_after=give_up_after, on_break=on_break, on_resume=on_resume)
    return Following(starts, options, lenient=lenient, create=create, caught_up=caught_up, reconnects=reconnects)


class _Place:
    """Where a follower is in one topic."""

    __slots__ = ("at", "caught_up", "ended", "found", "from_tail", "made_again", "name", "told")

    def __init__(self, name: str, start: Start) -> None:
        self.name = name
        self.from_tail = start == "tail"
        """It begins at the head, which is not known yet."""
        self.at = Position(0)
        """What was taken."""
        if isinstance(start, int):
            self.at = Position(start)
        elif not isinstance(start, str):
            self.at = Position(*start)
        self.told = self.at.seq
        """The same with what waits to be taken."""
        self.caught_up: int | None = None
        """The head at which it was told last that there is no more."""
        self.made_again = False
        """The daemon has said so, but not of what epoch the new instance is."""
        self.found = False
        """The topic was there."""
        self.ended = False
        """That it is deleted waits to be taken."""


class _RecordFrame(msgspec.Struct):
    topic: str
    records: list[Record]
    to_seq: int


class _About(msgspec.Struct):
    topic: str


_about: Final = msgspec.json.Decoder(_About)
_record_frame: Final = msgspec.json.Decoder(_RecordFrame)
_tombstone: Final = msgspec.json.Decoder(Tombstone)
_caught_up: Final = msgspec.json.Decoder(CaughtUp)
_topic_deleted: Final = msgspec.json.Decoder(TopicDeleted)
_cursors: Final = msgspec.json.Decoder(dict[str, int])


class Following:
    """See the module. Whoever drives it takes values until there is none, then does what `next_call` says."""

    def __init__(
        self,
        starts: Mapping[str, Start],
        options: WatchOptions,
        *,
        lenient: bool = False,
        create: bool = False,
        caught_up: bool = False,
        reconnects: Reconnects | None = None,
    ) -> None:
        if not starts:
            raise ValueError("topics: there is none")
        self.begun = False
        """The daemon knows all topics, and it is settled where `tail` begins."""
        self.silence_s = silence_s(options["heartbeat_ms"])
        """Seconds without a byte after which a stream is broken."""
        self.over = False
        """The stream that is open is of no more use: `finished` it."""
        self._options = options
        self._lenient = lenient
        self._create = create
        self._awaited: set[str] = set()
        """Topics that were not there when the session was made. It does not say of what epoch they are once they are.
        """
        self._tells_caught_up = caught_up
        self._reconnects = reconnects or Reconnects()
        self._places = {name: _Place(name, start) for name, start in starts.items()}
        self._values: deque[tuple[Followed | None, _Place, Position]] = deque()
        """What waits to be taken, each with the place it leads to. As much as a chunk of the stream holds."""
        self._stream_url: str | None = None
        """Of the session."""
        self._asked = False
        """For its stream."""
        self._last_id: str | None = None
        self._resuming = False
        """The session was asked again, and has not shown an id yet."""
        self._final: TopicsError | None = None
        """Why the daemon says that the stream is over."""
        self._events = EventDecoder()

    # -- what the user sees ------------------------------------------------------------------------------------------

    def take(self) -> Followed | None:
        """The next value, which counts as processed from here on; None if there is none without asking the daemon."""
        while self._values:
            value, place, at = self._values.popleft()
            place.at = at
            if isinstance(value, TopicDeleted):
                self._places.pop(place.name, None)
            if value is not None:
                return value
        return None

    @property
    def ended(self) -> bool:
        """Everything is taken, and all topics are deleted."""
        return self.begun and not self._places and not self._values

    def position(self, topic: str) -> Position:
        """How far a topic was taken. Raises KeyError for one that is not followed (any more), and for one from its
        tail before it is known where that is."""
        place = self._places[topic]
        if place.from_tail:
            raise KeyError(topic)
        return place.at

    # -- what to do --------------------------------------------------------------------------------------------------

    def next_call(self) -> Call[Any]:
        """The call to make, when there is nothing to take and no stream is open: one for an answer, or one (without a
        type for the answer) for a stream."""
        if self._asked and not self._names_all(self._last_id):
            self._stream_url = None
        if self._stream_url is not None:
            self._resuming = self._asked
            self._asked = True
            self._events = EventDecoder()
            self._final = None
            self.over = False
            return calls.open_watch(self._stream_url, self._last_id)
        starts: dict[str, dict[str, object]] = {
            place.name: {"tail": True} if place.from_tail else {"from_seq": place.at.seq}
            for place in self._places.values()
        }
        # Once all are there, one that is not there any more was deleted, and the daemon says so.
        create = self._create and not all(place.found for place in self._places.values())
        lenient = self._lenient and not self.begun
        return calls.create_watch(starts, lenient=lenient, create=create, **self._options)

    def answered(self, session: Watch) -> None:
        """There is a session."""
        if self._lenient and not self.begun:
            self._places = {name: place for name, place in self._places.items() if name in session.topics}
        if not self._places or session.topics.keys() != self._places.keys():
            raise ProtocolError("the answer to a watch is about other topics")
        self.begun = True
        for name, place in self._places.items():
            self._found(place, session.topics[name])
        if self._values:
            return  # a place has changed: it takes another session
        self._stream_url = session.stream_url
        self._asked = False
        self._last_id = None

    def _found(self, place: _Place, topic: WatchedTopic) -> None:
        """A topic is there; see whether it is the one that was followed. Or it is not there yet, or not any more."""
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

    def opened(self, now: float) -> None:
        """The stream is open."""
        self._reconnects.opened(now)

    def feed(self, piece: bytes, now: float) -> None:
        """Bytes of the stream. Raises ProtocolError for what is not of the contract."""
        events = False
        for event in self._events.feed(piece):
            events = True
            self._take_up(event)
            if self.over:
                break
        self._reconnects.heard(now, events=events)

    def finished(self, now: float) -> float:
        """The stream has ended, or is `over`. Returns how long to wait before the next call, in seconds; may raise
        as `failed` does."""
        if self.over and self._final is None:
            return 0.0
        return self.failed(self._final or ended(), now)

    def failed(self, error: TopicsError, now: float) -> float:
        """The call, or the stream, has failed. Returns how long to wait before the next call, in seconds; raises what
        cannot be survived."""
        if self._stream_url is not None:
            if isinstance(error, ApiError) and error.status in GONE:
                self._stream_url = None
            elif isinstance(error, Throttled) and self._last_id is None:
                self._asked = False  # refused before it was opened: nothing was sent
            return self._reconnects.after(error, now, passing={*GONE, TAKEN_OVER})
        if isinstance(error, NotFound) and self.begun:
            place = self._places.get(str(error.detail.get("topic")))
            if place is not None:
                self._end(place, place.at.seq)
                return 0.0
        return self._reconnects.after(error, now, passing={TAKEN_OVER})

    def forget(self) -> None:
        """Something was interrupted halfway: what has come and was not taken is asked for again."""
        self._values.clear()
        self._drop_session()
        for place in self._places.values():
            place.told, place.caught_up, place.ended = place.at.seq, None, False

    # -- frames ------------------------------------------------------------------------------------------------------

    def _take_up(self, event: Event) -> None:
        says_it_is_there = event.name in ("record", "tombstone", "caught-up")
        if self._awaited and says_it_is_there and decoded(_about, event).topic in self._awaited:
            self._drop_session()  # the next one says of what epoch the topic is
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
        elif event.name == "error":
            self._final = error_event(event)
            self.over = self._final is not None
        if event.id is not None and not self.over:
            self._take_up_id(event.id)

    def _followed(self, topic: str) -> _Place | None:
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

    def _take_up_head(self, head: CaughtUp) -> None:
        place = self._followed(head.topic)
        if place is None:
            return
        self._pass_over(place, head.head_seq)
        if self._tells_caught_up and place.caught_up != head.head_seq:
            self._values.append((head, place, Position(place.told, place.at.epoch)))
        place.caught_up = head.head_seq

    def _pass_over(self, place: _Place, seq: int) -> None:
        """Up to `seq` there was nothing more for us."""
        if seq > place.told:
            place.told = seq
            self._values.append((None, place, Position(seq, place.at.epoch)))

    def _end(self, place: _Place, head_seq: int) -> None:
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
        """Whether an id is about every topic that is followed."""
        if last_id is None:
            return False
        names = named(last_id)
        return all(place.ended or name in names for name, place in self._places.items())

    def _drop_session(self) -> None:
        self._stream_url = None
        self.over = True


def named(last_id: str) -> frozenset[str]:
    """The topics that an id names; none if it is opaque."""
    try:
        return frozenset(_cursors.decode(urlsafe_b64decode(last_id + "=" * (-len(last_id) % 4))))
    except (ValueError, msgspec.MsgspecError):
        return frozenset()
