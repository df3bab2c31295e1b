"""Misspelt words: crmctl suggests the nearest name, always the same, in its own words."""

from __future__ import annotations

import gzip
import shlex
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cli import Result
from tests.support.inprocess import run_here
from tests.support.service import RunningService, running_service


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    with running_service(tmp_path_factory.mktemp("misspelt")) as service:
        yield service


HABITS = [
    (("whoami",), "crmctl auth status"),
    (("auth", "whoami"), "crmctl auth status"),
    (("version",), "crmctl --version"),
    (("users", "list"), "crmctl members list"),
    (("fields", "people"), "crmctl attributes list people"),
    (("describe", "people"), "crmctl attributes list people"),
    (("bulk", "status"), "crmctl bulk jobs"),
    (("records", "export", "people"), "crmctl bulk export people"),
    (("schema", "export"), "crmctl schema pull"),
    (("records", "help"), "crmctl records --help"),
    (("records", "list", "people", "--where", "status=new"), "did you mean --filter?"),
    (("records", "list", "people", "-n", "5"), "did you mean --limit?"),
    (("records", "list", "people", "--format", "json"), "did you mean --output?"),
    (("records", "list", "people", "--columns", "email"), "did you mean --fields?"),
    (("records", "delete", "people", "--filter", "status=new"), "crmctl bulk delete OBJECT --filter ... takes all that match"),
    (("records", "update", "people", "email=a@b.c", "score=5"), "--set 'score=5'"),
    (("records", "create", "people", "name.first=Ada"), "--set 'name.first=Ada'"),
    (("bulk", "export", "people", "people.csv"), "-O people.csv"),
    (("config", "set", "url", "https://x.example"), "did you mean base_url?"),
    (("config", "set", "api_key", "abc"), "crmctl auth login stores a key"),
    (("records", "list", "people", "--sort=-score"), "--sort score --order desc"),
    (("records", "list", "people", "--sort", "score asc"), "--sort score --order asc"),
]
"""Commands and options of other tools, with crmctl's equivalents."""

NOT_MEANT = [
    ("email = 'a@b.c'", "--filter 'email=a@b.c'"),
    ("email==a@b.c", "--filter 'email=a@b.c'"),
    ('email == "a@b.c"', "--filter 'email=a@b.c'"),
    ("email=“a@b.c”", "--filter 'email=a@b.c'"),
    ("email[equals]='a@b.c'", None),
    ("notes~'a'", None),
    ("email=a@b.c", None),
    ("notes=don't", None),
    ("notes=like this", None),
    ("notes~is null", None),
]


@pytest.fixture
def service_here(running: RunningService, monkeypatch: pytest.MonkeyPatch) -> RunningService:
    monkeypatch.setenv("CRMCTL_BASE_URL", running.base_url)
    monkeypatch.setenv("CRMCTL_API_KEY", running.key)
    return running


LIST = ("records", "list", "people")

MISSPELT = [
    (("recrods", "list"), 2, "did you mean: crmctl records"),
    (("records", "lst"), 2, "did you mean: crmctl records list"),
    ((*LIST, "--filtr", "email=a"), 2, "did you mean --filter?"),
    (("records", "list", "peple"), 3, "did you mean people?"),
    ((*LIST, "--filter", "emial=a"), 2, "did you mean email?"),
    ((*LIST, "--filter", "email contians a"), 2, "did you mean contains?"),
    ((*LIST, "--filter", "email[eqals]=a"), 2, "did you mean equals?"),
    ((*LIST, "--filter", "score<>5"), 2, "valid operators: equals"),
    ((*LIST, "--filter", "status in ('new', 'customer')"), 2, "leave them out"),
    ((*LIST, "--filter", "status=nwe", "--strict"), 2, "did you mean new?"),
    ((*LIST, "--filter", "address.ctiy=Rome"), 2, "address.city"),
    ((*LIST, "--order", "dsc"), 2, "did you mean desc?"),
    ((*LIST, "--sort", "scroe"), 2, "did you mean score?"),
    ((*LIST, "--fields", "emial"), 2, "did you mean email?"),
    ((*LIST, "-o", "cvs"), 2, "did you mean csv?"),
    ((*LIST, "--color", "alwys"), 2, "did you mean always?"),
    (("records", "create", "people", "--set", "emial=a"), 2, "did you mean email?"),
    (("records", "create", "people", "--set", "status=nwe"), 9, "did you mean new?"),
    (("records", "count", "people", "--by", "statsu"), 2, "did you mean status?"),
    (("attributes", "get", "people", "emial"), 3, "did you mean email?"),
    (("attributes", "create", "people", "--name", "Size", "--type", "numbr"), 9, "did you mean number?"),
    (("bulk", "import", "people", "-", "--on-error", "contine"), 2, "did you mean continue?"),
    (("files", "upload", "x", "--bukcet", "b"), 2, "did you mean --bucket?"),
    (("config", "set", "ouput", "json"), 2, "did you mean output?"),
    (("schema", "dif"), 2, "did you mean: crmctl schema diff"),
    (("mirror", "sync", "peple"), 3, "did you mean people?"),
    (("bulk", "update", "people", "--filter", "statsu=new", "--set", "score=1", "--yes"), 2, "did you mean status?"),
    (("bulk", "update", "people", "--filter", "status=new", "--set", "scroe=1", "--yes"), 2, "did you mean score?"),
    (("bulk", "import", "people", "-", "--mode", "upsrt"), 2, "did you mean upsert?"),
    (("bulk", "import", "people", "-", "--format", "cvs"), 2, "did you mean csv?"),
    (("bulk", "export", "people", "--format", "cvs"), 2, "did you mean csv?"),
    (("config", "get", "tmeout"), 2, "did you mean timeout?"),
    (("auth", "can-i", "records:raed"), 2, "did you mean records:read?"),
    (("help", "filter"), 2, "did you mean filters?"),
    (("completion", "bsh"), 2, "did you mean bash?"),
]


def hint_of(result: Result) -> str:
    return str(result.error()["hint"])


def named(word: tuple[str, ...] | str | int) -> str:
    return " ".join(word) if isinstance(word, tuple) else ""


@pytest.mark.parametrize(("words", "code", "meant"), MISSPELT, ids=named)
def test_the_nearest_is_suggested_once(service_here: RunningService, words: tuple[str, ...], code: int, meant: str) -> None:
    hints = {hint_of(run_here(*words).exits(code)) for _ in range(2)}
    assert len(hints) == 1, "the order is stable"
    hint = hints.pop()
    assert meant in hint
    assert hint.count("did you mean") <= 1


@pytest.mark.parametrize(
    "words", [("bulk", "jobs", "--filter", "a=b"), ("objects", "list", "--set", "a=b"), ("members", "list", "--sort", "x")]
)
def test_an_option_that_the_command_does_not_have_is_not_suggested(words: tuple[str, ...]) -> None:
    hint = hint_of(run_here(*words).exits(2))
    assert hint == f"crmctl {words[0]} {words[1]} --help"


@pytest.mark.parametrize(("words", "hint"), HABITS, ids=[" ".join(words) for words, _ in HABITS])
def test_words_of_other_tools_get_a_hint(service_here: RunningService, words: tuple[str, ...], hint: str) -> None:
    """Return hints that are a command, or part of one, unchanged."""
    assert run_here(*words).exits(2).error()["hint"] == hint
    if hint.startswith("--filter"):
        run_here(*LIST, *shlex.split(hint)).ok()
    if hint.startswith("--sort"):
        run_here(*LIST, *shlex.split(hint)).ok()


@pytest.mark.parametrize(("condition", "without"), NOT_MEANT)
def test_a_value_keeps_its_quotes_with_a_note(service_here: RunningService, condition: str, without: str | None) -> None:
    said = run_here(*LIST, "--filter", condition).ok().err
    assert without in said if without else "compared with all of" not in said, said


def test_an_objects_name_as_a_command_leads_to_its_records(service_here: RunningService) -> None:
    assert hint_of(run_here("deals", "list").exits(2)).endswith("crmctl records list OBJECT"), "the cache is empty"
    run_here("objects", "list").ok()
    for words, meant in (
        (("deals", "list"), "crmctl records list deals"),
        (("deals",), "crmctl records list deals"),
        (("people", "get", "email=a@b.c"), "crmctl records get people"),
        (("peple", "list"), "crmctl records list people"),
        (("report", "list"), "did you mean: crmctl reports"),
        (("search", "Ada"), "did you mean: crmctl records search"),
        (("list", "people"), "did you mean: crmctl records list"),
        (("import", "people.csv"), "did you mean: crmctl bulk import"),
    ):
        assert hint_of(run_here(*words).exits(2)) == meant


LIBRARIES = (
    "[Errno",
    "Input should be",
    "Expecting",
    "Traceback",
    "Error(",
    "codec can't",
    "pydantic",
    "invalid literal",
    "tomlkit",
    "a bug",
)

ODD = [
    (*LIST, "--limit", "many"),
    (*LIST, "--limit", "1.5"),
    (*LIST, "--timeout", "soon"),
    (*LIST, "-q", "[0"),
    ("--json", "-o", "csv", *LIST),
    (*LIST, "--json", "-o", "csv"),
    ("records", "create", "people", "--data", '{"a":'),
    ("records", "create", "people", "--data", "@absent.json"),
    ("records", "create", "people", "--set", "score=many"),
    ("records", "create", "people", "--set", "birthday=31/31/2026"),
    ("records", "create", "people", "--set", "tags:=[1"),
    ("bulk", "import", "people", "absent.csv"),
    ("bulk", "import", "people", "."),
    ("bulk", "import", "people", "binary.csv"),
    ("bulk", "import", "people", "broken.json"),
    ("bulk", "import", "people", "broken.xlsx"),
    ("bulk", "export", "people", "-O", "/proc/nothing/people.csv"),
    ("bulk", "update", "people", "--ids", "absent.txt", "--set", "score=1", "--yes"),
    ("bulk", "apply", "broken.json", "--yes"),
    ("schema", "diff", "broken.yaml"),
    ("files", "upload", "absent.png", "--bucket", "b"),
    ("webhooks", "verify", "absent", "--secret", "whsec_AAAA", "--id", "1", "--timestamp", "x", "--signature", "y"),
    ("-p", "nobody", *LIST),
    ("--ca-bundle", "absent.pem", *LIST),
    ("--ca-bundle", "broken.json", *LIST),
    ("bulk", "import", "people", "sheet.xlsx"),
    ("bulk", "import", "people", "cut.csv.gz"),
    ("bulk", "import", "people", "huge.json"),
    ("bulk", "import", "people", "huge.jsonl"),
    ("bulk", "import", "people", "binary.csv", "--encoding", "idna"),
    ("bulk", "import", "people", "binary.csv", "--encoding", "utf-7"),
    ("bulk", "import", "people", "huge.json", "--map-file", "date.yaml"),
    ("bulk", "apply", "odd.plan", "--yes"),
    ("schema", "diff", "date.yaml"),
    ("records", "create", "people", "--set", f"score:={'9' * 5000}"),
    ("--base-url", "http://a:port", *LIST),
    ("--base-url", "http://a..\u00fc", *LIST),
    ("--timeout", "1e26", *LIST),
    (*LIST, "--limit", "9" * 5000),
    ("members", "list", "-q", "[?id > `1`]"),
    ("members", "list", "-q", "[::0]"),
    ("api", "GET", "http://[x"),
    ("api", "GET", "/\udcff"),
]


@pytest.mark.parametrize("words", ODD, ids=lambda words: ascii(" ".join(words))[:60])
def test_no_library_speaks_to_the_user(
    service_here: RunningService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "binary.csv").write_bytes(b"email\n\xff\xfe\x00\x81\n")
    for name in ("broken.json", "broken.xlsx", "broken.yaml"):
        (tmp_path / name).write_text('{"a": [1, \n: }')
    (tmp_path / "date.yaml").write_text("email: 2026-99-99\n")
    (tmp_path / "huge.json").write_text(f'[{{"score": {"9" * 5000}}}]')
    (tmp_path / "huge.jsonl").write_text(f'{{"score": {"9" * 5000}}}\n')
    (tmp_path / "cut.csv.gz").write_bytes(gzip.compress(b"email\n" * 9)[:-9])
    (tmp_path / "odd.plan").write_text('{"kind": "crmctl merge plan", "format": 1, "object": 5}\n')
    with zipfile.ZipFile(tmp_path / "sheet.xlsx", "w") as book:
        book.writestr("[Content_Types].xml", "<a")
        book.writestr("xl/workbook.xml", "<")
    done = run_here(*words)
    assert done.code in (2, 9)
    assert done.error()["message"]
    assert [theirs for theirs in LIBRARIES if theirs in done.out + done.err] == [], done.err
