"""A step's tokens in columns: the same actions, whatever happens, as from a run for each."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.lifecycle.phases import Phase
from orchestrator.state.actions import Action
from orchestrator.state.events import HandoffMode
from tests.orchestrator.lifecycle.machine_rig import (
    MAIN,
    PREFILL,
    MachineRig,
    emit,
)
from workers.api.history import EMPTY_HISTORY, extend_history
from workers.api.messages import NextTokens, TokenRun, UpMessage
from workers.streams.packed import packed

EOT = 2


def run(name: str, index: int, token: int, law: Sequence[int], **fields: Any) -> TokenRun:
    known: dict[str, Any] = {
        "request": name,
        "epoch": MAIN,
        "index": index,
        "ids": (token,),
        "hist": extend_history(EMPTY_HISTORY, law[:index]),
        "fed": min(index, 3),
    }
    return TokenRun(**(known | fields))


def decoding(mode: HandoffMode = HandoffMode.CATCH_UP, **fields: object) -> MachineRig:
    """Main has taken "a" over from the relay."""
    rig = MachineRig(handoff=mode)
    rig.arrive(stop_ids=(EOT,), min_tokens=9, **fields)
    rig.run(PREFILL, 0, 10)
    rig.landed(MAIN)
    rig.run(MAIN, 1, 11)
    rig.run(MAIN, 2, 12)
    assert rig.phase is Phase.MAIN
    return rig


def hear(rig: MachineRig, *runs: TokenRun, worker: str = "m0") -> list[Action]:
    columns = packed(runs)
    assert all(isinstance(message, NextTokens) for message in columns)
    return [action for message in columns for action in rig.hear(worker, message)]


def test_tokens_that_need_no_judging_are_told_at_once() -> None:
    rig = decoding()
    law = [10, 11, 12, 13, 14]
    assert rig.machine.requests["a"].sole is rig.machine.requests["a"].main
    assert hear(rig, run("a", 3, 13, law)) == [emit(3, 13)]
    assert hear(rig, run("a", 4, 14, law)) == [emit(4, 14)]
    assert rig.law == law
    assert rig.counts["duplicate_runs"] == 0
    assert hear(rig, run("a", 4, 14, law)) == []
    assert rig.counts["duplicate_runs"] == 1


def test_a_leg_that_speaks_in_columns_is_not_silent_and_one_that_stops_is() -> None:
    rig = decoding(limit=4000)
    law = [10, 11, 12]
    silence = rig.config.deadlines.silence
    for index in range(3, 3 + round(3 * silence)):
        assert rig.after(0.5) == []
        assert hear(rig, run("a", index, 20 + index, law)) == [emit(index, 20 + index)]
        law.append(20 + index)
    lost = rig.after(silence + 1.0)
    assert lost, "nobody noticed that it says nothing any more"


@pytest.mark.parametrize("mode", HandoffMode)
def test_while_a_lead_is_given_back_tokens_are_paced_in_columns_too(mode: HandoffMode) -> None:
    """The relay's lead is still being told after the handoff: no token may overtake it."""
    told: list[list[list[Action]]] = []
    for form in (singly, in_columns):
        rig = MachineRig(handoff=mode)
        rig.arrive()
        rig.load("r0", step_s=0.02)
        rig.load("m0", step_s=0.02)
        rig.run(PREFILL, 0, 10)
        rig.landed(1)
        law = [10]
        for index in range(1, 9):
            rig.now += 0.02
            rig.run(1, index, 10 + index)
            law.append(10 + index)
        rig.landed(MAIN)
        told.append([])
        for index in range(9, 30):
            told[-1].append(rig.after(0.02))
            told[-1].append(form(rig, run("a", index, 10 + index, law, fed=min(index, 9))))
            law.append(10 + index)
        told[-1].append(rig.after(1.0))
        assert rig.seen["a"] == law
    assert told[0] == told[1]


def test_a_ragged_table_is_a_defect_and_not_half_a_step() -> None:
    rig = decoding()
    with pytest.raises(ValueError, match="zip"):
        rig.hear(
            "m0",
            NextTokens(requests=("a",), epochs=(2,), indices=(), ids=(), hists=(), feds=()),
        )
    assert rig.law == [10, 11, 12]


# ------------------------------------------------------------------------ any order of things


def singly(rig: MachineRig, message: TokenRun, worker: str = "m0") -> list[Action]:
    return rig.hear(worker, message)


def in_columns(rig: MachineRig, message: TokenRun, worker: str = "m0") -> list[Action]:
    return hear(rig, message, worker=worker)


Form = Callable[[MachineRig, TokenRun], list[Action]]
Do = Callable[[MachineRig, Form, list[int]], list[Action]]


def next_token(token: int, **fields: Any) -> Do:
    def do(rig: MachineRig, form: Form, law: list[int]) -> list[Action]:
        actions = form(rig, run("a", len(law), token, law, **fields))
        if "a" in rig.machine.requests:
            law[:] = rig.law
        return actions

    return do


def repeated(rig: MachineRig, form: Form, law: list[int]) -> list[Action]:
    return form(rig, run("a", len(law) - 1, law[-1], law))


def ahead(rig: MachineRig, form: Form, law: list[int]) -> list[Action]:
    return form(rig, run("a", len(law) + 1, 40, [*law, 39]))


def of_another_history(rig: MachineRig, form: Form, law: list[int]) -> list[Action]:
    return form(rig, run("a", len(law), 41, [*law[:-1], 99]))


def of_a_dead_leg(rig: MachineRig, form: Form, law: list[int]) -> list[Action]:
    return form(rig, run("a", len(law), 42, law, epoch=7))


def of_nobody(rig: MachineRig, form: Form, law: list[int]) -> list[Action]:
    return form(rig, run("b", 0, 43, ()))


def time_passes(rig: MachineRig, form: Form, law: list[int]) -> list[Action]:
    return rig.after(0.7)


def the_stream_came_back(rig: MachineRig, form: Form, law: list[int]) -> list[Action]:
    return rig.reconnect("m0")


DOES: list[Do] = [
    next_token(13),
    next_token(EOT),
    next_token(14, fed=5),
    repeated,
    ahead,
    of_another_history,
    of_a_dead_leg,
    of_nobody,
    time_passes,
    the_stream_came_back,
]


@settings(deadline=None)
@given(st.lists(st.sampled_from(DOES), max_size=30), st.integers(5, 40))
def test_columns_do_what_runs_do(does: list[Do], limit: int) -> None:
    told: list[list[list[Action]]] = []
    for form in (singly, in_columns):
        rig = decoding(limit=limit)
        law = list(rig.law)
        told.append([do(rig, form, law) for do in does if "a" in rig.machine.requests])
        rig.check()
    assert told[0] == told[1]


# ------------------------------------------------------------------------ packing


def test_only_what_stands_alone_is_packed_and_the_rest_keeps_its_order() -> None:
    law = [10, 11, 12, 13]
    alone, first, second = run("a", 3, 13, law), run("b", 2, 12, law), run("b", 3, 13, law)
    detailed = run("c", 3, 13, law, margins=(0.5,))
    cached = run("d", 0, 10, law, cached=16)
    longer = run("e", 2, 12, law, ids=(12, 13))
    messages: list[UpMessage] = [first, alone, second, detailed, cached, longer]
    columns, *rest = packed(messages)
    assert rest == [first, second, detailed, cached, longer]
    assert columns == NextTokens(
        requests=("a",),
        epochs=(MAIN,),
        indices=(3,),
        ids=(13,),
        hists=(alone.hist,),
        feds=(3,),
    )
    assert packed([detailed]) == [detailed]
