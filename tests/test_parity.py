"""A recorded log fed to a fresh machine gives the same actions, word for word."""

import pytest

from orchestrator.lifecycle.machine import Machine
from tests.orchestrator.lifecycle.chaos import troubled
from tests.orchestrator.lifecycle.virtual import Deployment, IdWatch


def feed_again(world: Deployment) -> None:
    fresh = Machine(world.config, IdWatch)
    for number, (now, event, actions) in enumerate(world.log):
        assert fresh.handle(event, now) == actions, f"event {number} at {now}: {event}"
    assert fresh.next_deadline() == world.machine.next_deadline()
    assert fresh.ctx.counts == world.machine.ctx.counts


@pytest.mark.parametrize("seed", [3, 7, 14, 21, 36, 40])
def test_a_virtual_log_fed_again_gives_identical_actions(seed: int) -> None:
    feed_again(troubled(seed))


def test_the_log_is_all_there_is() -> None:
    """Two machines, one after the other, share nothing: no module keeps state."""
    first, second = troubled(5), troubled(5)
    assert first.log == second.log
