"""Archiving: which records a run takes; that they get into the archive whole and once, after any end of the process;
what counts as loss; and that no record is deleted that is not in the archive."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.conformance.client import Client, Daemon, fresh_name
from tests.spark.conftest import ROOT
from topics.cli.failures import CommandFailure, UsageRefusal
from topics.spark.jobs import archive, archive_files
from topics.spark.jobs.archive import ArchiveRange, TopicBounds, plan
from topics.spark.jobs.archive_files import ArchiveFiles, Offset, Offsets
from topics.spark.session import DaemonAddress

# ----------------------------------------------------------------- what a run takes


def known(**ends: tuple[int, int]) -> Offsets:
    return Offsets({topic: Offset(*end) for topic, end in ends.items()})


def test_a_topic_is_archived_from_what_it_has_first_and_then_from_where_it_ended() -> None:
    now = TopicBounds("a", epoch=1, head=10, earliest=4)
    assert plan([now], known(), 100) == [ArchiveRange("a", 1, 3, 10)]
    assert plan([now], known(a=(1, 7)), 100) == [ArchiveRange("a", 1, 7, 10)]
    assert plan([now], known(a=(1, 10)), 100) == []


def test_an_empty_topic_is_no_work() -> None:
    assert plan([TopicBounds("a", 1, 0, 1), TopicBounds("b", 1, 8, 9)], known(), 100) == []


def test_a_round_has_no_more_seqs_than_its_limit_and_the_next_one_goes_on() -> None:
    topics = [TopicBounds("a", 1, 10, 1), TopicBounds("b", 1, 10, 1), TopicBounds("c", 1, 10, 1)]
    assert plan(topics, known(), 15) == [ArchiveRange("a", 1, 0, 10), ArchiveRange("b", 1, 0, 5)]
    assert plan(topics, known(a=(1, 10), b=(1, 5)), 15) == [ArchiveRange("b", 1, 5, 10), ArchiveRange("c", 1, 0, 10)]


def test_what_retention_took_after_the_last_run_is_asked_for_so_that_its_loss_is_noticed() -> None:
    assert plan([TopicBounds("a", 1, 10, 9)], known(a=(1, 5)), 100) == [ArchiveRange("a", 1, 5, 10)]


def test_a_topic_that_was_made_again_is_loss_and_starts_anew_where_loss_is_allowed() -> None:
    with pytest.raises(CommandFailure, match="a: was deleted and made again, and what it had after seq 5"):
        plan([TopicBounds("a", 2, 3, 1)], known(a=(1, 5)), 100)
    assert plan([TopicBounds("a", 2, 3, 1)], known(a=(1, 5)), 100, allow_loss=True) == [ArchiveRange("a", 2, 0, 3)]


@pytest.mark.parametrize("now", [TopicBounds("a", 2, 3, 1), TopicBounds("a", 1, 10, 1)])
def test_an_older_state_of_a_topic_than_the_archived_one_is_refused_always(now: TopicBounds) -> None:
    with pytest.raises(CommandFailure, match="another data directory"):
        plan([now], known(a=(2, 5)), 100, allow_loss=True)


# ----------------------------------------------------------------- how it gets there


class Killed(BaseException):
    """Where the process would have ended."""


class Kills:
    """Lets so many changes of the file system happen, and ends the process at the next one."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.left = -1
        patch.setattr(archive_files, "_sync", lambda _: None)  # the machine does not fail here
        patch.setattr(os, "fsync", lambda _: None)
        for owner, name in (
            (archive_files, "_sync"),
            (Path, "replace"),
            (Path, "unlink"),
            (Path, "mkdir"),
            (shutil, "rmtree"),
        ):
            patch.setattr(owner, name, self._counting(getattr(owner, name)))

    def _counting(self, change: Callable[..., object]) -> Callable[..., object]:
        def counted(*arguments: object, **named: object) -> object:
            self.left -= 1
            if self.left == 0:
                raise Killed
            return change(*arguments, **named)

        return counted


def archive_round(root: Path, after: int, last: int) -> None:
    """What a run does, but for Spark: it goes on from the offsets, and 'writes' a line for each seq."""
    files = ArchiveFiles(root)
    with files.locked():
        begin = files.offsets().topics.get("a:b", Offset(1, after))
        if begin.seq >= last:
            return
        written = files.begin()
        for day in ("2026-11-21", "2026-11-22"):
            place = written / "topic=a%3Ab" / f"day={day}"
            place.mkdir(parents=True)
            for part in (0, 1):
                lines = [f"{day} {part} {seq}" for seq in range(begin.seq + 1, last + 1)]
                (place / f"part-{part}.parquet").write_text("\n".join(lines))
        files.publish(written, {"a:b": (begin, Offset(1, last))})


def lines_of(root: Path) -> list[str]:
    return sorted(line for path in root.glob("topic=*/day=*/*") for line in path.read_text().split("\n"))


def test_killed_at_any_step_and_repeated_an_archive_has_each_record_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    complete = sorted(f"2026-11-{day} {part} {seq}" for day in (21, 22) for part in (0, 1) for seq in range(1, 6))
    with monkeypatch.context() as patch:
        kills = Kills(patch)
        for step in range(1, 1000):
            root = tmp_path / str(step)
            kills.left = -1
            archive_round(root, 0, 3)
            kills.left = step
            try:
                archive_round(root, 3, 5)
            except Killed:
                kills.left = -1
                assert ArchiveFiles(root).offsets().topics["a:b"].seq in {3, 5}
                archive_round(root, 3, 5)
            else:
                break
            assert lines_of(root) == complete
            assert ArchiveFiles(root).offsets().topics == {"a:b": Offset(1, 5)}
            assert {path.name for path in (root / "_archive").iterdir()} == {"lock", "offsets.json"}
    assert step > 15
    assert lines_of(root) == complete


def test_two_cannot_archive_to_the_same_place_at_once(tmp_path: Path) -> None:
    other = ArchiveFiles(tmp_path).locked()
    with ArchiveFiles(tmp_path).locked(), pytest.raises(CommandFailure, match="somebody else") as refused:
        other.__enter__()
    assert refused.value.exit_code == 5
    with ArchiveFiles(tmp_path).locked():
        pass


def test_offsets_that_are_none_are_said_to_be_so(tmp_path: Path) -> None:
    (tmp_path / "_archive").mkdir()
    (tmp_path / "_archive" / "offsets.json").write_text("[]")
    with pytest.raises(CommandFailure, match=r"offsets\.json"):
        ArchiveFiles(tmp_path).offsets()


# ----------------------------------------------------------------- with Spark and a daemon


def seqs_in(spark: SparkSession, root: Path, topic: str) -> list[int]:
    rows = archive.rows_of(spark, root).where("reason IS NULL").where(f"topic = '{topic}'").select("seq")
    return sorted(row.seq for row in rows.collect())


def fill(http: Client, topic: str, count: int, **fields: object) -> None:
    http.append(topic, records=[{"data": {"n": n}, **fields} for n in range(count)])


@pytest.fixture
def address(daemon: Daemon) -> DaemonAddress:
    return DaemonAddress(daemon.url)


@pytest.mark.slow
def test_runs_go_on_from_each_other_and_rows_are_what_the_topic_has(
    spark: SparkSession, http: Client, address: DaemonAddress, tmp_path: Path
) -> None:
    topic = fresh_name("a:b")
    fill(http, topic, 30, tag="t:1", node="n", meta={"k": "v"})
    http.delete_records(topic, before_seq=3)
    done = archive.run(spark, tmp_path, address=address, topics=[topic], records_per_round=20)
    assert (done.records, done.offsets[topic].seq, done.gaps, done.deleted) == (28, 30, 0, {})
    fill(http, topic, 5)
    assert archive.run(spark, tmp_path, address=address, prefix=topic).records == 5
    assert archive.run(spark, tmp_path, address=address, topics=[topic]).records == 0

    assert seqs_in(spark, tmp_path, topic) == list(range(3, 36))
    rows = {row.seq: row for row in archive.rows_of(spark, tmp_path).collect()}
    want = http.read(topic, include_tags=True)["records"]
    for record in want:
        row = rows[record["$seq"]]
        assert (row.topic, row.tag, row.node) == (topic, record.get("$tag"), record.get("$node"))
        assert (row.meta or {}) == record.get("meta", {})
        assert row.data == f'{{"n":{record["data"]["n"]}}}'
        assert str(row.day) == row.ts.strftime("%Y-%m-%d")
        assert round(row.ts.timestamp() * 1000) == record["$ts"]
    assert len(want) == len(rows)


@pytest.mark.slow
def test_deleting_takes_what_is_archived_and_nothing_that_the_files_do_not_have(
    spark: SparkSession, http: Client, address: DaemonAddress, tmp_path: Path
) -> None:
    topic = fresh_name()
    fill(http, topic, 10)
    archive.run(spark, tmp_path, address=address, topics=[topic])
    fill(http, topic, 10)
    # Somebody has lost the first run's file: the offsets say that its records are archived, and they are not.
    (lost,) = tmp_path.glob("topic=*/day=*/*.parquet")
    kept = lost.rename(tmp_path / "kept")
    with pytest.raises(CommandFailure, match="nothing was deleted"):
        archive.run(spark, tmp_path, address=address, topics=[topic], delete=True)
    assert http.state(topic)["count"] == 20

    kept.rename(lost)
    fill(http, topic, 3)
    done = archive.run(spark, tmp_path, address=address, topics=[topic], delete=True)
    assert (done.records, done.deleted) == (3, {topic: 23})
    assert http.state(topic)["count"] == 0
    assert seqs_in(spark, tmp_path, topic) == list(range(1, 24))


@pytest.mark.slow
def test_loss_fails_the_run_or_is_a_row_and_a_new_instance_is_told_apart(
    spark: SparkSession, http: Client, address: DaemonAddress, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    topic = fresh_name()
    http.put_topic(topic, cap_records=10)
    fill(http, topic, 10)
    archive.run(spark, tmp_path, address=address, topics=[topic])
    fill(http, topic, 15)
    with pytest.raises(Exception, match="11 to 15"):
        archive.run(spark, tmp_path, address=address, topics=[topic])
    assert seqs_in(spark, tmp_path, topic) == list(range(1, 11))
    done = archive.run(spark, tmp_path, address=address, topics=[topic], allow_loss=True)
    assert (done.records, done.gaps) == (10, 1)
    (gap,) = archive.rows_of(spark, tmp_path).where("reason IS NOT NULL").collect()
    assert (gap.topic, gap.gap_from, gap.gap_to, gap.reason, gap.seq) == (topic, 11, 15, "cap", None)

    http.delete_topic(topic)
    fill(http, topic, 2)
    with pytest.raises(CommandFailure, match="was deleted and made again"):
        archive.run(spark, tmp_path, address=address, topics=[topic])
    archive.run(spark, tmp_path, address=address, topics=[topic], allow_loss=True)
    assert "what the former instance had after seq 25 is lost" in capsys.readouterr().err
    rows = archive.rows_of(spark, tmp_path).where("reason IS NULL")
    assert (rows.count(), rows.select("topic", "epoch", "seq").distinct().count()) == (22, 22)


@pytest.mark.slow
def test_jobs_of_a_queue_are_archived_but_not_deleted(
    spark: SparkSession, http: Client, address: DaemonAddress, tmp_path: Path
) -> None:
    topic = fresh_name()
    http.put_topic(topic, type="queue")
    with pytest.raises(UsageRefusal, match="is a queue"):
        archive.run(spark, tmp_path, address=address, topics=[topic], delete=True)


@pytest.fixture(
    params=[
        pytest.param("while Spark writes", marks=pytest.mark.more),  # it needs a JVM of its own
        "while files are moved",
        "before it deletes",
    ]
)
def killed_run(
    request: pytest.FixtureRequest, spark: SparkSession, daemon: Daemon, tmp_path: Path, topic: str
) -> Callable[[], None]:
    """Starts an archive in a process of its own, which ends by SIGKILL somewhere in the middle."""
    moment = request.param.split()[-1]
    environ = os.environ | {"PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable, "TMPDIR": str(tmp_path)}
    if moment != "writes":
        gateway = spark.sparkContext._gateway
        assert gateway is not None
        parameters = gateway.gateway_parameters
        environ |= {"PYSPARK_GATEWAY_PORT": str(parameters.port), "PYSPARK_GATEWAY_SECRET": parameters.auth_token}

    def run() -> None:
        done = subprocess.run(
            [sys.executable, "-m", "tests.spark.killed_archive", moment, str(tmp_path / "archive"), daemon.url, topic],
            cwd=ROOT,
            env=environ,
            timeout=300,
            check=False,
            capture_output=True,
            text=True,
        )
        assert done.returncode == -signal.SIGKILL, done.stderr

    return run


@pytest.mark.slow
def test_a_driver_that_is_killed_leaves_an_archive_that_the_next_run_completes(
    spark: SparkSession,
    http: Client,
    address: DaemonAddress,
    tmp_path: Path,
    topic: str,
    killed_run: Callable[[], None],
) -> None:
    root = tmp_path / "archive"
    fill(http, topic, 500)
    archive.run(spark, root, address=address, topics=[topic])
    fill(http, topic, 1000)
    killed_run()
    assert http.state(topic)["count"] == 1500
    assert archive.run(spark, root, address=address, topics=[topic], delete=True).deleted == {topic: 1500}
    assert seqs_in(spark, root, topic) == list(range(1, 1501))
    assert http.state(topic)["count"] == 0
