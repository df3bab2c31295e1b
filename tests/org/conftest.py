"""A fresh service for every test, with its address and key in the environment."""

from tests.cli.conftest import crm, service

__all__ = ["crm", "service"]
