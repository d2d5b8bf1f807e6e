"""The files of others that the repository has: where they come from, and what their bytes must be.

    scripts/vendor           fetch the packages from the npm registry, check their hashes, write the files
    scripts/vendor --check   compare the files in the repository with their hashes; nothing is fetched

A package is fetched by its exact version, and its archive must have the pinned SHA-512 (`integrity` of the registry).
A file must have the pinned SHA-256. To raise a version, change both here; the script says which hashes it found. A test
makes the comparison of `--check`.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import io
import sys
import tarfile
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

REPO: Final = Path(__file__).resolve().parents[1]
CONSOLE: Final = "topics/http/console/assets/vendor"
LICENSES: Final = "topics/http/console/licenses"
TESTS: Final = "tests/browser/vendor"
REGISTRY: Final = "https://registry.npmjs.org"
MOST_BYTES: Final = 8 << 20
"""Bytes of an archive at most; the largest has 0.7 MiB."""
PATIENCE_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class VendoredFile:
    """A file of a package: its path in the archive, its path in the repository, and the SHA-256 of its bytes."""

    member: str
    path: str
    sha256: str


@dataclass(frozen=True, slots=True)
class VendoredPackage:
    """A package of the npm registry. `integrity` is the SHA-512 of its archive, in base64."""

    name: str
    version: str
    license: str
    integrity: str
    files: tuple[VendoredFile, ...]

    @property
    def url(self) -> str:
        """The address of the archive."""
        return f"{REGISTRY}/{self.name}/-/{self.name}-{self.version}.tgz"


PACKAGES: Final = (
    VendoredPackage(
        "htm",
        "3.1.1",
        "Apache-2.0",
        "983Vyg8NwUE7JkZ6NmOqpCZ+sh1bKv2iYTlUkzlWmA5JD2acKoxd4KVxbMmxX/85mtfdnDmTFoNKcg5DGAvxNQ==",
        (
            VendoredFile(
                "package/preact/standalone.module.js",
                f"{CONSOLE}/htm-preact.js",
                "72284e8e9079c87817145df1110f74e8a2aa040b2fc384922e18dfcb46fc1fd7",
            ),
            VendoredFile(
                "package/LICENSE",
                f"{LICENSES}/htm.LICENSE",
                "740725f7252e750af735d0028cc534970772f513331e9f68150fede8fb3ce00f",
            ),
        ),
    ),
    VendoredPackage(
        "preact",
        "10.5.7",
        "MIT",
        "4oEpz75t/0UNcwmcsjk+BIcDdk68oao+7kxcpc1hQPNs2Oo3ZL9xFz8UBf350mxk/VEdD41L5b4l2dE3Ug3RYg==",
        (
            VendoredFile(
                "package/LICENSE",
                f"{LICENSES}/preact.LICENSE",
                "1fe6958409c8c257a70c587a18b6f7f412b179b456630790d30b2ec9a8e4b7d4",
            ),
        ),
    ),
    VendoredPackage(
        "uplot",
        "1.6.32",
        "MIT",
        "KIMVnG68zvu5XXUbC4LQEPnhwOxBuLyW1AHtpm6IKTXImkbLgkMy+jabjLgSLMasNuGGzQm/ep3tOkyTxpiQIw==",
        (
            VendoredFile(
                "package/dist/uPlot.iife.min.js",
                f"{CONSOLE}/uplot.js",
                "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f",
            ),
            VendoredFile(
                "package/LICENSE",
                f"{LICENSES}/uplot.LICENSE",
                "8f989229699b4fe2f1a0432d0e9edc338a8a911e250e2d1b01ecd770a5f5b1bd",
            ),
        ),
    ),
    VendoredPackage(
        "axe-core",
        "4.14.1",
        "MPL-2.0",
        "FHfa+lmNjQZfJz1q8wKqIDwC6DExcHt/pkjNQb09a3NPjCKg2rhu5qb2S4r76ASyFNNtuFooJpZe37OgudVGtQ==",
        (
            VendoredFile(
                "package/axe.min.js",
                f"{TESTS}/axe.js",
                "29348999450cdf2849a8e70b7912fc2da85a849da39c0d0d5394f51d4a9ed95c",
            ),
            VendoredFile(
                "package/LICENSE",
                f"{TESTS}/axe.LICENSE",
                "af175b9d96ee93c21a036152e1b905b0b95304d4ae8c2c921c7609100ba8df7e",
            ),
        ),
    ),
)


class BadBytes(Exception):
    """An archive or a file does not have its pinned hash, or is missing."""


def sha256_of(data: bytes) -> str:
    """Return the SHA-256 of bytes, in hexadecimal digits."""
    return hashlib.sha256(data).hexdigest()


def wrong_files(root: Path) -> list[str]:
    """Return a sentence for each file below `root` that is missing or differs from its hash."""
    wrong = []
    for package in PACKAGES:
        for file in package.files:
            path = root / file.path
            if not path.is_file():
                wrong.append(f"{file.path} of {package.name} {package.version} is missing")
            elif sha256_of(path.read_bytes()) != file.sha256:
                wrong.append(f"{file.path} is not the file of {package.name} {package.version}")
    return wrong


def members_of(package: VendoredPackage, archive: bytes) -> Mapping[str, bytes]:
    """Return the pinned files of a package by their paths in the repository. Raises BadBytes."""
    digest = base64.b64encode(hashlib.sha512(archive).digest()).decode()
    if digest != package.integrity:
        raise BadBytes(f"the archive of {package.name} {package.version} has the SHA-512 {digest}")
    found = {}
    with tarfile.open(fileobj=io.BytesIO(archive), mode="r:gz") as tar:
        for file in package.files:
            member = tar.extractfile(file.member)
            if member is None:
                raise BadBytes(f"{package.name} {package.version} has no {file.member}")
            data = member.read()
            if sha256_of(data) != file.sha256:
                raise BadBytes(f"{file.member} of {package.name} {package.version} has the SHA-256 {sha256_of(data)}")
            found[file.path] = data
    return found


def fetched(package: VendoredPackage) -> bytes:
    """Return the archive of a package from the registry. Raises OSError, and BadBytes if it is too long."""
    with urllib.request.urlopen(package.url, timeout=PATIENCE_S) as answer:
        archive: bytes = answer.read(MOST_BYTES + 1)
    if len(archive) > MOST_BYTES:
        raise BadBytes(f"the archive of {package.name} is longer than {MOST_BYTES} bytes")
    return archive


def main() -> int:
    """Fetch or check. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="scripts/vendor", description=__doc__.split("\n\n", 1)[0])
    parser.add_argument("--check", action="store_true", help="fetch nothing; compare the files with their hashes")
    if parser.parse_args().check:
        wrong = wrong_files(REPO)
        for sentence in wrong:
            print(sentence, file=sys.stderr)
        return 1 if wrong else 0
    try:
        for package in PACKAGES:
            for name, data in members_of(package, fetched(package)).items():
                path = REPO / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(data)
                print(f"{name}: {package.name} {package.version}, {package.license}, {len(data):,} bytes")
    except (BadBytes, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
