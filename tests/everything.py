"""Whether a run is to leave nothing out, however long that takes: TOPICS_TEST_EVERYTHING=1 in the environment."""

from __future__ import annotations

import os
from typing import Final

EVERYTHING: Final = bool(os.environ.get("TOPICS_TEST_EVERYTHING"))
