"""Reading the API keys of a daemon, from its settings and from a file (`docs/design/guardrails.md`)."""

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
"""Far more than the greatest number of keys with many prefixes needs. A larger file is something else, and is not read
into memory."""


class KeysRefused(Exception):
    """The keys cannot be used. The message is for the operator and contains nothing of the keys."""


def read_keys(configured: Sequence[Key], path: Path | None) -> Keyring:
    """Blocking: the keys of `TOPICS_API_KEYS` (`configured`) and those that the file of `TOPICS_API_KEYS_FILE` (`path`)
    holds now.

    Raises KeysRefused if the file cannot be read, is malformed, or holds no key.
    """
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
