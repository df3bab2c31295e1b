"""Help for the files that define reports and workflows, and the example that `crmctl reports init` prints."""

from __future__ import annotations

from crmctl.cli.help_text import HelpPage, Section

REPORT_FILE = """\
# Load it with: crmctl service load FILE        Explained by: crmctl help report-files
reports:
  # One result per group, with measures.
  - name: Deals by stage
    description: Number and value of the deals in each stage
    object: deals
    filters:
      - {attributeSlug: stage, operator: notEquals, value: lost}
    groupBy: stage
    measures:
      - {function: count}
      - {function: sum, attribute: amount}
    sort: {field: count, order: desc}

  # One result per record.
  - name: Newest people
    object: people
    filters:
      - {attributeSlug: email, operator: isNotEmpty}
    columns: [name, email, company, created_at]
    sort: {field: created_at, order: desc}
    limit: 100
"""

_LOADED = "Loading changes the report of this name or creates it, and never deletes one. The console shows it in the same form."
_FILTERS = ("filters", "conditions that all hold: {attributeSlug, operator, value}; crmctl help filters lists the operators")

REPORT_FILES = HelpPage(
    usage="crmctl reports init > reports.yaml; crmctl service load reports.yaml",
    description=f"A YAML file with the reports of crmctl's own service. {_LOADED}",
    sections=[
        Section(
            "Fields of an entry of reports:",
            [
                ("name, object", "required: a unique name, and the slug of the object"),
                ("description", "a text for readers"),
                (_FILTERS[0], _FILTERS[1]),
                ("columns", "one result per record: slugs, id, created_at, updated_at; without it all attributes"),
                ("groupBy", "instead of columns: one result per value of this attribute"),
                ("groupPeriod", "with the groupBy of a date: day, week, month, quarter or year"),
                ("measures", "{function, attribute}: count (also without an attribute), sum, avg, min, max"),
                ("sort", "{field, order}: a column of the results, asc or desc"),
                ("limit", "most results, up to 100,000; 10,000 by default"),
            ],
        ),
        Section("Names of measures", [("count, sum_amount", "the function, and the slug of its attribute")]),
    ],
    examples=["crmctl service load reports.yaml --dry-run", "crmctl reports run 'Deals by stage'"],
    footer="crmctl service dump prints the reports that a service has.",
)

WORKFLOW_FILES = HelpPage(
    usage="crmctl service load workflows.yaml",
    description=f"A YAML file with the workflows of crmctl's own service. {_LOADED.replace('report', 'workflow')}",
    sections=[
        Section(
            "Fields of an entry of workflows:",
            [
                ("name, trigger", "required; triggers: record/created, record/updated, record/deleted,"),
                ("", "activity/created, activity/updated, activity/deleted, schedule"),
                ("object", "slug of the object; required for triggers of records"),
                ("description, enabled", "a text for readers; false switches the workflow off"),
                ("cron, timezone", "with the trigger schedule: '0 6 * * 1', Europe/Berlin"),
                ("conditions", _FILTERS[1]),
                ("actions", "up to 20, carried out in order"),
            ],
        ),
        Section(
            "Actions",
            [
                ("type: updateRecord", "data; object and recordId name another record"),
                ("type: createRecord", "object, data"),
                ("type: createActivity", "title, summary, activityDate, linkedRecords, participants"),
                ("type: callUrl", "url, headers, body; repeat: true calls again after a crash"),
            ],
        ),
        Section("Values", [("'{{ record.data.email }}'", "a template; steps and event are known as well")]),
    ],
    examples=["crmctl service load workflows.yaml --dry-run", "crmctl workflows run 'Greet new people' --wait"],
    footer="crmctl service dump prints the workflows that a service has.",
)
