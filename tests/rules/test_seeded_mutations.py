"""The mutations that the benchmark draws: valid, one line each, different from the source, and the same for the same seed."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from benchmarks import seeded_mutations
from benchmarks.seeded_mutations import EQUIVALENT, Mutant, draw, mutants_of

from tests.support.sources import ROOT


@pytest.mark.parametrize("package", ["crmctl.bulk.journal", "crmctl.client.rate_limit.ledger", "crmctl.service.values"])
def test_every_mutation_changes_what_one_line_does(package: str) -> None:
    mutants = draw(package, 40, seed=1)
    assert len(set(mutants)) == 40
    for mutant in mutants:
        source = (ROOT / mutant.file).read_bytes()
        mutated = mutant.apply(source)
        changed = [number for number, (old, new) in enumerate(zip(source.splitlines(), mutated.splitlines(), strict=True), 1) if old != new]
        assert changed == [mutant.line]
        assert ast.dump(ast.parse(mutated)) != ast.dump(ast.parse(source)), mutant.describe()


def test_a_seed_always_draws_the_same() -> None:
    assert draw("crmctl.client", 20, seed=7) == draw("crmctl.client", 20, seed=7)
    assert draw("crmctl.client", 20, seed=7) != draw("crmctl.client", 20, seed=8)


def test_every_kind_of_mutation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seeded_mutations, "ROOT", tmp_path)
    file = tmp_path / "x.py"
    file.write_text(
        '"""Words."""\n'
        "def f(a: int = 1) -> 'list[2]':\n"
        "    log(a)\n"
        "    if not a and a < 3 or a is None:\n"
        "        é = 'é'; return a + 4\n"
        "    text = 'x' + a + f'{5 < a}'\n"
        "    return a if True else None\n"
    )
    assert {(mutant.line, mutant.old, mutant.new) for mutant in mutants_of(file)} == {
        (2, "1", "2"),
        (3, "log(a)", "pass"),
        (4, "not a and a < 3 or a is None", "((not a and a < 3) and a is None)"),
        (4, "not a and a < 3", "(not a or a < 3)"),
        (4, "not a", "(a)"),
        (4, "a < 3", "(a <= 3)"),
        (4, "3", "4"),
        (4, "a is None", "(a is not None)"),
        (5, "return a + 4", "return None"),
        (5, "a + 4", "(a - 4)"),
        (5, "4", "5"),
        (7, "return a if True else None", "return None"),
        (7, "a if True else None", "(None if True else a)"),
        (7, "True", "False"),
    }


def test_the_tests_of_a_package_lie_where_it_does() -> None:
    assert seeded_mutations.tests_of("crmctl.bulk.rows") == ["tests/bulk/rows"]
    assert seeded_mutations.tests_of("crmctl.bulk.rows.markers") == ["tests/bulk/rows"]
    assert seeded_mutations.tests_of("crmctl.bulk.journal.lease") == ["tests/bulk/journal", "tests/bulk/run/test_lost_requests.py"]
    assert seeded_mutations.tests_of("crmctl.bulk.undo.restore") == ["tests/bulk/usecases/test_undo.py"]
    assert seeded_mutations.tests_of("crmctl.clock") == ["tests"]


def test_every_package_has_tests_of_its_own() -> None:
    """All tests together would say little about a package, and take an hour for every mutation."""
    for folder in sorted({file.parent for file in (ROOT / "src" / "crmctl").glob("*/**/*.py")}):
        tests = seeded_mutations.tests_of(".".join(folder.relative_to(ROOT / "src").parts))
        assert tests != ["tests"], folder
        assert all((ROOT / place).exists() for place in tests), folder


def test_what_imports_the_mutated_module_is_tested_first() -> None:
    mutant = Mutant("src/crmctl/bulk/rows/markers.py", 0, 0, "", 1, "")
    files = seeded_mutations.nearest_first(["tests/bulk/rows"], mutant)
    assert "crmctl.bulk.rows.markers" in (ROOT / files[0]).read_text()
    assert sorted(files) == sorted(file.relative_to(ROOT).as_posix() for file in (ROOT / "tests/bulk/rows").glob("test_*.py"))
    assert seeded_mutations.nearest_first(["tests/rules/test_sizes.py"], mutant) == ["tests/rules/test_sizes.py"]


@pytest.mark.parametrize("file", sorted({file for file, _, _ in EQUIVALENT}))
def test_what_counts_as_equivalent_is_still_there(file: str) -> None:
    known = {(old, new) for name, old, new in EQUIVALENT if name == file}
    assert known <= {(mutant.old, mutant.new) for mutant in mutants_of(ROOT / "src" / "crmctl" / file)}


def test_the_number_of_a_bound_is_no_place_for_a_mutation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seeded_mutations, "ROOT", tmp_path)
    file = tmp_path / "x.py"
    file.write_text("MOST = 10\nLEAST: int = 2\nCELLS, LENGTH = 4096, 40\nfew = 3\nPLACES = [5]\nIS_ON = True\n")
    assert [(mutant.line, mutant.new) for mutant in mutants_of(file)] == [(4, "4"), (5, "6"), (6, "False")]
