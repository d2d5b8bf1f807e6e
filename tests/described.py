"""Whether an answer is one that the description of the daemon knows, and holds nothing that it does not say."""

from __future__ import annotations

import copy
from functools import cache
from typing import Any

import httpx
import jsonschema_rs

from topics.http.openapi.document import document
from topics.http.routes import RouteTable

_TABLE = RouteTable()


@cache
def closed_document() -> dict[str, Any]:
    """The document, but that objects have only the fields that it names: clients are told that there may be more."""
    api = copy.deepcopy(document())
    for schema in api["components"]["schemas"].values():
        schema["additionalProperties"] = False
    return api


def resolve(api: Any, value: Any) -> Any:
    """What a reference stands for; anything else stands for itself."""
    if "$ref" not in value:
        return value
    for part in value["$ref"].removeprefix("#/").split("/"):
        api = api[part]
    return api


def check(response: httpx.Response) -> httpx.Response:
    """The answer itself, after everything that is said of it was found to be true. A stream's body is left alone."""
    request = response.request
    found = _TABLE.find(request.method, request.url.raw_path.partition(b"?")[0])
    said = _answers_of(found.route.template, request.method).get(str(response.status_code))
    assert said is not None, f"{found.route.label} says nothing of {response.status_code}: {response.headers}"
    for name, header in said["headers"].items():
        header = resolve(document(), header)
        assert name in response.headers or not header["required"], (found.route.label, name)
    content_type = response.headers["content-type"]
    ranges = {content_type, content_type.partition("/")[0] + "/*"}
    assert ranges & set(said["content"]), (found.route.label, content_type)
    if content_type == "application/json":
        validator = _validator(found.route.template, request.method, str(response.status_code))
        for error in validator.iter_errors(response.json()):
            raise AssertionError((found.route.label, response.status_code, str(error)))
    return response


@cache
def _answers_of(template: str, method: str) -> dict[str, Any]:
    responses = document()["paths"][template][method.lower()]["responses"]
    return {status: resolve(document(), answer) for status, answer in responses.items()}


@cache
def _validator(template: str, method: str, status: str) -> jsonschema_rs.Draft202012Validator:
    schema = _answers_of(template, method)[status]["content"]["application/json"]["schema"]
    return jsonschema_rs.Draft202012Validator({**schema, "components": closed_document()["components"]})
