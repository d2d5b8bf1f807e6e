"""The facts about the fields of the calls that look at jobs, retry and cancel them, and of redrives, as in
`field_facts`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from topics.http import answer_types
from topics.http.openapi.fact import FILTER, TOPIC, U64, Fact, seq, setting
from topics.http.requests import job_requests, queue_requests, redrive_requests

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
    answer_types.RedriveAnswer: {
        "state": Fact(
            "`running`; `done`: it has looked at all letters, or moved `max`; `stopped`; `failed`, because of `error`; "
            "`idle`: there was none since the start of the daemon."
        ),
        "moved": seq("Letters that it has moved."),
        "left": seq("Letters that it has looked at, and that are still there."),
        "reasons": Fact(
            "How many of these stay for which reason. `missing`: their queue or group is not there. `full`: it has no "
            "room. `gone`: the record of the group is not there any more. `forbidden`: the key does not cover the "
            "topic. `incompatible`: that topic has the class `memory` or `ephemeral`. `in_flight`: a worker holds the "
            "letter. `no_origin`: the record does not say where it came from."
        ),
        "error": Fact("Why it has failed; null if it has not."),
    },
    answer_types.RedriveFault: {"code": Fact("As in the answer of an error."), "message": Fact("What went wrong.")},
    redrive_requests.RedriveBody: {
        "to": Fact("The topic that gets all letters. Absent: each goes to where it came from.", TOPIC),
        "filter": FILTER,
        "max": seq("How many letters are moved at most. Absent: all."),
        "rate": Fact("How many letters are moved in any `per_ms` at most. Absent: as fast as the disk allows."),
    },
}

OF_DERIVED_JOBS: Final[tuple[type[Struct], ...]] = (
    queue_requests.AckBody,
    queue_requests.NackBody,
    queue_requests.ExtendBody,
    answer_types.GroupClaimAnswer,
    answer_types.GroupAckAnswer,
    answer_types.GroupNackAnswer,
    answer_types.GroupExtendAnswer,
    answer_types.GroupPauseAnswer,
    answer_types.GroupJobListAnswer,
    answer_types.GroupJobsChangedAnswer,
)
"""Types whose facts are those of the types that they derive from."""
