"""The API keys of a daemon: those of its settings and those of a file (`docs/design/guardrails.md`)."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from topics.auth.keys import Key, Keyring, MalformedKeys, merged, parse_key_file
from topics.telemetry.logs import get_logger

log = get_logger(__name__)

MAX_FILE_BYTES: Final = 4 << 20
"""Far above what the most keys with many prefixes take; a path to something else is not read into memory."""


class KeysRefused(Exception):
    """There are no usable keys where there should be; the message is for the operator and shows nothing of them."""


def read_keys(configured: Sequence[Key], path: Path | None) -> Keyring:
    """The keys of `TOPICS_API_KEYS` and, as it is now, the file of `TOPICS_API_KEYS_FILE`. Blocks. Raises
    KeysRefused."""
    if path is None:
        return Keyring(configured)
    try:
        keys = merged(configured, parse_key_file(_read(path)))
    except OSError as error:
        raise KeysRefused(f"TOPICS_API_KEYS_FILE={path}: {error.strerror or error}") from None
    except MalformedKeys as error:
        raise KeysRefused(f"TOPICS_API_KEYS_FILE={path}: {error}") from None
    if not keys:
        raise KeysRefused(f"TOPICS_API_KEYS_FILE={path}: it holds no key, and without any there is no access control")
    return Keyring(keys)


def _read(path: Path) -> str:
    with path.open("rb") as file:
        if os.fstat(file.fileno()).st_mode & stat.S_IROTH:
            log.warning("keys_readable_by_all", path=str(path))
        raw = file.read(MAX_FILE_BYTES + 1)
    if len(raw) > MAX_FILE_BYTES:
        raise MalformedKeys(f"is larger than {MAX_FILE_BYTES} bytes")
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise MalformedKeys("is not valid UTF-8") from None
