"""The requirements of `topics.spark`: pyspark and pyarrow, and for a session a Java of 17 or later.

Responsible for the one sentence that names the missing package and how to get it. It imports neither of them.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

PYSPARK: Final = (4, 3)
PYARROW: Final = (18, 0)
JAVA: Final = 17

JAVA_ANSWERS_WITHIN_S: Final = 30.0


HOW: Final = "pip install '.[spark]' in the checkout of topics"
"""Not by a name: nothing is published, and the name `topics` on the index is somebody else's."""


class MissingRequirement(ImportError):
    """Something that `topics.spark` needs is not there. Its message is one sentence."""


def check_packages() -> None:
    """Raise `MissingRequirement` unless pyspark and pyarrow are there, in versions that will do."""
    for package, least, exact in (("pyspark", PYSPARK, True), ("pyarrow", PYARROW, False)):
        wanted = f"{package} {'.'.join(map(str, least))}{'' if exact else ' or later'}"
        try:
            found = version(package)
        except PackageNotFoundError:
            raise MissingRequirement(f"topics.spark needs {wanted}, which is not installed: {HOW}") from None
        parts = tuple(int(part) for part in re.findall(r"\d+", found)[:2])
        if parts < least or (exact and parts != least):
            raise MissingRequirement(f"topics.spark needs {wanted}, but {found} is installed: {HOW}")


def check_java() -> None:
    """Raise `MissingRequirement` unless the `java` that Spark would start is there and is new enough. Runs it: some 0.1
    s."""
    java = _java()
    if java is None:
        raise MissingRequirement(
            f"Spark needs Java {JAVA} or later, and there is neither a `java` in PATH nor a JAVA_HOME"
        )
    try:
        run = subprocess.run(
            [java, "-version"], capture_output=True, text=True, timeout=JAVA_ANSWERS_WITHIN_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        reason = error.strerror if isinstance(error, OSError) else "it does not answer"
        raise MissingRequirement(f"Spark needs Java {JAVA} or later, and {java} cannot be run: {reason}") from None
    found = re.search(r'version "(?:1\.)?(\d+)', run.stderr + run.stdout)
    if found is None or int(found[1]) < JAVA:
        said = found[1] if found else "unknown"
        raise MissingRequirement(f"Spark needs Java {JAVA} or later, and {java} is of version {said}")


def _java() -> str | None:
    """As Spark looks for it: JAVA_HOME first, then PATH."""
    home = os.environ.get("JAVA_HOME")
    if home:
        return str(Path(home, "bin", "java"))
    return shutil.which("java")
