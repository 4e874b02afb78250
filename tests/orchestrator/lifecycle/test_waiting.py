"""The order of those who wait for a place."""

from orchestrator.lifecycle.request import Request
from orchestrator.lifecycle.waiting import WaitingLine
from orchestrator.state.events import Arrived, HandoffMode


def request(
    name: str, *ids: int, priority: int = 0, tenant: str = "default", limit: int = 9
) -> Request:
    spec = Arrived(request=name, prompt_ids=(1,), limit=limit, priority=priority, tenant=tenant)
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


def serve(line: WaitingLine, count: int) -> str:
    """The first letters of the next so many, which are served."""
    served = ""
    for _ in range(count):
        name = line.behind(0)
        assert name is not None
        line.placed(name)
        served += name[0]
    return served


def test_tenants_take_turns_whatever_one_of_them_asks() -> None:
    line = WaitingLine()
    for number in range(6):
        line.add(request(f"x{number}", tenant="x"))
    assert serve(line, 2) == "xx"
    for number in range(2):
        line.add(request(f"y{number}", tenant="y"))
    assert serve(line, 6) == "yxyxxx"
    assert not line


def test_turns_are_of_tokens_and_not_of_requests() -> None:
    line = WaitingLine()
    for number in range(3):
        line.add(request(f"long{number}", tenant="x", limit=39))  # 40 tokens each
    for number in range(12):
        line.add(request(f"short{number}", tenant="y", limit=9))  # 10 tokens each
    assert serve(line, 15) == "lssss" * 3


def test_who_was_away_gets_no_credit() -> None:
    line = WaitingLine()
    line.add(request("late0", tenant="y"))
    for number in range(8):
        line.add(request(f"x{number}", tenant="x"))
    assert serve(line, 6) == "lxxxxx"
    for number in range(3):
        line.add(request(f"late again{number}", tenant="y"))
    assert serve(line, 6) == "lxlxlx"


def test_who_leaves_unserved_costs_its_tenant_nothing() -> None:
    line = WaitingLine()
    for name, tenant in (("x0", "x"), ("y0", "y"), ("y1", "y"), ("y2", "y")):
        line.add(request(name, tenant=tenant))
    line.discard("y2")
    line.discard("y1")
    line.add(request("x1", tenant="x"))
    line.add(request("y3", tenant="y"))
    assert order(line) == ["x0", "y0", "x1", "y3"]


def test_where_it_is_full_the_last_of_who_has_most_gives_way() -> None:
    line = WaitingLine()
    assert line.in_excess("y") is None
    for name, tenant, priority in (("x0", "x", 0), ("x1", "x", 3), ("x2", "x", 0), ("z0", "z", 0)):
        line.add(request(name, tenant=tenant, priority=priority))
    line.add(request("begun", 7, tenant="x"))
    assert line.in_excess("x") is None
    assert line.in_excess("y") == "x1", "of the largest priority"
    line.discard("x1")
    assert line.in_excess("y") == "x2"
    assert line.in_excess("z") is None, "it would have more than x then"
    line.discard("x2")
    assert line.in_excess("y") is None
