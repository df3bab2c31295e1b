"""What the tests are worth: each mutation breaks one promise of bulk work in a copy of the source, and a named test must fail.

`python benchmarks/mutations.py [--only WORDS... | --record]`; ends with 1 when a mutation survives.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "mutations.md"


@dataclass(frozen=True)
class Mutation:
    """In `file`, `old` becomes `new`; `test` is the one that must notice."""

    name: str
    file: str
    old: str
    new: str
    test: str

    def mutated(self) -> str:
        """The text of the file with the mutation in it. Raises ValueError where the source has moved on."""
        text = (ROOT / "src" / "crmctl" / self.file).read_text()
        if text.count(self.old) != 1:
            raise ValueError(f"{self.name}: the place to change is there {text.count(self.old)} times in {self.file}")
        return text.replace(self.old, self.new)


CHURN = "tests/bulk/export/test_churn.py::"
KILLS = "tests/bulk/run/test_import_processes.py::test_a_killed_import_loses_and_doubles_nothing"
MACHINE = "tests/bulk/run/test_state_machine.py"
FAULTS = "tests/bulk/send/test_faults.py::"
EVIDENCE = "tests/bulk/send/test_evidence.py::"
MUTATIONS = (
    Mutation(
        "a batch leaves before it is down as SENDING",
        "bulk/send/sender.py",
        "self._journal.begin(number, batch, parent=self.task.parent)",
        "self._late = True",
        KILLS,
    ),
    Mutation(
        "what is about to leave is not brought to disk",
        "bulk/journal/journal.py",
        "with self._transaction():\n                self._assert_free(batch)",
        "with self._transaction(durable=False):\n                self._assert_free(batch)",
        "tests/bulk/journal/test_journal.py::test_what_is_about_to_leave_is_brought_to_disk",
    ),
    Mutation(
        "rows in doubt are sent again without being read back",
        "bulk/send/reconcile.py",
        "            view = self.evidence.look(parked, thoroughly=is_due)\n",
        "            view = type(self.evidence.look(parked, thoroughly=False))(conclusive=True)\n"
        "            is_due, parked.last, parked.sent_at = True, frozenset(), 0.0\n",
        FAULTS + "test_what_can_be_told_is_told",
    ),
    Mutation(
        "absence needs no positive control",
        "bulk/send/methods.py",
        "        if self.works or (confirmed is None and self.control is None):\n            return self.works\n",
        "        return True\n",
        "tests/bulk/send/test_reconcile.py::test_a_filter_that_finds_nothing_proves_nothing",
    ),
    Mutation(
        "the prefix of markers does not end in a separator",
        "bulk/rows/markers.py",
        'return f"{self.job}.{group}."',
        'return f"{self.job}.{group}"',
        "tests/bulk/rows/test_markers.py::test_one_group_is_not_the_beginning_of_another",
    ),
    Mutation(
        "rows are declared absent at the first look",
        "bulk/send/reconcile.py",
        "elif is_due and parked.last == found and now >= parked.sent_at + self._settle:",
        "elif (view := self.evidence.look(parked, thoroughly=True)):",
        FAULTS + "test_what_can_be_told_is_told",
    ),
    Mutation(
        "what is not found is absent, however many records there are",
        "bulk/send/evidence.py",
        "if left == 0 or (is_told and",
        "if left >= 0 or (is_told and",
        EVIDENCE + "test_a_node_that_is_behind_is_found_out_over_a_socket",
    ),
    Mutation(
        "lists that show too few records are believed",
        "bulk/send/evidence.py",
        "            if left < 0:\n                return Look(seen, why=TOO_FEW)\n",
        "            left = max(left, 0)\n",
        EVIDENCE + "test_nothing_is_absent_from_lists_that_have_stopped",
    ),
    Mutation(
        "lists that show nothing newer are believed",
        "bulk/send/evidence.py",
        "newer = bool(seen.found) or self.is_newer(sent) or",
        "newer = True or",
        EVIDENCE + "test_a_list_without_any_new_record_proves_nothing",
    ),
    Mutation(
        "a refusal is believed without being read back",
        "bulk/send/sender.py",
        "            if not verdict.questionable:\n",
        "            if True:\n",
        EVIDENCE + "test_what_was_refused_after_its_commit_is_found",
    ),
    Mutation(
        "records that were there before the job count as new",
        "bulk/read/read_back.py",
        "return self.is_whole or (self.oldest is not None",
        "return True or (self.oldest is not None",
        EVIDENCE + "test_records_like_the_rows_from_just_before_the_job_are_not_the_rows",
    ),
    Mutation(
        "a timestamp without a zone cannot be read",
        "models/timestamps.py",
        "return moment if moment.tzinfo else moment.replace(tzinfo=UTC)",
        "return moment if moment.tzinfo else None",
        EVIDENCE + "test_times_without_a_zone_cost_nothing_more",
    ),
    Mutation(
        "an update is repeated over what was changed within the margin of clocks",
        "bulk/send/update_replay_check.py",
        "changed_at < sent_at - CLOCK_MARGIN",
        "changed_at < sent_at + CLOCK_MARGIN",
        "tests/bulk/send/test_update_replay_check.py",
    ),
    Mutation(
        "nothing is counted at the end",
        "bulk/run/import_run.py",
        "counted = reconciler.evidence.verdict() if delivery.error is None and last is None else None",
        "counted = None",
        EVIDENCE + "test_the_count_at_the_end_says_when_something_is_there_twice",
    ),
    Mutation(
        "a job that goes on begins behind rows in doubt",
        "bulk/journal/database.py",
        "AND batch.state NOT IN ('CONFIRMED', 'RECONCILED') ",
        "AND batch.state IN ('UNKNOWN') ",
        KILLS,
    ),
    Mutation(
        "a job that goes on begins behind rows that were never sent",
        "bulk/journal/database.py",
        "SELECT ordinal + 1 FROM row AS this",
        "SELECT ordinal + 101 FROM row AS this",
        KILLS,
    ),
    Mutation(
        "rows are found a little behind the place where they are",
        "bulk/send/entry_spool.py",
        "_entry(line).ordinal <= ordinal:",
        "_entry(line).ordinal <= ordinal + 50:",
        "tests/bulk/send/test_entry_spool.py",
    ),
    Mutation(
        "the counts forget rows in doubt",
        "bulk/journal/journal.py",
        "counts[RowState.IN_DOUBT] += sums[2]",
        "counts[RowState.IN_DOUBT] += 0",
        MACHINE,
    ),
    Mutation(
        "a request of which nobody knows whether it arrived is given back to the budget",
        "client/rate_limit/ledger.py",
        "            if never_sent:\n",
        "            if True:\n",
        "tests/client/rate_limit/test_limiter.py::test_only_a_request_that_never_left_is_given_back",
    ),
    Mutation(
        "what a service says back is written down as it is",
        "client/redaction.py",
        "error.message = self.without_key(error.message)",
        "pass",
        "tests/client/http/test_session.py::test_the_key_is_never_said",
    ),
    Mutation(
        "undo deletes what somebody has changed since",
        "bulk/usecases/undo.py",
        "    if row.edited:\n",
        "    if False:\n",
        "tests/bulk/usecases/test_undo.py",
    ),
    Mutation(
        "a page counts although it does not begin with what was read",
        "bulk/read/stable_pages.py",
        "if at.offset == 0 or (page.rows and at.passed(page.keys[0], page.rows[0].id)):",
        "if True:",
        CHURN + "test_nothing_that_existed_throughout_is_lost_or_stale",
    ),
    Mutation(
        "the offset advances by the length of the page",
        "bulk/read/stable_pages.py",
        "at.offset = page.offset + max(0, known - math.ceil(self._overlap))",
        "at.offset = page.offset + len(keys)",
        CHURN + "test_requests_stay_near_those_of_plain_paging",
    ),
    Mutation(
        "all walks of a group are united, whatever was deleted between them",
        "bulk/read/tie_groups.py",
        "(since,)).fetchone()[0])",
        "(0,)).fetchone()[0])",
        CHURN + "test_a_record_read_and_deleted_does_not_stand_for_one_that_was_missed",
    ),
    Mutation(
        "an order of ties is trusted although it changes",
        "bulk/read/order_evidence.py",
        "if common == sorted(common) else -math.inf",
        "if common else 0.0",
        CHURN + "test_nothing_that_existed_throughout_is_lost_or_stale",
    ),
    Mutation(
        "an export does not go back over what changed while it read",
        "bulk/export/passes.py",
        "self._enter(Phase.PRUNE if self._options.prune else Phase.CHANGES)",
        "self._enter(Phase.DONE)",
        CHURN + "test_nothing_that_existed_throughout_is_lost_or_stale",
    ),
    Mutation(
        "a list that ends early is believed",
        "bulk/read/full_scan.py",
        "if self.state.by_time and (failure or self.state.closing or self.state.rows >= PAGE_LIMIT):",
        "if False:",
        CHURN + "test_a_list_that_ends_at_some_depth_is_read_from_both_ends",
    ),
    Mutation(
        "records of an export and its position are written apart",
        "bulk/export/collected_records.py",
        'self._db.execute("BEGIN IMMEDIATE")',
        'self._db.execute("BEGIN IMMEDIATE") if self._db.execute("SELECT count(*) FROM record").fetchone()[0] % 200 else None',
        "tests/bulk/usecases/test_export_processes.py::test_an_export_that_is_killed_goes_on_where_it_was",
    ),
)


def is_noticed(mutation: Mutation) -> bool:
    """Whether the test passes on the source as it is, and fails on the mutated copy."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)
        for part in ("src", "tests"):
            shutil.copytree(ROOT / part, copy / part, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(ROOT / "pyproject.toml", copy)
        whole = passes(copy, mutation.test)
        (copy / "src" / "crmctl" / mutation.file).write_text(mutation.mutated())
        return whole and not passes(copy, mutation.test)


def passes(folder: Path, test: str) -> bool:
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-p", "no:randomly", test]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder / "src"), str(folder)]), "PYTHONDONTWRITEBYTECODE": "1", "CI": "1"}
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, timeout=900, check=False).returncode == 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--record", action="store_true", help=f"write {RESULTS.name}")
    parser.add_argument("--only", nargs="+", default=[], metavar="WORDS", help="the mutations whose name has one of these in it")
    given = parser.parse_args()
    chosen = [one for one in MUTATIONS if not given.only or any(words in one.name for words in given.only)]
    try:
        for mutation in chosen:
            mutation.mutated()
    except ValueError as error:
        parser.error(str(error))
    table = ["| mutation | test | noticed |", "|---|---|---|"]
    survived = 0
    for mutation in chosen:
        noticed = is_noticed(mutation)
        survived += not noticed
        table.append(f"| {mutation.name} | `{mutation.test.rpartition('::')[2]}` | {'yes' if noticed else 'NO'} |")
        print(table[-1], flush=True)
    if given.record:
        RESULTS.write_text("# Mutations\n\nThe last result of `benchmarks/mutations.py`:\n\n" + "\n".join(table) + "\n")
    return 1 if survived else 0


if __name__ == "__main__":
    sys.exit(main())
