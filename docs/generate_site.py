"""Build the documentation site in build/site: the pages of the repository, the Python API, and pictures of the demo. Run by `make site`."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).parents[1]
CONFIG = (ROOT / "zensical.toml").read_text(encoding="utf-8")
PROJECT = tomllib.loads(CONFIG)["project"]
BUILD = ROOT / "build"
PAGES, SITE = BUILD / PROJECT["docs_dir"], BUILD / PROJECT["site_dir"]
SOURCES = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "LICENSE", "docs", "benchmarks/README.md", "benchmarks/results")
API = {
    "The client": ("api.Client", "api.Records", "api.Bulk"),
    "Requests and results": ("plan.requests.ImportRequest", "plan.results.ImportResult", "models.resources.Record"),
    "Errors": tuple(
        f"errors.{name}Error"
        for name in ("Crmctl", "Usage", "Config", "Denied", "NotFound", "Rejected", "Partial", "Pending", "Service", "Network")
    ),
}
"""The public names of the package, by heading."""


def main() -> None:
    for folder in (PAGES, SITE):
        shutil.rmtree(folder, ignore_errors=True)
    for name in SOURCES:
        source, target = ROOT / name, PAGES / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("*.py", "__pycache__")) if source.is_dir() else shutil.copyfile(
            source, target
        )
    (PAGES / "docs/python-api.md").write_text(python_api(), encoding="utf-8")
    (PAGES / "docs/demo.md").write_text(demo(PAGES / "docs"), encoding="utf-8")
    for heading, folder in (("Decisions", PAGES / "docs/decisions"), ("Measurements", PAGES / "benchmarks/results")):
        rows = [f"- [{title(path)}]({path.name})" for path in sorted(folder.glob("*.md"))]
        (folder / "README.md").write_text("\n".join([f"# {heading}\n", *rows, ""]), encoding="utf-8")
    nav = ", ".join(f"{{ {json.dumps(heading)} = {json.dumps(names)} }}" for heading, names in navigation().items())
    (BUILD / "zensical.toml").write_text(CONFIG.replace("nav = []", f"nav = [{nav}]"), encoding="utf-8")
    subprocess.run(["zensical", "build", "--strict", "--clean"], cwd=BUILD, check=True)  # noqa: S607
    (SITE / "llms.txt").write_text(llms_text(), encoding="utf-8")
    if broken := broken_links(SITE):
        sys.exit("\n".join(["links to nothing:", *broken]))


def navigation() -> dict[str, list[str]]:
    """Return the pages by heading: those of docs/README.md, and the generated ones."""
    pages = {"Start": ["README.md", "docs/demo.md", "docs/README.md"]}
    for section in (ROOT / "docs/README.md").read_text(encoding="utf-8").split("\n## ")[1:]:
        targets = re.findall(r"^- \[[^\]]+\]\(([\w./-]+)", section, re.MULTILINE)
        names = [os.path.normpath(f"docs/{target}") for target in targets]
        pages[section.partition("\n")[0]] = [name if name.endswith(".md") else f"{name}/README.md" for name in names]
    pages["Reference"].append("docs/python-api.md")
    return pages


def python_api() -> str:
    sections = [f"## {title}\n\n" + "".join(f"::: crmctl.{name}\n\n" for name in names) for title, names in API.items()]
    return "\n".join(["# Classes and errors\n\nExamples are on [their own page](python.md).\n", *sections])


def demo(folder: Path) -> str:
    """Run the demo and return its page; each part becomes a picture in `folder`."""
    env = {**os.environ, "CLICOLOR_FORCE": "1", "COLUMNS": "100"}
    shown = subprocess.run([sys.executable, "-m", "crmctl", "demo"], env=env, capture_output=True, text=True, check=True).stdout
    page = "# The demo\n\n`make demo` plays it on your machine.\n"
    for number, part in enumerate(shown.strip().split("\n\n")[:-1]):
        heading, _, output = Text.from_ansi(part).plain.partition("\n")
        console = Console(record=True, width=100, file=io.StringIO())
        console.print(Text.from_ansi(part.partition("\n")[2]))
        (folder / f"demo-{number}.svg").write_text(console.export_svg(title="crmctl"), encoding="utf-8")
        first = output.partition("\n")[0].replace("]", "")
        page += f"\n## {heading.strip('# .')}\n\n![{first}](demo-{number}.svg)\n"
    return page


def llms_text() -> str:
    """Return the list of all pages in the navigation, and put their sources beside them."""
    lines = [f"# {PROJECT['site_name']}", "", f"> {PROJECT['site_description']}"]
    for heading, names in navigation().items():
        lines += ["", f"## {heading}", ""]
        for name in names:
            shutil.copyfile(PAGES / name, SITE / name)
            lines.append(f"- [{title(PAGES / name)}]({name})")
    return "\n".join(lines) + "\n"


def title(page: Path) -> str:
    """Return the first heading of a page."""
    return next(line[2:] for line in page.read_text(encoding="utf-8").splitlines() if line.startswith("# "))


class References(HTMLParser):
    """Collects references of a page, and the places in it that other pages can refer to."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.targets: list[str] = []
        self.places: set[str] = {""}
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.targets += [value for name in ("href", "src") if (value := values.get(name))]
        self.places |= {value for name in ("id", "name") if (value := values.get(name))}


def broken_links(folder: Path) -> list[str]:
    """Return the references inside the site that lead nowhere, as `page -> target`."""
    pages = {path.resolve(): References(path) for path in folder.rglob("*.html") if path.name != "404.html"}
    broken = []
    for path, page in pages.items():
        for target in page.targets:
            url = urlsplit(target)
            if url.scheme or url.netloc:
                continue
            file = (path.parent / unquote(url.path)).resolve() if url.path else path
            file = file / "index.html" if file.is_dir() else file
            if not file.is_file() or (file in pages and unquote(url.fragment) not in pages[file].places):
                broken.append(f"{path.relative_to(folder.resolve())} -> {target}")
    return sorted(set(broken))


if __name__ == "__main__":
    main()
