"""What a cell of a replay's sweep is turned into."""

from collections.abc import Mapping

from orchestrator.replay.report.metrics import summarise
from orchestrator.replay.scenario.run import play
from orchestrator.replay.sweep.grid import Cell

Figures = Mapping[str, float | None]  # None: what was not there to be measured

_SPREADS = ("ttft_s", "second_token_s", "exposed_stall_s", "tpot_s", "end_to_end_s")


def replay_figures(cell: Cell) -> Figures:
    """Replay one policy. It depends on nothing but the cell. See `Summary` for the names."""
    scenario = cell.scenario
    policy = next(found for found in scenario.file.policies if found.name == cell.policy)
    found = summarise(play(scenario, policy), scenario.goal)
    figures: dict[str, float | None] = {
        "requests": found.requests,
        "finished": found.finished,
        "within_slo": found.within_slo,
        "goodput_per_s": found.goodput_per_s,
        "goodput_per_cost": found.goodput_per_cost,
        "output_tokens_per_s": found.output_tokens_per_s,
        "cost": found.cost,
        "cost_per_million_tokens": found.cost_per_million_tokens,
        "wire_gb": found.wire_gb,
        "relay_tokens": found.relay_tokens,
    }
    for name in _SPREADS:
        figures |= {f"{name}.p50": found.metrics[name].p50, f"{name}.p90": found.metrics[name].p90}
    return figures
