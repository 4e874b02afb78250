"""The order of those who wait for a place."""

from orchestrator.lifecycle.request import Request
from orchestrator.lifecycle.waiting import WaitingLine
from orchestrator.state.events import Arrived, HandoffMode


def request(name: str, *ids: int, priority: int = 0) -> Request:
    spec = Arrived(request=name, prompt_ids=(1,), limit=9, priority=priority)
    req = Request(spec=spec, mode=HandoffMode.AUTO, arrived_at=0.0, watch=None, prefix=())
    req.law.extend(ids, None, None)
    return req


def order(line: WaitingLine) -> list[str]:
    names = []
    while (name := line.behind(len(names))) is not None:
        names.append(name)
    return names


def test_who_has_tokens_already_comes_first_and_all_as_they_came() -> None:
    line = WaitingLine()
    for req in (request("a"), request("b", 7), request("c"), request("d", 7)):
        line.add(req)
    assert order(line) == ["b", "d", "a", "c"]
    assert len(line) == 4


def test_the_smallest_priority_comes_first_but_for_who_has_tokens() -> None:
    line = WaitingLine()
    for name, priority in (("a", 0), ("b", 5), ("c", -1), ("d", 5), ("e", 0)):
        line.add(request(name, priority=priority))
    line.add(request("begun", 7, priority=9))
    assert order(line) == ["begun", "c", "a", "e", "b", "d"]
    for name in ("c", "a", "b"):
        line.discard(name)
    assert order(line) == ["begun", "e", "d"]


def test_who_waits_keeps_its_place_until_it_leaves() -> None:
    line = WaitingLine()
    for name in "abc":
        line.add(request(name))
    line.add(request("a"))
    assert order(line) == ["a", "b", "c"]
    line.discard("b")
    line.discard("b")
    assert "b" not in line
    line.add(request("b"))
    assert order(line) == ["a", "c", "b"]


def test_nobody_waits() -> None:
    line = WaitingLine()
    assert not line
    assert line.behind(0) is None
