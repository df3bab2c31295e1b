"""`python -m tests.support.commandchild POINT WORDS...`: crmctl with these words, in a process that kills itself at a step of its journal
(tests/support/relationchild.py has them), or of what `bulk update` and `bulk delete` keep before they send anything."""

from __future__ import annotations

import sys

from crmctl.main import main
from crmctl.plan.job_hooks import DeleteHooks
from crmctl.write.journal import Journal
from tests.support import relationchild

relationchild.STEPS |= {"imaged": (Journal, "keep_images", True), "copied": (DeleteHooks, "_write", True)}


if __name__ == "__main__":
    relationchild.kill_at(sys.argv[1])
    sys.argv = ["crmctl", *sys.argv[2:]]
    sys.exit(main())
