"""The offline demo: a script that reacts to what people write, so that everything can be tried without a key.

It is no AI and says so. The same conversation always gives the same answer, word by word, so that an
interrupted answer can continue exactly where it stopped.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing

from config.core.json_values import JSON
from copilot.chat.prompt_tags import SERVER_TAGS, strip_server_tags
from copilot.providers.base import (
    AssistantMessage,
    ModelMessage,
    ModelRequest,
    StreamItem,
    ToolResultsMessage,
    UserMessage,
    is_continuation,
)
from copilot.providers.scripted import (
    ScriptedCall,
    ScriptedFinish,
    ScriptedPause,
    ScriptedReasoning,
    ScriptedReply,
    ScriptedText,
    ScriptedUsage,
    ScriptItem,
    SleepClock,
    WallClock,
    stream_script,
)
from copilot.realtime.payloads import Tokens

LONG_ANSWER_SECONDS = 60
_WORD = re.compile(r"\S+\s*|\s+")
_KEYWORDS = {
    "write_file": re.compile(r"\b(?:files?|delete|approv\w+|artifacts?|web ?pages?)\b", re.I),
    "todos_write": re.compile(r"\bto-?dos?\b", re.I),
    "ask_user": re.compile(r"\bask\b", re.I),
    "current_time": re.compile(r"\b(?:tools?|time)\b", re.I),
}
_PAGE = re.compile(r"\b(?:artifacts?|web ?pages?)\b", re.I)
_REASON = re.compile(r"\b(?:reason\w*|think\w*|thought)\b", re.I)
_DELETE = re.compile(r"\b(?:delete|approv\w+)\b", re.I)
_LONG = re.compile(r"\blong\b", re.I)

INTRODUCTION = (
    "**This is a scripted demo, not an AI.** No model is configured, so these words come from a script "
    "on your own machine; everything around them — streaming, tools, stop, queue, recovery — is real.\n\n"
)
MENU = """Try one of these:

- **“use a tool”** — reads the clock with a tool call
- **“write a file”** — stores a file in your workspace
- **“make an artifact”** — writes a small web page that opens next to the chat
- **“think aloud”** — shows more reasoning before the answer
- **“delete a file”** — writes one, and asks for your approval before deleting it
- **“make a todo list”** — fills the list next to the chat
- **“ask me something”** — a question that waits for your answer
- **“a long answer”** — a minute of text: press Stop, send another message meanwhile, reload the page, or
  kill the worker with `kill -9` and watch the answer continue
"""
SECTION = """### Part {n}

Every answer is stored before it is shown, so part {n} survives whatever happens to the page.
Reload it, close it, or open it a second time: the text continues where it was.

| What you do | What happens |
|---|---|
| Press **Stop** in part {n} | The turn ends at once and keeps what was written |
| Send a message | It waits in the queue and joins at the next boundary |
| Reload the page | One snapshot, then live again from its cursor |

```python
def part_{n}(events: list[str]) -> str:
    \"\"\"Fold the events of part {n} into text.\"\"\"
    return "".join(event for event in events if event)
```

1. The worker reads the model's stream.
2. Deltas are gathered for a few milliseconds and published together.
3. Every open page appends them in the same frame.

"""
LONG_OPENING = """Here is the long answer. It takes about a minute.

**Send me something while I write:** it waits above the box, where you can edit, move or remove it, or send it right away.

"""
DELETE_ANSWER = "The file is written. Now I'll delete it, if you approve.\n"
TOOL_ARGUMENTS: dict[str, dict[str, JSON]] = {
    "write_file": {
        "name": "demo-notes.md",
        "content": "# Notes from the demo\n\nThis file was written by a tool call.\n",
        "overwrite": True,
    },
    "delete_file": {"file": "demo-notes.md"},
    "todos_write": {
        "items": [
            {"text": "Look around", "status": "completed"},
            {"text": "Try Stop during a long answer", "status": "in_progress"},
            {"text": "Configure a real model", "status": "pending"},
        ]
    },
    "ask_user": {"question": "Which part shall I show next?", "choices": ["Streaming", "Tools", "Recovery"]},
    "current_time": {},
}


PAGE_ARGUMENTS: dict[str, JSON] = {
    "name": "demo-page.html",
    "content": """<!DOCTYPE html>
<html lang="en">
<meta charset="utf-8">
<title>A page from the demo</title>
<style>
  body { font: 1.1rem/1.6 system-ui, sans-serif; display: grid; place-items: center; min-height: 90vh; margin: 0; }
  button { font: inherit; padding: 0.5rem 1.2rem; border: 0; border-radius: 0.6rem; background: #14666b; color: #fff; }
</style>
<main>
  <h1>Ahoy</h1>
  <p>This page was written by a tool call.</p>
  <button onclick="this.textContent = `Clicked ${++clicks} times`">Click me</button>
</main>
<script>let clicks = 0</script>
</html>
""",
    "overwrite": True,
}
REFLECTION = """The user wants to see how I think, so I think slowly and in order.

1. What is asked? Nothing that needs facts: only that my thoughts are shown.
2. What could go wrong? They could stand in the way of the answer. So they fold into one line when I am done.
3. What do I answer? That opening this line shows exactly these words.
"""
_SERVER_BLOCK = re.compile(  # everything except the user's own text
    rf"<({'|'.join(tag for tag in SERVER_TAGS if tag != 'user_follow_up')})>.*?</\1>", re.DOTALL
)


class DemoProvider:
    def __init__(self, tokens_per_second: int = 60, clock: SleepClock | None = None) -> None:
        self._rate = tokens_per_second
        self._clock = clock or WallClock()

    async def stream(self, request: ModelRequest) -> AsyncIterator[StreamItem]:
        reply = self.reply_to(request)
        number = secrets.randbelow(2**48)  # makes call ids unique in every version of an answer
        items = stream_script(reply, self._clock, number=number, continued=is_continuation(request.messages))
        async with aclosing(items):
            async for item in items:
                yield item

    def reply_to(self, request: ModelRequest) -> ScriptedReply:
        messages, partial = _split_partial(request.messages)
        offered = {tool.name for tool in request.tools}
        thought, text, calls = _choose_answer(messages, offered, words=self._rate * LONG_ANSWER_SECONDS)
        items: list[ScriptItem] = []
        if partial:
            text = text[len(partial) :] if text.startswith(partial) else "\n\nThat is where this answer ends."
        elif request.thinking_tokens:
            items += self._paced(thought, ScriptedReasoning)
        items += self._paced(text, ScriptedText)
        items += calls
        words = sum(isinstance(item, ScriptedText | ScriptedReasoning) for item in items)
        items.append(ScriptedUsage(Tokens(input=_count_characters(request) // 4, output=words), cost="0"))
        return ScriptedReply([*items, ScriptedFinish("tool_calls" if calls else "stop")])

    def _paced(self, text: str, kind: type[ScriptedText] | type[ScriptedReasoning]) -> list[ScriptItem]:
        gap = ScriptedPause(1 / self._rate)
        return [item for word in _WORD.findall(text) for item in (gap, kind(word))]


def _split_partial(messages: Sequence[ModelMessage]) -> tuple[Sequence[ModelMessage], str]:
    if not is_continuation(messages):
        return messages, ""
    end = len(messages) - 1 if isinstance(messages[-1], AssistantMessage) else len(messages) - 2
    partial = messages[end]
    assert isinstance(partial, AssistantMessage)
    return messages[:end], partial.text


def _choose_answer(
    messages: Sequence[ModelMessage], offered: set[str], *, words: int
) -> tuple[str, str, list[ScriptItem]]:
    last = messages[-1]
    if isinstance(last, ToolResultsMessage):
        if "delete_file" in offered and _is_delete_pending(messages, last):
            return (
                "The file is there. Deleting it needs the user's approval.\n",
                DELETE_ANSWER,
                [_build_call("delete_file")],
            )
        is_first_question = sum(isinstance(message, UserMessage) for message in messages) == 1
        opening = INTRODUCTION if is_first_question else ""
        return "The results are in. I'll sum them up.\n", opening + _summarise_tools(last), []
    question = _strip_server_text(last.text) if isinstance(last, UserMessage) else ""
    first = not any(isinstance(message, AssistantMessage) for message in messages)
    opening = INTRODUCTION if first else ""
    tools = [tool for tool, keyword in _KEYWORDS.items() if keyword.search(question) and tool in offered]
    thought = f"The user wrote {len(question)} characters. I look for the words I know and pick a part of my script.\n"
    if _REASON.search(question):
        thought = REFLECTION
    if _LONG.search(question):
        return thought, opening + _build_long_answer(words), []
    if tools:
        names = ", ".join(f"`{tool}`" for tool in tools)
        return (
            thought,
            f"I call {names} for you.\n",  # the introduction follows with the results
            [_build_call(tool, question) for tool in tools],
        )
    return thought, opening + _quote_message(question) + MENU, []


def _build_call(tool: str, question: str = "") -> ScriptedCall:
    arguments = PAGE_ARGUMENTS if tool == "write_file" and _PAGE.search(question) else TOOL_ARGUMENTS[tool]
    return ScriptedCall(tool, arguments, pieces=4)


def _is_delete_pending(messages: Sequence[ModelMessage], group: ToolResultsMessage) -> bool:
    question = next((message.text for message in reversed(messages) if isinstance(message, UserMessage)), "")
    tools = {result.tool for result in group.results}
    return (
        bool(_DELETE.search(_strip_server_text(question)))
        and "write_file" in tools
        and "delete_file" not in tools
    )


def _strip_server_text(text: str) -> str:
    return strip_server_tags(_SERVER_BLOCK.sub("", text)).strip()


def _quote_message(question: str) -> str:
    line = " ".join(question.split())
    shown = line if len(line) <= 80 else line[:79] + "…"
    return f"You wrote:\n\n> {shown}\n\n" if shown else ""


def _summarise_tools(group: ToolResultsMessage) -> str:
    lines = [
        f"- `{result.tool}` {_describe_result(result.content, result.success)}" for result in group.results
    ]
    return (
        "The tools answered:\n\n" + "\n".join(lines) + "\n\nThat was the script; the tool calls were real.\n"
    )


def _describe_result(content: str, success: bool) -> str:
    line = " ".join(_describe_json(content).split()).replace("`", "'")
    shown = line if len(line) <= 160 else line[:159] + "…"
    return f"{'said' if success else 'failed'}: {shown}"


def _describe_json(content: str) -> str:
    """Describe JSON in words: a file by its name, anything else by its plain values."""
    try:
        value = json.loads(content)
    except ValueError:
        return content
    if not isinstance(value, dict):
        return content
    if "uri" in value and "name" in value:
        return f"[{value['name']}]({value['uri']})"
    return ", ".join(f"{name}: {item}" for name, item in value.items() if isinstance(item, str | int))


def _build_long_answer(words: int) -> str:
    text, number = LONG_OPENING, 0
    count = len(_WORD.findall(text))
    while count < words:
        number += 1
        part = SECTION.format(n=number)
        text += part
        count += len(_WORD.findall(part))
    return text + "That was all of it.\n"


def _count_characters(request: ModelRequest) -> int:
    spoken = sum(len(m.text) for m in request.messages if not isinstance(m, ToolResultsMessage))
    returned = sum(
        len(r.content) for m in request.messages if isinstance(m, ToolResultsMessage) for r in m.results
    )
    return len(request.system) + len(request.suffix) + spoken + returned
