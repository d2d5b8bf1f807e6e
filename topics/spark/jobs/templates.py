"""Templates over the columns of a row: `{carrier}:{flight}`. Parsed here, purely; Spark fills them in.

`{{` and `}}` stand for braces, a dot goes into a struct (`{plane.tailnum}`). A row in which any column of a template is
null gets no text at all rather than half of one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from topics.cli.failures import UsageRefusal

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_PART: Final = re.compile(r"\{\{|\}\}|\{(?P<name>[^{}]*)\}|[{}]|[^{}]+")


@dataclass(frozen=True, slots=True)
class Template:
    """Alternately text and names of columns, beginning and ending with text."""

    texts: tuple[str, ...]
    columns: tuple[str, ...]

    @classmethod
    def parsed(cls, text: str, option: str) -> Template:
        """Raises Refused, which names `option`."""
        texts, columns = [""], []
        for part in _PART.finditer(text):
            name = part["name"]
            if name is not None:
                if not name.strip():
                    raise UsageRefusal(f"{option} {text}: a column has no name")
                columns.append(name.strip())
                texts.append("")
            elif part[0] in {"{", "}"}:
                raise UsageRefusal(f"{option} {text}: a brace without its other half; {{{{ and }}}} stand for braces")
            else:
                texts[-1] += {"{{": "{", "}}": "}"}.get(part[0], part[0])
        return cls(tuple(texts), tuple(columns))

    def filled(self, rows: DataFrame, option: str) -> Column:
        """The template as a column of `rows`. Raises Refused for a column that they do not have."""
        from pyspark.sql import functions as F  # noqa: PLC0415

        parts = [F.lit(self.texts[0])]
        for name, text in zip(self.columns, self.texts[1:], strict=True):
            parts += [column_of(rows, name, option).cast("string"), F.lit(text)]
        return F.concat(*parts)


def column_of(rows: DataFrame, name: str, option: str) -> Column:
    """A column of `rows` by its name, or by a path into a struct. Raises Refused, which names those that there are."""
    if name in rows.columns:
        return rows[f"`{name.replace('`', '``')}`"]
    first, dot, rest = name.partition(".")
    if dot and first in rows.columns:
        found = rows[f"`{first.replace('`', '``')}`"]
        kind = rows.schema[first].dataType
        for step in rest.split("."):
            if step not in getattr(kind, "names", ()):
                raise UsageRefusal(f"{option}: the column {first!r} has no {rest!r}")
            found, kind = found[step], kind[step].dataType  # type: ignore[index]
        return found
    raise UsageRefusal(f"{option}: there is no column {name!r}; there are {', '.join(rows.columns)}")
