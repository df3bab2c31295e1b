"""The help topics that belong to no single command."""

from __future__ import annotations

from crmctl.cli.help_text import HelpPage, Section

FILTERS = HelpPage(
    usage="crmctl records list OBJECT --filter CONDITION [--filter CONDITION ...]",
    description="A condition names an attribute, an operator and a value. All conditions must match.",
    sections=[
        Section(
            "Three spellings",
            [
                ("words", "'email endsWith @acme.com', 'phone isEmpty'"),
                ("signs", "'amount>=1000', 'stage!=won', 'name~ada'"),
                ("wire form", "'email[contains]=acme', every byte after = is the value"),
            ],
        ),
        Section(
            "What a condition can be about",
            [
                ("one of several", "'stage in won,lost', 'stage not in won,\"on hold, late\"': one request a value"),
                ("a part", "'address.city=Rome', 'name.first~ad', 'amount.currency=EUR'"),
                ("another record", "'company.domain=acme.com' looks the company up; 'company=ID' knows it"),
                ("a moment", "'created_at<2y', 'updated_at>-30d', 'birthday>=1990-01-01', 'created_at=today'"),
                ("", "2026-05-01 14:00, yesterday, 3mo, '1 May 2026'; a day is its first moment, = all of it"),
            ],
        ),
        Section(
            "Operators",
            [
                ("equals  =", "is exactly this"),
                ("notEquals  !=", "is not this, or has no value"),
                ("contains  ~", "has this text in it"),
                ("notContains  !~", "does not have this text in it, or has no value"),
                ("startsWith  ^=", "begins with"),
                ("endsWith  $=", "ends with"),
                ("greaterThan  >", "is more, or later, than"),
                ("greaterThanOrEqual  >=", "is this or more"),
                ("lessThan  <", "is less, or earlier, than"),
                ("lessThanOrEqual  <=", "is this or less"),
                ("isEmpty, isNotEmpty", "has no value, has one"),
                ("isTrue, isFalse", "a checkbox that is set, that is set to no"),
            ],
        ),
    ],
    examples=[
        "crmctl records list people --filter 'email endsWith @acme.com' --filter 'created_at<2y'",
        "crmctl records list deals --filter 'amount>=1000' --filter 'stage in won,lost'",
    ],
    footer="What takes more requests than it shows says how many first. --strict makes an impossible value an error.",
)

OUTPUT = HelpPage(
    usage="crmctl <command> --output table|json|jsonl|csv|tsv|yaml|ids",
    description="stdout carries data only; all else goes to stderr. On a terminal the default is a table, in a pipe it is JSON.",
    sections=[
        Section(
            "Formats",
            [
                ("table", "for people"),
                ("json", "one document: an array for a list, an object for one resource"),
                ("jsonl", "one resource a line, as pages arrive"),
                ("csv, tsv", "id, one column per attribute, createdAt, updatedAt; nested values as JSON"),
                ("yaml", "one document"),
                ("ids", "one id a line, for xargs and bulk delete --ids -"),
            ],
        ),
        Section(
            "On stderr, with any format but table",
            [
                ("error", "one JSON object, always the last line: tail -n 1 | jq .error.code"),
                ("warning: ...", "one line each, before it; without a warning the object is all there is"),
                ("findings", "in .error.details, where a run that has some ends with an error"),
                ("notes", "at the end of a run that succeeds; at once when it is long and progress is shown"),
            ],
        ),
    ],
    examples=[
        "crmctl records list people --fields name,email",
        "crmctl records list people --query '[].data.email'",
        "crmctl records list people --all -o csv --excel-safe > people.csv",
    ],
)

ENVIRONMENT = HelpPage(
    usage="CRMCTL_NAME=value crmctl <command>",
    description="A flag wins over the environment, the environment over the profile, the profile over the default.",
    sections=[
        Section(
            "Variables",
            [
                ("CRMCTL_API_KEY", "the API key; wins over the keyring"),
                ("CRMCTL_BASE_URL", "the service's address"),
                ("CRMCTL_PROFILE", "the profile to use"),
                ("CRMCTL_OUTPUT", "the default output format"),
                ("CRMCTL_TIMEOUT", "longest wait for one answer, in seconds"),
                ("CRMCTL_MAX_ANSWER_MB", "most MiB that are read of one answer, decompressed; 128"),
                ("CRMCTL_NO_INPUT", "never ask"),
                ("CRMCTL_READ_ONLY", "refuse every write before any request"),
                ("CRMCTL_WEBHOOK_SECRET", "the signing secret of webhooks listen and verify"),
                ("CRMCTL_CONFIG_DIR, CRMCTL_STATE_DIR, CRMCTL_CACHE_DIR", "where settings, jobs and caches are kept"),
                ("NO_COLOR, CLICOLOR_FORCE", "colour off, colour on"),
                ("HTTPS_PROXY, NO_PROXY, SSL_CERT_FILE", "the usual network settings"),
            ],
        ),
    ],
    examples=["CRMCTL_API_KEY=... CRMCTL_BASE_URL=https://crm.example.com crmctl records count people"],
)

TOPICS: dict[str, HelpPage] = {"filters": FILTERS, "output": OUTPUT, "environment": ENVIRONMENT}
