"""What `--sweep` takes, what it makes of it, and what it says of mistakes."""

import pytest

from orchestrator.errors import UserError
from orchestrator.replay.scenario.load import load_scenario
from orchestrator.replay.scenario.schema import Scenario
from orchestrator.replay.sweep.axes.grammar import Axis, parse_axes
from orchestrator.replay.sweep.axes.parameters import PARAMETERS


@pytest.fixture(scope="module")
def scenario() -> Scenario:
    return load_scenario("hami-shenzhen-20g")


def axis(text: str, scenario: Scenario) -> Axis:
    (found,) = parse_axes([text], scenario)
    return found


@pytest.mark.parametrize(
    ("text", "unit", "values", "log"),
    [
        ("link.bandwidth=5..100Gbps", "Gbps", (5, 9.1, 16.6, 30.2, 54.9, 100), True),
        ("link.bandwidth=5..100Gbps/3", "Gbps", (5, 22.4, 100), True),
        ("link.bandwidth=5..100Gbps/linear", "Gbps", (5, 24, 43, 62, 81, 100), False),
        ("link.bandwidth=500Mbps..2 Gbps/3/log", "Gbps", (0.5, 1, 2), True),
        ("link.bandwidth=10..20Gbps/3", "Gbps", (10, 15, 20), False),  # not wide
        ("link.bandwidth=20|5|10Gbps|20Gbps", "Gbps", (5, 10, 20), True),
        ("link.bandwidth=20Gbps", "Gbps", (20,), False),
        ("link.distance_km=0..8000/5", "km", (0, 2000, 4000, 6000, 8000), False),
        ("link.distance_km=10..80km/3", "km", (10, 45, 80), False),
        ("link.rent=0..3/h/4", "/h", (0, 1, 2, 3), False),
        ("link.rent=0..6000/month/3/linear", "/month", (0, 3000, 6000), False),
        ("link.price=0|0.5/GB", "/GB", (0, 0.5), False),
        ("link.loss=1e-6..1e-3/4", "", (1e-6, 1e-5, 1e-4, 1e-3), True),
        ("pool[hami/relay].instances=1..4", "", (1, 2, 3, 4), False),
        ("pool[hami/relay].instances=1..9/3", "", (1, 5, 9), False),
        (" workload.rate = 30/min..2/s/2 ", "/s", (0.5, 2), True),
        ("slo.ttft=500ms|1s", "s", (0.5, 1), False),
    ],
)
def test_values(
    scenario: Scenario, text: str, unit: str, values: tuple[float, ...], log: bool
) -> None:
    found = axis(text, scenario)
    assert (found.unit, found.values, found.log) == (unit, pytest.approx(values), log)


def test_several_axes_in_one_option_or_several(scenario: Scenario) -> None:
    texts = ["link.bandwidth=5..100Gbps", "link.distance_km=0..8000", "slo.tpot=20|50ms"]
    apart = parse_axes(texts, scenario)
    assert apart == parse_axes([",".join(texts)], scenario)
    assert [found.title for found in apart] == ["link.bandwidth", "link.distance_km", "slo.tpot"]


@pytest.mark.parametrize(
    ("path", "title"),
    [
        ("link[hami-shenzhen].bandwidth", "link[hami-shenzhen].bandwidth"),
        ("link[shenzhen-hami].bandwidth", "link[hami-shenzhen].bandwidth"),
    ],
)
def test_a_link_by_its_ends_in_either_order(scenario: Scenario, path: str, title: str) -> None:
    assert axis(f"{path}=5Gbps", scenario).title == title


def test_values_as_people_write_them(scenario: Scenario) -> None:
    found = axis("link.bandwidth=5..100Gbps", scenario)
    assert [found.text(value) for value in found.values[:2]] == ["5 Gbps", "9.1 Gbps"]
    assert axis("link.rent=0..6000/month", scenario).text(1200.0) == "1200/month"
    assert axis("workload.prompt=64..32768", scenario).text(32768.0) == "32768"
    assert found.span == "5 Gbps to 100 Gbps, 6 values"


@pytest.mark.parametrize("key", PARAMETERS)
def test_every_example_of_the_table_is_good(scenario: Scenario, key: str) -> None:
    parameter = PARAMETERS[key]
    path = key
    if parameter.named:
        assert parameter.names is not None
        thing, what = key.split(".")
        path = f"{thing}[{next(iter(parameter.names(scenario)))}].{what}"
    found = axis(f"{path}={parameter.example}", scenario)
    assert len(found.values) >= 4
    assert found.parameter is parameter


WAYS = ", ".join(PARAMETERS)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            "link.bandwith=5..100Gbps",
            "--sweep link.bandwith=5..100Gbps: unknown parameter 'link.bandwith'; did you mean "
            f"'link.bandwidth'? of {WAYS}",
        ),
        (
            "temperature=1..2",
            f"--sweep temperature=1..2: unknown parameter 'temperature'; known: {WAYS}",
        ),
        ("link.bandwidth", "expected PARAMETER=VALUES such as link.bandwidth=5..100Gbps"),
        ("", "--sweep : expected PARAMETER=VALUES such as link.bandwidth=5..100Gbps"),
        ("link.bandwidth=", "expected PARAMETER=VALUES"),
        ("link.bandwidth=5..100", "'100' has no unit; write a bandwidth such as 20Gbps"),
        ("link.bandwidth=5..100Gb", "'100Gb' is ambiguous: write 100Gbps for bits or 100GB/s"),
        ("link.bandwidth=5km..100Gbps", "unknown unit 'km' in '5km'"),
        ("link.bandwidth=100..5Gbps", "runs from 100 down to 5; write 5..100Gbps"),
        ("link.bandwidth=5..5Gbps", "begins and ends at 5; for one value write 5Gbps"),
        ("link.bandwidth=5..100Gbps/1", "a range has at least 2 steps, got 1"),
        ("link.bandwidth=5|9Gbps/3", "is no range, so it has no steps"),
        ("link.bandwidth=5..9|10Gbps", "is a list and a range at once"),
        ("link.bandwidth=5..9..10Gbps", "is no range; write it such as link.bandwidth=5..100Gbps"),
        ("link.bandwidth=fast", "'fast' is no number"),
        ("link.bandwidth=0..5Gbps", "must be above 0, got 0Gbps"),
        ("link.distance_km=0..8000/5/log", "begin above 0; write /linear instead"),
        ("link.distance_km=-5..8000", "a distance must not be negative, got '-5km'"),
        ("link.loss=0..1", "must be below 1, got 1"),
        ("link[hami-berlin].bandwidth=5Gbps", "unknown link 'hami-berlin'; known: hami-shenzhen"),
        ("workload[x].rate=1/s", "there is one workload.rate only; write it without [x]"),
        (
            "pool.instances=1..4",
            "say which, such as pool[hami/compute].instances; "
            "pools: hami/compute, hami/relay, shenzhen/memory, shenzhen/compute",
        ),
        ("pool[hami/relay].instances=1.5", "must be whole, got 1.5"),
        ("chip[b200].price=1/h", "unknown chip 'b200'; did you mean 'h200'?"),
        (
            "link.delay=1|2ms,link.distance_km=0..9",
            "--sweep: link.delay and link.distance_km both set the delay; give one",
        ),
    ],
)
def test_mistakes(scenario: Scenario, text: str, line: str) -> None:
    with pytest.raises(UserError) as caught:
        parse_axes([text], scenario)
    assert line in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_scenario_without_lines(scenario: Scenario) -> None:
    (local,) = (policy for policy in scenario.file.policies if policy.name == "local")
    file = scenario.file.model_copy(update={"topology": local.topology, "policies": (local,)})
    with pytest.raises(UserError, match="has no link whose bandwidth could vary"):
        parse_axes(["link.bandwidth=5..100Gbps"], scenario.with_file(file))
