"""Count the lines of the test double, the data checks, and the keys without stored secrets, in their own files and elsewhere.

    python benchmarks/ci_lines.py [--files] [CHECKOUT]

A part is a whole file (`*`), definitions with their decorators and the blank lines above them, or lines that hold a quoted text.
"""

from __future__ import annotations

import ast
import re
import shlex
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

PARTS = {
    "test double": {
        "service/testdouble/double.py": "*",
        "double_client.py": "*",
        "pytest_plugin.py": "*",
        "cli/commands/serve.py": "EphemeralOption FixtureOption SeedOption ClockOption FaultOption Commands DOUBLE_OPTIONS OWN_DATA"
        " _double_settings _serve_double _find_owner _read_fixture _load 'EphemeralOption =' 'FixtureOption ='"
        " 'SeedOption =' 'ClockOption =' 'FaultOption =' 'if ephemeral:' 'own = ' '--ephemeral runs' 'import select' 'import tempfile'"
        " 'import threading' 'import deque' 'import BadRequest' 'import Streams' 'import read_moment' 'import TestDouble'",
        "service/server.py": "'double'",
        "service/http/connections.py": "drop",
        "service/store/sqlite.py": "Snapshot forget_safety snapshot restore",
    },
    "webhooks trigger": {"cli/commands/webhooks.py": "trigger_event NOBODY _sample _record_payload"},
    "checks": {"plan/checks.py": "*", "cli/commands/check.py": "*", "cli/registry.py": "'\"check\"'", "output/views.py": "CHECKS"},
    "reports, without those of imports": {"plan/ci_reports.py": "*"},
    "--ping": {
        "cli/runtime.py": "start_ping send_ping PING_SECONDS '_ping_url: '",
        "cli/options.py": "PingOption 'PingOption, None'",
        "cli/commands/mirror.py": "'ping: PingOption' 'start_ping'",
        "cli/commands/org.py": "'ping: PingOption' 'start_ping'",
        "cli/commands/bulk.py": "'start_ping'",
    },
    "help scheduling": {"cli/help_topics.py": "scheduling"},
    "key_command": {
        "config/credentials.py": "run_key_command COMMAND_SECONDS MOST_PRINTED 'settings.key_command' 'key_command is not run'",
        "config/settings.py": "parse_command 'key_command'",
    },
    "tokens and device logins": {
        "service/oidc/token_endpoint.py": "*",
        "service/store/short_lived_keys.py": "*",
        "client/issued_keys.py": "*",
        "client/session.py": "_CurrentKey 'is_renewed' '_keys.renewed' 'request=again'",
        "cli/commands/auth.py": "log_in_by_token explain _wait_for_key '--device' '--oidc' 'if oidc' 'log_in_by_token('",
        "cli/commands/service.py": "trusts FORGES add_trust list_trusts remove_trust 'trusts, name'",
        "cli/runtime.py": "'\"oidc\"' 'find_key'",
        "config/credentials.py": "' renew: ' ' renew_at: ' 'the next key of one'",
        "config/settings.py": "'SettingKey(\"auth\"'",
        "service/console/sign_in.py": "CODE ABOUT _add_device_login _count_attempt '_add_device_login(pages)'",
        "service/console/visits.py": "'\"device-'",
        "service/http/schemas.py": "_TRUST TRUST",
        "service/store/engine.py": "'TABLE oidc_trust' 'ttl INTEGER' 'TABLE device_login' 'polled_at BIGINT' ' wait BIGINT'"
        " '_USED_TOKENS' 'logins of devices' 'used_token'",
        "service/routes/interface.py": "list_trusts",
        "service/outbound/caller.py": "get",
    },
}
EARLIER = {"plan/ci_reports.py": 128}
"""Lines for the reports of imports, which are older than the checks."""


def count_lines(path: Path, selection: str) -> int:
    text = path.read_text(encoding="utf-8")
    lines = text.splitlines()
    if selection == "*":
        return len(lines)
    counted = set[int]()
    wanted = shlex.split(selection)
    for name, first, last in definitions(ast.parse(text)):
        if name in wanted:
            while not lines[first - 2].strip():
                first -= 1
            counted |= set(range(first, last + 1))
    quoted = re.findall(r"'([^']*)'", selection)
    return len(counted | {number for number, line in enumerate(lines, 1) if any(words in line for words in quoted)})


def definitions(tree: ast.AST) -> Iterator[tuple[str, int, int]]:
    """Yield name, first and last line of functions, classes, assignments with their docstring, and entries of dictionaries."""
    body = getattr(tree, "body", [])
    for node, following in zip(body, [*body[1:], None], strict=True):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name, min(part.lineno for part in (node, *node.decorator_list)), node.end_lineno or 0
            yield from definitions(node)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            end = following if isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant) else node
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            yield getattr(target, "id", ""), node.lineno, end.end_lineno or 0
            if isinstance(node.value, ast.Dict):
                for key, value in zip(node.value.keys, node.value.values, strict=True):
                    yield str(getattr(key, "value", "")), value.lineno, value.end_lineno or 0


def main() -> None:
    root = Path(next((word for word in sys.argv[1:] if not word.startswith("--")), ".")) / "src/crmctl"
    totals: Counter[str] = Counter()
    for part, files in PARTS.items():
        for name, selection in files.items():
            count = count_lines(root / name, selection) - EARLIER.get(name, 0)
            totals[part] += count
            if "--files" in sys.argv:
                print(f"{count:7,} {part}: {name}")
    for part, count in [*totals.items(), ("in all", totals.total())]:
        print(f"{count:7,} {part}")


if __name__ == "__main__":
    main()
