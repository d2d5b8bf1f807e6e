"""Tests of `topics/bucket`. Its servers are those of `scripts/s3_server.py`, which is in no package."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
