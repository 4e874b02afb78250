"""What is wanted of a site, as it travels between agents and gateways."""

from typing import Any

import pytest

from orchestrator.membership.standing import Standing, read_standing

WANTED = Standing(version=3, drained=True, replace=frozenset({"hami/p/1", "hami/p/0"}))


def test_what_is_told_is_what_is_read() -> None:
    told = WANTED.told()
    assert told == {"version": 3, "drained": True, "replace": ["hami/p/0", "hami/p/1"]}
    assert read_standing(told) == WANTED
    assert read_standing(Standing().told()) == Standing()


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"version": -1}, "standing.version: -1"),
        ({"version": True}, "standing.version: True"),
        ({"drained": 1}, "standing.drained: 1"),
        ({"drained": None}, "standing.drained: None"),
        ({"replace": "hami/p/0"}, "standing.replace"),
        ({"replace": [1]}, "standing.replace"),
    ],
)
def test_what_makes_no_sense_is_refused(change: dict[str, Any], field: str) -> None:
    with pytest.raises(ValueError, match=field):
        read_standing(WANTED.told() | change)


def test_it_is_an_object() -> None:
    with pytest.raises(ValueError, match="standing: not an object"):
        read_standing([])
