"""The S3 server of the demonstration and the benchmarks: what its users get, and that it ends."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

import s3_server
from s3_server import BUCKET, environment, versitygw_program


def test_a_program_gets_the_variables_that_are_meant_and_no_other_of_a_provider(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("AWS_SESSION_TOKEN", "GOOGLE_SERVICE_ACCOUNT", "AZURE_STORAGE_ACCOUNT_KEY", "TOPICS_BUCKET", "OTHER"):
        monkeypatch.setenv(name, "of the user")
    found = environment({"AWS_REGION": "us-east-1"})
    assert found["AWS_REGION"] == "us-east-1"
    assert found["OTHER"] == "of the user"
    assert [name for name in found if name.startswith(("AWS_", "GOOGLE_", "AZURE_", "TOPICS_"))] == ["AWS_REGION"]


def test_a_server_has_a_bucket_and_ends_with_its_context(tmp_path: Path) -> None:
    with s3_server.s3_server(tmp_path, "moto") as place:
        assert place.url("a") == f"s3://{BUCKET}/a"
        assert place.variables()["AWS_ENDPOINT_URL"] == place.endpoint
        assert httpx.get(f"{place.endpoint}/{BUCKET}").status_code == 200
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{place.endpoint}/{BUCKET}")


def test_without_go_there_is_no_versitygw(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert versitygw_program() is None
    with pytest.raises(RuntimeError, match="built with Go"), s3_server.s3_server(tmp_path, "versitygw"):
        pass


def test_a_server_that_ends_at_once_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", "false")
    with pytest.raises(RuntimeError, match="false has ended with"), s3_server.s3_server(tmp_path, "moto"):
        pass
