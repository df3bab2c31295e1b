"""The error of a token that is not accepted."""

from __future__ import annotations


class TokenRefused(Exception):
    """The message names the rule that failed. It goes to the audit log, never to the caller."""
