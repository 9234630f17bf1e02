"""The reference page: the OpenAPI document as plain HTML, without scripts."""

from html import escape
from typing import Any

STYLE = """
:root { color-scheme: light dark; --dim: #777; --line: #8884; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
code, pre { font: 13px/1.5 ui-monospace, monospace; } h2 { border-bottom: 1px solid var(--line); margin-top: 3rem; }
h3 code { font-size: 15px; } .verb { display: inline-block; min-width: 4.5rem; font-weight: 600; }
.dim { color: var(--dim); } table { border-collapse: collapse; width: 100%; } td { border-top: 1px solid var(--line);
padding: .3rem .8rem .3rem 0; vertical-align: top; } pre { background: #8881; padding: .7rem; overflow: auto; }
"""

POLICY = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"


def page(document: dict[str, Any]) -> bytes:
    """The whole page."""
    info = document["info"]
    groups: dict[str, list[str]] = {}
    for path, verbs in document["paths"].items():
        for verb, operation in verbs.items():
            groups.setdefault((operation.get("tags") or ["server"])[0], []).append(_operation(verb, path, operation))
    inside = "".join(f"<h2 id='{escape(name)}'>{escape(name)}</h2>{''.join(parts)}" for name, parts in groups.items())
    index = " · ".join(f"<a href='#{escape(name)}'>{escape(name)}</a>" for name in [*groups, "shapes"])
    shapes = "".join(_shape(name, schema) for name, schema in document["components"]["schemas"].items())
    about = "".join(f"<p>{escape(part)}</p>" for part in info["description"].split("\n\n"))
    title = f"{escape(info['title'])} {escape(info['version'])}"
    return (
        f"<!doctype html><html lang='en'><meta charset='utf-8'><title>{title}</title><style>{STYLE}</style>"
        f"<h1>{title}</h1>{about}<p>{index} · <a href='/openapi.json'>openapi.json</a></p>{inside}"
        f"<h2 id='shapes'>shapes</h2>{shapes}</html>"
    ).encode()


def _operation(verb: str, path: str, operation: dict[str, Any]) -> str:
    rows = "".join(
        _row(f"{one['name']}{'' if one.get('required') else '?'}", _kind(one["schema"]), one.get("description", ""))
        for one in operation.get("parameters", [])
        if one["in"] == "query"
    )
    return (
        f"<h3><span class='verb'>{escape(verb.upper())}</span> <code>{escape(path)}</code></h3>"
        f"<p>{escape(operation.get('summary', ''))} {escape(operation.get('description', ''))}</p>"
        f"{f'<table>{rows}</table>' if rows else ''}{_body(operation.get('requestBody'))}{_answers(operation)}"
    )


def _body(body: dict[str, Any] | None) -> str:
    if body is None:
        return ""
    kinds = ", ".join(body["content"])
    first = next(iter(body["content"].values()))
    example = next((media["example"] for media in body["content"].values() if "example" in media), None)
    shown = f"<pre>{escape(str(example))}</pre>" if example is not None else ""
    return (
        f"<p><span class='dim'>body</span> {_kind(first['schema'])} <span class='dim'>{escape(kinds)}</span></p>{shown}"
    )


def _answers(operation: dict[str, Any]) -> str:
    rows = []
    for status, answer in operation["responses"].items():
        schema: dict[str, Any] = next((media.get("schema", {}) for media in answer.get("content", {}).values()), {})
        rows.append(_row(status, _kind(schema) if schema else "", answer["description"]))
    return f"<table>{''.join(rows)}</table>"


def _shape(name: str, schema: dict[str, Any]) -> str:
    required = schema.get("required", ())
    rows = "".join(
        _row(field if field in required else f"{field}?", _kind(kind), kind.get("description", ""))
        for field, kind in schema.get("properties", {}).items()
    )
    values = ", ".join(map(str, schema.get("enum", ())))
    about = escape(schema.get("description", ""))
    return (
        f"<h3 id='{escape(name)}'><code>{escape(name)}</code></h3><p>{about} {escape(values)}</p><table>{rows}</table>"
    )


def _row(name: str, kind: str, about: str) -> str:
    return f"<tr><td><code>{escape(name)}</code></td><td>{kind}</td><td>{escape(about)}</td></tr>"


def _kind(schema: dict[str, Any]) -> str:
    """A type in a few words; a shape is a link to it."""
    if "$ref" in schema:
        name = escape(schema["$ref"].rsplit("/", 1)[-1])
        return f"<a href='#{name}'>{name}</a>"
    if "anyOf" in schema:
        return " | ".join(_kind(one) for one in schema["anyOf"])
    if schema.get("type") == "array":
        return f"[{_kind(schema.get('items', {}))}]"
    if "enum" in schema:
        return escape(" | ".join(map(str, schema["enum"])))
    kind = schema.get("type", "any value")
    return escape(" | ".join(kind) if isinstance(kind, list) else str(kind))
