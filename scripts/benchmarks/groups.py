"""A hundred groups on one log beside one: records claimed and acked in a second, appends, and memory."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from functools import partial

from benchmarks.bench import NEVER_MS, Bench, Control, CountAppended, append_request, plain_record
from benchmarks.claims import (
    Rate,
    ack_request,
    claim_request,
    expect_acked,
    expect_claimed,
    fill_with_jobs,
    hold_checkpoints,
    measured_rate,
    rate_figures,
)
from benchmarks.client import Answer, WrongAnswer
from benchmarks.figures import Figure, figure
from benchmarks.machine import resident_mib
from daemon_process import DaemonProcess

GROUPS = 100
CONNECTIONS = 4
BATCH = 32
RECORDS = 500_000
CAP = 10_000
MOST_TIMES = 1.3
"""What a claim or an append may cost with all those groups, as a multiple of its cost with one or none."""


def many_groups(bench: Bench) -> list[Figure]:
    """Each case with many groups in turn with its reference, on topics of their own of one daemon."""
    bench.say(f"{GROUPS} groups on one log")
    with bench.daemon(checkpoint_ms=NEVER_MS) as daemon, closing(Control(daemon.port)) as control:
        hold_checkpoints(daemon)
        for topic, count in (("one", 1), ("many", GROUPS)):
            control.create(topic)
            fill_with_jobs(daemon.port, topic, 100_000 if bench.quick else RECORDS)
            before = resident_mib(daemon.pid)
            _make_groups(control, topic, count)
        members = {topic: Members(topic, count) for topic, count in (("one", 1), ("many", GROUPS))}
        work = bench.in_turn({topic: partial(_work, bench, daemon, one) for topic, one in members.items()})
        each = 1024 * (resident_mib(daemon.pid) - before) / GROUPS
        members["many"].expect(control)
        appends = _appends(bench, daemon, control)
    name = f"claim and ack, batches of {BATCH}, {CONNECTIONS} connections"
    return [
        *rate_figures(f"reference: {name}, one group", "group-one", work["one"]),
        *rate_figures(f"{name}, {GROUPS} groups in turn", "group-many", work["many"], None, ("group-one",)),
        _times(f"{name}, {GROUPS} groups", "group-many-times", work["one"], work["many"]),
        figure(f"resident, more with {GROUPS} groups, for each", "KiB", [each], key="group-memory"),
        *appends,
    ]


def _appends(bench: Bench, daemon: DaemonProcess, control: Control) -> list[Figure]:
    """One record at a time to a log that nothing is removed from, and to a full one, with groups that nobody uses."""
    figures = []
    for key, what, config in (("log", "a log", {}), ("full", "a full log, cap_records", {"cap_records": CAP})):
        case = f"append of one record to {what}, {CONNECTIONS} connections"
        bench.say(case)
        for topic, count in ((f"{key}-none", 0), (f"{key}-many", GROUPS)):
            control.create(topic, **config)
            fill_with_jobs(daemon.port, topic, CAP)
            _make_groups(control, topic, count)
        rates = bench.in_turn({many: partial(_append, bench, daemon, f"{key}-{many}") for many in ("none", "many")})
        figures += [
            figure(
                f"{case}, {text}, processor time",
                "us",
                [one.server_us for one in rates[many]],
                key=f"group-{key}-{many}",
            )
            for many, text in (("none", "no groups"), ("many", f"{GROUPS} groups"))
        ]
        figures.append(_times(f"{case}, {GROUPS} groups", f"group-{key}-times", rates["none"], rates["many"]))
    return figures


def _times(name: str, key: str, few: Sequence[Rate], many: Sequence[Rate]) -> Figure:
    times = [much.server_us / little.server_us for little, much in zip(few, many, strict=True)]
    return figure(f"{name}, processor time, times that of the reference", "x", times, key=key, at_most=MOST_TIMES)


def _make_groups(control: Control, topic: str, count: int) -> None:
    for number in range(count):
        control.call("PUT", f"/v0/topics/{topic}/groups/group-{number}", {"from": "earliest"}, expect=(201,))


class Members:
    """Connections that claim a batch and ack it in turn, each time in the next group."""

    def __init__(self, topic: str, groups: int) -> None:
        self._topic = topic
        self._places = [f"{topic}/groups/group-{number}" for number in range(groups)]
        self._at = list(range(CONNECTIONS))
        self._held: list[list[bytes]] = [[] for _ in range(CONNECTIONS)]
        self.jobs = 0
        """Acked, warm-ups included."""

    def request(self, number: int) -> bytes:
        place = self._places[self._at[number] % len(self._places)]
        held = self._held[number]
        return ack_request(place, f"worker-{number}", held) if held else claim_request(place, f"worker-{number}", BATCH)

    def check(self, number: int, answer: Answer) -> int:
        if not self._held[number]:
            self._held[number] = expect_claimed(answer, BATCH)
            return 0
        expect_acked(answer, BATCH)
        self._held[number] = []
        self._at[number] += CONNECTIONS
        self.jobs += BATCH
        return BATCH

    def expect(self, control: Control) -> None:
        """Together the groups have finished what was acked, and the records are all there."""
        lags = [control.call("GET", f"/v0/topics/{place}") for place in self._places]
        head = control.state(self._topic)["head_seq"]
        held = sum(map(len, self._held))
        finished = sum(head - one["queue"]["ready"] - one["queue"]["in_flight"] for one in lags)
        if finished != self.jobs:
            raise WrongAnswer(f"{finished} records are finished, {self.jobs} were acked, {held} are held")


def _work(bench: Bench, daemon: DaemonProcess, members: Members) -> Rate:
    acked = members.jobs
    return measured_rate(bench, daemon, CONNECTIONS, members.request, members.check, lambda: members.jobs - acked)


def _append(bench: Bench, daemon: DaemonProcess, topic: str) -> Rate:
    request, check = append_request(topic, [plain_record(0)]), CountAppended(1)
    return measured_rate(bench, daemon, CONNECTIONS, lambda _: request, check, lambda: check.total)
