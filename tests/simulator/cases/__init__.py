"""Plans that have failed once, cut down, each named after what was wrong; they are run with every change."""

from __future__ import annotations

from importlib import resources

from tests.simulator.plan import Plan, decode


def names() -> list[str]:
    """All of them."""
    files = resources.files(__name__).iterdir()
    return sorted(file.name.removesuffix(".json") for file in files if file.name.endswith(".json"))


def load(name: str) -> Plan:
    """The plan of a case. Raises FileNotFoundError."""
    return decode(resources.files(__name__).joinpath(f"{name}.json").read_bytes())
