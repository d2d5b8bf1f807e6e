"""The error for an invalid filter."""

from __future__ import annotations


class FilterError(ValueError):
    """A filter is invalid. `place` leads to the mistake: indexes in brackets for JSON (`[2][1]`, empty for the whole
    filter), the number of a character for text (`at character 12`)."""

    def __init__(self, place: str, message: str) -> None:
        super().__init__(f"{place}: {message}" if place else message)
        self.place = place
        self.message = message
