"""The OpenAPI document as one page for people: no script, no font, nothing from another server."""

import json
from collections.abc import Iterator
from html import escape
from typing import Any

_STYLE = """
:root { color-scheme: light dark }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
h2 { margin-top: 3rem; border-top: 1px solid #8886; padding-top: 1rem }
h2 b { display: inline-block; min-width: 4rem; color: #06c }
code, pre, h2 { font-family: ui-monospace, monospace }
h2 { font-size: 1.1rem }
pre { overflow-x: auto; background: #8881; padding: .75rem; border-radius: .25rem }
table { border-collapse: collapse; width: 100% }
td, th { text-align: left; vertical-align: top; padding: .3rem .75rem .3rem 0 }
td, th { border-bottom: 1px solid #8883 }
"""


def reference_page(document: dict[str, Any]) -> str:
    """Return the HTML page of an OpenAPI 3.1 ``document``."""
    title = escape(document["info"]["title"])
    about = escape(document["info"].get("description", ""))
    machine = '<a href="openapi.json">openapi.json</a>'
    schemas = document.get("components", {}).get("schemas", {})
    return "\n".join(
        [
            "<!doctype html>",
            f'<html lang="en"><head><meta charset="utf-8"><title>{title} API</title>',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<style>{_STYLE}</style></head><body><h1>{title} API</h1>",
            f"<p>{about} The machine-readable form is {machine}.</p>",
            *(
                line
                for path, methods in document["paths"].items()
                for method, operation in methods.items()
                for line in _operation(path, method, operation)
            ),
            "<h1>Shapes</h1>",
            *(line for name, schema in schemas.items() for line in _schema(name, schema)),
            "</body></html>",
        ]
    )


def _operation(path: str, method: str, operation: dict[str, Any]) -> Iterator[str]:
    yield f"<h2><b>{method.upper()}</b> {escape(path)}</h2>"
    yield f"<p>{escape(operation.get('description', ''))}</p>"
    parameters = operation.get("parameters", [])
    if parameters:
        yield "<table><tr><th>Parameter</th><th>In</th><th>What</th></tr>"
        for parameter in parameters:
            what = _kind(parameter["schema"])
            yield _row(f"<code>{escape(parameter['name'])}</code>", parameter["in"], what)
        yield "</table>"
    body = operation.get("requestBody")
    if body:
        yield f"<p>Body: {_content(body)}</p>"
    yield "<table><tr><th>Answer</th><th>When</th><th>Body</th></tr>"
    for status, response in sorted(operation["responses"].items()):
        yield _row(status, escape(response["description"]), _content(response))
    yield "</table>"


def _row(*cells: str) -> str:
    return "<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"


def _content(holder: dict[str, Any]) -> str:
    kinds = (_kind(media.get("schema", {})) for media in holder.get("content", {}).values())
    return ", ".join(kinds)


def _kind(schema: dict[str, Any]) -> str:
    """Return a type in a few words, as HTML, with links to the shapes."""
    if "$ref" in schema:
        name = escape(schema["$ref"].rpartition("/")[2])
        return f'<a href="#{name}">{name}</a>'
    if "anyOf" in schema:
        return " or ".join(_kind(one) for one in schema["anyOf"])
    if "enum" in schema:
        return " | ".join(f"<code>{escape(json.dumps(one))}</code>" for one in schema["enum"])
    if schema.get("type") == "array":
        return f"list of {_kind(schema['items'])}"
    kind = schema.get("type", "any JSON")
    limits = [f"{name} {schema[name]}" for name in ("minimum", "maximum") if name in schema]
    if "default" in schema:
        limits.append(f"default {json.dumps(schema['default'])}")
    return escape(" ".join([schema.get("format", kind), *(f"({limit})" for limit in limits)]))


def _schema(name: str, schema: dict[str, Any]) -> Iterator[str]:
    yield f'<h2 id="{escape(name)}">{escape(name)}</h2><p>{escape(schema.get("description", ""))}'
    yield "</p>"
    properties = schema.get("properties")
    if not properties:
        yield f"<p>{_kind(schema)}</p>"
        return
    needed = schema.get("required", [])
    yield "<table><tr><th>Field</th><th>Type</th><th></th></tr>"
    for field, inner in properties.items():
        mark = "" if field in needed else " (optional)"
        name_cell = f"<code>{escape(field)}</code>{mark}"
        yield _row(name_cell, _kind(inner), escape(inner.get("description", "")))
    yield "</table>"
