"""What a figure was measured on."""

import os
import platform
import sys
from typing import Any


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    return {
        "cores": os.cpu_count(),
        "processor": platform.processor() or platform.machine(),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()}",
        "load_before": os.getloadavg()[0] if sys.platform != "win32" else None,
    }
