"""A restore that kills itself with SIGKILL at one moment.

`python -m tests.support.killed_restore MOMENT BACKUP DATA [DATABASE_URL]`, MOMENT being one of MOMENTS.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from tests.support.killed_service import die, replace_in

MOMENTS = ("unpacking", "unpacked", "files placed", "in the database", "database there")


def main(moment: str, source: str, data: str, database_url: str | None = None) -> None:
    from crmctl.service.backup import backup
    from crmctl.service.context import ServiceSettings
    from crmctl.service.store import engine, postgres

    def then_die(real: Any) -> Any:
        return lambda *given: (real(*given), die())

    if moment == "unpacking":
        replace_in(backup, "_copy", then_die)
    elif moment == "unpacked":
        replace_in(backup, "unpack", then_die)
    elif moment == "files placed":
        replace_in(backup, "_place_files", then_die)
    elif moment == "in the database":
        # On SQLite one rename places the database; on PostgreSQL its transaction is open here.
        replace_in(engine, "place_file", lambda real: die)
        replace_in(postgres, "_make_indexes", lambda real: die)
    elif moment == "database there":
        replace_in(backup, "load_copy", then_die)
    backup.restore_backup(Path(source), ServiceSettings(data_dir=Path(data), database_url=database_url))


if __name__ == "__main__":
    main(*sys.argv[1:])
