"""`schemathesis`: many requests drawn from /openapi.json, allowed ones and nearly allowed ones."""

import subprocess
import sys
import tempfile
from importlib.metadata import version

from checks import Service, run

EXAMPLES = 12  # of each endpoint, besides those that cover its fields
CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
    "negative_data_rejection",
    "unsupported_method",
)


def what_it_allows_is_answered_as_it_says(service: Service) -> str:
    base = service.url.removesuffix("/v1")
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [
                *(sys.executable, "-m", "schemathesis.cli", "run", f"{base}/openapi.json"),
                *("--header", f"Authorization: Bearer {service.key}"),
                *("--checks", ",".join(CHECKS), "--max-examples", str(EXAMPLES)),
                *("--request-timeout", "900", "--generation-database", "none", "--no-color"),
            ],
            stdout=subprocess.PIPE,
            text=True,
            timeout=3600,
            cwd=folder,  # where it leaves what it found
            check=False,
        )
    assert done.returncode == 0, done.stdout[-6000:]
    (counted,) = [line for line in done.stdout.splitlines() if " generated, " in line]
    return counted.strip()


if __name__ == "__main__":
    run(version("schemathesis"), [what_it_allows_is_answered_as_it_says])
