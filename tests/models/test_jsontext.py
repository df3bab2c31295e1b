"""JSON text: the depth to which values may be nested."""

from __future__ import annotations

from itertools import chain, repeat

import pytest

from crmctl.models import jsontext
from crmctl.models.jsontext import DEEPEST, NotJsonError


def nested(depth: int, *pairs: tuple[str, str]) -> str:
    """Return a value of so many levels, with these brackets in turn."""
    kinds = [pair for pair, _ in zip(chain.from_iterable(repeat(pairs)), range(depth), strict=False)]
    return "".join(opening for opening, _ in kinds) + "0" + "".join(closing for _, closing in reversed(kinds))


ARRAY, OBJECT = ("[", "]"), ('{"a":', "}")


@pytest.mark.parametrize("pairs", [[ARRAY], [OBJECT], [ARRAY, OBJECT], [OBJECT, ARRAY]])
@pytest.mark.parametrize("around", ["{}", '["[[{{",{}]', '[{"]":[]},{},"}"]'])
def test_values_are_nested_to_one_limit(pairs: list[tuple[str, str]], around: str) -> None:
    room = DEEPEST - (around != "{}")
    fitting = around.replace("{}", nested(room, *pairs))
    assert jsontext.dumps(jsontext.loads(fitting)) == fitting
    assert jsontext.scan(f"{fitting} ")[1] == len(fitting)
    for depth in (room + 1, room + 150, 960, 100_000):
        for read in (jsontext.loads, jsontext.scan):
            with pytest.raises(NotJsonError, match="nested too deeply"):
                read(around.replace("{}", nested(depth, *pairs)))
