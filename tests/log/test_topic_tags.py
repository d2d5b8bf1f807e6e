"""Live records are found by tag, in memory or through files, and tags of gone ones are cleared away."""

from __future__ import annotations

from array import array

from tests.log.logs import caps, extent, log_of
from tests.log.stored_logs import checkpoint
from topics.log.retention import eviction_watermark
from topics.log.span import LIVE
from topics.log.tag_match import TagMatch
from topics.log.topic_log import TopicLog


def test_matching_finds_live_records_within_its_bounds() -> None:
    log = log_of(6, tags=["a", "b", "ab", None, "a", "ab"])
    log.delete_seqs([3])
    assert list(log.tags.matching(TagMatch("a", prefix=True), before_seq=None, bound=6)) == [1, 5, 6]
    assert list(log.tags.matching(TagMatch("a", prefix=True), before_seq=6, bound=6)) == [1, 5]
    assert list(log.tags.matching(TagMatch("a", prefix=True), before_seq=None, bound=4)) == [1]
    assert list(log.tags.matching(TagMatch("a", prefix=True), before_seq=0, bound=6)) == []


def test_tags_of_gone_records_do_not_pile_up() -> None:
    log = TopicLog()
    for batch in range(200):
        log.extend(extent(batch * 50 + 1, 50, tags=[f"t{batch}-{i}" for i in range(50)]))
        log.evict_below(eviction_watermark(log, caps(500, 0), []), "cap")
    assert log.tags.index is not None
    assert log.tags.index.postings <= 2 * 500
    log.check()


def test_a_large_deletion_is_tidied_up_in_slices() -> None:
    log = log_of(200_000, tags=[f"t{i}" for i in range(200_000)])
    log.delete_below(199_000, 200_000)
    slices = 0
    while log.tidy():
        slices += 1
    assert slices > 1
    assert log.tags.index is not None
    assert log.tags.index.postings < 2 * log.count
    log.check()


def test_tags_of_stored_records_are_found_through_their_files() -> None:
    log = log_of(20, tags=["a", "b"] * 10)
    driven = checkpoint(log, 10, 10)
    assert log.tags.spans_in_files(20) == []
    log.drop_tags_below(11)
    log.check()
    everything = TagMatch("", prefix=True)
    assert list(log.tags.matching(everything, before_seq=None, bound=20)) == list(range(11, 21))
    assert [span.first for span in log.tags.spans_in_files(20)] == [1]
    assert log.tags.spans_in_files(0) == []
    driven.delete_seqs([2, 12])
    assert list(log.index.only_live(array("Q", [1, 2, 3]))) == [1, 3]
    assert log.tags.index is not None
    assert log.tags.index.postings - log.tags.index.garbage == 9
    log.check()
    log.drop_tags_below(99)
    assert log.tags.known_from == 21
    assert log.dump()["tags"] is None
    log.check()


def test_sweeping_asks_for_no_columns_and_comes_to_an_end() -> None:
    log = log_of(2000, tags=[f"t{seq}" for seq in range(2000)])
    driven = checkpoint(log, 1000, 1000)
    driven.delete_seqs(range(2, 1900, 2))
    for span in log.stored.all():
        span.detach()
    assert sum(log.tidy() for _ in range(100)) < 99
    assert log.tags.index is not None
    garbage = log.tags.index.garbage
    driven.load(log.stored.all())
    while log.tidy():
        pass
    assert garbage == 0 or log.tags.index.garbage < garbage
    log.check()


def test_more_live_on_disk_than_the_summary_says_leaves_its_tags_to_the_files() -> None:
    log = log_of(20, tags=["a"] * 20)
    log.delete_seqs([4])
    driven = checkpoint(log, 10, 10)
    driven.disk.slots[4] = driven.disk.slots[4]._replace(dead=LIVE, size=10)
    span = log.stored.all()[0]
    assert log.attach(span, driven.disk.columns(span))
    assert (log.count, log.bytes, log.tags.known_from) == (20, 200, 11)
    log.check()
