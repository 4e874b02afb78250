"""What a gateway that comes back is told again."""

from workers.api.messages import Landed, TokenRun
from workers.streams.recent import ANSWERS, ANSWERS_S, RecentAnswers


def landed(request: str) -> Landed:
    return Landed(request=request, epoch=1, covered=0)


def test_answers_are_kept_and_tokens_are_not():
    recent = RecentAnswers()
    recent.note("g", landed("a"), 0.0)
    recent.note("g", TokenRun(request="a", epoch=1, index=0, ids=(7,), hist=0, fed=0), 0.0)
    recent.note("other", landed("b"), 0.0)
    assert recent.recent("g", 1.0) == [landed("a")]
    assert recent.recent("nobody", 1.0) == []


def test_answers_are_forgotten_in_time_and_in_number():
    recent = RecentAnswers()
    recent.note("g", landed("old"), 0.0)
    recent.note("g", landed("new"), 10.0)
    recent.forget_old(ANSWERS_S + 5.0)
    assert recent.recent("g", ANSWERS_S) == [landed("new")]
    assert recent.recent("g", ANSWERS_S + 11.0) == []
    for n in range(ANSWERS + 1):
        recent.note("g", landed(str(n)), 50.0)
    kept = recent.recent("g", 50.0)
    assert len(kept) == ANSWERS
    assert kept[0] == landed("1")
