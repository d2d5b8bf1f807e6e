"""Mutations. Topics that keep the newest records of each tag."""

from __future__ import annotations

from typing import Final

from mutating.mutation import Mutation

TABLES: Final = (
    Mutation(
        "removals-not-logged",
        "tables",
        "topics/engine/operations/append.py",
        "found.append(keep_frame(kept))",
        "keep_frame(kept)",
        "8.1, 8.2: what was taken away does not come back; evidence 3: logged in the batch",
        "unit",
    ),
    Mutation(
        "one-record-too-many-kept",
        "tables",
        "topics/engine/tables/kept_records.py",
        "return kept.decide(first_seq, tags, sizes, nulls, keep=keep, front=front)",
        "return kept.decide(first_seq, tags, sizes, nulls, keep=keep + 1, front=front)",
        "evidence 3: the newest n of each tag",
        "unit",
    ),
    Mutation(
        "null-takes-nothing-away",
        "tables",
        "topics/log/tables/kept_tags.py",
        "most = 1 if is_null else keep",
        "most = keep",
        "evidence 3: a null takes away all earlier records of its tag",
        "unit",
    ),
    Mutation(
        "caps-before-removals",
        "tables",
        "topics/engine/operations/append.py",
        "if kept is not None and kept.seqs:  # nothing else is in flight: see `waits_for_pending`",
        "if kept is not None and not kept.levels:",
        "evidence 3: removals come before caps",
        "unit",
    ),
    Mutation(
        "removals-decided-beside-a-deletion",
        "tables",
        "topics/engine/operations/append.py",
        "return keeps and not only_appends(topic)",
        "return False",
        "evidence 3: exact at publication",
        "unit",
    ),
    Mutation(
        "undone-transaction-stays-in-the-table",
        "tables",
        "topics/engine/operations/member_commits.py",
        "self._appends.kept.take_back(topic, kept)",
        "pass",
        "8.3: a transaction is all there or not at all",
        "unit",
    ),
    Mutation(
        "columns-older-than-a-flag",
        "tables",
        "topics/storage/cache/span_loader.py",
        "if span.flaggings == flaggings:",
        "if span.n == n:",
        "8.2: a deleted record never comes back; 8.5: figures are what a read shows",
        "unit",
    ),
    Mutation(
        "nulls-forgotten-by-replay",
        "tables",
        "topics/storage/recovery/topic_replay.py",
        "topic.log.add_nulls((seq,), ts)",
        "pass",
        "evidence 3: a null goes after its time, and is left out",
        "unit",
    ),
    Mutation(
        "removals-forgotten-by-replay",
        "tables",
        "topics/storage/recovery/topic_replay.py",
        "self._columns.run(topic, partial(topic.log.take_away, found.seqs, found.sizes))",
        "pass",
        "8.1, 8.2: what was taken away does not come back",
        "unit",
    ),
    Mutation(
        "page-says-a-later-head",
        "tables",
        "topics/engine/operations/latest_reads.py",
        "return _page(topic, choice, found, head, request.max_batch_bytes)",
        "return _page(topic, choice, found, topic.log.head_seq, request.max_batch_bytes)",
        "evidence 3: pages and changes without a gap",
        "unit",
    ),
    Mutation(
        "surplus-left-by-a-crash",
        "tables",
        "topics/engine/engine.py",
        "self.tables.trim_all()",
        "pass",
        "evidence 3: setting it applies to existing records",
        "unit",
    ),
)
