"""A defect of the core costs the request it was met in, and no other."""

from collections.abc import Sequence

from orchestrator.state.actions import Fail, Failure, Finish
from orchestrator.virtual.faults.checks import check
from orchestrator.virtual.promises import Promise
from tests.orchestrator.virtual.stories.story_world import TWO_SITES, new_story


class Unreadable:
    """A stop watch that cannot read."""

    matched: str | None = None

    def push(self, ids: Sequence[int]) -> int | None:
        raise ZeroDivisionError


def test_a_defect_ends_one_request_and_frees_its_legs() -> None:
    story = new_story(TWO_SITES)
    broken, good = story.ask("broken", route=None), story.ask("good", route=None)
    story.request("broken").watch = Unreadable()
    story.settle()
    assert isinstance(broken.end, Fail)
    assert broken.end.failure is Failure.INTERNAL
    assert isinstance(good.end, Finish)
    assert story.counts["defects"] == 1
    breaches = check(story.world)
    assert {breach.promise for breach in breaches} == {Promise.NO_DEFECT}
    assert {breach.who for breach in breaches} == {"broken", story.gateway.name}
