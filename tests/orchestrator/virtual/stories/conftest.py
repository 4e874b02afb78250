"""Stories whose promises are checked when the test has ended."""

from collections.abc import Iterator

import pytest

from tests.orchestrator.virtual.stories.story_world import MakeStory, Story, new_story


@pytest.fixture
def make_story() -> Iterator[MakeStory]:
    """Makes stories; each must end in a world that has kept its promises."""
    stories: list[Story] = []

    def make(*args: object, **fields: object) -> Story:
        stories.append(new_story(*args, **fields))  # type: ignore[arg-type]
        return stories[-1]

    yield make
    for story in stories:
        story.check()
