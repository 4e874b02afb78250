"""One file of HTML with all that it needs: it asks nothing of any network."""

from html import escape
from importlib.resources import files
from string import Template

import orjson
from plotly.offline import get_plotlyjs  # type: ignore[import-untyped]

from orchestrator.look.parts import look_part

# Inside <script> nothing may end it early; these two ends of lines are none in JSON.
_ESCAPES = {character: f"\\u{ord(character):04x}" for character in "<>&\u2028\u2029"}


def render(*, title: str, body: str, script: str, data: object) -> str:
    """The page. In `body` $title stands for its title, which is shown as text.

    `script` finds `data` as JSON in the element of that id. Names and texts of the user's are
    shown, never run.
    """
    title = escape(title)
    return Template(report_part("frame.html")).substitute(
        title=title,
        style=look_part("look.css") + report_part("page.css"),
        body=Template(body).substitute(title=title),
        plotly=get_plotlyjs(),
        data=_json_for_script(data),
        script=look_part("elements.js") + script,
    )


def report_part(name: str) -> str:
    """A file of the report's parts."""
    return files("orchestrator.replay.report.parts").joinpath(name).read_text(encoding="utf-8")


def _json_for_script(value: object) -> str:
    text = orjson.dumps(value).decode()
    for character, escaped in _ESCAPES.items():
        text = text.replace(character, escaped)
    return text
