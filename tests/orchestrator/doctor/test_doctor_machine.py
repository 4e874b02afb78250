"""What the doctor says of the machine itself."""

import ctypes

import pytest

from orchestrator.doctor.finding import State, size
from orchestrator.doctor.machine import clock_finding, kernel_clock, machine_findings

TIME_ERROR = 5  # what adjtimex(2) returns while the clock is not synchronised


def test_every_finding_that_is_not_well_has_a_way_out() -> None:
    findings = machine_findings()
    checks = [finding.check for finding in findings]
    assert checks == ["system", "python", "cores", "memory", "open files", "tls", "clock"]
    for finding in findings:
        assert finding.value
        assert (finding.state is State.OK) == (finding.advice is None)


def test_the_kernels_clock_is_read_where_it_lies() -> None:
    told = kernel_clock()
    assert told is not None
    synchronised, error_s = told
    assert 0 <= error_s < 1000
    answered = ctypes.CDLL(None).adjtimex(ctypes.create_string_buffer(256))
    assert synchronised or answered == TIME_ERROR


@pytest.mark.parametrize(
    ("told", "state"),
    [
        (None, State.OK),
        ((True, 0.01), State.OK),
        ((True, 3.0), State.WARN),
        ((False, 0.01), State.WARN),
    ],
)
def test_a_clock(told: tuple[bool, float] | None, state: State) -> None:
    assert clock_finding(told).state is state


def test_units() -> None:
    assert [size(n) for n in (5, 4096, 4 << 20, 3 << 30)] == ["5 bytes", "4 KiB", "4 MiB", "3 GiB"]
