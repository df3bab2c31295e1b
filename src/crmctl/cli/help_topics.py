"""The topics of `crmctl help` that belong to no single command, and the example that `crmctl reports init` prints."""

from __future__ import annotations

from crmctl.cli.app import describe_common_options
from crmctl.cli.help_text import HelpPage, option_rows
from crmctl.config.output_formats import OUTPUT_FORMATS
from crmctl.dedupe.merge_plan import SURVIVOR_RULES, VALUE_RULES
from crmctl.dedupe.rules import (
    ALSO_NAMES,
    BY_TYPE,
    BY_WORD,
    FORMS,
    GLUED_FORMS,
    LEGAL_FORMS,
    MEASURES,
    NO_DATES,
    NO_VALUES,
    ROLE_MAILBOXES,
    STREET_WORDS,
    TITLES,
)
from crmctl.errors import EXIT_CODE_MEANINGS
from crmctl.values.operators import Operator


def _operator_rows() -> list[tuple[str, str]]:
    """Return the lines of the operators: those with a help text each with its negation, the others by kind."""
    lines: dict[str, list[Operator]] = {}
    for operator in Operator:
        meaning = operator.positive.meaning
        line = "no value" if not operator.takes_value else operator.positive if meaning.help else meaning.kind.value
        lines.setdefault(line, []).append(operator)
    valueless = lines.pop("no value")
    rows = []
    for operators in lines.values():
        helps = "; ".join(operator.meaning.help for operator in operators if operator.meaning.help)
        signs = "  ".join(operator.meaning.sign or "" for operator in operators)
        rows.append((signs, ", ".join(operators) + (f": {helps}" if helps else "")))
    rows.append(("in, not in", "'stage in won,lost', 'stage not in \"on hold, late\"'"))
    return [*rows, ("no value", f"{', '.join(valueless)}: 'phone isEmpty'")]


def _format_rows() -> list[tuple[str, str]]:
    names: dict[str, list[str]] = {}
    for name, row in OUTPUT_FORMATS.items():
        names.setdefault(row.help, []).append(name)
    return [(", ".join(alike), text) for text, alike in names.items()]


def _used_for(form: str) -> str:
    types = [kind for kind, name in BY_TYPE.items() if name == form and kind != "text"]
    words = [word for word, name in BY_WORD.items() if name == form]
    uses = [f"type {', '.join(types)}"] if types else []
    uses += [f"text with {', '.join(words)} in its slug"] if words else []
    return "; ".join(uses)


def _forms_measured(measure: str) -> str:
    forms = [form.name for form in FORMS.values() if form.measure == measure]
    return ", ".join(forms) if len(forms) < 4 else "other forms"


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
_FILTERS = "conditions that all hold: {attributeSlug, operator, value}; crmctl help filters lists the operators"

PAGES: dict[str, HelpPage] = {
    "exit-codes": HelpPage(
        usage="crmctl <command>; echo $?",
        sections={"Exit codes": [(str(int(code)), meaning) for code, meaning in EXIT_CODE_MEANINGS.items()]},
    ),
    "filters": HelpPage(
        usage="--filter 'ATTRIBUTE OPERATOR VALUE', repeatable: all must match",
        sections={
            "Operators: sign, or word in any case": _operator_rows(),
            "Targets": [
                ("a part", "'address.city=Rome', 'name.first~ad', 'amount>1000 EUR'"),
                ("a reference", "'company=Acme' looks up the name, 'company.domain=acme.com' any field; 'company=ID'"),
                ("a moment", "'created_at<2y', 'updated_at>-30d', 'birthday>=1990-01-01',"),
                ("", "'created_at=today', yesterday, 3mo; = a day is all of that day"),
                ("wire form", "'email[contains]=acme': every byte after = is the value"),
            ],
        },
        examples=["crmctl records list people --filter 'email$=@acme.com' --filter 'score>=90'"],
        footer="--strict makes an impossible value an error. Many requests are announced first.",
    ),
    "matching": HelpPage(
        usage="crmctl bulk dedupe OBJECT --match EXPR [--match EXPR ...] [--keep RULE ...]",
        description="Records match when all terms of one --match hold. Empty values never match.",
        sections={
            "Terms": [
                ("email", "equal in the attribute's normal form"),
                ("name~0.92", "similarity of at least 0.92 (from 0.5 to 0.99)"),
                ("website:domain", "equal in another normal form; address.city: a part of a value"),
                ("first+last:name~0.9", "several attributes as one text"),
                ("born~0.6?", "must hold only if both records have a value"),
            ],
            "Normal forms": [(form.name, form.about) for form in FORMS.values()],
            "Measures of similarity (~)": [(_forms_measured(name), about) for name, about in MEASURES.items()],
            "Which record survives (--keep)": list(SURVIVOR_RULES.items()),
            "Which value it gets (--keep ATTR=)": list(VALUE_RULES.items()),
        },
        examples=["crmctl bulk dedupe people --match 'name~0.9,phone,born?' --keep phone=newest --review"],
        footer="crmctl help matching-words: default forms, ignored words",
    ),
    "matching-words": HelpPage(
        usage="crmctl help matching-words",
        sections={
            "Default form of an attribute": [(form, text) for form in FORMS if (text := _used_for(form))],
            "Words ignored or read as others": [
                ("titles", " ".join(sorted(TITLES))),
                ("legal forms", " ".join((*sorted(LEGAL_FORMS), *GLUED_FORMS))),
                ("streets", " ".join(f"{word}={read}" for word, read in sorted(STREET_WORDS.items()))),
            ],
            "Values ignored except in the form exact": [
                ("words", f"{', '.join(sorted(NO_VALUES))}; 000, 999999"),
                ("but names", ", ".join(sorted(ALSO_NAMES))),
                ("dates", " ".join(f"{day[:4]}-{day[4:6]}-{day[6:]}" for day in sorted(NO_DATES))),
                ("mailboxes", f"{' '.join(sorted(ROLE_MAILBOXES))}; test@test.com"),
            ],
        },
    ),
    "output": HelpPage(
        usage=f"crmctl <command> --output {'|'.join(OUTPUT_FORMATS)}",
        description="stdout carries data only; all else goes to stderr. On a terminal the default is a table, in a pipe it is JSON.",
        sections={
            "Formats": _format_rows(),
            "On stderr, with any format but table": [
                ("error", "one JSON object, always the last line: tail -n 1 | jq .error.code"),
                ("warning: ...", "one line each, before it; without a warning the object is all there is"),
                ("findings", "in .error.details, where a run that has some ends with an error"),
                ("notes", "at the end of a run that succeeds; at once when it is long and progress is shown"),
            ],
        },
        examples=[
            "crmctl records list people --fields name,email",
            "crmctl records list people --query '[].data.email'",
            "crmctl records list people --all -o csv --excel-safe > people.csv",
        ],
    ),
    "options": HelpPage(usage="crmctl [options] <command> [options]", sections={"Common options": option_rows(describe_common_options())}),
    "environment": HelpPage(
        usage="CRMCTL_NAME=value crmctl <command>",
        description="A flag wins over the environment, the environment over the profile, the profile over the default.",
        sections={
            "Variables": [
                ("CRMCTL_API_KEY", "the API key; wins over the keyring"),
                ("CRMCTL_BASE_URL", "the service's address"),
                ("CRMCTL_ID_TOKEN, CRMCTL_ID_TOKEN_FILE", "the identity token of a CI job, for auth login --oidc"),
                ("CRMCTL_PROFILE", "the profile to use"),
                ("CRMCTL_OUTPUT", "the default output format"),
                ("CRMCTL_TIMEOUT", "longest wait for one answer, in seconds"),
                ("CRMCTL_NO_INPUT", "never ask"),
                ("CRMCTL_READ_ONLY", "refuse every write before any request"),
                ("CRMCTL_WEBHOOK_SECRET", "the signing secret of webhooks listen and verify"),
                ("CRMCTL_CONFIG_DIR, CRMCTL_STATE_DIR, CRMCTL_CACHE_DIR", "folders of settings, jobs and caches"),
                ("NO_COLOR, CLICOLOR_FORCE", "colour off, colour on"),
                ("HTTPS_PROXY, NO_PROXY, SSL_CERT_FILE", "the usual network settings"),
            ],
        },
        examples=["CRMCTL_API_KEY=... CRMCTL_BASE_URL=https://crm.example.com crmctl records count people"],
    ),
    "report-files": HelpPage(
        usage="crmctl reports init > reports.yaml; crmctl service load reports.yaml",
        description=f"A YAML file with the reports of crmctl's own service. {_LOADED}",
        sections={
            "Fields of an entry of reports:": [
                ("name, object", "required: a unique name, and the slug of the object"),
                ("description", "a text for readers"),
                ("filters", _FILTERS),
                ("columns", "one result per record: slugs, id, created_at, updated_at; without it all attributes"),
                ("groupBy", "instead of columns: one result per value of this attribute"),
                ("groupPeriod", "with the groupBy of a date: day, week, month, quarter or year"),
                ("measures", "{function, attribute}: count (also without an attribute), sum, avg, min, max"),
                ("sort", "{field, order}: a column of the results, asc or desc"),
                ("limit", "most results, up to 100,000; 10,000 by default"),
            ],
            "Names of measures": [("count, sum_amount", "the function, and the slug of its attribute")],
        },
        examples=["crmctl service load reports.yaml --dry-run", "crmctl reports run 'Deals by stage'"],
        footer="crmctl service dump prints the reports that a service has.",
    ),
    "workflow-files": HelpPage(
        usage="crmctl service load workflows.yaml",
        description=f"A YAML file with the workflows of crmctl's own service. {_LOADED.replace('report', 'workflow')}",
        sections={
            "Fields of an entry of workflows:": [
                ("name, trigger", "required; triggers: record/created, record/updated, record/deleted,"),
                ("", "activity/created, activity/updated, activity/deleted, schedule"),
                ("object", "slug of the object; required for triggers of records"),
                ("description, enabled", "a text for readers; false switches the workflow off"),
                ("cron, timezone", "with the trigger schedule: '0 6 * * 1', Europe/Berlin"),
                ("conditions", _FILTERS),
                ("actions", "up to 20, carried out in order"),
            ],
            "Actions": [
                ("type: updateRecord", "data; object and recordId name another record"),
                ("type: createRecord", "object, data"),
                ("type: createActivity", "title, summary, activityDate, linkedRecords, participants"),
                ("type: callUrl", "url, headers, body; repeat: true calls again after a crash"),
            ],
            "Values": [("'{{ record.data.email }}'", "a template; steps and event are known as well")],
        },
        examples=["crmctl service load workflows.yaml --dry-run", "crmctl workflows run 'Greet new people' --wait"],
        footer="crmctl service dump prints the workflows that a service has.",
    ),
    "scheduling": HelpPage(
        usage="crmctl <command> --ping https://hc.example.com/ping/UUID",
        description="crmctl has no scheduler. These run a nightly check; --ping tells a monitor of start, success and failure.",
        sections={
            "systemd: crm-check.timer, with ExecStart=crmctl check --ping URL in crm-check.service": [
                ("[Timer]", "OnCalendar=*-*-* 06:00"),
                ("", "Persistent=true"),
            ],
            "cron": [("0 6 * * *", "cd /srv/crm && crmctl check --ping URL --quiet")],
            "GitHub: in the workflow's file": [("on:", "{schedule: [{cron: '0 6 * * *'}]}"), ("run:", "crmctl check --ping URL")],
            "GitLab: Build > Pipeline schedules, and in .gitlab-ci.yml": [
                ("rules:", "[{if: '$CI_PIPELINE_SOURCE == \"schedule\"'}]"),
                ("script:", "[crmctl check --ping URL]"),
            ],
        },
        footer="Keep CRMCTL_STATE_DIR from run to run: it holds the mirror, the trend and interrupted jobs.",
    ),
}
