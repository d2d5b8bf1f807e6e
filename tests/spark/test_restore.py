"""Restoring: the records of an archive in their order, with what they were, once however often it is done."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.conformance.client import Client, Daemon, fresh_name
from topics.cli.failures import CommandFailure
from topics.spark.jobs import archive, restore
from topics.spark.jobs.archive_files import Offset, Offsets
from topics.spark.session import DaemonAddress


def test_a_restore_is_known_by_what_the_archive_holds_what_is_wanted_and_where_to() -> None:
    offsets = Offsets({"a": Offset(1, 5), "b": Offset(1, 5)}, "x")
    same = restore.job_id_of(offsets, ["a", "b"], "t")
    assert same == restore.job_id_of(Offsets(dict(reversed(offsets.topics.items())), "x"), ["b", "a", "a"], "t")
    others = {
        restore.job_id_of(offsets, ["a"], "t"),
        restore.job_id_of(offsets, [], "t"),
        restore.job_id_of(offsets, ["a", "b"], "u"),
        restore.job_id_of(Offsets(offsets.topics, "y"), ["a", "b"], "t"),
        restore.job_id_of(Offsets(offsets.topics | {"a": Offset(1, 6)}, "x"), ["a", "b"], "t"),
    }
    assert len(others - {same}) == 5


@pytest.mark.slow
def test_a_round_trip_gives_the_records_back_once_with_what_they_were(
    spark: SparkSession, http: Client, daemon: Daemon, tmp_path: Path, topic: str
) -> None:
    address = DaemonAddress(daemon.url)
    names = [f"{topic}:b", f"{topic}:a"]
    for name in names:
        records: list[dict[str, Any]] = [{"data": {"n": n}, "tag": f"x:{n}"} for n in range(20)]
        records += [{"data": [None, 1.5, "ü"], "node": "n", "meta": {"k": "v", "archive.seq": "7"}}]
        http.append(name, records=records)
        http.delete_records(name, match=["tag", "Eq", "x:3"])
    archive.run(spark, tmp_path, address=address, topics=names)
    target = fresh_name("again")
    for _ in range(2):
        assert restore.run(spark, tmp_path, target, address=address) == 40

    restored = http.read(target, include_tags=True, limit=1000)["records"]
    expected = []
    for name in sorted(names):
        for record in http.read(name, include_tags=True, limit=1000)["records"]:
            former = {"archive.topic": name, "archive.seq": str(record["$seq"]), "archive.ts": str(record["$ts"])}
            meta = {key: text for key, text in record.get("meta", {}).items() if key != "archive.seq"}
            expected.append((record["data"], record.get("$tag"), record.get("$node"), meta | former))
    assert [(one["data"], one.get("$tag"), one.get("$node"), one["meta"]) for one in restored] == expected

    assert restore.run(spark, tmp_path, f"{target}-a", address=address, topics=[names[1]]) == 20
    with pytest.raises(CommandFailure, match=f"has nothing of nowhere; it has {names[1]}, {names[0]}"):
        restore.run(spark, tmp_path, target, address=address, topics=["nowhere"])


@pytest.mark.slow
def test_what_is_no_archive_is_not_restored(spark: SparkSession, daemon: Daemon, tmp_path: Path) -> None:
    with pytest.raises(CommandFailure, match="is no archive"):
        restore.run(spark, tmp_path, "t", address=DaemonAddress(daemon.url))
