"""The page as it is served: alone, harmless, and silent about the deployment."""

import base64
import hashlib
import re

from orchestrator.live.page.page import live_page

PAGE = live_page()


def test_only_its_own_script_and_style_run() -> None:
    policy = dict(
        part.split(" ", 1) for part in PAGE.headers["content-security-policy"].split("; ")
    )
    assert policy["default-src"] == "'none'"
    assert policy["connect-src"] == "'self'"
    assert policy["frame-ancestors"] == "'none'"
    for tag in ("script", "style"):
        [text] = re.findall(rf"<{tag}>(.*?)</{tag}>", PAGE.html, re.S)
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert policy[f"{tag}-src"] == f"'sha256-{digest}'"


def test_it_names_nothing_from_elsewhere() -> None:
    assert not re.search(r'(src|href)=(?!"data:,|"/metrics"|"/pdd/state")', PAGE.html)
    assert not re.search(r"https?://(?!www\.w3\.org)|@import|url\(|innerHTML|eval\(", PAGE.html)
    assert len(PAGE.html) < 60_000
