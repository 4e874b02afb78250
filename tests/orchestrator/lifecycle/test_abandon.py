"""A defect of the core costs the request it was met in, and no other."""

from orchestrator.state.actions import Action, Fail, Failure, Finish
from orchestrator.state.events import Event
from tests.orchestrator.lifecycle.virtual import Deployment


class Unwritable(list[tuple[int, float]]):
    """An account that cannot be written."""

    def append(self, entry: tuple[int, float]) -> None:
        raise ZeroDivisionError


def test_a_defect_ends_one_request_and_frees_its_legs() -> None:
    world = Deployment()
    broken, good = world.ask("broken"), world.ask("good")
    handle = world.machine.handle

    def as_the_driver_does(event: Event, now: float) -> list[Action]:
        try:
            return handle(event, now)
        except ZeroDivisionError:
            return world.machine.abandon()

    world.machine.handle = as_the_driver_does  # type: ignore[method-assign]
    world.machine.requests["broken"].account.releases = Unwritable()
    world.run()
    assert isinstance(broken.end, Fail)
    assert broken.end.failure is Failure.INTERNAL
    assert isinstance(good.end, Finish)
    assert good.ids == world.reference(good.spec)
    assert world.machine.ctx.counts["defects"] == 1
    world.check()
