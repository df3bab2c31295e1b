"""Answer `crmctl __complete WORDS`: the candidates for the last word. Loads neither Typer nor a model, and reads only local files."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

TABLE = Path(__file__).with_name("completion_table.json")
"""Every command with its options and kinds of values. `make generated` writes it."""

FILES = "files"
OPEN = "open"
"""The candidates are beginnings: no blank follows them."""

TYPED = ("@assignments", "@attributes", "@conditions", "@fields", "@groups", "@mapped", "@references", "@sorts")
"""Values that are completed step by step."""

WORD = re.compile(r"""(?:\\.|'[^']*(?:'|$)|"(?:\\.|[^"\\])*(?:"|$)|[^\s'"\\]|\\$)+""")
QUOTED = re.compile(r"""\\(.?)|'([^']*)('|$)|"((?:\\.|[^"\\])*)("|$)""")


def answer(arguments: Sequence[str], environ: Mapping[str, str]) -> str:
    """Return `files`, `open` or an empty line, then one candidate a line with its description behind a tab.

    The arguments are the words before the cursor, or `--line LINE [BREAKS]` with the line as it was typed; bash replaces only what
    follows the last of its word breaks, so for it the candidates lose what stands before. Any failure returns nothing.
    """
    with contextlib.suppress(Exception):
        if arguments[:1] != ["--line"]:
            mode, rows = complete(arguments, environ)
        else:
            words = WORD.findall(arguments[1])
            if not arguments[1].endswith(words[-1]):
                words.append("")
            mode, rows = complete([*(unquote(word)[0] for word in words[1:-1]), words[-1]], environ)
            if len(arguments) > 2:
                rows = [(_for_bash(text, words[-1], arguments[2], mode), "") for text, _ in rows]
        return "\n".join([mode, *("\t".join(row).rstrip("\t") for row in rows if row[0].strip()), ""])
    return ""


def unquote(word: str) -> tuple[str, str]:
    """Return the text of a word as it was typed, and the quote that is still open at its end."""
    closing = ""

    def text(match: re.Match[str]) -> str:
        nonlocal closing
        escaped, single, single_end, double, double_end = match.groups()
        if escaped is not None:
            return escaped
        if single is not None:
            closing = "" if single_end else "'"
            return single
        closing = "" if double_end else '"'
        return re.sub(r"\\(.)", r"\1", double)

    return QUOTED.sub(text, word), closing


def complete(words: Sequence[str], environ: Mapping[str, str]) -> tuple[str, list[tuple[str, str]]]:
    """Return the mode and the candidates, each a whole word and its description; the last of `words` may hold quotes."""
    table = json.loads(TABLE.read_bytes())
    *before, last = words or [""]
    typed, quote = unquote(last)
    path, node, options = "", table["commands"][""], dict(table["options"])
    positions: list[str] = []
    used: set[str] = set()
    pending = profile = ""
    for word in before:
        if pending:
            profile = word if pending in ("-p", "--profile") else profile
            pending = ""
        elif word.startswith("-") and len(word) > 1:
            name, has_value, value = word.partition("=")
            profile = value if name == "--profile" and has_value else profile
            used.add(name)
            pending = name if not has_value and _find(options, name)[0] is not None else ""
        elif "commands" in node:
            if word not in node["commands"]:
                return "", []
            path = f"{path} {word}".strip()
            node = table["commands"][path]
            options |= node.get("options", {})
        else:
            positions.append(word)
    place = (environ, positions[0] if positions else "", profile)
    if pending:
        return _values(_find(options, pending)[0] or "", typed, quote, place)
    name, has_value, value = typed.partition("=")
    if has_value and name.startswith("--"):
        mode, rows = _values(_find(options, name)[0] or "", value, quote, place)
        return mode, [(f"{name}={text}", description) for text, description in rows]
    if typed.startswith("-"):
        return "", _names(options, typed, used)
    if "commands" in node:
        return "", [row for row in node["commands"].items() if row[0].startswith(typed)]
    kinds = node.get("arguments", [])
    if kinds == ["@topics..."]:
        below = table["commands"].get(" ".join(positions), {}).get("commands", {})
        topics = dict.fromkeys(table["topics"] if not positions else (), "")
        return "", [row for row in {**below, **topics}.items() if row[0].startswith(typed)]
    if len(positions) >= len(kinds) and not (kinds and kinds[-1].endswith("...")):
        return "", []
    return _values(kinds[min(len(positions), len(kinds) - 1)].removesuffix("..."), typed, quote, place)


def _find(options: Mapping[str, list[Any]], name: str) -> list[Any]:
    """Return kind, help and whether it repeats, of the option with this name."""
    return next((option for names, option in options.items() if name in names.split()), [None, "", False])


def _names(options: Mapping[str, list[Any]], typed: str, used: set[str]) -> list[tuple[str, str]]:
    """Return the names of options not given yet; short ones only behind a single dash."""
    free = {names: option for names, option in options.items() if option[2] or not used & set(names.split())}
    rows = [(name, option[1]) for names, option in free.items() for name in names.split() if name.startswith(typed)]
    return [row for row in rows if row[0].startswith("--") or typed == "-"]


def _values(kind: str, typed: str, quote: str, place: tuple[Mapping[str, str], str, str]) -> tuple[str, list[tuple[str, str]]]:
    """Return the mode and the values that begin as `typed` does.

    A kind is `files`, words separated by `|`, or `@` and a method of `Values`; a comma before it makes it a list.
    """
    if kind == FILES:
        return FILES, []
    is_list = kind.startswith(",")
    kind = kind.removeprefix(",")
    texts = kind.split("|") if kind else []
    front = typed[: typed.rfind(",") + 1] if is_list else ""
    if kind.startswith("@"):
        from crmctl.cli.complete_values import Values

        find = getattr(Values(*place), kind[1:])
        texts = find(typed[len(front) :], bool(quote)) if kind in TYPED else find()
    texts = [front + text for text in texts if (front + text).startswith(typed)]
    is_open = is_list or kind == "@conditions" or any(text.endswith("=") for text in texts)
    return OPEN if is_open else "", [(text, "") for text in texts]


def _for_bash(text: str, word: str, breaks: str, mode: str) -> str:
    """Return what readline is to insert for a candidate: quoted like the word, without what readline leaves standing, then a blank."""
    quote = unquote(word)[1]
    if quote:
        return text.removeprefix(unquote(word[: word.rindex(quote)])[0])
    stops = [character for character in "=:" if character in breaks]
    kept = max((at + 1 for at, character in enumerate(re.sub(r"\\.", "__", word)) if character in stops), default=0)
    return re.sub(r"([^\w.\-=:/,@+%])", r"\\\1", text.removeprefix(unquote(word[:kept])[0])) + ("" if mode == OPEN else " ")
