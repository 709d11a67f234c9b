"""Ask models for JSON answers, and check what they give against the caller's schema."""

from __future__ import annotations

import json

from config.core.json_values import JSON
from copilot.providers.base import CatalogueEntry, OutputFormat
from copilot.tools.json_schema import SchemaNotCheckable, find_argument_problems

MAX_OUTPUT_RETRIES = 2
MAX_LISTED_PROBLEMS = 5
MAX_CHECKED_CHARACTERS = 1_000_000
NATIVE_PROVIDERS = ("openai_chat", "openai_responses")  # those whose API takes the schema itself
INVALID_OUTPUT_NOTE = (
    "Your last message is not the JSON that was asked for:\n{problems}\n"
    "Send the whole answer again as one JSON object, with no text before or after it and no code fence."
)
_FENCE = "```"


def build_format_instructions(wanted: OutputFormat, entry: CatalogueEntry) -> str:
    """Describe the format in words, for providers whose API has no field for it."""
    if entry.provider in NATIVE_PROVIDERS:
        return ""
    text = (
        "Your final answer must be one JSON object, with no text before or after it and no code fence. "
        "You may use tools first."
    )
    if wanted.schema is None:
        return text
    return f"{text} It must match this JSON Schema:\n{json.dumps(wanted.schema, ensure_ascii=False)}"


def unwrap_json(text: str) -> str:
    """Remove white space and the code fence that models like to put around JSON."""
    text = text.strip()
    if text.startswith(_FENCE) and text.endswith(_FENCE) and "\n" in text:
        text = text[text.index("\n") : -len(_FENCE)].strip()
    return text


def find_output_problems(text: str, wanted: OutputFormat) -> list[str]:
    """Return why a text is not what was asked for; a schema that cannot be checked is not."""
    if len(text) > MAX_CHECKED_CHARACTERS:
        return [f"- it has more than {MAX_CHECKED_CHARACTERS:,} characters"]
    try:
        value: JSON = json.loads(unwrap_json(text))
    except (ValueError, RecursionError) as problem:
        return [f"- it is not valid JSON ({str(problem)[:200]})"]
    if not isinstance(value, dict):
        return ["- it is not a JSON object"]
    if wanted.schema is None:
        return []
    try:
        found = find_argument_problems(value, wanted.schema)
    except SchemaNotCheckable:
        return []
    return [
        f"- {'.'.join(map(str, place)) or 'the object'}: {message}"
        for place, message in found[:MAX_LISTED_PROBLEMS]
    ]
