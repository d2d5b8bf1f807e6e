"""What holds for all tests: which of them are sweeps, and that no property is broken by a machine that is slow.

Hypothesis would fail an example that takes longer than 200 ms, and a test whose examples take long to make. Both say
something about the machine and what else runs on it. The time that is spent is bounded by `max_examples`.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.everything import EVERYTHING

pytest_plugins = ["tests.given_back"]

SWEEPS = (
    "crash/test_table.py",
    "engine/queues/test_queue_lives.py",
    "engine/forwarding/test_router_lives.py",
    "fuzz/test_fuzz.py",
    "log/test_stored_spans_model.py",
    "log/test_topic_log_model.py",
    "queue/test_lease_machine.py",
    "simulation/test_crash_sweep.py",
    "simulation/test_damage.py",
    "simulation/test_disk.py",
    "simulation/test_faults.py",
    "simulation/test_files_without_manifest.py",
    "simulation/test_forged_frames.py",
    "simulation/test_queue_crashes.py",
    "simulation/test_recovery_rules.py",
    "simulation/test_router_crashes.py",
    "simulation/test_transaction_crashes.py",
    "simulation/test_transactions_salvaged.py",
    "simulation/test_unguarded_rules.py",
    "simulator/test_simulator.py",
    "http/connections/test_request_heads.py",
    "engine/delivery/test_interleavings.py",
)
"""Files whose tests go through the same code again and again, from many beginnings to many ends. Other tests have been
there, so `scripts/coverage` leaves them out."""

SPARK = ("spark", "end_to_end/test_pipeline_demo.py")
"""Where tests need a Spark, if they are slow: they are run a file at a time."""

settings.register_profile("any_machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any_machine")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "sweep: goes where other tests have been, often; its lines are not counted")
    config.addinivalue_line("markers", "more: a variant of another test, that takes long: TOPICS_TEST_EVERYTHING=1")
    config.addinivalue_line("markers", "spark: needs a Spark of its own")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    sweeps = {here / name for name in SWEEPS}
    with_spark = [here / name for name in SPARK]
    for item in items:
        if item.path in sweeps:
            item.add_marker(pytest.mark.sweep)
        if item.get_closest_marker("more") and not EVERYTHING:
            item.add_marker(pytest.mark.skip(reason="a variant that takes long: TOPICS_TEST_EVERYTHING=1"))
        if item.get_closest_marker("slow") and any(item.path.is_relative_to(place) for place in with_spark):
            item.add_marker(pytest.mark.spark)
