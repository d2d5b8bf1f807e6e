"""`topics restore` and `topics bucket` with a bucket in a directory."""

from __future__ import annotations

import json
import os
import shutil
import signal
from contextlib import closing
from pathlib import Path

import pytest

from tests.bucket.small_bucket import SmallBucket
from tests.bucket.test_bucket_check import filled
from tests.cli.command_line import CommandLine
from tests.client.ports import free_port
from tests.conformance.client import Daemon, until
from topics.bucket.file_objects import FileObjects
from topics.bucket.local_note import BucketNote, write_note
from topics.bucket.object_names import base_name, number_of, pin_name, round_name
from topics.bucket.object_store import StoreError, StoreErrorKind
from topics.bucket.pin_format import Pin, encode_pin
from topics.cli.app import run
from topics.storage.files.datadir import DataDir
from topics.storage.files.fs import OsFs
from topics.storage.recovery.restored_copy import SKIPPED_SEQS


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The directory of a bucket."""
    root = tmp_path / "bucket"
    root.mkdir()
    objects = FileObjects(str(root))
    for name, data in filled().objects.objects.items():
        objects.put_new(name, data)
    return root


@pytest.fixture
def url(root: Path) -> str:
    return f"file://{root}"


@pytest.fixture
def topics() -> CommandLine:
    return CommandLine()


def bucket() -> SmallBucket:
    return filled()


def test_a_restored_directory_is_whole_and_a_daemon_serves_it(topics: CommandLine, url: str, tmp_path: Path) -> None:
    data = tmp_path / "daemon" / "data"
    data.parent.mkdir()
    found = topics.json("restore", url, "--data-dir", str(data), "--full")
    assert found["round"] == bucket().number
    assert data.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in data.rglob("*") if path.is_file()} == {0o600}
    assert not data.with_name("data.partial").exists()
    checked = topics("verify", str(data))
    assert (checked.returncode, checked.stderr) == (0, ""), checked.stdout
    daemon = Daemon(data.parent, port=free_port())
    try:
        with closing(daemon.start()) as client:
            listed = client.get("/v0/topics").json()["topics"]
            assert len(listed) == 7
            for topic in listed:
                assert topic["head_seq"] >= SKIPPED_SEQS
            answer = client.get("/v0/topics/disk/diff?from_seq=0").json()
            assert answer["records"]
            numbers = [record["data"]["n"] for record in answer["records"]]
            assert numbers == sorted(numbers)
    finally:
        daemon.kill()
    assert not (data / "RESTORED").exists()


def test_a_restore_is_good_if_its_pin_cannot_be_removed(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Credentials may not permit deletions. All topics are selected and copied, so the pin keeps nothing."""

    def denied(self: FileObjects, names: object) -> None:
        raise StoreError(StoreErrorKind.DENIED, "nothing may be deleted")

    monkeypatch.setattr(FileObjects, "delete", denied)
    data = tmp_path / "data"
    assert run(["restore", url, "--data-dir", str(data), "--full", "--topic", "*"]) == 0
    assert (data / "FORMAT").exists()
    assert not (data / "meta" / "restore").exists()


@pytest.mark.parametrize("full", [False, True])
def test_a_restore_of_some_topics_has_those_when_a_daemon_is_ready(
    topics: CommandLine, url: str, root: Path, tmp_path: Path, full: bool
) -> None:
    data = tmp_path / "daemon" / "data"
    data.parent.mkdir()
    done = topics("restore", url, "--data-dir", str(data), "--topic", "dis?", "--topic", "fs*", *["--full"] * full)
    assert (done.returncode, done.stderr) == (0, "")
    assert "it has all topics until a daemon is started" in done.stdout
    moved = len(list(data.rglob("*.object")))
    assert f"{moved} segments are still in the bucket" in done.stdout
    assert bool(list(data.rglob("*.tags"))) == full, "those of the chosen topics are here"
    assert len(list((root / "pins").iterdir())) == 1
    checked = topics("verify", str(data))
    assert checked.returncode == 0, checked.stdout
    assert "the first start deletes topics that it does not name" in checked.stdout
    daemon = Daemon(data.parent, port=free_port())
    try:
        with closing(daemon.start()) as client:
            assert {one["topic"] for one in client.get("/v0/topics").json()["topics"]} == {"disk", "fsync"}
            assert not (data / "meta" / "restore-topics").exists()
            assert client.get("/v0/topics/disk/diff?from_seq=0").json()["records"]
            until(lambda: not (data / "meta" / "restore").exists(), within_s=60)
    finally:
        daemon.kill()
    assert not list(root.glob("pins/*"))
    refused = topics("restore", url, "--data-dir", str(tmp_path / "no"), "--topic", "Disk")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "no topic matches Disk" in refused.stderr
    assert "--topic: a pattern has 0 characters" in topics("restore", url, "--data-dir", "no", "--topic", "").stderr
    assert not list(tmp_path.glob("no*"))
    assert not list(root.glob("pins/*"))


def test_a_damaged_choice_of_topics_refuses_the_start(topics: CommandLine, url: str, tmp_path: Path) -> None:
    data = tmp_path / "data"
    topics.json("restore", url, "--data-dir", str(data), "--topic", "disk")
    (data / "meta" / "restore-topics").write_text("{}")
    started = topics("serve", "--data-dir", str(data), "--port", "0")
    assert started.returncode == 2
    assert "restore-topics is damaged: it is malformed" in started.stderr


def test_status_ls_and_verify_of_a_whole_bucket(topics: CommandLine, url: str, root: Path) -> None:
    status = topics("bucket", "status", url)
    assert status.returncode == 0
    assert "segments" in status.stdout
    plain = " ".join(status.stdout.split())
    assert f"last round {bucket().number}, " in plain
    base = max(number_of(name) or 0 for name in bucket().objects.objects if name.startswith("bases/"))
    assert f"since that base {bucket().number - base} rounds, " in plain
    assert "pin" not in plain.split()
    FileObjects(str(root)).put_new(pin_name("spark"), encode_pin(Pin(base=base, expires=1_800_000_000_000)))
    pinned = topics("bucket", "status", url)
    assert f"pins/spark, base {base}, until 2027-01-15" in pinned.stdout
    found = topics.json("bucket", "status", url)
    assert (found["rounds_since_base"], found["pins"][0]["base"]) == (bucket().number - base, base)
    assert found["base_lag_ms"] == found["last_round_ms"] - found["newest_base_ms"]
    lines = topics("bucket", "ls", url, "--limit", "3").stdout.splitlines()
    assert len(lines) == 4
    assert lines[0].split() == ["kind", "number", "time", "size", "about"]
    assert lines[1].split()[:2] == ["round", str(bucket().number)]
    listed = topics.json("bucket", "ls", url)["objects"]
    assert {one["kind"] for one in listed} == {"base", "round"}
    assert topics.json("bucket", "status", url)["last_round"] == bucket().number
    for options in ([], ["--quick"]):
        verified = topics("bucket", "verify", url, *options)
        assert (verified.returncode, verified.stderr) == (0, "")
        assert verified.stdout.startswith("0 damages; ")
    assert json.loads(topics("bucket", "verify", url, "--json").stdout)["damage"] == 0


def test_a_missing_object_is_named_and_leaves_nothing(
    topics: CommandLine, url: str, root: Path, tmp_path: Path
) -> None:
    missing = round_name(bucket().number - 1)
    (root / missing).unlink()
    verified = topics("bucket", "verify", url)
    assert verified.returncode == 1
    assert f"{missing}: it is missing" in verified.stdout
    restored = topics("restore", url, "--data-dir", str(tmp_path / "d"))
    assert (restored.returncode, restored.stdout) == (1, "")
    assert f"{missing}: it is missing" in restored.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["bucket"]


def test_a_time_or_a_round_says_how_far(topics: CommandLine, url: str, tmp_path: Path) -> None:
    objects = [one for one in topics.json("bucket", "ls", url)["objects"] if one["kind"] == "round"]
    newest, *_, oldest = objects
    bases = [one["number"] for one in topics.json("bucket", "ls", url)["objects"] if one["kind"] == "base"]
    number = max(bases)
    found = topics.json("restore", url, "--data-dir", str(tmp_path / "a"), "--round", str(number))
    assert (found["round"], found["base"]) == (number, number)
    (wall_ms,) = (one["wall_ms"] for one in objects if one["number"] == number)
    for text in (str(wall_ms), str(newest["wall_ms"] - 1)):
        to = topics.json("restore", url, "--data-dir", str(tmp_path / text), "--to", text)
        assert to["time"] <= int(text)
        assert to["round"] < newest["number"]
    for options, what in (
        (["--to", str(oldest["wall_ms"] - 1)], "the oldest state in the bucket is of 20"),
        (["--round", "1"], "older than the oldest base"),
        (["--round", "1000"], f"the last one is {newest['number']}"),
        (["--round", "5", "--to", "2026-11-24T10:00:00Z"], "cannot be given together"),
        (["--to", "soon"], "is no time"),
    ):
        refused = topics("restore", url, "--data-dir", str(tmp_path / "no"), *options)
        assert (refused.returncode, refused.stdout) == (2, "")
        assert what in refused.stderr
    assert not (tmp_path / "no").exists()


def test_a_url_with_another_prefix_is_told_from_damage(topics: CommandLine, url: str, tmp_path: Path) -> None:
    (tmp_path / "bucket" / "mistyped").mkdir()
    for words in (
        ["bucket", "status"],
        ["bucket", "ls"],
        ["bucket", "gc"],
        ["restore", "--data-dir", str(tmp_path / "d")],
    ):
        found = topics(*words, f"{url}/mistyped")
        assert (found.returncode, found.stdout) == (1, "")
        assert "FORMAT: it is missing: no daemon has archived to this URL" in found.stderr
    assert "no daemon has archived" in topics("bucket", "verify", f"{url}/mistyped").stdout


@pytest.mark.parametrize("exists", [True, False])
def test_a_link_as_data_directory_leads_to_the_directory_that_is_made(
    topics: CommandLine, url: str, tmp_path: Path, exists: bool
) -> None:
    place, link = tmp_path / "disk" / "data", tmp_path / "link"
    place.parent.mkdir()
    if exists:
        place.mkdir()
    link.symlink_to(place)
    done = topics("restore", url, "--data-dir", str(link))
    assert (done.returncode, done.stderr) == (0, "")
    assert link.is_symlink()
    assert topics("verify", str(place)).returncode == 0
    assert not list(tmp_path.rglob("*.partial"))


def test_directories_and_urls_that_cannot_be_used_are_refused(topics: CommandLine, url: str, tmp_path: Path) -> None:
    full, empty, foreign = tmp_path / "full", tmp_path / "empty", tmp_path / "foreign"
    for path in (full, empty, tmp_path / "foreign.partial"):
        path.mkdir()
    (full / "file").touch()
    (tmp_path / "foreign.partial" / "file").touch()
    assert "exists and is not empty" in topics("restore", url, "--data-dir", str(full)).stderr
    assert "not an unfinished restore" in topics("restore", url, "--data-dir", str(foreign)).stderr
    assert (tmp_path / "foreign.partial" / "file").exists()
    assert topics("restore", url, "--data-dir", str(empty)).returncode == 0
    for text, code, what in (
        ("bucket", 2, "URL must be s3://"),
        ("s3://user:secret@bucket/x", 2, "must not contain a user"),
        (f"file://{tmp_path}/nothing", 3, "no directory"),
        (f"file://{empty}", 1, "FORMAT: "),
    ):
        refused = topics("bucket", "status", text)
        assert (refused.returncode, refused.stdout) == (code, ""), refused.stderr
        assert what in refused.stderr
        assert "secret" not in refused.stderr


def test_a_restore_that_is_killed_leaves_no_directory_and_the_next_one_starts_over(
    topics: CommandLine, url: str, root: Path, tmp_path: Path
) -> None:
    """A segment that nobody sends keeps it waiting in the middle."""
    data, partial = tmp_path / "data", tmp_path / "data.partial"
    segment = next(path for path in sorted(root.rglob("segments/**/*.data")))
    shutil.copy(segment, tmp_path / "kept")
    segment.unlink()
    os.mkfifo(segment)
    process = topics.start("restore", url, "--data-dir", str(data))
    try:
        until(lambda: any(partial.glob("topics/*/*.data")), within_s=60)
        beside = topics("restore", url, "--data-dir", str(data))
        assert (beside.returncode, beside.stdout) == (2, "")
        assert "another restore is writing" in beside.stderr
        assert process.poll() is None
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()
    assert not data.exists()
    assert not (partial / "FORMAT").exists()
    segment.unlink()
    shutil.copy(tmp_path / "kept", segment)
    assert topics("restore", url, "--data-dir", str(data)).returncode == 0
    assert not partial.exists()
    assert OsFs().exists(str(data / "FORMAT"))


def test_damage_in_json_is_a_line_for_each(topics: CommandLine, url: str, root: Path) -> None:
    (root / base_name(max(int(path.name) for path in (root / "bases").iterdir()))).write_bytes(b"x")
    *lines, last = [json.loads(line) for line in topics("bucket", "verify", url, "--json").stdout.splitlines()]
    assert last["damage"] == len(lines) > 0
    assert all(line.keys() == {"name", "problem"} for line in lines)


def test_inspect_shows_what_a_directory_knows_of_its_bucket(topics: CommandLine, url: str, tmp_path: Path) -> None:
    data = tmp_path / "data"
    topics.json("restore", url, "--data-dir", str(data))
    assert topics.json("inspect", str(data))["bucket"] is None
    assert "bucket:" not in topics("inspect", str(data)).stdout
    note = BucketNote(bucket="b1", dir="d", epoch=3, round=17, wall_ms=1_800_000_000_000, positions=[(0, 44)])
    write_note(OsFs(), DataDir(str(data)), note)
    assert "bucket: b1, epoch 3, round 17, 2027-01-15" in topics("inspect", str(data)).stdout
    found = topics.json("inspect", str(data))["bucket"]
    assert (found["bucket"], found["epoch"], found["round"]) == ("b1", 3, 17)
    write_note(OsFs(), DataDir(str(data)), BucketNote(bucket="", dir="d"))
    assert "bucket: none has been taken yet; a history is to begin" in topics("inspect", str(data)).stdout
    (data / "meta" / "bucket").write_bytes(b"no note")
    shown = topics("inspect", str(data))
    assert (shown.returncode, "meta/bucket cannot be read" in shown.stdout) == (0, True)


def test_gc_shows_what_may_go_and_why_the_rest_stays_and_deletes_nothing(
    topics: CommandLine, url: str, root: Path
) -> None:
    before = sorted(path.name for path in root.rglob("*"))
    bases = sorted(number_of(name) or 0 for name in bucket().objects.objects if name.startswith("bases/"))
    young = topics("bucket", "gc", url, "--retain", "100000d")
    assert "rounds: 0 may go" in young.stdout
    assert "no base is old enough, so every base and round stays" in young.stdout
    # The bucket's times are long ago: by the default retention only the newest base is needed.
    found = topics.json("bucket", "gc", url)
    kinds = {one["kind"]: one for one in found["kinds"]}
    assert [one["base"] for one in found["bases"]] == bases[-1:]
    assert (kinds["bases"]["may_go"], kinds["bases"]["kept"]) == (1, 1)
    assert base_name(bases[0]) in found["names"]
    assert (kinds["rounds"]["may_go"], kinds["rounds"]["kept"]) == (0, bucket().number), "it needs all of them"
    text = topics("bucket", "gc", url, "--dry-run", "--limit", "1").stdout
    assert "the newest that is as old as the retention" in text
    assert text.count("may go: bases/") == 1
    assert text.endswith("nothing was deleted: the daemon that owns the bucket does that\n")
    FileObjects(str(root)).put_new(pin_name("spark"), encode_pin(Pin(base=bases[0], expires=4_000_000_000_000)))
    pinned = topics("bucket", "gc", url).stdout
    assert "pins/spark needs it" in pinned
    assert "bases: 0 may go" in pinned
    assert sorted(path.name for path in root.rglob("*")) == sorted([*before, "pins", "spark"])
