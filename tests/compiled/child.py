"""A process of its own, in a checkout that may have been built."""

import subprocess
import sys
from pathlib import Path


def child(program: str, checkout: Path, **environment: str) -> tuple[str, str]:
    """What the program prints, and what it says on standard error."""
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=checkout,
        env={"PYTHONDONTWRITEBYTECODE": "1", **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout, done.stderr
