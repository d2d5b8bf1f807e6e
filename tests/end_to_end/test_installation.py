"""The commands of `docs/operations.md`, pasted in their order: a service is set up, copied and restored.

There is no systemd, no root and no user `topics` here: `systemctl` and `chown` are functions that do the same to a
daemon of the test, and absolute paths lie below a directory of the test. What is not run at all is listed with its
reason, so that a block that is added has to be put somewhere.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.client.ports import free_port
from topics.storage.recovery.restored_copy import SKIPPED_SEQS

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "operations.md").read_text()

BLOCK = re.compile(r"(?<=\n\n)    .*\n(?:    .*\n|\n(?=    ))*|(?<=-->\n)    .*\n(?:    .*\n|\n(?=    ))*")

SERVICE = "install -d -m 0750 -g topics /etc/topics"
COPY = "TOPICS_TOKEN=... scripts/copy"
RESTORE = "/opt/topics/.venv/bin/python -m topics verify /backup"
RUN = (SERVICE, COPY, RESTORE)

NOT_RUN = {
    "useradd --system": "makes a user of the system, and an environment with scripts/serve",
    "python3.11 -m venv .venv": "an environment from the index; the wheel is tried by test_wheel.py",
    "docker build": "needs docker",
    "# /etc/topics/api-keys": "a file: test_operations.py reads it",
    "scrape_configs:": "a file of Prometheus",
    "journalctl -u topics": "needs systemd",
    "jq -c 'select(.call": "needs jq; test_audit.py has the fields",
    "export AWS_REGION": "credentials",
    "topics bucket status": "test_bucket.py runs it",
    "topics bucket ls": "test_bucket.py runs it",
    "openssl genpkey -algorithm ed25519": "a key for all machines, made as root; tests/evidence has keys in files",
    "chown -R topics: /var/lib/topics\necho TOPICS_BUCKET": "needs a bucket; test_bucket_demo.py takes one over",
    'curl -fsS -X POST -H "Authorization': "needs jq and rsync; test_consistent_copy.py copies by the list",
}

SYSTEMD = r"""
systemctl() {
    case $1 in
        enable | start)
            env TOPICS_DATA_DIR="$AT/var/lib/topics" TOPICS_COLD_DIR="$AT/srv/topics-cold" TOPICS_PORT="$PORT" \
                TOPICS_API_KEYS_FILE="$AT/etc/topics/api-keys" TOPICS_AUDIT_LOG="$AT/var/log/topics/audit.log" \
                TOPICS_MIN_FREE_BYTES=0 "$PYTHON" -m topics serve >>"$AT/log" 2>&1 &
            echo $! >"$AT/pid"
            ;;
        stop)
            kill "$(cat "$AT/pid")"
            wait "$(cat "$AT/pid")"
            ;;
    esac
}
chown() { :; }
set -e
"""


def blocks() -> list[str]:
    """The indented blocks of the page, without their indentation."""
    found = [re.sub(r"^    ", "", text, flags=re.MULTILINE).strip("\n") for text in BLOCK.findall(PAGE)]
    return [text for text in found if text.strip()]


def block(begin: str) -> str:
    (found,) = [text for text in blocks() if text.startswith(begin)]
    return found


def test_every_block_is_run_or_has_a_reason_not_to_be() -> None:
    for text in blocks():
        assert sum(text.startswith(known) for known in (*RUN, *NOT_RUN)) == 1, text
    assert len(blocks()) == len(RUN) + len(NOT_RUN)


@pytest.fixture
def at(tmp_path: Path) -> Iterator[Path]:
    """What `/` is for the page. A daemon that was left running there is ended."""
    for name in (
        "etc/systemd/system",
        "etc/logrotate.d",
        "var/lib/topics",
        "var/log/topics",
        "srv/topics-cold",
        "backup",
    ):
        (tmp_path / name).mkdir(parents=True)
    yield tmp_path
    with suppress(FileNotFoundError, ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)


def here(text: str, at: Path, port: int) -> str:
    """A block as it is run here."""
    text = re.sub(r"(?<![\w.])/(etc|var|srv|backup)/", rf"{at}/\1/", text)
    text = text.replace("/opt/topics/.venv/bin/python", sys.executable).replace("/opt/topics", str(ROOT))
    text = text.replace("scripts/copy", f"{sys.executable} {ROOT}/scripts/data_copy.py")
    return text.replace(" -g topics", "").replace("localhost:4000", f"127.0.0.1:{port}")


@pytest.mark.slow
def test_a_service_is_installed_copied_and_restored_as_the_page_says(at: Path) -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    topics = f"{sys.executable} -m topics"
    key = f'TOPICS_URL={url} TOPICS_TOKEN="$(cat {at}/etc/topics/api-keys)"'
    script = [
        SYSTEMD,
        here(block(SERVICE), at, port),
        f"{key} {topics} create orders --durability fsync",
        f"{key} {topics} append orders a b",
        f"export {key}",
        here(block(COPY), at, port).replace("TOPICS_TOKEN=... ", ""),
        f"{topics} append orders lost",
        "export BACKUP=$(date +%F)",
        here(block(RESTORE), at, port).replace("2026-11-21", "$BACKUP"),
        f"rm -r {at}/srv/topics-cold; cp -a {at}/backup/$BACKUP/cold {at}/srv/topics-cold",
        f"curl -sS --retry 20 --retry-connrefused --retry-delay 1 {url}/v0/ready",
        f"{topics} append orders new --give-up-after 60s --json",
        f"{topics} read orders",
        "systemctl stop topics",
    ]
    environ = {name: value for name, value in os.environ.items() if not name.startswith("TOPICS_")}
    done = subprocess.run(
        [shutil.which("bash") or "bash", "-c", "\n".join(script)],
        cwd=at,
        env=environ | {"AT": str(at), "PORT": str(port), "PYTHON": sys.executable},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    log = (at / "log").read_text() if (at / "log").exists() else ""
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}\n{log[-3000:]}"
    assert '{"status":"ready"' in done.stdout
    keys = (at / "etc/topics/api-keys").read_text().split()
    assert len(keys) == 1
    assert len(keys[0]) >= 32
    assert f'"first_seq":{SKIPPED_SEQS + 3}' in done.stdout, done.stdout
    assert '"data":"lost"' not in done.stdout
    assert '"reason":"lost"' in done.stdout
    assert done.stdout.count("0 damages, 0 notes") == 2
