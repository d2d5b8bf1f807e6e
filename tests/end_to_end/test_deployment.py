"""The files of `docs/deploy` for several daemons: their settings are settings, their forms are what systemd, Compose,
Kubernetes and nginx take, and nginx routes by names as the page says."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import kubernetes_validate
import pytest
import yaml  # type: ignore[import-untyped]

from tests.client.ports import free_port
from tests.conformance.client import Daemon, until
from topics.client import Client, Record
from topics.config import SETTINGS, load_settings

DEPLOY = Path(__file__).resolve().parents[2] / "docs" / "deploy"
CHART = DEPLOY / "helm" / "topics"
OLDEST_KUBERNETES = "1.25"  # the first without policy/v1beta1


def settings_of(environ: dict[str, str]) -> Any:
    """The settings of a daemon with these variables, all of which are settings."""
    named = {name: value for name, value in environ.items() if name.startswith("TOPICS_")}
    found = load_settings(named | {"TOPICS_API_KEYS": "key"} | {"TOPICS_API_KEYS_FILE": ""})
    assert found.warnings == ()
    return found


# ----------------------------------------------------------------- systemd


def options(path: Path) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for line in path.read_text().splitlines():
        if line and line[0] not in "#[":
            name, _, value = line.partition("=")
            found.setdefault(name, []).append(value)
    return found


def test_the_drop_in_of_a_replica_suits_the_daemon() -> None:
    unit = options(DEPLOY / "topics-replica.conf")
    found = settings_of(dict(pair.split("=", 1) for pair in unit["Environment"]))
    assert (found.bucket_takeover, found.role) == (True, "standby")
    assert found.advertised_url == f"http://%H:{SETTINGS['port'].default}"
    assert unit["Restart"] == ["always"]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_systemd_understands_the_drop_in(tmp_path: Path) -> None:
    unit = tmp_path / "topics.service"
    text = (DEPLOY / "topics.service").read_text()
    unit.write_text(text.replace("/opt/topics/.venv/bin/python", sys.executable))
    (tmp_path / "topics.service.d").mkdir()
    shutil.copy(DEPLOY / "topics-replica.conf", tmp_path / "topics.service.d" / "replica.conf")
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", unit],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=os.environ | {"SYSTEMD_LOG_LEVEL": "warning", "SYSTEMD_UNIT_PATH": f"{tmp_path}:"},
    )
    complaints = [line for line in done.stderr.splitlines() if "topics.service" in line or "replica.conf" in line]
    assert (done.returncode, complaints) == (0, [])


# ----------------------------------------------------------------- Compose


def test_the_daemons_of_the_compose_file_are_an_owner_and_a_standby() -> None:
    document = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    services = {name: one for name, one in document["services"].items() if name.startswith("topics-")}
    assert len(services) == 2
    urls, volumes = set(), []
    for service in services.values():
        found = settings_of(service["environment"])
        assert (found.bucket, found.bucket_takeover, found.role) == ("file:///bucket", True, "standby")
        (port,) = service["ports"]
        host, outer, inner = port.split(":")
        assert found.advertised_url == f"http://{host}:{outer}", "where clients reach it"
        assert inner == SETTINGS["port"].default
        urls.add(found.advertised_url)
        volumes.append({place.partition(":")[2]: place.partition(":")[0] for place in service["volumes"]})
        assert int(service["stop_grace_period"].rstrip("s")) * 1000 > int(SETTINGS["drain_ms"].default)
    assert len(urls) == 2
    assert volumes[0]["/bucket"] == volumes[1]["/bucket"]
    assert volumes[0]["/data"] != volumes[1]["/data"], "each has a directory of its own"
    assert {place.partition(":")[0] for service in services.values() for place in service["volumes"]} == set(
        document["volumes"]
    )


# ----------------------------------------------------------------- Helm

_BLOCK = re.compile(r"[ \t]*\{\{- with (\.[\w.]+) \}\}\n(.*?)[ \t]*\{\{- end \}\}\n", re.DOTALL)
_ACTION = re.compile(r"(\n[ \t]*)?\{\{(-?) (.*?) \}\}")


def rendered(text: str, values: dict[str, Any]) -> str:
    """What `helm template` makes of a template that uses no more than this chart does."""
    context = {"Values": values, "Release": {"Name": "main", "Namespace": "logs"}}

    def look_up(path: str, dot: Any) -> Any:
        if path == ".":
            return dot
        found: Any = context
        for part in path.strip(".").split("."):
            found = found[part]
        return found

    def value_of(expression: str, dot: Any) -> str:
        head, *pipes = (part.strip() for part in expression.split("|"))
        words = head.split()
        if words[0] == "printf":
            found: Any = words[1].strip('"').replace("%s", "{}").format(*(look_up(word, dot) for word in words[2:]))
        elif words[0] == "toYaml":
            found = yaml.safe_dump(look_up(words[1], dot), default_flow_style=False).rstrip()
        else:
            found = look_up(words[0], dot)
        for pipe in pipes:
            name, *rest = pipe.split()
            if name == "quote":
                found = json.dumps(str(found))
            else:
                assert name == "nindent", expression
                indent = " " * int(rest[0])
                found = "\n" + "\n".join(indent + line for line in str(found).splitlines())
        return str(found)

    def filled(part: str, dot: Any) -> str:
        def replace(match: re.Match[str]) -> str:
            before = "" if match[2] else match[1] or ""
            return before + value_of(match[3], dot)

        return _ACTION.sub(replace, part)

    def with_block(match: re.Match[str]) -> str:
        dot = look_up(match[1], None)
        return filled("\n" + match[2].rstrip("\n"), dot).lstrip("\n") + "\n" if dot else ""

    return filled(_BLOCK.sub(with_block, text), None)


def values(**changes: Any) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text())
    return found | changes


def check_manifests(documents: list[dict[str, Any]], replicas: int) -> dict[str, str]:
    """Check what the chart makes. Return the variables of the daemon."""
    kinds = [document["kind"] for document in documents]
    assert sorted(kinds) == ["PodDisruptionBudget", "Service", "Service", "StatefulSet"]
    (stateful,) = [document for document in documents if document["kind"] == "StatefulSet"]
    names = [document["metadata"]["name"] for document in documents if document["kind"] == "Service"]
    spec = stateful["spec"]
    assert spec["replicas"] == replicas
    assert spec["serviceName"] in names
    labels = spec["template"]["metadata"]["labels"]
    for document in documents:
        selector = document["spec"].get("selector") or {}
        assert labels.items() >= selector.get("matchLabels", selector).items()
    pod = spec["template"]["spec"]
    assert pod["terminationGracePeriodSeconds"] * 1000 > int(SETTINGS["drain_ms"].default)
    (container,) = pod["containers"]
    environ = {one["name"]: one["value"] for one in container["env"] if "value" in one}
    assert environ["TOPICS_ADVERTISED_URL"] == f"http://$(POD_NAME).{spec['serviceName']}.logs.svc:4000"
    found = settings_of(environ | {"TOPICS_ADVERTISED_URL": "http://main-0.main-pods.logs.svc:4000"})
    assert (found.bucket_takeover, found.role) == (True, "standby")
    assert container["livenessProbe"]["httpGet"]["path"] == "/v0/health"
    startup = container["startupProbe"]
    assert startup["httpGet"]["path"] == "/v0/health"
    assert startup["periodSeconds"] * startup["failureThreshold"] == 3600, "a standby does not listen before it follows"
    assert container["readinessProbe"]["httpGet"]["path"] == "/v0/ready"
    assert str(container["ports"][0]["containerPort"]) == SETTINGS["port"].default
    mounts = {one["name"]: one["mountPath"] for one in container["volumeMounts"]}
    claims = [claim["metadata"]["name"] for claim in spec["volumeClaimTemplates"]]
    assert set(mounts) == {*claims, *(volume["name"] for volume in pod["volumes"])}
    assert environ["TOPICS_API_KEYS_FILE"].startswith(mounts["keys"])
    assert spec["volumeClaimTemplates"][0]["spec"]["accessModes"] == ["ReadWriteOnce"]
    return environ


def manifests(given: dict[str, Any]) -> list[dict[str, Any]]:
    found = []
    for template in sorted((CHART / "templates").glob("*.yaml")):
        text = rendered(template.read_text(), given)
        assert "{{" not in text, text
        found += [document for document in yaml.safe_load_all(text) if document is not None]
    return found


def test_the_chart_makes_what_kubernetes_takes() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert (chart["apiVersion"], chart["name"]) == ("v2", "topics")
    check_manifests(manifests(values()), 2)
    environ = check_manifests(
        manifests(values(replicas=3, env=[{"name": "TOPICS_LOG_LEVEL", "value": "debug"}], leaseMs=5000)), 3
    )
    assert (environ["TOPICS_LOG_LEVEL"], environ["TOPICS_BUCKET_LEASE_MS"]) == ("debug", "5000")
    storage = {"size": "1Gi", "className": "fast"}
    (stateful,) = [one for one in manifests(values(storage=storage)) if one["kind"] == "StatefulSet"]
    assert stateful["spec"]["volumeClaimTemplates"][0]["spec"]["storageClassName"] == "fast"
    (stateful,) = [one for one in manifests(values()) if one["kind"] == "StatefulSet"]
    assert "storageClassName" not in stateful["spec"]["volumeClaimTemplates"][0]["spec"]


@pytest.mark.parametrize("version", [OLDEST_KUBERNETES, kubernetes_validate.latest_version()])
@pytest.mark.parametrize("changes", [{}, {"env": [{"name": "TOPICS_LOG_LEVEL", "value": "debug"}]}])
def test_the_schemas_of_kubernetes_allow_what_the_chart_makes(version: str, changes: dict[str, Any]) -> None:
    for document in manifests(values(**changes)):
        kubernetes_validate.validate(document, version, strict=True)


def test_the_schemas_of_kubernetes_find_a_wrong_manifest() -> None:
    (stateful,) = [one for one in manifests(values()) if one["kind"] == "StatefulSet"]
    stateful["spec"]["template"]["spec"]["containers"][0]["readOnlyProbe"] = {}
    with pytest.raises(kubernetes_validate.ValidationError, match="readOnlyProbe"):
        kubernetes_validate.validate(stateful, kubernetes_validate.latest_version(), strict=True)


def test_every_value_is_used_and_every_used_value_is_there() -> None:
    text = "".join(template.read_text() for template in (CHART / "templates").glob("*.yaml"))
    used = {path.partition(".")[0] for path in re.findall(r"\.Values\.([\w.]+)", text)}
    assert used == set(values())


@pytest.mark.skipif(shutil.which("helm") is None, reason="helm is not installed")
def test_helm_makes_the_same() -> None:
    done = subprocess.run(
        ["helm", "template", "main", CHART, "--namespace", "logs"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    documents = [document for document in yaml.safe_load_all(done.stdout) if document is not None]
    check_manifests(documents, 2)
    by_name = sorted(manifests(values()), key=json.dumps)
    assert sorted(documents, key=json.dumps) == by_name


# ----------------------------------------------------------------- nginx, and topics spread over daemons


@contextmanager
def nginx(root: Path, ports: dict[str, int]) -> Iterator[str]:
    """A real nginx with the configuration of the page, on other ports. Yields its URL."""
    text = (DEPLOY / "nginx-names.conf").read_text()
    for place, port in ports.items():
        assert place in text
        text = text.replace(place, f"127.0.0.1:{port}")
    (root / "names.conf").write_text(text)
    paths = "".join(f"{kind}_temp_path {root}/{kind};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
    (root / "nginx.conf").write_text(
        f"daemon off; master_process off; pid {root}/pid; error_log {root}/error.log;\n"
        f"events {{}}\nhttp {{ access_log off; {paths} include {root}/names.conf; }}\n"
    )
    process = subprocess.Popen(
        ["nginx", "-p", str(root), "-c", str(root / "nginx.conf")], stderr=(root / "stderr").open("wb")
    )
    url = f"http://127.0.0.1:{ports['127.0.0.1:4000']}"

    def listens() -> bool:
        assert process.poll() is None, (root / "stderr").read_text()
        try:
            return httpx.get(url, timeout=5).status_code > 0
        except httpx.TransportError:
            return False

    try:
        until(listens)
        yield url
    finally:
        process.terminate()
        process.wait(30)


def test_the_names_of_the_configuration_are_those_of_its_daemons() -> None:
    text = (DEPLOY / "nginx-names.conf").read_text()
    assert text.count("{") == text.count("}")
    for name in re.findall(r"TOPICS_NAMES=(\S+)", text):
        assert load_settings({"TOPICS_NAMES": name}).names == (name,)
        assert f"/{re.escape(name)}" in text, "nginx routes by the same name"


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("nginx") is None, reason="nginx is not installed")
def test_nginx_routes_by_the_names_of_topics(tmp_path: Path) -> None:
    with ExitStack() as stack:
        ports = {"127.0.0.1:4000": free_port()}
        daemons = {}
        for name, place in (("eu.", "127.0.0.1:4001"), ("us.", "127.0.0.1:4002")):
            (tmp_path / name).mkdir()
            daemon = daemons[name] = Daemon(tmp_path / name, names=name)
            stack.callback(daemon.kill)
            daemon.start().close()
            ports[place] = daemon.port
        url = stack.enter_context(nginx(tmp_path, ports))
        client = stack.enter_context(Client(url, retry=None))
        for name, daemon in daemons.items():
            client.append(f"{name}orders", [name])
            assert [record.data for record in client.read(f"{name}orders") if isinstance(record, Record)] == [name]
            client.create_router(f"{name}copies", f"{name}orders", f"{name}copied", from_="earliest")
            with Client(daemon.url) as direct:
                until(lambda name=name, direct=direct: direct.state(f"{name}copied").head_seq == 1)  # type: ignore[misc]
                assert [topic.topic for topic in direct.list().topics] == [f"{name}copied", f"{name}orders"]
        for path in ("/v0/topics/as.orders", "/v0/topics", "/v0/topics/europe"):
            answer = httpx.get(url + path)
            assert (answer.status_code, answer.json()["error"]["code"]) == (421, "not_here"), path
        # A watch names its topics in the body: it goes to one daemon by the path of that.
        with Client(f"{url}/eu", retry=None) as direct, direct.tail("eu.orders") as tail:
            assert isinstance(next(tail), Record)
            assert direct.ready().status == "ready"
            began = time.monotonic()
            client.append("eu.orders", ["more"])
            assert isinstance(next(tail), Record)
            assert time.monotonic() - began < 10, "events are not held back"
            wrong = httpx.get(f"{url}/us/v0/topics/eu.orders")
            assert (wrong.status_code, wrong.json()["error"]["code"]) == (421, "not_here")
