"""What a figure was measured on."""

import os
import platform
import sys
from typing import Any


def machine() -> dict[str, Any]:
    """Take it before the measurement: `load_before` is the load average of the last minute."""
    return {
        "cores": os.cpu_count(),
        "processor": platform.processor() or platform.machine(),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()}",
        "load_before": os.getloadavg()[0] if sys.platform != "win32" else None,
    }
