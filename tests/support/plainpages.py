"""Use pages like a browser without scripts: fill in forms by label and send exactly what they contain.

reader = PlainReader(client)
reader.open("/console/keys/new")
reader.press("Create the key", {"Name": "ci", "Full access": True})
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import Any
from urllib.parse import urljoin

import httpx

TICKED = ("checkbox", "radio")


@dataclass
class PlainField:
    """A named control; `chosen` is whether it is ticked, `options` are those of a select by their text."""

    name: str
    kind: str
    value: str = ""
    is_required: bool = False
    chosen: bool = False
    id: str = ""
    label: str = ""
    options: dict[str, str] = field(default_factory=dict)


@dataclass
class PlainForm:
    """A form; `buttons` are those that send it: text, name, value."""

    action: str
    method: str
    is_multipart: bool
    fields: list[PlainField] = field(default_factory=list)
    buttons: list[list[str]] = field(default_factory=list)

    def fill(self, typed: Mapping[str, Any]) -> None:
        for label, value in typed.items():
            found = [control for control in self.fields if control.label.startswith(label)]
            assert found, f"there is no field {label!r}, only {[control.label for control in self.fields]}"
            one = found[0]
            if one.kind in TICKED:
                for other in self.fields:
                    other.chosen = other.chosen and not (one.kind == "radio" and other.name == one.name)
                one.chosen = bool(value)
            else:
                one.value = one.options[value] if one.kind == "select" else value

    def sent(self) -> dict[str, list[str]]:
        """Return the fields a browser sends, after its checks."""
        pairs: dict[str, list[str]] = {}
        for control in self.fields:
            is_ticked = control.kind not in TICKED or control.chosen
            group = [other for other in self.fields if other.name == control.name and other.chosen]
            assert not control.is_required or (control.value and (control.kind != "radio" or group)), (
                f"a browser requires {control.label!r}"
            )
            if is_ticked and control.kind != "file":
                pairs.setdefault(control.name, []).append(control.value)
        return pairs


class _Page(HTMLParser):
    """Forms, links and the labels of their fields."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.forms: list[PlainForm] = []
        self.links: list[list[str]] = []
        self._form: PlainForm | None = None
        self._labels: dict[str, str] = {}
        self._label: list[Any] | None = None
        self._area: PlainField | None = None
        self._proposes = False
        self._text: list[Any] | None = None
        """Collects the text that follows, in its first element."""
        self.feed(text)
        for control in (control for form in self.forms for control in form.fields):
            control.label = " ".join((control.label or (self._labels.get(control.id, "") if control.id else "")).split())
            control.value = control.value.removeprefix("\n") if control.kind == "textarea" else control.value

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attributes}
        if tag == "form":
            self._form = PlainForm(values["action"], values.get("method", "get"), values.get("enctype") == "multipart/form-data")
            self.forms.append(self._form)
        elif tag == "a" and "href" in values:
            self.links.append(["", values["href"]])
            self._text = self.links[-1]
        elif tag == "label":
            self._label = ["", values.get("for", ""), None]
        elif self._form is not None:
            self._control(tag, values)

    def _control(self, tag: str, values: dict[str, str]) -> None:
        assert self._form is not None
        if tag in ("input", "select", "textarea"):
            kind = values.get("type", "text") if tag == "input" else tag
            found = PlainField(
                values["name"], kind, values.get("value", ""), "required" in values, "checked" in values, values.get("id", "")
            )
            self._form.fields.append(found)
            self._area = found if kind == "textarea" else None
            if self._label is not None:
                self._label[2] = found
        elif tag == "datalist":
            self._proposes = True
        elif tag == "option" and not self._proposes:
            select = self._form.fields[-1]
            self._text = ["", values.get("value", ""), select]
            if "selected" in values or not select.options:
                select.value = values.get("value", "")
            select.options[""] = select.options.get("", "")
        elif tag == "button" and values.get("type", "submit") == "submit":
            self._form.buttons.append(["", values.get("name", ""), values.get("value", "")])
            self._text = self._form.buttons[-1]

    def handle_data(self, data: str) -> None:
        if self._text is not None:
            self._text[0] += data
        if self._label is not None:
            self._label[0] += data
        if self._area is not None:
            self._area.value += data

    def handle_endtag(self, tag: str) -> None:
        if tag == "form":
            self._form = None
        elif tag == "textarea":
            self._area = None
        elif tag == "datalist":
            self._proposes = False
        elif tag == "label" and self._label is not None:
            text, target, wrapped = self._label
            self._labels.setdefault(target, text)
            if wrapped is not None:
                wrapped.label = text
            self._label = None
        elif tag == "option" and self._text is not None:
            text, value, select = self._text
            select.options[text.strip()] = value
            self._text = None
        elif tag in ("a", "button"):
            self._text = None


class PlainReader:
    """A user of such a browser; `sent` are the methods and paths of the forms sent."""

    def __init__(self, client: httpx.Client) -> None:
        self.client = client
        self.sent: list[tuple[str, str]] = []
        self.answer = httpx.Response(204)

    @property
    def text(self) -> str:
        return self.answer.text

    def open(self, path: str) -> PlainReader:
        """Open a page, or the page it redirects to."""
        self.answer = self.client.get(path, follow_redirects=True)
        if "refresh" in self.answer.headers and "url=" in self.answer.headers["refresh"]:
            self.answer = self.client.get(self.answer.headers["refresh"].partition("url=")[2], follow_redirects=True)
        return self

    def follow(self, text: str) -> PlainReader:
        """Follow the first link whose text begins with this."""
        links = _Page(self.text).links
        found = [href for named, href in links if " ".join(named.split()).startswith(text)]
        assert found, f"there is no link {text!r}, only {[named for named, _ in links]}"
        return self.open(urljoin(str(self.answer.url), found[0]))

    def press(self, button: str, typed: Mapping[str, Any] | None = None, upload: tuple[str, bytes] | None = None) -> PlainReader:
        """Press the first button whose text begins with this, with its form filled in."""
        for form in _Page(self.text).forms:
            for text, name, value in form.buttons:
                if " ".join(text.split()).startswith(button):
                    return self._send(form, typed or {}, (name, value), upload)
        raise AssertionError(f"no button {button!r} on {self.answer.url}: {self.text}")

    def _send(self, form: PlainForm, typed: Mapping[str, Any], button: tuple[str, str], upload: tuple[str, bytes] | None) -> PlainReader:
        where = urljoin(str(self.answer.url), form.action)
        files = [control for control in form.fields if control.kind == "file"]
        for control in files:
            control.value = upload[0] if upload else ""
        form.fill(typed)
        pairs = form.sent() | ({button[0]: [button[1]]} if button[0] else {})
        self.sent.append((form.method, httpx.URL(where).path))
        if form.method == "get":
            self.answer = self.client.get(where, params=pairs, follow_redirects=True)
            return self
        parts = {control.name: upload for control in files if upload} if form.is_multipart else None
        self.answer = self.client.post(where, data=pairs, files=parts, follow_redirects=True)
        return self
