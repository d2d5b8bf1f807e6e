"""What the pages for operators and the files beside them name is there: settings, metrics, events, files, options.

A page cannot be run, so it is held against the code in both directions: nothing is named that is not there, no setting
is left out.
"""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from topics.auth.keys import ALL, parse_key_file
from topics.config import CLIENT_VARIABLES, SETTINGS, load_settings
from topics.http.answers.metrics import families
from topics.http.answers.request_figures import RequestFigures
from topics.http.connections.connection import KEEP_ALIVE_S
from topics.http.routes import ROUTES
from topics.telemetry.figures import BucketFigures, EngineFigures, StandbyFigures

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
DEPLOY = DOCS / "deploy"
OPERATIONS = (DOCS / "operations.md").read_text()
PAGES = [
    *sorted(ROOT.glob("*.md")),
    *sorted(DOCS.glob("*.md")),
    *sorted(path for path in DEPLOY.rglob("*") if path.is_file()),
]

VARIABLE = re.compile(r"\bTOPICS_[A-Z][A-Z0-9_]*\b")
METRIC = re.compile(r"\btopics_[a-z0-9_]+\b")
OF_A_JOB = "TOPICS_JOB_"
"""What `topics queue work` tells its commands."""
NO_METRICS = {
    "topics_connection",
    "topics_upgrade",
    "topics_eu",
    "topics_us",
    "topics_home",
    "topics_not_here",
    "topics_per_worker",
    "topics_replayed",
}
"""Variables of nginx, fields of log lines."""


# ----------------------------------------------------------------- settings


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_variable_that_is_named_is_a_setting_or_a_clients(page: Path) -> None:
    known = {setting.variable for setting in SETTINGS.values()} | CLIENT_VARIABLES
    named = set(VARIABLE.findall(page.read_text()))
    assert {name for name in named if not name.startswith(OF_A_JOB)} <= known


def test_the_page_lists_every_setting_with_its_default() -> None:
    listed = dict(re.findall(r"^\| `(TOPICS_[A-Z_]+)` \| ([^|]+) \|", OPERATIONS, re.MULTILINE))
    assert listed == {setting.variable: setting.default or "not set" for setting in SETTINGS.values()}


def test_the_limits_are_called_by_their_names() -> None:
    caps = OPERATIONS.partition("| caps, 0 is off |")[2].partition("\n\n")[0]
    rows = re.findall(r"^\| `TOPICS_([A-Z_]+)` \| [^|]+ \| `([a-z_]+)`", caps, re.MULTILINE)
    assert len(rows) > 5
    assert all(variable.lower() == limit for variable, limit in rows)


def test_the_example_of_a_key_file_is_one() -> None:
    lines = OPERATIONS.partition("    # /etc/topics/api-keys")[2].partition("\n\n")[0].splitlines()[1:]
    keys = parse_key_file("\n".join(lines))
    assert len(keys) == 4
    assert sum(bool(key.prefixes) for key in keys) == 1
    assert not any(key.scopes == ALL for key in keys)


def test_the_examples_of_rates_are_taken() -> None:
    (example,) = re.findall(r"`rate_per_key`.*`(\d[^`]*)` \|", OPERATIONS)
    assert load_settings({"TOPICS_RATE_PER_KEY": example}).rate_per_key == (200, 10 << 20)


# ----------------------------------------------------------------- metrics and events


def exposed() -> dict[str, set[str]]:
    """The names of all samples that a scrape can show, each with its labels."""
    samples: dict[str, set[str]] = {}
    figures = EngineFigures(bucket=BucketFigures(lease_left_ms=1), standby=StandbyFigures())
    for family in families(figures, RequestFigures()):
        labels = set(getattr(family, "_labelnames", ()))
        if family.type == "counter":
            samples[family.name + "_total"] = labels
        elif family.type == "histogram":
            samples |= {family.name + "_bucket": labels | {"le"}, family.name + "_sum": labels}
            samples[family.name + "_count"] = labels
        else:
            samples[family.name] = labels
    return samples


def rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load((DEPLOY / "alerts.yml").read_text())["groups"]
    assert len({group["name"] for group in groups}) == len(groups)
    return [rule for group in groups for rule in group["rules"]]


def test_what_alerts_ask_for_is_exposed_with_these_labels() -> None:
    known = exposed()
    others = {"job", "instance"}
    for rule in rules():
        named = METRIC.findall(rule["expr"])
        assert named or rule["expr"].startswith(("up{", "node_"))
        assert set(named) <= known.keys(), rule["alert"]
        for metric, selector in re.findall(r"\b(topics_[a-z0-9_]+)\{([^}]*)\}", rule["expr"]):
            assert set(re.findall(r"(\w+)=", selector)) <= known[metric] | others, rule["alert"]
        of_these = set[str]().union(*(known[metric] for metric in named)) | others | {"mountpoint"}
        grouped = ", ".join(re.findall(r"(?:by|on) \(([^)]*)\)", rule["expr"]))
        shown = re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"])
        assert {*shown, *filter(None, grouped.split(", "))} <= of_these, rule["alert"]
        for route in re.findall(r'route="([^"]*)"', rule["expr"]):
            assert route in {known_route.name for known_route in ROUTES}


def test_every_alert_has_what_people_need() -> None:
    names = [rule["alert"] for rule in rules()]
    assert len(set(names)) == len(names)
    for rule in rules():
        assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
        assert rule["labels"].keys() == {"severity"}
        assert rule["labels"]["severity"] in ("page", "ticket")
        assert rule["expr"].count("(") == rule["expr"].count(")")
        assert re.fullmatch(r"[0-9]+[smh]", rule.get("for", "1m"))
    assert re.findall(r"^\| (Topics[A-Za-z]+) \|", OPERATIONS, re.MULTILINE) == names


def test_every_metric_that_pages_name_is_exposed() -> None:
    families_known = {name.removesuffix("_bucket") for name in exposed()}
    for page in PAGES:
        named = set(METRIC.findall(page.read_text())) - NO_METRICS
        assert named <= exposed().keys() | families_known, page.name


def words() -> set[str]:
    """All words in the code that could be events."""
    texts = (path.read_text() for path in (ROOT / "topics").rglob("*.py"))
    return {word for text in texts for word in re.findall(r'"([a-z_]+)"', text)}


def test_every_event_that_is_explained_is_in_the_code() -> None:
    tables = re.findall(r"^\| event \| fields \|.*\n\|[-|]+\n((?:\|.*\n)+)", OPERATIONS, re.MULTILINE)
    cells = re.findall(r"^\| ([^|]+) \|", "".join(tables), re.MULTILINE)
    events = {event for cell in cells for event in re.findall(r"`([a-z_]+)`", cell)}
    assert len(tables) == 2
    assert len(events) > 40
    assert events <= words()


LOGGED = {"warning", "error", "critical", "exception"}
OTHER_LOGS = {"cli", "client", "spark"}
"""Packages that do not log to the log of the daemon."""


def logged_events(levels: set[str]) -> set[str]:
    """The events that the daemon logs at one of these levels: what `log.<level>("event", ...)` names in the code."""
    found = set()
    for path in (ROOT / "topics").rglob("*.py"):
        if path.relative_to(ROOT / "topics").parts[0] in OTHER_LOGS:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or not node.args:
                continue
            if node.func.attr in levels and ast.unparse(node.func.value) in ("log", "self._log"):
                constants = [part for part in ast.walk(node.args[0]) if isinstance(part, ast.Constant)]
                found |= {part.value for part in constants if isinstance(part.value, str)}
    return found


def test_every_event_that_the_daemon_warns_with_is_explained() -> None:
    events = logged_events(LOGGED)
    assert {"wal_shard_read_only", "idle_connections_closed", "request_failed"} <= events
    chapter = OPERATIONS.partition("\n## 9. Logs\n")[2].partition("\n## ")[0]
    assert events - set(re.findall(r"`([a-z_]+)`", chapter)) == set()


# ----------------------------------------------------------------- files


def anchors_of(page: str) -> set[str]:
    """The anchors of a page's chapters."""
    headings = re.findall(r"^##+ (.*)$", page, re.MULTILINE)
    return {re.sub(r"[^a-z0-9 -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_links_lead_to_files_and_headings() -> None:
    anchors = anchors_of(OPERATIONS)
    for target in re.findall(r"\]\(([^)]+)\)", OPERATIONS):
        if target.startswith("#"):
            assert target[1:] in anchors, target
        else:
            file, _, heading = target.partition("#")
            assert (DOCS / file).exists(), target
            assert not heading or heading in anchors_of((DOCS / file).read_text()), target


def test_scripts_that_are_named_exist() -> None:
    for page in PAGES:
        for name in re.findall(r"\bscripts/[a-z_/-]*[a-z_](?:\.(?:py|sh))?", page.read_text()):
            assert (ROOT / name).exists(), f"{page.name}: {name}"
        for name in re.findall(r"/opt/topics/((?:docs|scripts|requirements)/[\w./-]+)", page.read_text()):
            assert (ROOT / name.rstrip(".")).exists(), f"{page.name}: {name}"


def instructions() -> Iterator[tuple[str, str]]:
    text = (DEPLOY / "Containerfile").read_text().replace("\\\n", " ")
    for line in text.splitlines():
        if line.strip() and not line.startswith("#"):
            word, _, rest = line.partition(" ")
            yield word, rest.strip()


def test_the_containerfile_copies_what_is_there_and_runs_what_is_meant() -> None:
    found = list(instructions())
    assert {"FROM", "COPY", "RUN", "USER", "VOLUME", "EXPOSE", "STOPSIGNAL", "HEALTHCHECK", "ENTRYPOINT"} <= {
        word for word, _ in found
    }
    for word, rest in found:
        if word == "COPY" and "--from" not in rest:
            *sources, _ = rest.split()
            assert all((ROOT / source).exists() for source in sources), rest
        elif word in ("CMD", "ENTRYPOINT", "HEALTHCHECK"):
            command = ast.literal_eval(rest[rest.index("[") :])
            assert all(isinstance(part, str) for part in command)
            if word == "HEALTHCHECK":
                compile(command[-1], "the health check", "exec")
                assert "/v0/health" in command[-1]
        elif word == "FROM":
            assert rest.startswith("python:3.11-slim")
        elif word == "USER":
            assert rest.split(":")[0].isdigit()
            assert int(rest.split(":")[0]) > 0
    environ = dict(pair.split("=", 1) for word, rest in found if word == "ENV" for pair in rest.split())
    assert load_settings(environ | {"TOPICS_API_KEYS": "key"}).warnings == ()


def options() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for line in (DEPLOY / "topics.service").read_text().splitlines():
        if line and line[0] not in "#[":
            name, _, value = line.partition("=")
            found.setdefault(name, []).append(value)
    return found


def test_the_unit_suits_the_daemon() -> None:
    unit = options()
    assert unit["ExecStart"] == ["/opt/topics/.venv/bin/python -P -m topics serve"]
    assert unit["RestartPreventExitStatus"] == ["2"]
    assert int(unit["TimeoutStopSec"][0]) * 1000 > int(SETTINGS["drain_ms"].default)
    assert int(unit["LimitNOFILE"][0]) > 10_000
    environ = dict(pair.split("=", 1) for pair in unit["Environment"])
    settings = load_settings(environ)
    assert settings.warnings == ()
    assert (settings.data_dir, settings.audit_log) == (Path("/var/lib/topics"), Path("/var/log/topics/audit.log"))
    assert (unit["StateDirectory"], unit["LogsDirectory"]) == (["topics"], ["topics"])
    assert f"{settings.audit_log} {{" in (DEPLOY / "topics.logrotate").read_text()


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_systemd_understands_the_unit(tmp_path: Path) -> None:
    unit = tmp_path / "topics.service"
    text = (DEPLOY / "topics.service").read_text()
    unit.write_text(text.replace("/opt/topics/.venv/bin/python", sys.executable))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", unit],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=os.environ | {"SYSTEMD_LOG_LEVEL": "warning"},
    )
    complaints = [line for line in done.stderr.splitlines() if "topics.service" in line]
    assert (done.returncode, complaints) == (0, [])


def test_proxies_suit_the_daemon() -> None:
    caddy, nginx = (DEPLOY / "Caddyfile").read_text(), (DEPLOY / "nginx.conf").read_text()
    for text in (caddy, nginx):
        assert text.count("{") == text.count("}")
        assert f"127.0.0.1:{SETTINGS['port'].default}" in text
    assert SETTINGS["max_body_bytes"].default == "64MiB"
    assert re.search(r"max_size 64MiB$", caddy, re.MULTILINE)
    assert "client_max_body_size 64m;" in nginx
    for pattern, text in ((r"keepalive (\d+)s$", caddy), (r"keepalive_timeout (\d+)s;", nginx)):
        (seconds,) = re.findall(pattern, text, re.MULTILINE)
        assert int(seconds) < KEEP_ALIVE_S
    log_format = nginx.partition("log_format")[2].partition(";")[0]
    assert not re.search(r"\$(request|request_uri|args|query_string|http_referer)\b", log_format)
    assert "proxy_buffering off;" in nginx
    # An upgrade to anything but a WebSocket would be a way past the proxy.
    assert "proxy_set_header Upgrade $topics_upgrade;" in nginx
    upgrades = re.search(r"map \$http_upgrade \$topics_upgrade \{(.*?)\}", nginx, re.DOTALL)
    assert upgrades is not None
    assert upgrades[1].split() == ["default", "'';", "~*^websocket$", "websocket;"]
    assert nginx.count("$http_upgrade") == 1
    assert caddy.count("request>uri regexp") == caddy.count("log ")
