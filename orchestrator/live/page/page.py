"""The page as one answer: no build step, nothing from any network, nothing of the deployment.

All that it shows it asks of `/pdd/state`, with the key that its reader gives it.
"""

import base64
import hashlib
from dataclasses import dataclass
from importlib.resources import files
from string import Template

from orchestrator.look.parts import look_part

_SCRIPTS = ("words.js", "map.js", "timeline.js", "lists.js", "page.js")


@dataclass(frozen=True, slots=True, kw_only=True)
class LivePage:
    """`headers` allow the page its own script and style, and to ask its own server only."""

    html: str
    headers: dict[str, str]


def live_page() -> LivePage:
    """The page for everybody: it does not change while the gateway runs."""
    style = look_part("look.css") + _part("page.css")
    body = "".join((look_part("elements.js"), *map(_part, _SCRIPTS)))
    script = f'(() => {{\n"use strict";\n{body}}})();\n'
    policy = {
        "default-src": "'none'",
        "script-src": _source(script),
        "style-src": _source(style),
        "connect-src": "'self'",
        "img-src": "data:",
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
    }
    return LivePage(
        html=Template(_part("page.html")).substitute(style=style, script=script),
        headers={
            "content-security-policy": "; ".join(f"{key} {value}" for key, value in policy.items()),
            "cache-control": "no-cache",
            "referrer-policy": "no-referrer",
            "x-content-type-options": "nosniff",
        },
    )


def _source(text: str) -> str:
    """An inline script or style as a content security policy names it."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _part(name: str) -> str:
    return files("orchestrator.live.page.parts").joinpath(name).read_text(encoding="utf-8")
