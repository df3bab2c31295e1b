"""The OpenAPI document as one plain HTML page that needs nothing from elsewhere."""

from __future__ import annotations

from html import escape
from typing import Any

from crmctl.models import jsontext

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 60rem; padding: 0 1rem; color: #1c2330; background: #fff }
h2 { border-bottom: 1px solid #d5dae3; margin-top: 2.5rem; text-transform: capitalize }
details { border: 1px solid #d5dae3; border-radius: 6px; margin: .5rem 0; padding: .4rem .8rem }
summary { cursor: pointer } code, pre { font: 14px/1.4 ui-monospace, monospace } pre { background: #f4f6fa; overflow: auto; padding: .8rem }
.method { display: inline-block; font-weight: 700; width: 4.5rem } .scope { color: #5b6577 }
@media (prefers-color-scheme: dark) { body { color: #e4e8f0; background: #14181f } pre { background: #1d232d } .scope { color: #9aa5b8 } }
"""


def render_docs(document: dict[str, Any]) -> str:
    """The whole page."""
    info = document["info"]
    groups: dict[str, list[str]] = {}
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            groups.setdefault(operation["tags"][0], []).append(_operation(method, path, operation))
    sections = "".join(f"<section><h2>{escape(tag)}</h2>{''.join(items)}</section>" for tag, items in groups.items())
    schemas = "".join(_details(f"<code>{escape(name)}</code>", schema) for name, schema in document["components"]["schemas"].items())
    title = escape(info["title"])
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>{title}</title><style>{_STYLE}</style></head><body><h1>{title}</h1><p>{escape(info['description'])}</p>"
        f"{sections}<section><h2>Schemas</h2>{schemas}</section></body></html>"
    )


def _operation(method: str, path: str, operation: dict[str, Any]) -> str:
    head = f'<code><span class="method">{method.upper()}</span> {escape(path)}</code> {escape(operation["summary"])}'
    head += f' <span class="scope">{escape(operation["x-required-scope"])}</span>'
    shown = {name: operation[name] for name in ("parameters", "requestBody") if operation.get(name)}
    shown["responses"] = {status: response["description"] for status, response in operation["responses"].items()}
    return _details(head, shown)


def _details(head: str, body: Any) -> str:
    return f"<details><summary>{head}</summary><pre>{escape(jsontext.dumps(body, indent=2))}</pre></details>"
