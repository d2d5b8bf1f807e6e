"""The limit on open files, and what follows from it."""

from __future__ import annotations

import resource

import pytest

from topics.runtime import process_limits


class FakeLimit:
    """Stands in for the kernel's idea of RLIMIT_NOFILE."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, soft: int, hard: int, *, refuses: bool = False) -> None:
        self.now = (soft, hard)
        self._refuses = refuses
        monkeypatch.setattr(resource, "getrlimit", lambda _: self.now)
        monkeypatch.setattr(resource, "setrlimit", self._set)

    def _set(self, _which: int, limit: tuple[int, int]) -> None:
        if self._refuses:
            raise ValueError("not allowed")
        self.now = limit


def test_the_soft_limit_becomes_the_hard_one(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeLimit(monkeypatch, 1024, 524_288)
    assert process_limits.raise_file_limit() is None
    assert fake.now == (524_288, 524_288)


def test_a_low_hard_limit_is_worth_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeLimit(monkeypatch, 1024, 4096)
    warning = process_limits.raise_file_limit()
    assert warning is not None
    assert "4096" in warning
    assert fake.now == (4096, 4096)


def test_a_refusal_of_the_kernel_leaves_what_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    FakeLimit(monkeypatch, 1024, resource.RLIM_INFINITY, refuses=True)
    warning = process_limits.raise_file_limit()
    assert warning is not None
    assert "1024" in warning


def test_no_limit_at_all_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    FakeLimit(monkeypatch, resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    assert process_limits.raise_file_limit() is None


def test_the_limit_in_force_is_the_soft_one(monkeypatch: pytest.MonkeyPatch) -> None:
    FakeLimit(monkeypatch, 1024, 524_288)
    assert process_limits.file_limit() == 1024
    FakeLimit(monkeypatch, resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    assert process_limits.file_limit() is None


@pytest.mark.parametrize(
    ("files", "connections"),
    [(20_000, 15_000), (1024, 768), (256, 192), (255, 191), (100, 36), (64, 1), (10, 1), (None, None)],
)
def test_connections_leave_a_share_of_the_descriptors(files: int | None, connections: int | None) -> None:
    assert process_limits.most_connections(files) == connections


@pytest.mark.parametrize(
    ("files", "wanted", "connections"),
    [(1024, 100, 100), (1024, 768, 768), (1024, 5000, 768), (None, 5000, 5000), (None, 0, None)],
)
def test_fewer_connections_can_be_asked_for(files: int | None, wanted: int, connections: int | None) -> None:
    assert process_limits.most_connections(files, wanted) == connections


def test_the_number_of_memory_pools_can_be_limited() -> None:
    assert process_limits.limit_arenas(2)


def test_what_is_free_can_be_given_back_to_the_system() -> None:
    pieces = [bytes(100_000) for _ in range(200)]
    kept = pieces[1::2]
    del pieces
    assert process_limits.trim_memory()
    assert len(kept) == 100
