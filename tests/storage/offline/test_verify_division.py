"""`verify`, divided: several processes check the segments, and find the same as `verify`."""

from __future__ import annotations

import pickle
import random
from functools import cache

import pytest

from tests.simulation.disk import SimFs
from tests.simulation.world import quiet
from tests.storage.made import COLD, ROOT, made
from topics.storage.offline.findings import Finding
from topics.storage.offline.verify import Verification
from topics.storage.offline.verify_division import DividedVerification


@cache
def _made(end: str) -> SimFs:
    return made(7, end=end).fs


def divided(fs: SimFs, *, in_use: bool = False) -> tuple[list[Finding], int]:
    """The findings, and how many segments were looked at on their own."""
    verification = DividedVerification(fs, ROOT, COLD, in_use=in_use)
    with quiet():
        findings = list(verification.findings())
        for work in pickle.loads(pickle.dumps(verification.work)):
            about = work.findings(fs)
            if in_use and any(finding.severity == "damage" for finding in about):
                about = verification.again(work)
            findings += about
    return sorted(findings, key=str), len(verification.work)


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_there_is_nothing_to_say_about_what_the_engine_leaves(end: str) -> None:
    fs = _made(end).after_process_kill()
    segments = [path for path in fs.tree() if path.endswith(".data")]
    assert divided(fs) == ([], len(segments))
    assert divided(fs, in_use=True) == ([], len(segments))


@pytest.mark.parametrize("kind", [".data", ".idx", ".tags", ".cold", "topic.cbor", ".log"])
def test_what_it_finds_is_what_verify_finds(kind: str) -> None:
    chance = random.Random(kind)
    for end in ("stop", "kill"):
        for in_use in (False, True):
            fs = _made(end).after_process_kill()
            path = chance.choice([path for path, content in sorted(fs.tree().items()) if content and kind in path])
            if in_use:
                fs.unlink(path)
            else:
                content = fs.tree()[path]
                assert content is not None
                fs.flip_bit(path, chance.randrange(min(len(content), 2000)), chance.randrange(8))
            with quiet():
                whole = sorted(Verification(fs, ROOT, COLD, in_use=in_use).findings(), key=str)
            assert divided(fs, in_use=in_use)[0] == whole, path
