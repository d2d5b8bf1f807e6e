"""The API key of a daemon, as the place where it is found.

Spark pickles options, readers and partitions, and shows plans. So they hold the name of an environment variable or of a
file, and the process that makes a call looks there at the time of the call. A literal key is held as it is (Spark
pickles and may show the options that it came in anyway), but no `repr` and no message shows it.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

MAX_FILE_BYTES: Final = 64 << 10
"""The size of a file with a key is bounded, so that a wrong path is noticed."""


class MissingSecret(RuntimeError):
    """The environment variable or the file does not exist or holds no key, in the process that needs it."""


@dataclass(frozen=True, slots=True)
class Secret:
    """The place of an API key. `none`: the daemon needs no key."""

    kind: Literal["none", "env", "file", "literal"] = "none"
    where: str = field(default="", repr=False)
    """The name of the variable, the path of the file, or the key itself."""

    def __repr__(self) -> str:
        return f"Secret({self.kind}{'' if self.kind in ('none', 'literal') else f' {self.where}'})"

    def resolve(self) -> str:
        """The current key; empty if no key is needed. Raises MissingSecret, whose message does not hold the key."""
        if self.kind == "env":
            return self._checked(os.environ.get(self.where, ""), f"tokenEnv: the variable {self.where} is not set")
        if self.kind == "file":
            return self._checked(self._read(), f"tokenFile: {self.where} is empty")
        return self.where

    def _read(self) -> str:
        try:
            with Path(self.where).open(encoding="utf-8") as file:
                return file.read(MAX_FILE_BYTES)
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "is not text"
            raise MissingSecret(f"tokenFile: {self.where} cannot be read where it is needed: {reason}") from None

    def _checked(self, text: str, otherwise: str) -> str:
        key = text.strip()
        if not key:
            raise MissingSecret(f"{otherwise} in the process that needs it")
        if not key.isascii() or not key.isprintable():
            raise MissingSecret(f"token{self.kind.capitalize()}: {self.where} holds more than a key")
        return key


NO_SECRET: Final = Secret()
