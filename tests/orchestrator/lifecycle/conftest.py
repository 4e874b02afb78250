"""Rigs whose invariants are checked when the test has ended."""

from collections.abc import Callable, Iterator

import pytest

from tests.orchestrator.lifecycle.machine_rig import MachineRig


@pytest.fixture
def make_rig() -> Iterator[Callable[..., MachineRig]]:
    """Makes rigs; each is checked at the end."""
    rigs: list[MachineRig] = []

    def make(*args: object, **fields: object) -> MachineRig:
        rigs.append(MachineRig(*args, **fields))  # type: ignore[arg-type]
        return rigs[-1]

    yield make
    for rig in rigs:
        rig.check()


@pytest.fixture
def rig(make_rig: Callable[..., MachineRig]) -> MachineRig:
    """Two sites, catch-up, nothing has happened yet."""
    return make_rig()
