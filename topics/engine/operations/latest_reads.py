"""The newest record of one tag, or of each tag of a prefix (`docs/spec/evidence.md` section 3).

The records of a page are chosen in the step in which its `head_seq` is read, and loaded then. One that is superseded
meanwhile may be in the page all the same: the change is behind `head_seq`. So the pages of a table together with the
changes behind the `head_seq` of the *first* page are complete.

A topic with `keep_per_tag` has a table of its tags in memory. In others tags are looked up in the files of segments,
those of a page all together.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import Final, NamedTuple

import trio

from topics.engine.loader import Loader
from topics.engine.operations.tag_search import MissingTags, TagSearch
from topics.engine.registry import Registry
from topics.engine.tables.kept_records import NULL
from topics.engine.tables.scattered_records import ScatteredRecords
from topics.engine.topic import Topic
from topics.errors import no_record_of_tag, topic_not_found
from topics.log.block import Projection
from topics.log.span import NotLoaded
from topics.log.tables.kept_tags import KeptTags
from topics.model import LatestRequest, NewestRecords, Performance
from topics.storage.segments.topic_segments import Segment

NAMES_AT_ONCE: Final = 500
"""Tags that are looked at before other tasks run: a millisecond at most."""

MOST_NAMES: Final = 50_000
"""Tags that one page looks at. Most of them have a null or dead record if a page ends for this."""

RECORD_BYTES: Final = 60
"""About what a record has in an answer besides its data, meta and tag (bytes)."""

FIRST_LOADED: Final = 2
"""So many records of unknown size are loaded first, then twice as many, until the answer is full: a page of the largest
records must not be in memory whole."""

ROUNDS: Final = 10
"""How often a page looks again for the newest record of tags whose record has died while it was loaded. Those that are
left then have a record behind `head_seq`, or none."""


class _Choice(NamedTuple):
    """The records of a page, before they are loaded: tag and seq of each."""

    rows: list[tuple[str, int]]
    next_after: str | None
    fits: bool = False
    """True if the records are known to be about as many as the answer may have."""


class LatestReads:
    """The calls. Made once by the engine. `catch_up` forwards what routers owe a topic."""

    def __init__(
        self,
        registry: Registry,
        loader: Loader,
        records: ScatteredRecords,
        *,
        catch_up: Callable[[Iterable[str]], Awaitable[None]],
    ) -> None:
        self._registry = registry
        self._loader = loader
        self._records = records
        self._catch_up = catch_up

    async def one(
        self, name: str, tag: str, projection: Projection, perf: Performance, *, touch: bool = True
    ) -> NewestRecords:
        """Return the newest record of a tag, as a page of one. Raises `404 topic_not_found`, and `404 record_not_found`
        if there is none or its data is null. Cancelling leaves nothing behind."""
        await self._catch_up((name,))
        topic = self._registry.topic(name)
        if touch:
            self._registry.touch(topic)
        head: int | None = None
        for _ in range(ROUNDS):
            await self._settled(topic)
            newest = await self._newest(topic, [tag])
            head = topic.log.head_seq if head is None else head
            if tag not in newest:
                break
            seq = newest[tag]
            block = (await self._records.load(topic, (seq,), perf)).get(seq)
            if block is None:
                continue
            if block.data_of(seq) == NULL:
                raise no_record_of_tag(name, tag, "null")
            record, _ = block.cut(seq, seq, 1, projection, at_least_one=True)
            return NewestRecords(name, topic.id, record, head, None)
        raise no_record_of_tag(name, tag, "none")

    async def page(self, name: str, request: LatestRequest, perf: Performance) -> NewestRecords:
        """Return a page of the newest records of tags that are not null. It may have fewer than `page_size`, or none,
        though others follow. Raises `404 topic_not_found`, and 503. Cancelling leaves nothing behind."""
        await self._catch_up((name,))
        topic = self._registry.topic(name)
        if request.touch:
            self._registry.touch(topic)
        await self._settled(topic)
        head = topic.log.head_seq
        if topic.log.kept is not None:
            choice = await self._chosen(topic, topic.log.kept, request, perf)
        else:
            choice = await self._looked_up(topic, request, perf)
        found: dict[str, bytes] = {}
        projection = Projection(request.include_tags, request.include_meta)
        done, room = 0, request.max_batch_bytes
        at_once = len(choice.rows) if choice.fits else FIRST_LOADED
        while done < len(choice.rows) and room > 0:
            rows = choice.rows[done : done + at_once]
            await self._load(topic, rows, projection, found, perf)
            room -= sum(len(found[tag]) for tag, _ in rows if tag in found)
            done, at_once = done + len(rows), 2 * at_once
        if done < len(choice.rows):
            choice = _Choice(choice.rows[:done], choice.rows[done - 1][0])
        return _page(topic, choice, found, head, request.max_batch_bytes)

    async def _load(
        self,
        topic: Topic,
        rows: Sequence[tuple[str, int]],
        projection: Projection,
        found: dict[str, bytes],
        perf: Performance,
    ) -> None:
        """Add the records of some tags that are not null."""
        for _ in range(ROUNDS):
            blocks = await self._records.load(topic, [seq for _, seq in rows], perf)
            again = []
            for tag, seq in rows:
                block = blocks.get(seq)
                if block is None:
                    again.append(tag)
                elif block.data_of(seq) != NULL:
                    found[tag], _ = block.cut(seq, seq, 1, projection, at_least_one=True)
            if not again:
                return
            await self._settled(topic)
            rows = list((await self._newest(topic, again)).items())

    async def _settled(self, topic: Topic) -> None:
        """Wait until the topic shows whole changes, and evict expired records. There is no await before the return
        after that. Raises 404 if the topic is deleted."""
        while True:
            if topic.deleted:
                raise topic_not_found(topic.name)
            if topic.working is not None:
                await topic.working.wait()
                continue
            try:
                self._registry.expire(topic)
            except NotLoaded:
                await self._loader.expire(topic)
                continue
            return

    # -- in the table ------------------------------------------------------------------------------------------------

    async def _chosen(self, topic: Topic, kept: KeptTags, request: LatestRequest, perf: Performance) -> _Choice:
        """Choose the records of a page from the table of a topic."""
        rows: list[tuple[str, int]] = []
        after, room, looked_at = request.after, request.max_batch_bytes, 0
        while True:
            front = topic.log.earliest_seq
            names = kept.tags_from(request.prefix, after, NAMES_AT_ONCE)
            for tag in names:
                looked_at, after = looked_at + 1, tag
                record = kept.newest(tag, front)
                if record is None or record.is_null:
                    continue
                rows.append((tag, record.seq))
                room -= record.size + RECORD_BYTES + len(tag)
                if len(rows) == request.page_size or room <= 0:
                    break
            perf.records_scanned = looked_at
            is_full = len(rows) == request.page_size or room <= 0 or looked_at >= MOST_NAMES
            if is_full or len(names) < NAMES_AT_ONCE:
                break
            await trio.lowlevel.checkpoint()
            await self._settled(topic)
        more = is_full and bool(kept.tags_from(request.prefix, after, 1))
        return _Choice(rows, after if more else None, fits=True)

    async def _newest(self, topic: Topic, tags: Iterable[str]) -> dict[str, int]:
        """Return the newest live records of some tags, those that have one, by tag."""
        kept = topic.log.kept
        if kept is not None:
            found = {tag: kept.newest(tag, topic.log.earliest_seq) for tag in tags}
            return {tag: record.seq for tag, record in found.items() if record is not None}
        return await self._newest_in_files(topic, list(tags))

    # -- without a table ---------------------------------------------------------------------------------------------

    async def _looked_up(self, topic: Topic, request: LatestRequest, perf: Performance) -> _Choice:
        """Choose the records of a page from the tags in memory and in the files of segments."""
        prefix, after, most = request.prefix, request.after, request.page_size
        index = topic.log.tags.index
        names = sorted(
            name
            for name in (index.names() if index is not None else ())
            if name.startswith(prefix) and (after is None or name > after)
        )
        lists = [names[:most]]
        for span in topic.log.tags.spans_in_files(topic.log.head_seq):
            assert isinstance(span.segment, Segment)
            tags = await self._loader.tags(topic, span.segment)
            lists.append(tags.names_from(prefix, after, most))
        await self._settled(topic)
        # A list that was cut may lack names behind its last one.
        ends = [one[-1] for one in lists if len(one) == most]
        merged = sorted({name for one in lists for name in one if not ends or name <= min(ends)})
        chosen = merged[:most]
        perf.records_scanned = len(merged)
        newest = await self._newest_in_files(topic, chosen)
        more = bool(ends) or len(merged) > most
        rows = [(tag, newest[tag]) for tag in chosen if tag in newest]
        return _Choice(rows, chosen[-1] if more and chosen else None)

    async def _newest_in_files(self, topic: Topic, tags: list[str]) -> dict[str, int]:
        search = TagSearch()
        while True:
            if topic.deleted:
                raise topic_not_found(topic.name)
            newest = partial(_newest_of, topic, tags, search)
            try:
                return newest()
            except NotLoaded as missing:
                await self._loader.columns(topic, missing.spans)
            except MissingTags:
                await search.go_on(self._loader, topic, tags, 0, _every)


def _newest_of(topic: Topic, tags: Iterable[str], search: TagSearch) -> dict[str, int]:
    """Return the newest live records of tags. Raises NotLoaded and MissingTags."""
    files = None
    found: dict[str, int] = {}
    for tag in tags:
        seq = topic.log.tags.newest(tag, 0)
        if not seq and topic.log.tags.known_from > topic.log.earliest_seq:
            files = search.files(topic) if files is None else files
            seq = search.newest(topic, files, tag, 0, _every)
        if seq:
            found[tag] = seq
    return found


def _every(seq: int) -> bool:
    return True


def _page(topic: Topic, choice: _Choice, found: dict[str, bytes], head_seq: int, most_bytes: int) -> NewestRecords:
    """Return the page of the records that were found, as many as fit, but at least one."""
    pieces: list[bytes] = []
    room, next_after, last = most_bytes, choice.next_after, None
    for tag, _ in choice.rows:
        record = found.get(tag)
        if record is None:
            continue
        if pieces and len(record) + 1 > room:
            next_after = last
            break
        pieces.append(record)
        room -= len(record) + 1
        last = tag
    return NewestRecords(topic.name, topic.id, b",".join(pieces), head_seq, next_after)
