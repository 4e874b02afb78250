"""A model's fingerprint as text, the same text on every worker that has the same model."""

from dataclasses import asdict

import orjson

from workers.api.info import Fingerprint


def canonical(fingerprint: Fingerprint) -> str:
    """JSON with sorted keys and no spaces."""
    return orjson.dumps(asdict(fingerprint), option=orjson.OPT_SORT_KEYS).decode()
