"""Roles that follow the world in a replay: the re-planner on virtual time."""

from collections.abc import Callable
from typing import NamedTuple

from orchestrator.replan.decide import Decision, decide
from orchestrator.replan.seen import see
from orchestrator.replan.watch import Replanning, Watch
from orchestrator.replan.window import Window
from orchestrator.state.actions import Summary
from orchestrator.state.views import World
from orchestrator.virtual.schedule import Schedule
from workers.api.messages import Role

PLANNING_S = 5.0  # a live gateway's planner takes some seconds; virtual time would take none


class Decided(NamedTuple):
    """What was decided, and when it came into force."""

    at: float
    decision: Decision


class Replanner:
    """Looks every so often for as long as `going`; `give_roles` carries a decision out."""

    def __init__(
        self,
        replanning: Replanning,
        schedule: Schedule,
        world: World,
        *,
        give_roles: Callable[[str, frozenset[Role]], None],
        going: Callable[[], bool],
    ) -> None:
        self.decided: list[Decided] = []
        self._replanning = replanning
        self._watch = Watch(replanning.base, replanning.hysteresis)
        self._window = Window()
        self._schedule = schedule
        self._world = world
        self._give_roles = give_roles
        self._going = going

    def look(self) -> None:
        """Now, and from time to time from now on."""
        if not self._going():
            return
        now, base = self._schedule.now, self._replanning.base
        case = self._watch.look(see(self._world, base, self._window.classes(now)), now)
        if case is None:
            self._schedule.after(self._replanning.every_s, self.look)
            return
        decision = decide(case)
        self._watch.planned(case)
        self._schedule.after(PLANNING_S, self._carry_out, decision)

    def ended(self, summary: Summary) -> None:
        """A request has ended well."""
        self._window.ended(
            self._schedule.now,
            prompt=summary.prompt_tokens,
            output=summary.completion_tokens,
            hit=summary.cached_tokens,
        )

    def _carry_out(self, decision: Decision) -> None:
        self.decided.append(Decided(self._schedule.now, decision))
        for change in decision.changes:
            self._give_roles(change.worker, change.after)
        self.look()
