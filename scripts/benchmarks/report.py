"""docs/performance.md, made of the figures of a run and of the chapters in `prose`.

The same figures make the same document. Numbers in prose come from the run as well (`{append/plain-1000.median}`), or
are said to be of another day. What the document shows is what `parts` says it shows: a figure that the run does not
have is a line that says so, so that the document cannot lose one without a trace.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from benchmarks.bench import Part
from benchmarks.charts import chart
from benchmarks.figures import aim_text, number, ratio_text
from benchmarks.parts import PARTS
from benchmarks.results import NOISY, Document, PartResult, Result

PROSE = Path(__file__).with_name("prose")
NOT_MEASURED = "not measured"
FIELDS = ("median", "spread", "n", "target", "ratio")
_PLACEHOLDER = re.compile(r"\{([a-z0-9-]+)(?:/([a-z0-9-]+))?\.(\w+)\}")

_INTRODUCTION = """\
<!-- Made by `scripts/bench report` from the figures of a run and from chapters of prose. Edit those. -->

# Performance
"""


class BadProse(Exception):
    """A placeholder in a chapter that stands for nothing."""


def write(document: Document, path: Path) -> None:
    """Write the document there, whole. Raises `BadProse`, and OSError."""
    part = path.with_name(path.name + ".part")
    part.write_text(render(document))
    os.replace(part, path)


def render(document: Document) -> str:
    """The document as Markdown."""
    sections = [
        _INTRODUCTION + _warning(document),
        _questions(document),
        "## How it is measured\n\n" + filled(prose("introduction"), document),
        _machine(document),
        _summary(document),
        _parts(document),
        *(_chapter(part, document) for part in PARTS.values()),
    ]
    return "\n".join(section.rstrip("\n") + "\n" for section in sections if section)


# --- prose -----------------------------------------------------------------------------------------------------------


def prose(name: str) -> str:
    """The text of a chapter."""
    return (PROSE / f"{name}.md").read_text()


def placeholders(text: str) -> list[str]:
    """Ids of the figures that a chapter speaks of. Raises `BadProse` for a field that there is not."""
    found = []
    for part, key, field in _PLACEHOLDER.findall(text):
        if key and field not in FIELDS:
            raise BadProse(f"{part}/{key} has no {field}, but {', '.join(FIELDS)}")
        if key:
            found.append(f"{part}/{key}")
    return found


def filled(text: str, document: Document) -> str:
    """A chapter with its numbers."""
    placeholders(text)
    results = document.results()

    def value(match: re.Match[str]) -> str:
        part, key, field = match.groups()
        if key is None:
            return _fact(document, part, field)
        one = results.get(f"{part}/{key}")
        return f"({NOT_MEASURED})" if one is None else _field(one, field)

    return _PLACEHOLDER.sub(value, text)


def _fact(document: Document, group: str, name: str) -> str:
    facts: Mapping[str, str | int] = document.machine if group == "machine" else document.versions
    if group not in {"machine", "versions"} or name not in facts:
        raise BadProse(f"{{{group}.{name}}} stands for nothing")
    return str(facts[name])


def _field(one: Result, field: str) -> str:
    match field:
        case "median":
            return _with_unit(one.median, one.unit)
        case "spread":
            return _spread(one) or "one repetition"
        case "n":
            return str(one.n)
        case "target":
            return aim_text(one) or "no target"
        case _:
            return number(one.ratio) if one.ratio is not None else f"({NOT_MEASURED})"


def _with_unit(value: float, unit: str) -> str:
    return f"{number(value)} {unit}".rstrip()


def _spread(one: Result) -> str:
    return f"{number(one.low)} to {number(one.high)}" if one.n > 1 else ""


# --- before the chapters ---------------------------------------------------------------------------------------------


def _questions(document: Document) -> str:
    """What users ask first: the rows of `questions` whose figures the run has, or nothing if it has none of them."""
    measured = document.results()
    head, rule, *rows = prose("questions").splitlines(keepends=True)
    known = [row for row in rows if all(id_ in measured for id_ in placeholders(row))]
    return filled("".join([head, rule, *known]), document) if known else ""


def _warning(document: Document) -> str:
    if not document.quick:
        return ""
    return "\n**Made from a quick run, to show what is measured: its figures say next to nothing.**\n"


def _machine(document: Document) -> str:
    measured = document.parts.values()
    days = sorted({part.measured_at[:10] for part in measured})
    revisions = sorted({part.revision for part in measured if part.revision})
    machine = {name: value for name, value in document.machine.items() if name != "date"}
    rows = [
        ("measured on", " to ".join(dict.fromkeys([days[0], days[-1]])) if days else NOT_MEASURED),
        ("revision", ", ".join(revisions) or "unknown"),
        *((name.replace("_", " "), str(value)) for name, value in machine.items()),
        *document.versions.items(),
    ]
    return "| machine | |\n|---|---|\n" + "".join(f"| {name} | {value} |\n" for name, value in rows)


def _summary(document: Document) -> str:
    """All targets, and which are missed: only of figures that the document shows."""
    results = document.results()
    shown = [results[id_] for part in PARTS.values() for id_ in part.ids if id_ in results]
    aimed = [one for one in shown if one.target is not None]
    missed = [one for one in aimed if not one.met]
    text = f"## Targets\n\n{len(aimed) - len(missed)} of {len(aimed)} targets are met. "
    if not missed:
        return text + ("None is missed.\n" if aimed else "Nothing was measured.\n")
    rows = "".join(f"| {_line(one, document)} |\n" for one in missed)
    head = "| what | measured | spread | target | missed by | reference, ratio |\n|---|---|---|---|---|---|\n"
    return f"{text}These are missed:\n\n{head}{rows}"


def _line(one: Result, document: Document) -> str:
    assert one.target is not None
    far = abs(100 * (one.median / one.target - 1)) if one.target else None
    cells = [
        f"`{one.id}`: {one.name}" + (" (noisy)" if document.noisy(one.id) else ""),
        _with_unit(one.median, one.unit),
        _spread(one),
        aim_text(one),
        "" if far is None else f"{number(far)} %",
        ", ".join(f"`{other.id.partition('/')[2]}` {ratio_text(other)}" for other in one.references),
    ]
    return " | ".join(cells)


def _parts(document: Document) -> str:
    """The conditions of each part."""
    rows = []
    for part in PARTS.values():
        result = document.parts.get(part.name)
        link = f"[{part.title}](#{part.title.lower().replace(' ', '-')})"
        rows.append(f"| {link} | `{part.name}` | {_conditions(result)} |\n")
    return (
        "## Conditions\n\n"
        "The reference of the processor is a loop of Python and copies of memory, before and after each part; a part"
        f" for which it moved by more than {100 * NOISY:.0f} % is *noisy*: something else ran on the machine, or its"
        " clock changed.\n\n"
        "| chapter | part | took | processor, units/s before and after | moved | |\n|---|---|---|---|---|---|\n"
        + "".join(rows)
    )


def _conditions(result: PartResult | None) -> str:
    if result is None:
        return f"{NOT_MEASURED} | | |"
    remarks = ["noisy"] if result.noisy else []
    remarks += [text.replace("|", "/") for text in (result.error, result.problem) if text is not None]
    cpu = f"{number(result.cpu.before)}, {number(result.cpu.after)}"
    return f"{result.seconds:.0f} s | {cpu} | {100 * result.cpu.moved:.0f} % | {'; '.join(remarks)}"


# --- chapters --------------------------------------------------------------------------------------------------------


def _chapter(part: Part, document: Document) -> str:
    result = document.parts.get(part.name)
    figures = {} if result is None else {one.id: one for one in result.figures}
    absent = {} if result is None else result.absent
    rows = [
        _row(figures[id_]) if id_ in figures else f"| `{id_}` | {absent.get(id_, NOT_MEASURED)} | | | | | | |"
        for id_ in part.ids
    ]
    noisy = " This part was noisy." if result is not None and result.noisy else ""
    lines = chart([figures[id_] for id_ in part.ids if id_ in figures])
    sections = [
        f"## {part.title}\n\n{part.sentence} `scripts/bench {part.name}`.{noisy}\n",
        "| id | what | measured | spread | n | target | reference | ratio |\n|---|---|---|---|---|---|---|---|\n"
        + "\n".join(rows)
        + "\n",
        "```text\n" + "\n".join(line.rstrip() for line in lines) + "\n```\n" if lines else "",
        filled(prose(part.name), document),
    ]
    return "\n".join(section for section in sections if section)


def _row(one: Result) -> str:
    met = {None: "", True: " met", False: " **missed**"}[one.met]
    cells = [
        f"`{one.id}`",
        one.name,
        _with_unit(one.median, one.unit),
        _spread(one),
        str(one.n),
        aim_text(one) + met,
        ", ".join(f"`{other.id.partition('/')[2]}`" for other in one.references),
        ", ".join(ratio_text(other) for other in one.references),
    ]
    return "| " + " | ".join(cells) + " |"
