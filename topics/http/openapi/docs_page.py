"""The page for people, `/v0/docs` (`docs/spec/api.md` section 11): the OpenAPI document as one file of HTML.

The page has no scripts, fonts or pictures and loads nothing, so it works without internet, under the content policy
that it is sent with. All text of the document is escaped. Of its markup the page shows paragraphs, lists (`- `) and
code between backticks.
"""

from __future__ import annotations

import base64
import hashlib
import re
import shlex
from collections.abc import Mapping
from functools import cache
from typing import Any, Final
from urllib.parse import quote, urlencode

import msgspec
from jinja2 import Environment, StrictUndefined
from markupsafe import Markup, escape

from topics.http.openapi.document import document
from topics.model import MAX_U64

Json = Mapping[str, Any]

_STYLE: Final = """
:root { color-scheme: light dark; --soft: #5b6470; --line: #d8dde3; --back: #f4f6f8; --mark: #0b62c4; }
@media (prefers-color-scheme: dark) {
  :root { --soft: #9aa4b0; --line: #343b44; --back: #1b2026; --mark: #6cb0ff; }
  body { background: #12161b; color: #e4e8ec; }
}
* { box-sizing: border-box; }
body { margin: 0; font: 16px/1.5 system-ui, sans-serif; overflow-wrap: anywhere; }
nav, main { padding: 1rem; max-width: 54rem; }
nav ul { list-style: none; margin: 0 0 1rem; padding: 0; }
nav h2, summary { font-size: 1rem; font-weight: bold; margin: 1rem 0 .25rem; border: 0; padding: 0; }
a { color: var(--mark); text-decoration: none; }
a:hover, a:focus { text-decoration: underline; }
h1 { margin: 0; }
h2 { margin: 3rem 0 1rem; padding-top: 1rem; border-top: 2px solid var(--line); }
h3 { margin: 2.5rem 0 .5rem; }
h4 { margin: 1.25rem 0 .25rem; }
code, pre { font: .875em/1.45 ui-monospace, monospace; background: var(--back); border-radius: 4px; }
code { padding: .1em .3em; }
pre { padding: .75rem; overflow-x: auto; overflow-wrap: normal; }
.call { display: block; padding: .5rem .75rem; }
.method { font-weight: bold; }
.soft, .needs { color: var(--soft); }
dl { margin: .25rem 0; }
dt { margin-top: .5rem; }
dd { margin: 0 0 0 1rem; }
@media (min-width: 62rem) {
  body { display: grid; grid-template-columns: 19rem minmax(0, 1fr); }
  nav { position: sticky; top: 0; height: 100vh; overflow-y: auto; border-right: 1px solid var(--line); }
  main { padding: 1rem 2rem 4rem; }
}
"""

_HASH: Final = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()

CONTENT_POLICY: Final = (
    f"default-src 'none'; style-src 'sha256-{_HASH}'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
).encode()
"""The `Content-Security-Policy` that the page is sent with."""

_PAGE: Final = """\
{% macro fields(schema) %}
{% if schema.properties is defined %}
<dl>
{% for name, field in schema.properties.items() %}
<dt><code>{{ name }}</code> <span class="soft">{{ field | shape }}
{%- if name in schema.get("required", ()) %}, required{% endif %}
{%- if field.default is defined %}, default <code>{{ field.default | json }}</code>{% endif %}</span></dt>
<dd>{{ field.description | line }}</dd>
{% endfor %}
</dl>
{% else %}
<p>{{ schema | shape }}</p>
{% endif %}
{% endmacro %}
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{ info.title }} {{ info.version }}: calls</title>
<style>{{ style }}</style>
</head>
<body>
<nav aria-label="Contents">
{% for group, calls in groups.items() %}
<h2><a href="#{{ group | anchor }}">{{ group }}</a></h2>
<ul>
{% for call in calls %}
<li><a href="#{{ call.operationId }}">{{ call.summary }}</a></li>
{% endfor %}
</ul>
{% endfor %}
<details>
<summary>Types</summary>
<ul>
{% for name in schemas %}
<li><a href="#type-{{ name }}">{{ name }}</a></li>
{% endfor %}
</ul>
</details>
</nav>
<main>
<h1>{{ info.title }} <span class="soft">{{ info.version }}</span></h1>
{{ info.description | text }}
<p>For programs there is <a href="openapi.json">openapi.json</a>. The examples are for a shell with</p>
<pre>TOPICS_URL=http://127.0.0.1:4000
TOPICS_TOKEN=...</pre>
{% for group, calls in groups.items() %}
<section>
<h2 id="{{ group | anchor }}">{{ group }}</h2>
{% for call in calls %}
<article>
<h3 id="{{ call.operationId }}">{{ call.summary }}</h3>
<code class="call"><span class="method">{{ call.method }}</span> {{ call.path }}</code>
<p class="needs">{{ call | needs }}</p>
{{ call.description | text }}
{% if call.parameters %}
<h4>Parameters</h4>
<dl>
{% for parameter in call.parameters %}
<dt><code>{{ parameter.name }}</code> <span class="soft">{{ parameter.in }}, {{ parameter.schema | shape }}
{%- if parameter.required is defined %}, required{% endif %}
{%- if parameter.schema.default is defined %}, default <code>{{ parameter.schema.default | json }}</code>{% endif -%}
</span></dt>
<dd>{{ parameter.description | line }}</dd>
{% endfor %}
</dl>
{% endif %}
{% if call.requestBody is defined %}
<h4>Body</h4>
{% for content_type, content in call.requestBody.content.items() %}
<p class="soft">{{ content_type }}{% if not call.requestBody.required %}, or none{% endif %}</p>
{{ fields(content.schema | resolved) }}
{% endfor %}
{% endif %}
<h4>Answers</h4>
<dl>
{% for status, answer in call.responses.items() %}
{% set answer = answer | resolved %}
<dt><code>{{ status }}</code>
{%- for content_type, content in answer.get("content", {}).items() if status < "300" %}
 <span class="soft">{{ content_type }}: {{ content.schema | shape }}</span>
{%- endfor %}</dt>
<dd>{{ answer.description | line }}</dd>
{% endfor %}
</dl>
{% if call.example %}
<h4>Example</h4>
<pre>{{ call.example }}</pre>
{% endif %}
</article>
{% endfor %}
</section>
{% endfor %}
<section>
<h2 id="types">Types</h2>
{% for name, schema in schemas.items() %}
<article>
<h3 id="type-{{ name }}">{{ name }}</h3>
{{ fields(schema) }}
</article>
{% endfor %}
</section>
</main>
</body>
</html>
"""


@cache
def page_bytes() -> bytes:
    """The page for the document of this daemon, as HTML in UTF-8."""
    return render(document()).encode()


def render(api: Json) -> str:
    """The page for an OpenAPI document that has the form of `document`."""

    def resolved(schema: Json) -> Json:
        found: Json = api
        if "$ref" not in schema:
            return schema
        for part in schema["$ref"].removeprefix("#/").split("/"):
            found = found[part]
        return found

    groups: dict[str, list[Json]] = {tag["name"]: [] for tag in api["tags"]}
    for path, methods in api["paths"].items():
        for method, operation in methods.items():
            call = {"parameters": [], **operation, "path": path, "method": method.upper()}
            groups[operation["tags"][0]].append({**call, "example": _example(call)})
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {
        "anchor": lambda group: re.sub(r"\W+", "-", group.lower()),
        "json": _json,
        "line": _line,
        "needs": _needs,
        "resolved": resolved,
        "shape": _shape,
        "text": _text,
    }
    page = environment.from_string(_PAGE)
    return page.render(
        info=api["info"],
        style=Markup(_STYLE),
        groups=groups,
        schemas=dict(sorted(api["components"]["schemas"].items())),
    ).lstrip()


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


# --- text ------------------------------------------------------------------------------------------------------------


def _line(text: str) -> Markup:
    """A text as HTML, with the code between backticks marked."""
    parts = text.split("`")
    return Markup("").join(
        Markup("<code>{}</code>").format(part) if i % 2 else escape(part) for i, part in enumerate(parts)
    )


def _text(text: str) -> Markup:
    """A text as HTML, with its paragraphs and lists."""
    blocks = []
    for block in text.split("\n\n"):
        if block.startswith("- "):
            items = [Markup("<li>{}</li>").format(_line(item)) for item in block[2:].split("\n- ")]
            blocks.append(Markup("<ul>{}</ul>").format(Markup("\n").join(items)))
        else:
            blocks.append(Markup("<p>{}</p>").format(_line(block)))
    return Markup("\n").join(blocks)


def _needs(call: Json) -> Markup:
    """The scopes that a key must have for a call, as a sentence."""
    first = call["security"][0]
    if not first:
        return Markup("Open to everybody, unless <code>TOPICS_PROBE_AUTH</code> is set.")
    scopes = Markup(" and ").join(Markup("<code>{}</code>").format(scope) for scope in first["bearer"])
    text = Markup("Needs the scope {}.").format(scopes) if scopes else Markup("Needs a key, with any scopes.")
    if len(call["security"]) > 1:
        text += Markup(" Takes <code>?token=KEY</code> as well.")
    return text


def _shape(schema: Json) -> Markup:
    """The values that a schema allows, in a few words."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return Markup('<a href="#type-{0}">{0}</a>').format(name)
    if "anyOf" in schema:
        return Markup(" or ").join(dict.fromkeys(_shape(choice) for choice in schema["anyOf"]))
    if "enum" in schema:
        return Markup(" or ").join(Markup("<code>{}</code>").format(_json(value)) for value in schema["enum"])
    kind = schema.get("type")
    if kind == "array":
        if "prefixItems" in schema:
            return Markup("array")
        return Markup("array of {}").format(_shape(schema["items"]))
    if kind == "object":
        values = schema.get("additionalProperties")
        return (
            Markup("object of {}").format(_shape(values))
            if isinstance(values, Mapping) and values
            else Markup("object")
        )
    if kind == "integer" and schema.get("maximum") == MAX_U64:
        return Markup("u64")
    return escape(kind or "any JSON value")


# --- examples --------------------------------------------------------------------------------------------------------


def _example(call: Json) -> str:
    """An example of the call with curl; empty if curl cannot make it."""
    if "101" in call["responses"]:
        return ""
    path, query = call["path"], {}
    for parameter in call["parameters"]:
        if "example" not in parameter:
            continue
        if parameter["in"] == "path":
            path = path.replace(f"{{{parameter['name']}}}", quote(str(parameter["example"]), safe=""))
        elif parameter["in"] == "query":
            query[parameter["name"]] = parameter["example"]
    url = path + (f"?{urlencode(query)}" if query else "")
    success = call["responses"].get("200", {})
    streams = any(kind.startswith("text/event-stream") for kind in success.get("content", ()))
    words = ["curl -N" if streams else "curl" if call["method"] == "GET" else f"curl -X {call['method']}"]
    words[0] += f' "$TOPICS_URL{url}"'
    if call["security"][0]:
        words.append('-H "Authorization: Bearer $TOPICS_TOKEN"')
    if "requestBody" in call:
        content_type, content = next(iter(call["requestBody"]["content"].items()))
        words += [f"-H 'Content-Type: {content_type}'", f"-d {shlex.quote(_json(content['example']))}"]
    return " \\\n  ".join(words)
