"""Traces of every format, right and wrong, and the public ones where they are there."""

import gzip
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.replay.workload import traces
from orchestrator.replay.workload.request import TraceRequest, WorkloadError
from orchestrator.replay.workload.traces import Format, read_trace
from tests.orchestrator.replay.workload.description import describe

MOONCAKE = '{"timestamp": 1500, "input_length": 1100, "output_length": 7, "hash_ids": [4, 5, 6]}\n'
AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n"
OURS = '{"at": 2.5, "prompt": 40, "output": 3, "blocks": [1, 2], "session": "s"}\n'


def written(folder: Path, text: str) -> Path:
    path = folder / "trace"
    path.write_text(text, encoding="utf-8")
    return path


def test_mooncake(tmp_path: Path) -> None:
    trace = read_trace(written(tmp_path, MOONCAKE + MOONCAKE.replace("1500", "1750")))
    assert trace.format is Format.MOONCAKE
    assert trace.block_tokens == 512
    # The third block is partial, so it has no name; time begins with the first request.
    assert list(trace.requests()) == [
        TraceRequest(at=0.0, prompt=1100, output=7, blocks=(4, 5)),
        TraceRequest(at=0.25, prompt=1100, output=7, blocks=(4, 5)),
    ]


def test_azure(tmp_path: Path) -> None:
    trace = read_trace(written(tmp_path, AZURE + "2023-11-16 18:15:47.1805901,10,1\n"))
    assert trace.format is Format.AZURE
    assert [(r.prompt, r.output) for r in trace.requests()] == [(374, 44), (10, 1)]
    assert trace.rows[1].at == pytest.approx(0.5000001, abs=1e-6)


def test_ours_and_gzip(tmp_path: Path) -> None:
    path = tmp_path / "trace.gz"
    path.write_bytes(gzip.compress(OURS.encode()))
    trace = read_trace(path)
    assert trace.format is Format.OURS
    assert list(trace.requests()) == [
        TraceRequest(at=0.0, prompt=40, output=3, blocks=(1, 2), session="s")
    ]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("nonsense", "not JSON"),
        ("[" * 100_000, "too deep"),
        ('{"at": 1e999, "prompt": 5, "output": 1}', "at: must be a number of at least 0, got inf"),
        ('{"at": ' + "9" * 400 + ', "prompt": 5, "output": 1}', "int too large"),
        ('{"at": 1, "prompt": 50, "output": 1, "blocks": [-1]}', "blocks: must be a list"),
        ("[1]", "not an object"),
        ('{"at": 1, "prompt": 5}', "'output' is missing"),
        ('{"at": -1, "prompt": 5, "output": 1}', "at: must be a number of at least 0, got -1"),
        ('{"at": NaN, "prompt": 5, "output": 1}', "at: must be a number of at least 0, got nan"),
        ('{"at": 1, "prompt": 0, "output": 1}', "prompt: must be a whole number from 1"),
        ('{"at": 1, "prompt": 5.5, "output": 1}', "prompt: must be a whole number from 1"),
        ('{"at": 1, "prompt": true, "output": 1}', "prompt: must be a whole number from 1"),
        ('{"at": 1, "prompt": 5, "output": 1, "blocks": ["a"]}', "blocks: must be a list"),
        ('{"at": 1, "prompt": 5, "output": 1, "blocks": [1]}', "1 of 16 tokens in a prompt of 5"),
        ('{"at": 1, "prompt": 5, "output": 1, "session": 3}', "session: must be text"),
    ],
)
def test_a_bad_line_is_kept_with_its_number(tmp_path: Path, line: str, why: str) -> None:
    trace = read_trace(written(tmp_path, OURS + "\n" + line + "\n" + OURS))
    assert len(trace.rows) == 2
    [bad] = trace.bad  # the empty line is none
    assert bad.number == 3
    assert why in bad.why
    assert str(bad).startswith("line 3: ")


def test_a_line_of_mooncakes_with_more_blocks_than_tokens_is_bad(tmp_path: Path) -> None:
    trace = read_trace(written(tmp_path, MOONCAKE + MOONCAKE.replace("1100", "1024")))
    assert [str(bad) for bad in trace.bad] == [
        "line 2: hash_ids: 3 of 512 tokens in a prompt of 1024"
    ]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("2023-11-16 18:15:47,1", "2 fields instead of 3"),
        ("yesterday,1,1", "TIMESTAMP: must be like 2023-11-16 18:15:46.68, got 'yesterday'"),
        ("2023-13-16 18:15:47,1,1", "month must be in 1..12"),
        ("2023-11-16 18:15:47,0,1", "ContextTokens: must be a whole number from 1"),
        ("2023-11-16 18:15:47,1,", "GeneratedTokens: must be a whole number from 1"),
        ("2023-11-16 18:15:47,1,-4", "GeneratedTokens: must be a whole number from 1"),
        (AZURE.splitlines()[0], "TIMESTAMP: must be like"),
        ("a" * 200_000 + ",1,1", "field larger than field limit"),
    ],
)
def test_a_bad_line_of_azures(tmp_path: Path, line: str, why: str) -> None:
    trace = read_trace(written(tmp_path, AZURE + line + "\n" + AZURE.splitlines()[1]))
    assert len(trace.rows) == 2
    [bad] = trace.bad
    assert bad.number == 3
    assert why in bad.why


def test_azures_stamps_with_a_zone_and_windows_line_ends(tmp_path: Path) -> None:
    header = AZURE.splitlines()[0]
    lines = [header, "2024-05-10 00:00:00.25+00:00,5,6", "2024-05-10 02:00:00.5+02:00,7,8"]
    trace = read_trace(written(tmp_path, "\ufeff" + "\r\n".join(lines)))
    assert trace.bad == ()
    assert [(r.at, r.prompt, r.output) for r in trace.requests()] == [(0.0, 5, 6), (0.25, 7, 8)]


def test_azure_without_a_header_is_read_when_named(tmp_path: Path) -> None:
    path = written(tmp_path, AZURE.splitlines()[1])
    assert len(read_trace(path, Format.AZURE).rows) == 1
    with pytest.raises(WorkloadError, match="name its format"):
        read_trace(path)
    # Columns in another order are not taken for one another.
    path.write_text("TIMESTAMP,GeneratedTokens,ContextTokens\n" + AZURE.splitlines()[1])
    with pytest.raises(WorkloadError, match="not a trace that is known"):
        read_trace(path)


def test_a_bad_first_line_does_not_hide_the_format(tmp_path: Path) -> None:
    trace = read_trace(written(tmp_path, "# notes\n\n" + MOONCAKE))
    assert trace.format is Format.MOONCAKE
    assert [bad.number for bad in trace.bad] == [1]


def test_bytes_that_are_no_text_spoil_their_line_only(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    path.write_bytes(OURS.encode() + b'{"at": 3, "session": "\xff"}\n' + OURS.encode())
    trace = read_trace(path)
    assert len(trace.rows) == 2
    assert [str(bad) for bad in trace.bad] == ["line 2: not UTF-8: invalid start byte"]


def test_a_name_behind_different_ones_is_not_the_same_content(tmp_path: Path) -> None:
    def line(*blocks: int) -> str:
        return json.dumps({"at": 1, "prompt": 99, "output": 1, "blocks": blocks}) + "\n"

    text = line(1, 2, 3) + line(4, 2, 3) + line(1, 2, 2) + line(4, 2, 5) + line(1, 2, 3)
    rows = read_trace(written(tmp_path, text)).rows
    first, other, twice, longer, again = (row.blocks for row in rows)
    assert first == again == (1, 2, 3)
    assert other[0] == 4
    assert min(other[0], -other[1], -other[2]) > 0
    assert twice[:2] == (1, 2)
    assert longer == (*other[:2], 5)
    assert len({*first, *other, *twice, *longer}) == 8


def test_lines_out_of_order_are_sorted_and_said(tmp_path: Path) -> None:
    trace = read_trace(written(tmp_path, OURS + OURS.replace("2.5", "1.0")))
    assert [request.at for request in trace.requests()] == [0.0, 1.5]
    assert [str(bad) for bad in trace.bad] == [
        "line 2: earlier than the line before: put where its time belongs"
    ]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", ":1: not a trace that is known here"),
        ("hello\n", ":1: not a trace that is known here"),
        (
            AZURE.splitlines()[0],
            ":1: no line of it is a request of format azure, it has none; other "
            "formats are mooncake, pdd",
        ),
        ('{"at": 1, "prompt": 0}', ":1: no line of it is a request of format pdd: prompt: must"),
    ],
)
def test_a_trace_without_a_request_is_refused(tmp_path: Path, text: str, why: str) -> None:
    with pytest.raises(WorkloadError, match="trace" + why):
        read_trace(written(tmp_path, text))


def test_what_cannot_be_read_is_said(tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match="No such file"):
        read_trace(tmp_path / "none")
    path = tmp_path / "trace"
    path.write_bytes(gzip.compress(OURS.encode() * 100)[:-20])
    with pytest.raises(WorkloadError, match="cannot be read"):
        read_trace(path)
    whole = bytearray(gzip.compress(OURS.encode() * 100))
    whole[20:30] = b"\xff" * 10
    path.write_bytes(whole)
    with pytest.raises(WorkloadError, match="cannot be read"):
        read_trace(path)


KEYS = [
    *("at", "prompt", "output", "blocks", "session"),
    *("timestamp", "input_length", "output_length", "hash_ids"),
]
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.dictionaries(st.sampled_from(KEYS), inner) | st.lists(inner),
    max_leaves=6,
)
STAMPS = st.datetimes().map(str) | st.text("0123456789-:. ", max_size=30)
LINES = st.lists(
    st.one_of(
        st.binary().map(lambda line: line.replace(b"\n", b"")),
        VALUES.map(lambda value: json.dumps(value).encode()),
        st.tuples(STAMPS, st.integers(), st.integers()).map(
            lambda fields: ",".join(map(str, fields)).encode()
        ),
    )
)


@given(st.sampled_from([(MOONCAKE, 1), (AZURE, 2), (OURS, 1)]), LINES)
def test_every_line_is_a_request_or_bad(
    tmp_path_factory: pytest.TempPathFactory, begin: tuple[str, int], lines: list[bytes]
) -> None:
    path = tmp_path_factory.mktemp("any") / "trace"
    good, first = begin
    path.write_bytes(good.encode() + b"\n".join(lines))
    trace = read_trace(path)
    late = {bad.number for bad in trace.bad if "earlier" in bad.why}
    spoken = {first + n for n, line in enumerate(lines, 1) if line.strip()}
    bad = {bad.number for bad in trace.bad} - late
    assert bad <= spoken
    assert len(trace.rows) == 1 + len(spoken) - len(bad)
    times = [row.at for row in trace.rows]
    assert times == sorted(times)
    assert times[0] == 0.0
    assert min(min(row.prompt, row.output) for row in trace.rows) >= 1


SHARED = Path(__file__).parents[5] / "shared" / "traces"


@pytest.mark.parametrize(
    ("name", "count", "known"),
    [
        ("mooncake/conversation_trace.jsonl.gz", 12_031, 0.37),
        ("mooncake/synthetic_trace.jsonl.gz", 3_993, None),
        ("azure/AzureLLMInferenceTrace_conv.csv.gz", 19_366, 0.0),
        ("azure/AzureLLMInferenceTrace_code.csv.gz", 8_819, 0.0),
        ("servegen/servegen_deepseek-r1_5rps_1h.jsonl.gz", 17_956, 0.0),
    ],
)
def test_public_traces(name: str, count: int, known: float | None) -> None:
    path = SHARED / name
    if not path.exists():
        pytest.skip(f"{name} is not beside the project (shared/traces)")
    trace = read_trace(path)
    assert (len(trace.rows), trace.bad) == (count, ())
    if known is not None:
        assert describe(trace).known == pytest.approx(known, abs=0.01)


def test_a_line_and_a_trace_are_bounded_however_small_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "bomb.gz"
    path.write_bytes(gzip.compress(OURS.encode() + b" " * (traces.MAX_LINE_BYTES + 1)))
    assert path.stat().st_size < 1 << 20
    with pytest.raises(WorkloadError, match=r"bomb.gz:2: a line longer than 16777216 bytes"):
        read_trace(path)
    monkeypatch.setattr(traces, "MAX_LINES", 3)
    with pytest.raises(WorkloadError, match=r"trace:4: a trace of more than 3 lines"):
        read_trace(written(tmp_path, OURS * 4))
    assert len(read_trace(written(tmp_path, OURS * 3)).rows) == 3
