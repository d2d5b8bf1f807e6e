"""docs/bucket.md: the settings are accepted, the rights are JSON, and the sums are right."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Final

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from tests.bucket.servers import opened
from topics.bucket.bucket_location import parse_location
from topics.config import SETTINGS

PAGE: Final = (Path(__file__).resolve().parents[2] / "docs" / "bucket.md").read_text()
MONTH_S: Final = 30 * 86_400


def account_file(path: Path) -> Path:
    """A service account of Google, with a key of its own: the library reads it when a store is opened."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    form = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    account = {
        "type": "service_account",
        "private_key": key.private_bytes(serialization.Encoding.PEM, *form).decode(),
        "private_key_id": "example",
        "client_email": "topics@example.iam.gserviceaccount.com",
    }
    path.write_text(json.dumps(account))
    return path


def examples() -> list[dict[str, str]]:
    """The variables of each block that sets TOPICS_BUCKET."""
    blocks = re.findall(r"(?:^    [A-Z_]+=\S+\n)+", PAGE, re.MULTILINE)
    found = [dict(line.strip().split("=", 1) for line in block.splitlines()) for block in blocks]
    return [variables for variables in found if "TOPICS_BUCKET" in variables]


def test_there_is_an_example_for_each_kind_of_store() -> None:
    assert [one["TOPICS_BUCKET"].partition(":")[0] for one in examples()] == ["s3", "gs", "az", "s3", "s3", "file"]


@pytest.mark.parametrize("example", examples(), ids=lambda one: one.get("AWS_ENDPOINT_URL", one["TOPICS_BUCKET"]))
def test_the_settings_of_each_store_are_accepted(example: dict[str, str], tmp_path: Path) -> None:
    variables = dict(example)
    url = variables.pop("TOPICS_BUCKET")
    if url.startswith("file:"):
        url = f"file://{tmp_path}"
    elif "GOOGLE_SERVICE_ACCOUNT" in variables:
        variables["GOOGLE_SERVICE_ACCOUNT"] = str(account_file(tmp_path / "account.json"))
    assert parse_location(url, variables).endpoint == variables.get("AWS_ENDPOINT_URL", "")
    opened(url, variables)


def test_the_rights_in_s3_are_json_and_name_every_call() -> None:
    text = PAGE[PAGE.index("    {\n") : PAGE.index("    }\n\nWithout") + 6]
    statements = json.loads(text)["Statement"]
    actions = [statement["Action"] for statement in statements]
    assert actions == [["s3:GetObject", "s3:PutObject", "s3:DeleteObject"], "s3:ListBucket"]


def number(text: str) -> int:
    return int(text.replace(",", ""))


def test_the_sums_are_right() -> None:
    defaults = {name: SETTINGS[name].default for name in ("bucket_round_ms", "bucket_base_ms")}
    assert defaults == {"bucket_round_ms": "2000", "bucket_base_ms": "600000"}
    (rounds,) = re.findall(r"^\| rounds \| ([0-9,]+) puts", PAGE, re.MULTILINE)
    assert number(rounds) == MONTH_S // 2
    puts, bases = re.findall(r"^\| bases \| ([0-9,]+) puts and more \| ([0-9,]+) bases", PAGE, re.MULTILINE)[0]
    assert number(bases) == MONTH_S // 600
    assert number(puts) == 3 * number(bases)
    all_puts = number(rounds) + number(puts)
    costs = [float(text) for text in re.findall(r"\| \$([0-9.]+) \| \$0\.0\d+ \|$", PAGE, re.MULTILINE)]
    assert costs == [round(all_puts * 0.005 / 1000, 2)] * 2 + [round((all_puts - 1_000_000) * 0.0045 / 1000, 2)]
    rows = re.findall(r"^\| (\d+) \| ([0-9,]+) \| \$([0-9.]+) \|$", PAGE, re.MULTILINE)
    assert [int(row[0]) for row in rows] == [500, 2000, 10_000, 60_000]
    for interval, count, cost in rows:
        assert number(count) == MONTH_S * 1000 // int(interval)
        assert float(cost) == round(number(count) * 0.005 / 1000, 2)
