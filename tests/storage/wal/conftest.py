"""Stories about writers are told in both ways in which a group is written."""

from __future__ import annotations

import pytest

from topics.storage.wal import group_writes


@pytest.fixture(params=["on the loop", "in threads"])
def each_way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small groups are written on the loop, and then, told again, in threads as large ones are."""
    if request.param == "in threads":
        monkeypatch.setattr(group_writes, "LOOP_BYTES", -1)
