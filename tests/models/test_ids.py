"""The words of an option."""

from __future__ import annotations

import pytest

from crmctl.errors import UsageError
from crmctl.models.ids import check_choice


@pytest.mark.parametrize(("choices", "listed"), [(("x",), "x"), (("x", "y"), "x or y"), (("x", "y", "z"), "x, y or z")])
def test_an_unknown_word_is_refused_with_the_choices(choices: tuple[str, ...], listed: str) -> None:
    check_choice("--letter", None, choices)
    check_choice("--letter", "x", choices)
    with pytest.raises(UsageError, match=f"^--letter must be {listed}, not 'q'$"):
        check_choice("--letter", "q", choices)
