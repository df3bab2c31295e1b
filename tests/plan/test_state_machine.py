"""Imports under any order of runs, faults, kills, other clients, repairs and undos. benchmarks/fault_runs.py plays many more."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings

from tests.support.importmachine import Imports

TestImports = pytest.mark.campaign(Imports.TestCase)
TestImports.settings = settings(max_examples=40, stateful_step_count=10, suppress_health_check=list(HealthCheck))
