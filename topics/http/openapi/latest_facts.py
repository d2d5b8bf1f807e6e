"""The facts about the fields of the newest records of tags, as in `field_facts`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from topics.http import answer_types
from topics.http.openapi.fact import Fact, seq, setting
from topics.http.requests import latest_requests
from topics.http.requests.read_requests import MAX_BATCH_BYTES
from topics.http.requests.topic_requests import MAX_PAGE

LATEST_FACTS: Final[Mapping[type[Struct], Mapping[str, Fact]]] = {
    latest_requests.LatestQuery: {
        "tag": Fact(f"The newest record of this tag, of at most {setting('max_tag_bytes')} bytes.", {"minLength": 1}),
        "prefix": Fact("The newest record of each tag that begins with this, in the order of the tags; may be empty."),
        "page_size": Fact(f"Most records, clamped to 1..{MAX_PAGE}."),
        "cursor": Fact("`next_cursor` of the previous page."),
        "include_tags": Fact("Records have `$tag`."),
        "include_meta": Fact("Records have `meta`."),
        "max_batch_bytes": Fact(f"Most bytes of records, but at least one record; clamped to {MAX_BATCH_BYTES}."),
        "touch": Fact("Count this as a use of the topic, which may set its priority."),
    },
    answer_types.LatestAnswer: {
        "record": Fact("The newest record of the tag."),
        "records": Fact("In the order of their tags. There may be none on a page that is not the last."),
        "head_seq": seq("The head of the topic when the page was begun: read the changes from that of the first page."),
        "next_cursor": Fact("The `cursor` of the next page; absent on the last page."),
    },
}
