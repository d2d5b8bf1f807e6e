"""The description of the calls about the daemon itself, and of the console's files, as in `description`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from topics.filters.record_filter import MAX_TEXT
from topics.http import daemon_answers
from topics.http.openapi.operation import DAEMON, HTML, PAGE, Answer, Operation, Parameter, ok

_FILE: Final = Operation(
    DAEMON,
    "A file of the console",
    "A script, a style sheet or a picture of the page. With `If-None-Match` the answer may be 304.",
    {
        200: Answer(
            "The file.", dict.fromkeys(("text/javascript; charset=utf-8", "text/css; charset=utf-8", "image/svg+xml"))
        )
    },
    codes=("not_found",),
)

DAEMON_OPERATIONS: Final[Mapping[str, Operation]] = {
    "key": Operation(
        DAEMON,
        "What the caller may do",
        "The scopes and prefixes of the key of this request. Without keys everybody has all scopes.",
        ok(daemon_answers.KeyAnswer, "The rights of the caller."),
    ),
    "figures": Operation(
        DAEMON,
        "What the daemon does now",
        "Rates and latencies of the last ten seconds, pressure, memory, disk, connections. Totals are over all topics.",
        ok(daemon_answers.FiguresAnswer, "The present figures."),
    ),
    "storage": Operation(
        DAEMON,
        "The storage",
        "The log by shard, the segments by tier, checkpoints, reclaiming, and the archive in the bucket.",
        ok(daemon_answers.StorageAnswer, "The present state."),
    ),
    "connections": Operation(
        DAEMON,
        "Who is connected",
        "Open streams, sockets and exports, and how much of its limits each key uses. For keys without prefixes.",
        ok(daemon_answers.ConnectionListAnswer, "A page of the list."),
        parameters=PAGE,
    ),
    "filter": Operation(
        DAEMON,
        "A filter, from text",
        "The JSON of a filter that is written as on the command line (docs, filters). An error says at which character "
        "the mistake is.",
        ok(daemon_answers.FilterAnswer, "The filter."),
        parameters=(
            Parameter(
                "text",
                "The filter as text.",
                {"type": "string", "minLength": 1, "maxLength": MAX_TEXT},
                required=True,
                example='tag ~ "eu:*" and data./total >= 10',
            ),
        ),
    ),
    "console": Operation(
        DAEMON,
        "The console",
        "A page for people, which shows what the daemon has and does. Needs no key; the page asks for one. 404 with "
        "`TOPICS_CONSOLE=0`.",
        {200: Answer("The page.", {HTML: None})},
        codes=("not_found",),
    ),
    "console_asset": _FILE,
    "console_folder": _FILE,
}
