"""Every event and action survives JSON to the last bit; what is malformed is refused by name."""

import types
from dataclasses import dataclass, fields, is_dataclass
from enum import StrEnum
from typing import Any, Union, get_args, get_origin, get_type_hints

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.state.actions import Action, Fail, Failure, Send
from orchestrator.state.config import CoreConfig
from orchestrator.state.events import Arrived, Event, Heard, WorkerLost, WorkerUp
from orchestrator.state.wire import (
    ACTIONS,
    EVENTS,
    decode_action,
    decode_config,
    decode_event,
    encode_action,
    encode_config,
    encode_event,
)
from workers.api.budget import Budget
from workers.api.messages import NextTokens, Role, Sampling, Stop, TokenRun
from workers.api.wire import MAX_INT, MAX_SIGNED, MIN_SIGNED, SIGNED, Wire, WireError

SIMPLE = {
    int: st.integers(0, MAX_INT),
    float: st.floats(allow_nan=False, allow_infinity=False),
    str: st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
    bool: st.booleans(),
    type(None): st.none(),
}
WORD = 2**32
TOKEN_IDS = st.lists(st.integers(0, WORD - 1), max_size=4).map(tuple)


def anything(hint: Any) -> st.SearchStrategy[Any]:
    """Values of an annotation; every field of a dataclass gets one, with or without a default."""
    args = get_args(hint)
    if hint in SIMPLE:
        return SIMPLE[hint]
    if hint == tuple[int, ...]:
        return TOKEN_IDS
    if get_origin(hint) in (types.UnionType, Union):
        return st.one_of([anything(arg) for arg in args])
    if get_origin(hint) is frozenset:
        return st.frozensets(anything(args[0]))
    if get_origin(hint) is dict:
        return st.dictionaries(anything(args[0]), anything(args[1]), max_size=3)
    if get_origin(hint) is tuple and args[-1] is Ellipsis:
        return st.lists(anything(args[0]), max_size=3).map(tuple)
    if get_origin(hint) is tuple:
        return st.tuples(*map(anything, args))
    if issubclass(hint, StrEnum):
        return st.sampled_from(hint)
    assert is_dataclass(hint), hint
    if hint is NextTokens:
        return st.builds(columns, st.lists(anything(TokenRun), max_size=3))
    if hint is Budget:
        counts = st.integers(1, MAX_INT)
        budgets = st.floats(0.01, 0.99) | st.integers(1, 9999).map(float)
        return st.builds(Budget, budget=budgets, slack=counts, recent=counts, first=counts)
    hints = get_type_hints(hint)
    signed = {name: st.integers(MIN_SIGNED, MAX_SIGNED) for name in SIGNED & hints.keys()}
    return st.builds(hint, **{f.name: anything(hints[f.name]) for f in fields(hint)} | signed)


def columns(runs: list[TokenRun]) -> NextTokens:
    """A step whose rows are as many in every column; its numbers have 32 bits."""
    return NextTokens(
        requests=tuple(run.request for run in runs),
        epochs=tuple(run.epoch % WORD for run in runs),
        indices=tuple(run.index % WORD for run in runs),
        ids=tuple(len(run.ids) for run in runs),
        hists=tuple(run.hist % WORD for run in runs),
        feds=tuple(run.fed % WORD for run in runs),
    )


def test_every_event_and_action_has_a_form() -> None:
    assert set(EVENTS.values()) == set(get_args(Event))
    assert set(ACTIONS.values()) == set(get_args(Action))


@pytest.mark.parametrize("cls", get_args(Event))
@settings(deadline=None)
@given(data=st.data())
def test_events_survive(cls: type, data: st.DataObject) -> None:
    event = data.draw(anything(cls))
    assert decode_event(orjson.loads(orjson.dumps(encode_event(event)))) == event


@pytest.mark.parametrize("cls", get_args(Action))
@settings(deadline=None)
@given(data=st.data())
def test_actions_survive(cls: type, data: st.DataObject) -> None:
    action = data.draw(anything(cls))
    assert decode_action(orjson.loads(orjson.dumps(encode_action(action)))) == action


@settings(deadline=None)
@given(config=anything(CoreConfig))
def test_configurations_survive(config: CoreConfig) -> None:
    assert decode_config(orjson.loads(orjson.dumps(encode_config(config)))) == config


def test_roles_are_written_in_one_order() -> None:
    up = WorkerUp(
        worker="w",
        site="s",
        pool="p",
        roles=frozenset(Role),
        slots=1,
        max_context=2,
        kv_total_tokens=3,
        kv_bytes_per_token=4,
    )
    assert encode_event(up)["roles"] == sorted(Role)


ARRIVED = Arrived(request="r", prompt_ids=(1, 2), limit=3, priority=-2, sampling=Sampling(seed=-4))
RUN = TokenRun(request="r", epoch=1, index=0, ids=(5,), hist=6, fed=0)


@pytest.mark.parametrize(
    ("event", "change", "words"),
    [
        (ARRIVED, {"kind": "send"}, "kind: unknown"),
        (ARRIVED, {"kind": None}, "kind: unknown"),
        (ARRIVED, {"limit": 2.0}, "limit: must be an integer"),
        (ARRIVED, {"stop_strings": [1]}, "stop_strings: must be a string"),
        (ARRIVED, {"route": "scenic"}, "route: must be one of local, direct, relay"),
        (ARRIVED, {"sampling": {"seed": 2**64}}, "seed: must be an integer of 64 bits"),
        (ARRIVED, {"colour": 1}, "unknown field 'colour'"),
        (WorkerLost(worker="w", reason="x"), {"reason": None}, "reason: must be a string"),
        (Heard(worker="w", message=RUN), {"message": {"kind": "start"}}, "kind: unknown"),
        (Heard(worker="w", message=RUN), {"message": 3}, "a message must be an object"),
        (Heard(worker="w", message=RUN), {"message": {"kind": "landed"}}, "covered, epoch"),
    ],
)
def test_malformed_events_are_refused(event: Event, change: dict[str, Any], words: str) -> None:
    body = orjson.loads(orjson.dumps(encode_event(event))) | change
    with pytest.raises(WireError) as refused:
        decode_event(body)
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("action", "change", "words"),
    [
        (Fail(request="r", failure=Failure.INTERNAL, message="m"), {"failure": "bad"}, "failure"),
        (Send(worker="w", message=Stop(request="r", epoch=1)), {"message": {"kind": "tok"}}, "kin"),
    ],
)
def test_malformed_actions_are_refused(action: Action, change: dict[str, Any], words: str) -> None:
    with pytest.raises(WireError, match=words):
        decode_action(orjson.loads(orjson.dumps(encode_action(action))) | change)


def test_missing_fields_are_named() -> None:
    with pytest.raises(WireError, match="limit, prompt_ids, request missing"):
        decode_event({"kind": "arrived"})


@pytest.mark.parametrize("body", [None, [], "arrived", 3])
def test_what_is_no_object_is_refused(body: object) -> None:
    with pytest.raises(WireError, match="an event must be an object"):
        decode_event(body)


def test_roles_twice_are_refused() -> None:
    body = {"kind": "up", "roles": ["main", "main"]}
    with pytest.raises(WireError, match="roles: must hold nothing twice"):
        decode_event(body)


@dataclass(frozen=True, slots=True, kw_only=True)
class Odd:
    payload: bytes


def test_a_field_without_a_form_is_found_when_the_family_is_made() -> None:
    with pytest.raises(TypeError, match="no wire form"):
        Wire({"odd": Odd}, "an oddity")
