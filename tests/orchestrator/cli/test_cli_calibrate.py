"""What `pdd calibrate` reads: pieces of each of its texts in turn."""

import pytest

from orchestrator.cli.calibrate import pieces
from orchestrator.errors import UserError

LONG, SHORT = list(range(100)), list(range(500, 530))


def test_texts_take_turns_and_short_ones_leave_theirs_to_the_others() -> None:
    found = pieces([LONG, SHORT], 90, 40)
    assert found == [LONG[:40], SHORT, LONG[40:60]]


def test_as_many_tokens_as_there_are_and_no_more() -> None:
    assert sum(map(len, pieces([LONG, SHORT], 130, 40))) == 130
    with pytest.raises(UserError, match="has 130, fewer than 131"):
        pieces([LONG, SHORT], 131, 40)
