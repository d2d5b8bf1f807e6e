"""Judging the conditions of appends and commits of stages (`docs/spec/consumers.md` section 1).

Responsible for finding out the state of a topic, published or not: the last assigned seq, the newest live record with a
tag, the fences. `topics.conditions` compares. Pending commits count as if they were published: their records, the
evictions that they have decided, the deletions. Nothing here changes a topic; results are kept for the next judgement
(`docs/design/conditions.md` section 4).

A caller judges in the step in which it assigns seqs. So `judge` never waits. If memory lacks columns or tags, it raises
an exception that names them, `holds` loads them, and the caller starts over. Conditions about several topics hold at
the same moment if `holds` returns True for each of them without an await in between; if no call has returned False,
there was none.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Final, NamedTuple

from topics.conditions.fences import Fences
from topics.conditions.verdict import NO_FENCES, raised, refusal
from topics.engine.commits import Commits
from topics.engine.loader import Loader
from topics.engine.operations.tag_search import SEARCHED, Files, MissingTags, TagSearch
from topics.engine.registry import Registry
from topics.engine.topic import Commit, Topic
from topics.errors import ApiError, invalid
from topics.log.span import NotLoaded, Span
from topics.model import Conditions, Fence
from topics.storage.segments.topic_segments import Segment

FoundTags = dict[int, TagSearch]
"""The results of looking tags up in segment files, by topic id. Kept for one call."""


class _InPieces(Exception):
    """A commit of stages is pending, whose tags are divided into pieces."""


class _OnTheWay(NamedTuple):
    """The effects of pending commits on the tags of a topic."""

    newest: Mapping[str | None, int]
    """The newest pending record with each tag. Records that have been published meanwhile may be among them."""
    floor: int
    """Records below it are evicted."""
    removals: Sequence[Callable[[int], bool]]
    """Tests whether pending commits delete a published record."""

    def keeps(self, seq: int) -> bool:
        """Return True if no commit deletes a published record."""
        return not any(removes(seq) for removes in self.removals)


_QUIET: Final = _OnTheWay({}, 0, ())

_LOOKED_AT: Final = 256
"""Among the records of a segment with a tag, so many are looked at together, the last ones first."""

_SPARE_TAGS: Final = 1000
"""How many tags of published records the table of pending tags may keep, beyond twice the number of pending tags."""


class Judge:
    """Judges conditions. Made once by the engine."""

    def __init__(self, registry: Registry, *, commits: Commits, loader: Loader) -> None:
        self._registry = registry
        self._commits = commits
        self._loader = loader

    async def holds(self, topic: Topic, conditions: Conditions, found: FoundTags) -> bool:
        """Return True if the conditions hold now; then there was no await before the return. Return False if it had to
        wait: then the caller starts over, with the same `found`.

        Raises the refusal, `409 condition_failed` or `fenced`, when all records against which it was judged are
        visible, or the 503 of a commit among them that failed; 400 for a fence on an `ephemeral` topic, 429 for one
        fence too many. Cancelling leaves nothing behind.
        """
        if conditions.fence is not None:
            check_class(conditions, ephemeral=topic.ephemeral)
        if topic.undecided:
            await self._commits.wait_for(topic.next_change())
            return False
        if conditions.tag_seqs and topic.working is not None:
            await topic.working.wait()
            return False
        try:
            error = self.judge(topic, conditions, found)
        except _InPieces:
            await self._commits.wait_for(topic.next_change())  # it is the next to be published
            return False
        except NotLoaded:
            with suppress(MissingTags, _InPieces):
                await self._loader.prepared(topic, partial(self.judge, topic, conditions, found))
            return False
        except MissingTags:
            await self._search(topic, conditions, found)
            return False
        if error is None:
            return True
        await self._visible(topic)
        if error.code == "throttled":
            self._registry.count_throttled(error.detail["limit"])
        raise error

    def judge(self, topic: Topic, conditions: Conditions, found: FoundTags) -> ApiError | None:
        """Return the error with which the conditions refuse an append to the topic now, None if they hold. Raises
        NotLoaded, MissingTags and _InPieces."""
        newest = _none
        if conditions.tag_seqs:
            self._registry.expire(topic)
            newest = _Tags(topic, found, self._loader).newest
        fences = topic.fences.decided if topic.fences is not None else NO_FENCES
        return refusal(conditions, head_seq=topic.assigned, newest=newest, fences=fences)

    async def _visible(self, topic: Topic) -> None:
        """Wait until all pending commits are published. Raises 503 if one of them fails."""
        if topic.pending:
            last = topic.pending[-1]
            await self._commits.wait_for(last.done)
            if last.error is not None:
                raise last.error

    async def _search(self, topic: Topic, conditions: Conditions, found: FoundTags) -> None:
        """Look the tags that memory does not know up in the files of segments."""
        tags = _Tags(topic, found, self._loader)
        wanted = [tag for tag in conditions.tag_seqs if tags.needs_files(tag)]
        search = found.setdefault(topic.id, TagSearch())
        await search.go_on(self._loader, topic, wanted, tags.on_the_way.floor, tags.on_the_way.keeps)


class _Tags:
    """The tags of a topic, as of one step: in pending commits, in memory, and in files as far as they were looked up.
    Making it raises _InPieces."""

    __slots__ = ("_files", "_loader", "_looks", "_search", "_spans", "_topic", "on_the_way")

    def __init__(self, topic: Topic, found: FoundTags, loader: Loader) -> None:
        self.on_the_way = _on_the_way(topic) if topic.pending else _QUIET
        self._topic = topic
        self._loader = loader
        self._search = found.get(topic.id) if found else None
        """The look-ups of the call in files; None if it has needed none."""
        self._files: Files | None = None
        self._spans: list[Span] | None = None
        self._looks = 0

    def newest(self, tag: str) -> int:
        """Return the seq of the newest live record with a tag, 0 for none. Raises NotLoaded and MissingTags."""
        newest, floor, removals = self.on_the_way
        log = self._topic.log
        if newest and (seq := newest.get(tag, 0)) > log.head_seq:
            return seq if seq >= floor else 0  # all others with this tag are older
        if log.kept is not None:
            seq = log.kept.newest_of(tag, log.earliest_seq, self.on_the_way.keeps)
            return seq if seq >= floor else 0
        seq = log.tags.newest(tag, floor, removals)
        if seq or log.tags.known_from <= log.earliest_seq:
            return seq
        known = log.tags.newest_in_files(tag)
        if known is None or (known and removals):
            known = self._newest_in_files(tag)
            if not floor and not removals:
                log.tags.note_newest_in_files(tag, known)
        return known if known >= floor else 0

    def needs_files(self, tag: str) -> bool:
        """Return True if memory does not know a tag; False if columns are needed before that is known."""
        newest, floor, removals = self.on_the_way
        log = self._topic.log
        if log.kept is not None:
            return False
        try:
            return newest.get(tag, 0) <= log.head_seq and not log.tags.newest(tag, floor, removals)
        except NotLoaded:
            return False

    def _newest_in_files(self, tag: str) -> int:
        """Return the newest live record with a tag, according to the tag files of segments. Raises NotLoaded and
        MissingTags."""
        if self._search is None:
            return self._newest_in_cached_files(tag)
        if self._files is None:
            self._files = self._search.files(self._topic)
        return self._search.newest(self._topic, self._files, tag, self.on_the_way.floor, self.on_the_way.keeps)

    def _newest_in_cached_files(self, tag: str) -> int:
        """As `_newest_in_files`. Raises MissingTags if a file is not in memory, or the conditions need more than
        `SEARCHED` looks."""
        log, (_, floor, removals) = self._topic.log, self.on_the_way
        if self._spans is None:
            self._spans = log.tags.spans_in_files(log.head_seq)[::-1]
        name, cached_slots = tag.encode(), self._loader.spans.cached_slots
        for span in self._spans:
            if span.end <= floor:
                break
            self._looks += 1
            assert isinstance(span.segment, Segment)
            slots = cached_slots(span.segment, name) if self._looks <= SEARCHED else None
            if slots is None:
                raise MissingTags
            for end in range(len(slots), 0, -_LOOKED_AT):
                seqs = array("Q", [span.segment.first + slot for slot in slots[max(0, end - _LOOKED_AT) : end]])
                for seq in reversed(log.index.only_live(seqs)):
                    if seq >= floor and not any(removes(seq) for removes in removals):
                        return seq
        return 0


def _on_the_way(topic: Topic) -> _OnTheWay:
    """Return what the pending commits of a topic do to its tags. Raises _InPieces."""
    floor = 0
    removals: list[Callable[[int], bool]] = []
    known: dict[str | None, int] | None = None
    newer: list[Commit] = []
    for commit in reversed(topic.pending or ()):
        if commit.held is not None:
            raise _InPieces
        foreseen = commit.foreseen
        if foreseen is None:
            continue
        if foreseen.floor:
            floor = max(floor, foreseen.floor)
        if foreseen.removes is not None:
            removals.append(foreseen.removes)
        if known is None and foreseen.tags is not None:
            known = foreseen.newest
            if known is None:
                newer.append(commit)
            elif newer:
                foreseen.newest = None  # the table gets tags of newer commits, which may fail without this one
    if newer:
        known = _with_tags_of(newer, known, topic)
    return _OnTheWay(known or {}, floor, removals) if known or floor or removals else _QUIET


def _with_tags_of(newer: list[Commit], known: dict[str | None, int] | None, topic: Topic) -> dict[str | None, int]:
    """Return the newest pending record with each tag, from the known table and from the commits after it, the newest
    first. The table is kept with the newest commit, so that each tag is added once."""
    if known is None:
        known = {}
    elif len(known) > 2 * topic.pending_records + _SPARE_TAGS:
        head_seq = topic.log.head_seq
        known = {tag: seq for tag, seq in known.items() if seq > head_seq}
    for commit in reversed(newer):
        assert commit.foreseen is not None
        assert commit.foreseen.tags is not None
        known.update({tag: seq for seq, tag in enumerate(commit.foreseen.tags, commit.last_seq - commit.records + 1)})
    assert newer[0].foreseen is not None
    newer[0].foreseen.newest = known
    return known


def check_class(conditions: Conditions, *, ephemeral: bool) -> None:
    """Raise 400 for a fence that cannot be durable."""
    if ephemeral and conditions.fence is not None:
        raise invalid(
            "fence", "is not possible on a topic of the class 'ephemeral': a fence is as durable as its batch"
        )


def check_missing(conditions: Conditions, *, ephemeral: bool) -> None:
    """Judge conditions of an append whose topic does not exist, and would be made with this class. Raises 409, 400."""
    check_class(conditions, ephemeral=ephemeral)
    error = refusal(conditions, head_seq=0, newest=_none, fences=NO_FENCES)
    if error is not None:
        raise error


def raise_fence(topic: Topic, conditions: Conditions) -> Fence | None:
    """Raise the fence of an append whose conditions hold, in the step that gives out its seqs. Return it, or None if
    the append raises none. Its commit logs and publishes it."""
    if conditions.fence is None:
        return None
    fence = raised(conditions, topic.fences.decided if topic.fences is not None else NO_FENCES)
    if fence is not None:
        if topic.fences is None:
            topic.fences = Fences()
        topic.fences.decide(fence.name, fence.token)
    return fence


def publish_fence(topic: Topic, fence: Fence) -> None:
    """Show a raised fence, at the commit point of its append."""
    assert topic.fences is not None
    topic.fences.publish(fence.name, fence.token)


def take_back_fence(topic: Topic, fence: Fence) -> None:
    """Undo what `raise_fence` did, because its transaction is undone. No condition has been judged by the raised fence:
    see `holds`."""
    assert topic.fences is not None
    topic.fences.decide(fence.name, topic.fences.published.get(fence.name))


def _none(tag: str) -> int:
    return 0
