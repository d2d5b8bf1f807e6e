"""`meta/restore-topics`: the topics that a restored directory is to keep, until the first start has deleted the others
(`docs/design/bucket.md` section 6). A JSON object, for people, too."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from fnmatch import translate
from typing import Annotated, Final

import msgspec

from topics.log.stages import STAGE_MARK
from topics.storage.files.datadir import DataDir
from topics.storage.files.fs import Fs

MOST_PATTERNS: Final = 1000
MOST_CHARACTERS: Final = 255
"""Of a pattern: no name is longer."""


class BadSelection(ValueError):
    """The selection is damaged, or a pattern cannot be used. The message is a phrase."""


class _Note(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """The content of `meta/restore-topics`."""

    keep: Annotated[
        list[Annotated[str, msgspec.Meta(min_length=1, max_length=MOST_CHARACTERS)]],
        msgspec.Meta(min_length=1, max_length=MOST_PATTERNS),
    ]


class TopicSelection:
    """The topics whose names match one of these patterns: `*` stands for any characters, `?` for one, `[abc]` for one
    of these."""

    def __init__(self, patterns: Sequence[str]) -> None:
        """Raises BadSelection."""
        if not 1 <= len(patterns) <= MOST_PATTERNS:
            raise BadSelection(f"{len(patterns)} patterns, and 1 to {MOST_PATTERNS} can be")
        for pattern in patterns:
            if not 1 <= len(pattern) <= MOST_CHARACTERS:
                raise BadSelection(f"a pattern has {len(pattern)} characters, and 1 to {MOST_CHARACTERS} can be")
        self.patterns = tuple(patterns)
        try:
            self._match = re.compile("|".join(map(translate, patterns))).match
        except re.error as error:
            raise BadSelection(f"a pattern cannot be used: {error}") from error

    def __repr__(self) -> str:
        return f"<TopicSelection {'|'.join(self.patterns)}>"

    def matches(self, name: str) -> bool:
        """Return True if a topic of this name is kept. A stage is kept with the topic that it belongs to."""
        return self._match(name.partition(STAGE_MARK)[0]) is not None


def encode_selection(selection: TopicSelection) -> bytes:
    """Return the bytes of the note."""
    return msgspec.json.format(msgspec.json.encode(_Note(keep=list(selection.patterns)))) + b"\n"


def read_selection(fs: Fs, datadir: DataDir) -> TopicSelection | None:
    """Return the selection; None if all topics are kept. Raises BadSelection, OSError. Blocking."""
    try:
        blob = fs.read(datadir.selection_path)
    except FileNotFoundError:
        return None
    try:
        return TopicSelection(msgspec.json.decode(blob, type=_Note).keep)
    except (msgspec.DecodeError, RecursionError) as error:
        raise BadSelection(f"it is malformed: {error}") from error


def remove_selection(fs: Fs, datadir: DataDir) -> None:
    """Remove the note, durably, if it is there. Raises OSError. Blocking."""
    with suppress(FileNotFoundError):
        fs.unlink(datadir.selection_path)
    fs.sync_dir(datadir.meta_dir)
