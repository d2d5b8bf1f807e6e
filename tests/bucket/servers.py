"""Servers that speak S3, on loopback (`scripts/s3_server.py`): moto, and versitygw where there is Go."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from s3_server import ACCESS, BUCKET, PROVIDERS, SECRET, s3_server
from topics.bucket.bucket_location import open_objects, parse_location
from topics.bucket.object_store import ObjectStore

__all__ = [
    "ACCESS",
    "BUCKET",
    "SECRET",
    "TOKEN",
    "S3Server",
    "fresh_prefix",
    "moto_server",
    "opened",
    "versity_server",
]

TOKEN: Final = "a-session-token-that-nobody-may-see"

TIMEOUT_S: Final = 20.0


@dataclass(frozen=True, slots=True)
class S3Server:
    """A server with one bucket."""

    endpoint: str
    bucket: str = BUCKET

    def variables(self, **changes: str) -> dict[str, str]:
        return {
            "AWS_ACCESS_KEY_ID": ACCESS,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": self.endpoint,
        } | changes

    def objects(self, prefix: str, timeout_s: float = TIMEOUT_S, **changes: str) -> ObjectStore:
        """The objects below a prefix; `changes` are of the variables."""
        return opened(f"s3://{self.bucket}/{prefix}", self.variables(**changes), timeout_s)


def opened(url: str, variables: Mapping[str, str], timeout_s: float = TIMEOUT_S) -> ObjectStore:
    """The store at a URL, with these variables of the provider and no others."""
    with pytest.MonkeyPatch.context() as patch:
        for name in list(os.environ):
            if name.startswith(PROVIDERS):
                patch.delenv(name)
        for name, value in variables.items():
            patch.setenv(name, value)
        return open_objects(parse_location(url, os.environ), timeout_s)


@contextmanager
def moto_server() -> Iterator[S3Server]:
    """Moto, which checks no credentials."""
    with s3_server(Path(), "moto") as place:
        yield S3Server(place.endpoint)


@contextmanager
def versity_server(root: Path) -> Iterator[S3Server]:
    """versitygw over a directory. Skips the test where there is no Go to build it with."""
    if shutil.which("go") is None:
        pytest.skip("versitygw is built with Go, which is not here")
    with s3_server(root, "versitygw") as place:
        yield S3Server(place.endpoint)


def fresh_prefix() -> str:
    return f"tests/{secrets.token_hex(6)}"
