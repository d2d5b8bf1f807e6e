"""The findings that the next start of a data directory would report. Recovery itself is run, which changes nothing.

If it would refuse a start, that is damage; a loss that it would announce as `corrupt` is a note. The routers between
the recovered topics are checked too.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

from topics.storage.files.datadir import DataDir, DataDirError
from topics.storage.files.fs import Fs
from topics.storage.files.progress import Progress
from topics.storage.offline.findings import DAMAGE, NOTE, Finding
from topics.storage.offline.topic_parts import StoredPart, holes_of
from topics.storage.recovery import replay
from topics.storage.recovery.damage import Damage
from topics.storage.recovery.recovered_state import RecoveredState, RecoveredTopic
from topics.storage.segments.segment_reader import SegmentTiers
from topics.storage.wal.frames import UnknownFrameType


def verify_start(
    fs: Fs,
    datadir: DataDir,
    tiers: SegmentTiers,
    part_of: Callable[[int], StoredPart | None],
    stopped: Collection[int],
    found: Callable[[RecoveredState], None],
) -> Iterator[Finding]:
    """Yield the problems. `part_of` returns the newer part of a topic id; `stopped` are the shards whose log ends in a
    clean stop; `found` is told of the topics, unless a start is refused. Blocking."""
    root = datadir.root
    try:
        recovered = replay.recover(fs, datadir, tiers, Progress())
    except Damage as error:
        yield Finding(error.where.path, error.where.start, f"a start is refused: {error}", "damage")
    except (DataDirError, UnknownFrameType) as error:
        yield Finding(root, None, f"a start is refused: {error}", "damage")
    except Exception as error:  # any exception that recovery does not expect
        yield Finding(root, None, f"a start fails: {error!r}", "damage")
    else:
        found(recovered)
        for topic in recovered.topics.values():
            for first, last, reason in holes_of(topic.log.dump(raw=False)):
                if reason == "corrupt":
                    problem = f"topic {topic.name!r}: seqs {first} to {last} are announced as corrupt"
                    yield Finding(root, None, problem, "note")
        yield from _routers(recovered, root, part_of, is_stopped=len(stopped) >= len(recovered.shards))


def _routers(
    recovered: RecoveredState, root: str, part_of: Callable[[int], StoredPart | None], *, is_stopped: bool
) -> Iterator[Finding]:
    """Check the source, dest and cursor of routers. A state that a crash may leave is a note: a start corrects it."""
    dests: dict[str, str] = {}
    for topic in recovered.topics.values():
        part = part_of(topic.id)
        path = part.path if part is not None else root
        if part is not None:
            yield from _sources(part, recovered)
        for router in topic.incoming.values():
            source = recovered.topics[router.source_id]
            between = router.config.source, router.config.dest
            if between != (source.name, topic.name):
                problem = f"router {router.name!r} is from {between[0]!r} to {between[1]!r} by its config, and"
                yield Finding(path, None, f"{problem} from {source.name!r} to {topic.name!r} by its ids", "damage")
            other = dests.setdefault(router.name, topic.name)
            if other != topic.name:
                yield Finding(path, None, f"router {router.name!r} leads to {other!r} as well", "damage")
            head = _head(source)
            if router.cursor > head:
                problem = f"router {router.name!r} is at seq {router.cursor} of {source.name!r}"
                yield Finding(path, None, f"{problem}, which ends at {head}", DAMAGE if is_stopped else NOTE)


def _sources(part: StoredPart, recovered: RecoveredState) -> Iterator[Finding]:
    """Check the sources of the routers in a part."""
    for router in part.routers:
        if router.source_id not in recovered.topics:
            problem = f"router {router.name!r}: its source, topic {router.source_id}, "
            if router.source_id < recovered.next_topic_id:
                yield Finding(part.path, None, f"{problem}is gone: the next start drops it", "note")
            else:
                yield Finding(part.path, None, f"{problem}was never there", "damage")


def _head(source: RecoveredTopic) -> int:
    """Return the highest seq that the topic may have given out."""
    return max(source.log.head_seq, source.ceiling)
