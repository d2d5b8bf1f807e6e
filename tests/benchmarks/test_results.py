"""The file of a run: what is written is read again, and what does not belong together is not put together."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.results import Cpu, Unusable, load, merged, save
from tests.benchmarks.runs import RESTLESS, STEADY, document, part, result


def test_what_was_written_is_read_again(tmp_path: Path) -> None:
    whole = document(append=part(result("append/plain", 1, 2, 3, reference=0.5), absent={"append/redis": "no"}))
    save(whole, tmp_path / "run.json")
    assert load(tmp_path / "run.json") == whole
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]


@pytest.mark.parametrize("content", [b"", b"\xff", b"[]", b'{"machine": {}}'], ids=["empty", "bytes", "list", "half"])
def test_any_other_file_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "other.json").write_bytes(content)
    with pytest.raises(Unusable, match=r"other\.json"):
        load(tmp_path / "other.json")


def test_a_file_of_another_format_is_refused(tmp_path: Path) -> None:
    whole = document()
    whole.format += 1
    save(whole, tmp_path / "run.json")
    with pytest.raises(Unusable, match="format"):
        load(tmp_path / "run.json")


def test_parts_are_added_and_those_measured_again_replaced() -> None:
    old = document(append=part(result("append/a", 1)), diff=part(result("diff/a", 1)))
    new = document(append=part(result("append/a", 2)), ws=part(result("ws/a", 3)))
    both = merged(old, new)
    assert {id_: one.median for id_, one in both.results().items()} == {"append/a": 2, "diff/a": 1, "ws/a": 3}


def test_figures_of_another_machine_are_not_added() -> None:
    with pytest.raises(Unusable, match="another machine"):
        merged(document(), document(cpu="a faster one"))


def test_quick_figures_are_not_added_to_others() -> None:
    with pytest.raises(Unusable, match="quick"):
        merged(document(), document(quick=True))


def test_a_part_is_noisy_when_the_processor_moved_by_more_than_15_percent_either_way() -> None:
    moved = [Cpu(100, 84), Cpu(100, 86), Cpu(100, 114), Cpu(100, 116)]
    assert [part(cpu=cpu).noisy for cpu in moved] == [True, False, False, True]


def test_the_figures_of_a_noisy_part_are_noisy() -> None:
    whole = document(append=part(result("append/a", 1), cpu=RESTLESS), diff=part(result("diff/a", 1), cpu=STEADY))
    assert (whole.noisy("append/a"), whole.noisy("diff/a"), whole.noisy("ws/a")) == (True, False, False)
