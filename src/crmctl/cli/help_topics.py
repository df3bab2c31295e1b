"""The help topics that belong to no single command."""

from __future__ import annotations

from crmctl.cli.help_text import HelpPage, Section

FILTERS = HelpPage(
    usage="--filter 'ATTRIBUTE OPERATOR VALUE', repeatable: all must match",
    sections=[
        Section(
            "Operators: sign, or word in any case",
            [
                ("=  !=", "equals, notEquals: exactly this; not this, or no value"),
                ("~  !~", "contains, notContains: has this text in it; has not, or no value"),
                ("^=  $=", "startsWith, endsWith"),
                (">  >=  <  <=", "greaterThan, greaterThanOrEqual, lessThan, lessThanOrEqual"),
                ("in, not in", "'stage in won,lost', 'stage not in \"on hold, late\"'"),
                ("no value", "isEmpty, isNotEmpty, isTrue, isFalse: 'phone isEmpty'"),
            ],
        ),
        Section(
            "What it can be about",
            [
                ("a part", "'address.city=Rome', 'name.first~ad', 'amount.currency=EUR'"),
                ("a reference", "'company.domain=acme.com' looks it up; 'company=ID' knows it"),
                ("a moment", "'created_at<2y', 'updated_at>-30d', 'birthday>=1990-01-01',"),
                ("", "'created_at=today', yesterday, 3mo; = a day is all of that day"),
                ("wire form", "'email[contains]=acme': every byte after = is the value"),
            ],
        ),
    ],
    examples=["crmctl records list people --filter 'email$=@acme.com' --filter 'score>=90'"],
    footer="--strict makes an impossible value an error. Many requests are announced first.",
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
                ("CRMCTL_MAX_ANSWER_MB", "most MB that are read of one answer, decompressed; 128"),
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
