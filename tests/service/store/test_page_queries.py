"""Queries of the console pages that the interface does not have: labels, outcomes of runs, deletion."""

from __future__ import annotations

import pytest

from crmctl.service.definitions.definitions_file import parse_document, store_report, store_workflow
from crmctl.service.faults import NotFound
from crmctl.service.store import preferences, record_history, records, reports, workflows
from crmctl.service.store.reports import ReportOutcome
from crmctl.service.store.tx import to_micros
from tests.service.store.conftest import Store, new_id


def test_records_are_found_by_label(store: Store) -> None:
    people = store.standard("people")
    ada = store.create(people, name={"first": "Ada", "last": "Lovelace"}, email="ada@example.com")["id"]
    adam = store.create(people, email="ADAM@example.com")["id"]
    store.create(people, name="Grace % Hopper", job_title="ada")

    def found(text: str) -> list[str]:
        return [record["label"] for record in store.read(lambda tx: records.find_by_label(tx, people, text))]

    assert found("ada") == ["Ada Lovelace", "ADAM@example.com"]
    assert found("LOVE") == ["Ada Lovelace"]
    assert found("% h") == ["Grace % Hopper"]
    assert found("nobody") == found(" ") == []
    store.create(people, name={"first": "Søren", "last": "Müller-Łódź"})
    assert found("mull soren") == found("MÜLLER lodz") == found("-Ł") == ["Søren Müller-Łódź"]
    assert found("m.ller") == found("[a-z]") == found("m?ller") == []
    labels = store.read(lambda tx: records.labels_of(tx, people, [ada, adam, new_id()]))
    assert labels == {ada: "Ada Lovelace", adam: "ADAM@example.com"}


def test_lists_are_sorted_by_any_attribute_with_empty_values_last(store: Store) -> None:
    deals, companies = store.standard("deals"), store.standard("companies")
    acme, zoo = (store.create(companies, name=name)["id"] for name in ("acme", "Zoo"))
    for name, stage, amount, company in (
        ("a", "won", 9, zoo),
        ("b", "lead", {"amount": 10, "currency": "EUR"}, acme),
        ("c", None, None, None),
    ):
        data = {"stage": stage, "amount": amount, "company": company}
        store.create(deals, name=name, **{slug: value for slug, value in data.items() if value is not None})

    def names(slug: str, order: str = "asc") -> str:
        page = records.Paging(order=order, limit=2, offset=0)
        part = store.read(lambda tx: records.Search(tx, deals).sorted_part(records.order_by(tx, deals, slug), page))
        assert part.total == 3
        return "".join(record["data"]["name"] for record in part.records)

    assert [names(slug) for slug in ("name", "stage", "amount", "company")] == ["ab", "ba", "ab", "ba"]
    assert [names(slug, "desc") for slug in ("name", "stage", "amount", "company")] == ["cb", "ab", "ba", "ab"]


def test_changes_at_a_moment_and_deleted_records_are_found(store: Store) -> None:
    companies = store.standard("companies")
    acme, zoo = (store.create(companies, name=name)["id"] for name in ("acme", "zoo"))
    store.clock.advance(1)
    at = to_micros(store.clock.now())
    items = [{"id": record_id, "data": {"industry": "retail"}} for record_id in (acme, zoo)]
    store.write(records.bulk_write, companies, "upsert", items)
    assert {change[:1] for change in changed(store, companies, at)} == {(acme,), (zoo,)}
    assert all(is_newest for _, _, is_newest in changed(store, companies, at))
    store.clock.advance(1)
    store.write(records.delete_record, companies, zoo)
    assert {each: is_newest for each, _, is_newest in changed(store, companies, at)} == {acme: True, zoo: False}
    [gone] = store.read(lambda tx: record_history.deleted_records(tx, companies, 9, 0))
    assert (gone["id"], gone["data"]["name"]) == (zoo, "zoo")
    assert changed(store, companies, at, "member:nobody") == []
    assert [record["id"] for record in store.read(lambda tx: records.get_records(tx, companies, [zoo, acme, "x"]))] == [acme]


def changed(store: Store, object_id: str, at: int, actor: str | None = None) -> list[tuple[str, str, bool]]:
    return store.read(lambda tx: record_history.changed_at(tx, object_id, at, actor))


def test_views_belong_to_an_object(store: Store) -> None:
    people, deals = store.standard("people"), store.standard("deals")
    for owner, name, is_shared in (("a", "B", True), ("a", "a", False), ("b", "c", False), ("a", "B", False)):
        view = {"name": name, "query": "q=x&", "owner": owner, "isShared": is_shared}
        store.engine.write(lambda tx, view=view: preferences.save_view(tx, people, new_id(), view))

    def names(object_id: str, owner: str) -> list[str]:
        return [view["name"] for view in store.read(lambda tx: preferences.list_views(tx, object_id, owner))]

    assert (names(people, "a"), names(people, "b"), names(deals, "a")) == (["a", "B"], ["c"], [])
    with pytest.raises(NotFound):
        store.read(lambda tx: preferences.get_view(tx, deals, "x"))


def test_reports_and_workflows_are_renamed_and_deleted_with_their_runs(store: Store) -> None:
    report_text = "reports: [{name: R, object: people}]"
    action = "actions: [{type: createActivity, title: T}]"
    text = f"{report_text}\nworkflows:\n- {{name: W, trigger: activity/created, {action}}}"
    document = parse_document(text)
    store.write(lambda tx, **stamp: store_report(tx, document.reports[0], **stamp))
    store.write(lambda tx, **stamp: store_workflow(tx, document.workflows[0], **stamp))
    [report], [workflow] = store.read(reports.list_reports), store.read(workflows.list_workflows)
    for error in (None, "broken"):
        outcome = ReportOutcome(["a"], "[]", 0, error=error)
        store.write(lambda tx, outcome=outcome, **stamp: reports.add_run(tx, report["id"], outcome, started_at=stamp["now"], **stamp))
    assert store.read(reports.last_runs)[report["id"]]["status"] == reports.FAILED
    assert store.read(lambda tx: reports.count_runs(tx, report["id"])) == 2
    assert store.read(lambda tx: workflows.recent_outcomes(tx, workflow["id"])) == {
        "ended": 0,
        "completed": 0,
        "failed": 0,
        "last": None,
    }
    store.engine.write(lambda tx: (reports.rename_report(tx, report["id"], "R2"), workflows.rename_workflow(tx, workflow["id"], "W2")))
    assert (store.read(reports.list_reports)[0]["name"], store.read(workflows.list_workflows)[0]["name"]) == ("R2", "W2")
    store.engine.write(lambda tx: (reports.delete_report(tx, report["id"]), workflows.delete_workflow(tx, workflow["id"])))
    assert store.read(reports.last_runs) == {}
    with pytest.raises(NotFound):
        store.read(lambda tx: reports.get_report(tx, report["id"]))
