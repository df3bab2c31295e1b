"""Write an organization into a folder, from the mirror: the whole, or a part that is closed under references, as it is or masked."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from heapq import nsmallest
from pathlib import Path

from crmctl.bulk_context import BulkContext
from crmctl.errors import RejectedError, UsageError
from crmctl.match.keys import KEY_TYPES
from crmctl.mirror.file import writing_turn
from crmctl.mirror.local_copy import condition_test
from crmctl.models.ids import check_choice
from crmctl.models.jsontext import Json
from crmctl.models.resources import AttributeType, Record
from crmctl.org.compare import OrgTables, Side, object_option
from crmctl.org.folder import (
    ACTIVITY_ROWS,
    FILES,
    MEMBER_ROWS,
    PARTS,
    SCHEMA,
    SETTINGS,
    OrgFolder,
    OrgSettings,
    check_start,
    digest_of,
    new_content,
    source_digest,
    store_content,
    write_lines,
    write_section,
)
from crmctl.org.mask import Mask
from crmctl.org.organization import DISABLED, Organization, coverage, fetch_file, sync_organization
from crmctl.plan.job_run import requests_made
from crmctl.values import yaml_text
from crmctl.values.filters import check_slugs, parse_condition
from crmctl.values.moments import to_timestamp

LOCKS = "org"
NEVER_CONTAINED = (
    coverage("history", None, "the interface has no history; crmctl mirror changes emits it from now on"),
    coverage("times and authors of records", None, "the service sets them"),
    coverage("API keys and webhook secrets", None, "secrets never leave the service"),
)


def pull(
    context: BulkContext, folder: Path, *, objects: Sequence[str], parts: Sequence[str] | None, where: Sequence[str],
    sample: Sequence[str], max_records: int | None, mask_key: bytes | None,
) -> Json:  # fmt: skip
    """Sync the mirror and write the folder; return what it contains, whether it changed, and how many records references added to a subset.

    `objects` and `parts` replace the folder's settings. `mask_key` is None for no mask. Raises UsageError for a foreign folder,
    ServiceError for an unproven mirror.
    """
    with writing_turn(context.state / LOCKS / digest_of(str(folder.resolve())), context.clock, context.listener.note):
        check_start(folder, is_masked=mask_key is not None)
        settings = _settings(folder, objects, parts)
        organization = sync_organization(context, settings.chosen, settings.parts)
        organization.leave_out_other_entries()
        with organization.copy, OrgTables(organization.schema.objects) as tables:
            organization.copy.hold_still()
            mask = None if mask_key is None else Mask(mask_key, organization.present.attributes, settings.mask.get("keep", ()))
            for row in organization.rows():
                tables.add(Side.LEFT, row)
            added = _restrict(tables, organization, where, sample, max_records)
            is_subset = bool(where or sample)
            lost = tables.cut_open_links(Side.LEFT, is_subset=is_subset)
            facts = {"masked": mask is not None, "subset": is_subset, "source": source_digest(context.origin)}
            with new_content(folder) as place:
                manifest = _Writing(context, organization, tables, mask, place).write(lost) | facts
                is_changed = store_content(folder, place, manifest, _proposed(settings, organization))
    contents = OrgFolder(folder).manifest.model_dump(by_alias=True, exclude={"format", "proof", "files", "source"})
    return {"folder": str(folder), "changed": is_changed, "requests": requests_made(context), "added": added, **contents}


def _settings(folder: Path, objects: Sequence[str], parts: Sequence[str] | None) -> OrgSettings:
    path = folder / SETTINGS
    stored = OrgSettings.read(path) if path.exists() else OrgSettings()
    for part in parts or ():
        check_choice("--with", part, PARTS)
    update = {"objects": objects or stored.objects, "parts": stored.parts if parts is None else parts}
    return stored.model_copy(update=update)


# -- subsets -------------------------------------------------------------------------------------------------------------------------


def _restrict(
    tables: OrgTables, organization: Organization, where: Sequence[str], sample: Sequence[str], max_records: int | None
) -> dict[str, int]:
    """Leave only the records that match, or a sample of them, with every record they refer to; return how many each reference added.

    Raises UsageError for a malformed option, RejectedError for too many records.
    """
    attributes, tests, sizes = organization.present.attributes, defaultdict[str, list[Callable[[Record], bool]]](list), dict[str, int]()
    for text in where:
        slug, words = object_option(attributes, text, ":", "--where OBJECT:CONDITION, for example 'deals:stage=won'")
        condition = parse_condition(words)
        check_slugs([condition], [*attributes[slug].values()])
        tests[slug].append(condition_test(attributes[slug], condition))
    form = "--sample OBJECT=N, for example people=500"
    for text in sample:
        slug, number = object_option(attributes, text, "=", form)
        if not number.isdecimal():
            raise UsageError(f"{text!r} is not {form}")
        sizes[slug] = int(number)
    roots, added = list[tuple[str, str]](), dict[str, int]()
    for slug in {*tests, *sizes}:
        records = (Record(id=row_id, data=data) for row_id, data in tables.rows(Side.LEFT, slug))
        matching = (record.id for record in records if all(test(record) for test in tests[slug]))
        roots += ((slug, row_id) for row_id in (nsmallest(sizes[slug], matching, key=digest_of) if slug in sizes else matching))
    if where or sample:
        organization.notes.append(coverage("records outside the subset", None, "--where and --sample"))
        added = tables.keep_only(roots)
    total = sum(tables.count(Side.LEFT, slug) for slug in attributes)
    if max_records is not None and total > max_records:
        raise RejectedError(f"the folder would hold {total:,} records, --max-records says {max_records:,}", code="too_many_records")
    return added


# -- writing -------------------------------------------------------------------------------------------------------------------------


@dataclass
class _Writing:
    """The content of a folder, and the empty folder it goes to."""

    context: BulkContext
    organization: Organization
    tables: OrgTables
    mask: Mask | None
    place: Path

    def write(self, lost: Counter[str]) -> Json:
        """Write every data file; return what the manifest says of them. `lost`: how many references of each kind of row are left out."""
        organization, schema = self.organization, self.organization.schema.wire()
        if self.mask is not None:
            kinds = [*organization.objects, ACTIVITY_ROWS, MEMBER_ROWS]
            self.mask.see((kind, data) for kind in kinds for _, data in self.tables.rows(Side.LEFT, kind))
            self.mask.check_schema(schema)
        (self.place / SCHEMA).write_text(yaml_text.dumps(schema), encoding="utf-8")
        records = {
            slug: write_lines(self.place, f"records/{slug}", ({"id": row_id, "data": data} for row_id, data in self._rows(slug)))
            for slug in organization.objects
        }
        lines = ({"id": row_id} | data for row_id, data in self._rows(ACTIVITY_ROWS))
        activities = {"activities": write_lines(self.place, "activities", lines)} if organization.has_activities else {}
        chosen = [section for section in organization.entries if self.mask is None or section == "members"]
        sections = {section: self._section(section) for section in chosen}
        contained = records | activities | sections
        states = [state for crm_object in organization.objects.values() if (state := organization.copy.state(crm_object.id)) is not None]
        return {
            "asOf": to_timestamp(min((state.as_of for state in states), default=0)),
            "records": records,
            "activities": activities.get("activities", 0),
            "members": sections.get("members", 0),
            "sections": sections,
            "proof": {state.slug: state.proof for state in states},
            "coverage": [
                *(coverage(name, count, "they arrive disabled" if name in DISABLED else "") for name, count in contained.items()),
                *self._not_contained(contained, lost),
                *organization.notes,
                *NEVER_CONTAINED,
            ],
        }

    def _rows(self, kind: str) -> Iterator[tuple[str, Json]]:
        """Yield the rows as the folder may hold them."""
        for row_id, data in self.tables.rows(Side.LEFT, kind):
            yield row_id, data if self.mask is None else self.mask.row(kind, row_id, data)

    def _section(self, section: str) -> int:
        """Write a section; return the number of its entries."""
        shown, entries = self.organization.entries[section], dict(self._rows(f" {section}"))
        if section == FILES:
            (self.place / FILES).mkdir()
            entries = {name: fetch_file(self.context, shown[name], self.place / FILES) for name in entries}
        if section == "members":
            entries = {name: data | {"userId": shown[name]["userId"]} for name, data in entries.items()}
        write_section(self.place, section, [*entries.values()])
        return len(entries)

    def _not_contained(self, contained: Collection[str], lost: Counter[str]) -> Iterator[Json]:
        """Yield the coverage rows of what the service shows and the folder lacks."""
        organization, copy = self.organization, self.organization.copy
        named = {*contained, *(row["content"] for row in organization.notes)}
        for part in [part for part in PARTS if part not in named]:
            yield coverage(part, None, "left out of a masked folder" if part in organization.entries else "not chosen")
        if any("headers" in action for entry in organization.entries.get("workflows", {}).values() for action in entry["actions"]):
            yield coverage("headers of callUrl actions", None, "they may hold secrets")
        ids = {crm_object.id for crm_object in organization.objects.values()}
        for slug, crm_object in organization.objects.items():
            for excluded in sorted(organization.excluded(slug)):
                yield coverage(f"{slug}.{excluded}", None, "excluded from the mirror")
            for attribute in copy.attributes(crm_object.id):
                if attribute.is_active is False:
                    yield coverage(f"{slug}.{attribute.slug}", None, "the attribute is inactive")
                elif attribute.type == AttributeType.REFERENCE and attribute.target_object_id not in ids:
                    yield coverage(f"{slug}.{attribute.slug}", None, "the ids are contained, the records they name are not")
            if lost[slug]:
                yield coverage(f"{slug}: references to deleted records", None, f"{lost[slug]:,} left out")


def _proposed(settings: OrgSettings, organization: Organization) -> OrgSettings:
    """Return the settings with the first unique attribute as the key of each object."""
    keys = {
        slug: attribute.slug
        for slug, attributes in organization.present.attributes.items()
        for attribute in reversed([*attributes.values()])
        if attribute.is_unique and attribute.type in KEY_TYPES and not attribute.is_list
    }
    return settings.model_copy(update={"keys": keys})
