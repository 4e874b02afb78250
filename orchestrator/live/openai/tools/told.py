"""Tools for a model whose chat template knows none: told in words, in the calls' own format."""

import json
from collections.abc import Sequence
from typing import Any

from orchestrator.live.openai.tools.calls import CLOSE, OPEN

_TOLD = (
    "You can call functions to do what the user asks for. These are the functions, one JSON "
    "description a line:\n<tools>\n{tools}\n</tools>\n"
    "To call one, answer with its name and its arguments as a JSON object, like this:\n"
    f'{OPEN}\n{{{{"name": "<its name>", "arguments": {{{{<its arguments>}}}}}}}}\n{CLOSE}'
)


def told_in_words(
    messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]]
) -> list[dict[str, Any]]:
    """The same talk with plain roles and contents only."""
    plain = [_plain(message) for message in messages]
    if not tools:
        return plain
    text = _TOLD.format(tools="\n".join(json.dumps(t, ensure_ascii=False) for t in tools))
    if plain and plain[0]["role"] == "system":
        first = plain[0] | {"content": f"{plain[0]['content']}\n\n{text}"}
        return [first, *plain[1:]]
    return [{"role": "system", "content": text}, *plain]


def _plain(message: dict[str, Any]) -> dict[str, Any]:
    if message["role"] == "tool":
        content = f"<tool_response>\n{message['content']}\n</tool_response>"
        return {"role": "user", "content": content}
    calls = message.get("tool_calls")
    if not calls:
        return message
    told = [f"{OPEN}\n{json.dumps(c['function'], ensure_ascii=False)}\n{CLOSE}" for c in calls]
    parts = [message["content"], *told] if message["content"] else told
    return {"role": message["role"], "content": "\n".join(parts)}
