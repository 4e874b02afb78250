"""`/openapi.json` is true: nothing that it allows, or nearly, is a server's error, and every answer
is as it says. By schemathesis, which draws requests from it; `make client-schemathesis` draws more,
of a running service.
"""

import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

EXAMPLES = 5  # of each endpoint, besides those that cover its fields
CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
    "negative_data_rejection",
    "unsupported_method",
)


def test_it_tells_what_is_served(gateway):
    told = gateway.get("/openapi.json").json()
    assert told["info"] == {"title": "PDD", "version": version("pdd-orchestrator")}
    for path, operations in told["paths"].items():
        if "get" in operations:
            assert gateway.get(path.replace("{name}", "smollm2-135m")).status_code == 200
    fields = told["components"]["schemas"]["ChatRequest"]["properties"]
    assert fields["model"] == {"enum": ["smollm2-135m"]}
    assert {"messages", "tools", "response_format", "pdd_route"} <= fields.keys()


@pytest.mark.timeout(300)
def test_what_it_allows_is_answered_as_it_says(gateway, tmp_path: Path):
    gateway.service.says("an answer")
    done = subprocess.run(
        [
            *(sys.executable, "-m", "schemathesis.cli", "run", f"{gateway.url}/openapi.json"),
            *("--checks", ",".join(CHECKS), "--max-examples", str(EXAMPLES)),
            *("--seed", "1", "--generation-database", "none", "--no-color"),
        ],
        capture_output=True,
        text=True,
        timeout=280,
        cwd=tmp_path,  # where it leaves what it found
        check=False,
    )
    assert done.returncode == 0, done.stdout[-6000:]
