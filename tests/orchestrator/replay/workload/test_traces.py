"""Traces of every format, right and wrong, and the public ones where they are there."""

import gzip
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.replay.workload.request import TraceRequest, WorkloadError
from orchestrator.replay.workload.scaled import Scaled, describe
from orchestrator.replay.workload.traces import Format, read_trace

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
    [bad] = trace.bad
    assert bad.number == 3
    assert why in bad.why
    assert str(bad).startswith("line 3: ")


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
        (AZURE.splitlines()[0], ":1: no line of it is a request of format azure, it is empty"),
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
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(WorkloadError, match="cannot be read"):
        read_trace(path)


@given(
    st.lists(
        st.one_of(
            st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\n")),
            st.recursive(
                st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
                lambda inner: (
                    st.dictionaries(
                        st.sampled_from(["at", "prompt", "output", "blocks", "session"]), inner
                    )
                    | st.lists(inner)
                ),
                max_leaves=6,
            ).map(json.dumps),
        )
    )
)
def test_every_line_is_a_request_or_bad(tmp_path_factory: pytest.TempPathFactory, lines: list[str]):
    folder = tmp_path_factory.mktemp("any")
    text = OURS + "".join(line.replace("\x85", "") + "\n" for line in lines)
    trace = read_trace(written(folder, text))
    late = sum("earlier" in bad.why for bad in trace.bad)
    spoken = sum(bool(line.strip()) for line in text.split("\n"))
    assert len(trace.rows) + len(trace.bad) - late == spoken


def test_scaled(tmp_path: Path) -> None:
    trace = read_trace(written(tmp_path, MOONCAKE + MOONCAKE.replace("1500", "1750") * 3))
    scaled = Scaled(inner=trace, factor=0.5, limit=2)
    assert [request.at for request in scaled.requests()] == [0.0, 0.5]
    with pytest.raises(WorkloadError, match="0 times"):
        Scaled(inner=trace, factor=0)
    with pytest.raises(WorkloadError, match="not 0"):
        Scaled(inner=trace, limit=0)


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
