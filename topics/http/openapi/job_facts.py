"""The facts about the fields of the calls that look at jobs, retry and cancel them, as in `field_facts`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from topics.http import answer_types
from topics.http.openapi.fact import FILTER, U64, Fact, seq, setting
from topics.http.requests import job_requests

_SELECTED: Final[Mapping[str, Fact]] = {
    "seqs": Fact(
        f"These jobs, at most {setting('max_claim')} different ones.",
        {"minItems": 1, "items": {"type": "integer", **U64}},
    ),
    "filter": FILTER,
    "state": Fact("Only jobs in this state."),
}

JOB_FACTS: Final[Mapping[type[Struct], Mapping[str, Fact]]] = {
    job_requests.RetryJobsBody: _SELECTED,
    job_requests.CancelJobsBody: _SELECTED,
    answer_types.JobEntry: {
        "state": Fact(
            "`ready`: it can be claimed. `in_flight`: it is leased. `delayed`: it cannot be claimed before its time, "
            "or is about to move to the dead letters. `dead`: it is a dead letter."
        ),
        "deliveries": seq("How often the job was leased."),
        "priority": seq("Its priority; of a dead letter the default one."),
        "node": Fact("Who holds it, if it is leased."),
        "deadline": seq("When its lease ends, in ms since the epoch."),
        "not_before": seq("When it can be claimed, in ms since the epoch, if it is delayed."),
        "last_error": Fact("The `error` of its last nack that had one."),
    },
    answer_types.JobListAnswer: {
        "jobs": Fact("The jobs, by their seqs. There may be none on a page that is not the last."),
        "next_cursor": Fact("The `cursor` of the next page; absent on the last page."),
    },
    answer_types.JobsChangedAnswer: {
        "matched": seq("Jobs that the filter or the seqs have found."),
        "done": seq("Jobs that were changed."),
        "skipped": seq("Jobs that were found, or seqs that were given, and that were not changed."),
    },
}
