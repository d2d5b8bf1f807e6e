"""The table of all targets, by name. What each of them takes is in the modules beside this one: `stored` (disk),
`asked` (HTTP, decoder by decoder), `requests` (HTTP/1.1, beside other readers), `served` (HTTP, by the
bytes of a connection), `lane_differences` (the same with the lane and without it) and `written` (text, and clients).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tests.fuzz import asked, lane_differences, requests, served, stored, written
from tests.fuzz.target import Target

TARGETS: Final[Mapping[str, Target]] = {
    target.name: target
    for module in (stored, asked, requests, served, lane_differences, written)
    for target in module.TARGETS
}
