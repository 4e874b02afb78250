"""Cells on a real Ray of this machine: one cluster for the whole file."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from orchestrator.replay.scenario.load import load_scenario
from orchestrator.replay.sweep.axes.grammar import parse_axes
from orchestrator.replay.sweep.cluster import CellFailed, Cluster, local_cluster
from orchestrator.replay.sweep.figures import replay_figures
from orchestrator.replay.sweep.grid import Cell, replay_cells

pytestmark = pytest.mark.timeout(300)
SMALL = """\
topology: laptop-simulated
workload:
  generated: {rate: 4/s, prompt: {mean: 100}, output: {mean: 8}, count: 30}
policies:
  - {name: near, route: local}
  - {name: far, route: direct}
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with local_cluster(2) as found:
        yield found


def squared(number: int) -> int:
    return number * number


def refused(number: int) -> int:
    if number == 3:
        raise ValueError("three is too much")
    return number


def dies_once(path: str) -> str:
    """The process is killed the first time."""
    if not Path(path).exists():
        Path(path).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return "lived"


def test_each_is_computed_once(cluster: Cluster) -> None:
    found: dict[int, int] = {}
    cluster.compute(range(20), squared, found.__setitem__)
    assert found == {number: number * number for number in range(20)}


def test_it_listens_on_the_loopback_only(cluster: Cluster) -> None:
    me = psutil.Process()
    there = {
        connection.laddr.ip.removeprefix("::ffff:")
        for process in [me, *me.children(recursive=True)]
        for connection in process.net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    }
    assert there == {"127.0.0.1"}


def test_what_fails_says_which_and_why(cluster: Cluster) -> None:
    with pytest.raises(CellFailed, match="ValueError: three is too much") as caught:
        cluster.compute(range(5), refused, lambda number, found: None)
    assert caught.value.cell == 3


def test_a_process_that_dies_has_its_cell_computed_again(cluster: Cluster, tmp_path: Path) -> None:
    found: dict[str, str] = {}
    cluster.compute([str(tmp_path / "died")], dies_once, found.__setitem__)
    assert list(found.values()) == ["lived"]


def test_a_cell_gives_the_same_wherever_it_is_computed(cluster: Cluster, tmp_path: Path) -> None:
    file = tmp_path / "small.yaml"
    file.write_text(SMALL)
    scenario = load_scenario(file)
    axes = parse_axes(["link.bandwidth=1|100Mbps,link.distance_km=0|8000"], scenario)
    cells = replay_cells(scenario, scenario.file.policies, axes)
    found = {}

    def done(cell: Cell, figures: object) -> None:
        found[cell.point, cell.policy] = figures

    cluster.compute(cells, replay_figures, done)
    assert len(found) == len(cells) == 8
    for cell in cells:
        assert found[cell.point, cell.policy] == replay_figures(cell)
    slow, fast = (found[(rate, 8000.0), "far"]["second_token_s.p90"] for rate in (1.0, 100.0))
    assert fast < slow
