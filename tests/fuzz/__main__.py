"""`python -m tests.fuzz`: every target, or those that are named, with atheris for some minutes.

Each runs in a process of its own, which libFuzzer never gives back: it instruments the modules behind the target,
begins with the valid inputs and mutates on, guided by what was reached. A finding does not end it: the first input of
each kind (by the exception and where it was raised) is kept with its traceback, and the next one is looked for. What
ends a process is what cannot be caught: a hang in native code, or memory beyond the limit; libFuzzer leaves that
input, too.

An input that was kept is given to its target again with `TARGET --replay FILE`, which needs no atheris.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import importlib.util
import json
import os
import random
import re
import resource
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NoReturn

RSS_MB: Final = 2048
ADDRESS_SPACE: Final = 16 << 30
"""libFuzzer's own maps are large; beyond this an allocation fails at once."""
TIMEOUT_S: Final = 60
"""For one input, before libFuzzer ends the process: where Python cannot interrupt it."""
LEEWAY_S: Final = 120
"""For a process to start and to end, beside the time that it fuzzes."""
KEPT: Final = 50
"""Findings of one process."""

_UNITS: Final = re.compile(r"stat::number_of_executed_units:\s+(\d+)")
_COVERAGE: Final = re.compile(r"cov: (\d+)")
_NAMED: Final = re.compile(r"[A-Za-z0-9_.-]+")


class Outcome:
    """What has become of one target."""

    def __init__(self, target: str, output: str, directory: Path, code: int | None) -> None:
        self.target = target
        executed, coverage = _UNITS.findall(output), _COVERAGE.findall(output)
        self.executions = int(executed[-1]) if executed else 0
        self.coverage = int(coverage[-1]) if coverage else 0
        self.findings = sorted(path for path in directory.iterdir() if path.suffix != ".txt")
        self.failed = not executed and not self.findings
        self.output = output if self.failed else ""
        self.code = code

    def to_json(self) -> dict[str, Any]:
        """Figures and files of findings."""
        return {
            "target": self.target,
            "executions": self.executions,
            "coverage": self.coverage,
            "findings": [str(path) for path in self.findings],
            "failed": self.failed,
        }


def main(arguments: Sequence[str] | None = None) -> int:
    """The command. 0 if nothing was found, 1 if something was, 2 if it could not be looked for."""
    options = _parse(arguments)
    if options.child is not None:
        _fuzz(options)
    from tests.fuzz.targets import TARGETS  # noqa: PLC0415 (a child instruments what this loads)

    if options.list:
        for target in TARGETS.values():
            print(f"{target.name:16} {target.about}")
        return 0
    unknown = [name for name in options.targets if name not in TARGETS]
    if unknown:
        print(f"there is no target {unknown[0]!r}: --list shows them", file=sys.stderr)
        return 2
    if options.replay is not None:
        return _replay(options)
    if importlib.util.find_spec("atheris") is None:
        print("there is no atheris for this platform: pytest tests/fuzz does what can be done without", file=sys.stderr)
        return 2
    return _all(options.targets or list(TARGETS), options)


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/fuzz", description="Fuzz what makes structures of bytes.")
    parser.add_argument("targets", nargs="*", metavar="TARGET", help="default: all")
    parser.add_argument("--minutes", type=float, default=1.0, help="for each target (default 1)")
    parser.add_argument("--list", action="store_true", help="show the targets")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    parser.add_argument("--findings", type=Path, default=Path("fuzz-findings"), metavar="DIRECTORY", help="keep inputs")
    parser.add_argument("--seed", type=int, default=0, help="of libFuzzer; 0: another one each time")
    parser.add_argument("--replay", type=Path, metavar="FILE", help="give this input to the one TARGET")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


# ----------------------------------------------------------------- the parent


def _replay(options: argparse.Namespace) -> int:
    from tests.fuzz.target import try_input, try_within_limits  # noqa: PLC0415
    from tests.fuzz.targets import TARGETS  # noqa: PLC0415

    if len(options.targets) != 1:
        print("--replay takes one TARGET", file=sys.stderr)
        return 2
    try:
        target = TARGETS[options.targets[0]]
        try_input(target, target.seeds[0])  # loads what is loaded once
        try_within_limits(target, options.replay.read_bytes())
    except Exception:
        traceback.print_exc()
        return 1
    print("nothing is found with this input")
    return 0


def _all(names: Sequence[str], options: argparse.Namespace) -> int:
    outcomes = []
    for name in names:
        outcome = _run(name, options)
        outcomes.append(outcome)
        print(
            f"{name:16} {outcome.executions:>10,} executions  {outcome.coverage:>6,} edges  "
            f"{len(outcome.findings)} findings",
            flush=True,
        )
        for path in outcome.findings:
            print(f"    scripts/fuzz {name} --replay {path}")
        if outcome.failed:
            print(outcome.output[-2000:], file=sys.stderr)
    if options.json is not None:
        options.json.write_text(json.dumps([outcome.to_json() for outcome in outcomes], indent=1) + "\n")
    if any(outcome.failed for outcome in outcomes):
        return 2
    return 1 if any(outcome.findings for outcome in outcomes) else 0


def _run(name: str, options: argparse.Namespace) -> Outcome:
    """One target, in a process that is gone when this returns."""
    seconds = max(1, round(60 * options.minutes))
    with tempfile.TemporaryDirectory(prefix="topics-fuzz-") as scratch, _findings(options.findings / name) as kept:
        command = [sys.executable, "-m", "tests.fuzz", "--child", scratch, "--findings", str(kept.absolute())]
        command += ["--minutes", str(seconds / 60), "--seed", str(options.seed), name]
        code: int | None = None
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as child:
            try:
                output, _ = child.communicate(timeout=seconds + LEEWAY_S)
                code = child.returncode
            except subprocess.TimeoutExpired:
                child.kill()
                output, _ = child.communicate()
        return Outcome(name, output, kept, code)


@contextlib.contextmanager
def _findings(directory: Path) -> Iterator[Path]:
    """Where inputs are kept: gone afterwards if there were none."""
    directory.mkdir(parents=True, exist_ok=True)
    try:
        yield directory
    finally:
        for path in (directory, directory.parent):
            with contextlib.suppress(OSError):
                path.rmdir()


# ----------------------------------------------------------------- the child


def _fuzz(options: argparse.Namespace) -> NoReturn:
    """libFuzzer takes over, and ends the process."""
    atheris: Any = importlib.import_module("atheris")  # not on every platform
    (name,) = options.targets
    # What is instrumented is known only when all targets are loaded, and has to be loaded for the first time then.
    modules = subprocess.check_output(
        [sys.executable, "-c", f"from tests.fuzz.targets import TARGETS; print(*TARGETS[{name!r}].modules)"], text=True
    ).split()
    with atheris.instrument_imports(include=modules):
        targets = importlib.import_module("tests.fuzz.targets").TARGETS
    from tests.fuzz.mutations import KINDS, mutated  # noqa: PLC0415
    from tests.fuzz.target import try_input  # noqa: PLC0415

    target = targets[name]
    corpus = Path(options.child) / "corpus"
    corpus.mkdir()
    for i, seed in enumerate(target.seeds):
        (corpus / f"{i:04}").write_bytes(seed)
    seen: set[str] = set()

    def one_input(data: bytes) -> None:
        try:
            try_input(target, data)
        except Exception as error:
            _keep(options.findings, data, error, seen)

    def mutate(data: bytes, most: int, seed: int) -> bytes:
        """A third is libFuzzer's own, a third changes a value, a third is what the tests do."""
        chance = random.Random(seed)
        kind = chance.randrange(3)
        if kind == 1 and target.vary is not None:
            changed: bytes = target.vary(data, chance.randrange(1 << 16), chance.randrange(1 << 16))
            return changed[:most]
        if kind == 2:
            other = chance.choice(target.seeds)
            steps = [
                (chance.randrange(KINDS), chance.randrange(1 << 16), chance.randrange(1 << 16))
                for _ in range(chance.randint(1, 3))
            ]
            return mutated(data, other, steps)[:most]
        return bytes(atheris.Mutate(data, most))

    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    flags = {
        "max_total_time": round(60 * options.minutes),
        "max_len": target.most_bytes,
        "rss_limit_mb": RSS_MB,
        "timeout": TIMEOUT_S,
        "print_final_stats": 1,
        "artifact_prefix": f"{options.findings}{os.sep}",
        "seed": options.seed,
    }
    atheris.Setup(
        [sys.argv[0], *(f"-{flag}={value}" for flag, value in flags.items()), str(corpus)],
        one_input,
        custom_mutator=mutate,
    )
    atheris.Fuzz()
    raise AssertionError("libFuzzer does not return")


def _keep(directory: Path, data: bytes, error: Exception, seen: set[str]) -> None:
    """The first input of each kind, and what it raised."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if f"{os.sep}topics{os.sep}" in frame.filename] or list(frames)
    kind = f"{type(error).__name__}-{Path(own[-1].filename).stem}-{own[-1].lineno}"
    if kind in seen or len(seen) >= KEPT:
        return
    seen.add(kind)
    name = "-".join(_NAMED.findall(kind))
    (directory / f"{name}.bin").write_bytes(data)
    (directory / f"{name}.txt").write_text("".join(traceback.format_exception(error)))


if __name__ == "__main__":
    sys.exit(main())
