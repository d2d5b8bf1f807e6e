"""The distribution: what the wheel is called, what is in it, and that it works without the rest of the checkout."""

from __future__ import annotations

import email
import os
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from email.message import Message
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

REPO = Path(__file__).resolve().parents[2]
SOURCES = ("pyproject.toml", "README.md", "LICENSE", "pyspark_topics.py", "topics")
LONG_S = 300


def run(*command: str | Path, **variables: str) -> subprocess.CompletedProcess[str]:
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("TOPICS_", "PYTHON"))}
    return subprocess.run(
        list(map(str, command)),
        env=environ | variables,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LONG_S,
        check=False,
    )


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy: setuptools writes beside what it builds."""
    root = tmp_path_factory.mktemp("wheel")
    for name in SOURCES:
        source = REPO / name
        if source.is_dir():
            shutil.copytree(source, root / "src" / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            (root / "src").mkdir(exist_ok=True)
            shutil.copy(source, root / "src")
    offline = ("--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check")
    done = run(sys.executable, "-m", "pip", "wheel", *offline, "--wheel-dir", root / "dist", root / "src")
    assert done.returncode == 0, done.stderr
    (built,) = (root / "dist").iterdir()
    return built


@pytest.fixture(scope="module")
def metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        return email.message_from_bytes(archive.read(name))


def test_it_holds_the_package_and_what_marks_it_as_typed_and_no_tests(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert "topics/py.typed" in names
    assert "pyspark_topics.py" in names
    modules = {path.relative_to(REPO).as_posix() for path in (REPO / "topics").rglob("*.py")}
    assert modules <= set(names)
    assert {name.partition("/")[0] for name in names} == {"topics", "pyspark_topics.py", "topicsd-0.1.0.dist-info"}


def test_it_says_what_it_is_and_who_made_it(metadata: Message) -> None:
    assert metadata["Name"] == "topicsd"
    assert metadata["Requires-Python"] == ">=3.11"
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Author-email"]
    assert metadata.get_all("Project-URL")
    classifiers = metadata.get_all("Classifier") or []
    for version in ("3.11", "3.12", "3.13"):
        assert f"Programming Language :: Python :: {version}" in classifiers
    assert "Typing :: Typed" in classifiers


def test_nothing_says_to_install_it_by_a_name_that_is_somebody_elses() -> None:
    pages = [*REPO.glob("*.md"), *(REPO / "docs").rglob("*.md"), *(REPO / "topics").rglob("*.py")]
    for page in pages:
        for name in ("topics", "topicsd"):
            for by_name in (f"install {name}", f"install '{name}", f'install "{name}'):
                assert by_name not in page.read_text(), page


def interpreters() -> Iterator[str]:
    """Our own, and each other version that this machine can run and the metadata name."""
    yield sys.executable
    for version in ("3.12", "3.13"):
        if sys.version_info[:2] == tuple(map(int, version.split("."))):
            continue
        installed = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))
        for candidate in (f"python{version}", *map(str, installed)):
            found = shutil.which(candidate)
            if found is not None and run(found, "-c", "import venv, ensurepip").returncode == 0:
                yield found
                break


def environment(python: str, root: Path) -> Path:
    """A fresh environment with what the lock file pins: borrowed from our own, or else from the index."""
    assert run(python, "-m", "venv", root).returncode == 0
    if python == sys.executable:
        ours = [path for path in sys.path if path.endswith("site-packages")]
        borrowed = "".join(
            f"{path}\n" if not (Path(path) / "borrowed.pth").exists() else (Path(path) / "borrowed.pth").read_text()
            for path in ours
        )
        (site,) = (root / "lib").glob("python*/site-packages")
        (site / "zz-borrowed.pth").write_text(borrowed)
        return root
    lock = REPO / "requirements" / "serve.lock"
    hashed = ("--disable-pip-version-check", "--only-binary", ":all:", "--require-hashes", "--requirement", lock)
    done = run(root / "bin" / "python", "-m", "pip", "install", "--quiet", *hashed)
    if "No matching distribution" in done.stderr and "from versions: none" in done.stderr:
        pytest.skip("there is no index to install from")
    assert done.returncode == 0, done.stderr
    return root


@pytest.mark.parametrize("python", list(interpreters()))
def test_it_works_in_a_fresh_environment(python: str, wheel: Path, tmp_path: Path) -> None:
    bin_ = environment(python, tmp_path / "env") / "bin"
    done = run(
        bin_ / "python", "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--force-reinstall", wheel
    )
    assert done.returncode == 0, done.stderr
    where = run(bin_ / "python", "-P", "-c", "import topics; print(topics.__file__)").stdout
    assert where.startswith(str(tmp_path)), where
    assert run(bin_ / "topics", "--version").stdout == "topics, version 0.1.0\n"

    port_file = tmp_path / "port"
    settings = ("--port", "0", "--port-file", port_file, "--data-dir", tmp_path / "data", "--min-free-bytes", "0")
    with (tmp_path / "log").open("wb") as log:
        daemon = subprocess.Popen([bin_ / "topics", "serve", *map(str, settings)], stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + LONG_S
        while not port_file.exists() or not port_file.read_text():
            assert daemon.poll() is None, (tmp_path / "log").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.05)
        url = f"http://127.0.0.1:{port_file.read_text().strip()}"
        assert run(bin_ / "topics", "append", "t", "hello", "--give-up-after", "60s", TOPICS_URL=url).returncode == 0
        assert run(bin_ / "topics", "read", "t", "--data-only", TOPICS_URL=url).stdout == '"hello"\n'
        daemon.send_signal(signal.SIGTERM)
        assert daemon.wait(60) == 0, (tmp_path / "log").read_text()
    finally:
        daemon.kill()
        daemon.wait()
