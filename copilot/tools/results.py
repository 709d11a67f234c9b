"""Clean, redact, store and truncate tool output before it goes to the database and the model."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final
from uuid import UUID

import msgspec
from django.conf import settings
from pydantic import ValidationError

from config.core.db import run_in_thread, run_in_thread_with_retry
from config.core.errors import StorageUnavailable
from config.core.json_values import JSON
from config.core.redaction import redact, redact_secret_patterns, redact_user_text
from copilot.chat.prompt_tags import escape_server_tags
from copilot.files import content_types, virus_scan
from copilot.files import services as files
from copilot.models import WorkspaceFile
from copilot.providers.base import ImagePart, ToolCall
from copilot.realtime.payloads import ToolCallContent
from copilot.tools.base import MIN_RESULT_CHARACTERS, ToolCallOutcome, ToolOutput
from copilot.tools.labels import describe_call, summarize_result

MAX_ARGUMENT_KEYS = 6
MAX_ARGUMENT_CHARACTERS = 120


def preview_arguments(arguments: Mapping[str, JSON]) -> dict[str, str]:
    """Return a call's arguments as people see them: a few keys, short values, no secrets.

    Keys are sorted because the database keeps no other order: a reload must show what was shown live.
    """
    return {key: _preview_value(arguments[key]) for key in sorted(arguments)[:MAX_ARGUMENT_KEYS]}


def build_call_content(call_id: str, tool: str, arguments: Mapping[str, JSON]) -> ToolCallContent:
    """Build what clients see of a call: a label, and its arguments as far as they fit."""
    preview = preview_arguments(arguments)
    label = describe_call(tool, arguments)
    return ToolCallContent(
        call_id=call_id,
        tool=tool,
        arguments=preview,
        label=label.done,
        running_label=label.running,
        shortened=len(preview) < len(arguments)
        or any(len(value) >= MAX_ARGUMENT_CHARACTERS for value in preview.values()),
    )


def redact_arguments(arguments: Mapping[str, JSON]) -> dict[str, JSON]:
    return {redact_secret_patterns(key): _redact_value(value) for key, value in arguments.items()}


def _redact_value(value: JSON) -> JSON:
    match value:
        case dict():
            return dict(redact_arguments(value))
        case list():
            return [_redact_value(item) for item in value]
        case str():
            return redact_secret_patterns(value)
        case _:
            return value


def _preview_value(value: JSON) -> str:
    text = redact_secret_patterns(
        value if isinstance(value, str) else msgspec.json.encode(value, order="sorted").decode()
    )
    return text if len(text) <= MAX_ARGUMENT_CHARACTERS else text[: MAX_ARGUMENT_CHARACTERS - 1] + "…"


SCAN_WAIT_SECONDS = 5.0  # a scan takes a fraction of a second; without a scanner every call waits this long
SCAN_POLL_SECONDS = 0.1

SCAN_PENDING_NOTE: Final = "still being checked; until that ends well nobody can open, read or share it."
SCAN_INFECTED_NOTE: Final = (
    "in quarantine, because a scan found something harmful; nobody can open, read or share it."
)
SCAN_MISSING_NOTE: Final = "it could not be stored, and so not be scanned."


async def wait_for_scans(stored: Sequence[WorkspaceFile]) -> None:
    """Wait a few seconds for the scans of new files, and refresh the files' `scan` field."""
    until = time.monotonic() + SCAN_WAIT_SECONDS
    while waiting := [file for file in stored if file.scan == WorkspaceFile.Scan.PENDING]:
        await run_in_thread(files.refresh_scans, waiting)
        if time.monotonic() >= until:
            return
        if any(file.scan == WorkspaceFile.Scan.PENDING for file in waiting):
            await asyncio.sleep(SCAN_POLL_SECONDS)


def describe_scan(file: WorkspaceFile) -> dict[str, str]:
    """Return the result field for a file that cannot be used, and no field for any other file."""
    if file.scan in files.USABLE_SCANS:
        return {}
    return {"scan": SCAN_INFECTED_NOTE if file.scan == WorkspaceFile.Scan.INFECTED else SCAN_PENDING_NOTE}


PREVIEW_CHARACTERS = 4_000
CLEAN_CHUNK_CHARACTERS = 1_000_000  # cleaned at a time, so that other threads can run in between
OFF_LOOP_CHARACTERS = 100_000  # longer texts are cleaned in a thread

_CONTROL_CHARACTERS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_SURROGATES = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True, kw_only=True)
class ToolRunResult:
    """The result of a call before it is cleaned.

    `short` is the model's copy where it differs from the text.
    """

    text: str
    success: bool
    user_text: bool = False  # written by people, models or third parties: not searched for our own secrets
    short: str | None = None
    abridged: bool = False  # `short` lacks something that the text has
    media: tuple[ImagePart, ...] = field(default=(), repr=False)
    cost_microdollars: int | None = None
    session_id: str | None = None
    reported_turn_id: str | None = None
    sources: tuple[str, ...] = ()


class OutputBudget:
    """The characters one group of calls may give the model, with a minimum reserved for each unfinished call.

    `taken` of them belong to calls of the group that ran before these, or run after them.
    """

    def __init__(self, calls: int, *, taken: int = 0) -> None:
        self._waiting = calls
        self._left = max(settings.TOOL_GROUP_CHARACTERS - taken, MIN_RESULT_CHARACTERS * calls)
        self._reserved = min(MIN_RESULT_CHARACTERS, self._left // max(calls, 1))

    def fit_output(self, text: str, call_id: str) -> tuple[str, bool]:
        """Return the model's copy of the next finished output, and whether it was truncated."""
        self._waiting -= 1
        limit = min(settings.TOOL_OUTPUT_CHARACTERS, self._left - self._reserved * self._waiting)
        content, truncated = truncate_middle(text, limit, call_id)
        self._left -= len(content)
        return content, truncated


def make_failure(text: str, *, user_text: bool = True) -> ToolRunResult:
    """Make a failed result from a message of ours, which may quote the model; only exceptions can quote more."""
    return ToolRunResult(text=text, success=False, user_text=user_text)


def make_result(output: ToolOutput, *, user_text: bool = False) -> ToolRunResult:
    """Serialise an output: text as it is, anything else as JSON with sorted keys. Media must match their type."""
    if any(content_types.detect_image_type(part.data) != part.mime for part in output.media):
        return make_failure("Error: the tool returned media with invalid encoding.")
    value = output.value
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True, ensure_ascii=False)
    return ToolRunResult(
        text=text,
        success=output.success,
        user_text=user_text,
        media=output.media,
        cost_microdollars=output.cost_microdollars,
        session_id=output.session_id,
        reported_turn_id=output.reported_turn_id,
        sources=output.sources,
    )


def list_argument_problems(error: ValidationError) -> str:
    """List every problem of a call's arguments for the stored result; the model gets only the first few."""
    found = error.errors(include_url=False, include_context=False, include_input=False)
    return "\n".join(f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}" for problem in found)


async def build_outcome(
    call: ToolCall, result: ToolRunResult, *, session_id: str, budget: OutputBudget, duration_ms: int
) -> ToolCallOutcome:
    """Build the outcome of a call. Whatever the model or the preview lacks is stored whole first."""
    media, left_out = await _keep_images(UUID(session_id), result.media)
    text = "\n\n".join([await _clean_off_loop(result.text, result.user_text), *left_out])
    shown = clean_output(result.short, result.user_text) if result.short is not None else text
    content, truncated = budget.fit_output(shown, call.call_id)
    file_id = None
    if truncated or result.abridged or len(text) > PREVIEW_CHARACTERS:
        file_id = await _store_full_output(session_id, call.call_id, text)
    return ToolCallOutcome(
        call_id=call.call_id,
        tool=call.tool,
        success=result.success,
        content=content,
        preview=shown[:PREVIEW_CHARACTERS],
        duration_ms=duration_ms,
        truncated=truncated,
        file_id=file_id,
        media=media,
        cost_microdollars=result.cost_microdollars,
        session_id=result.session_id,
        reported_turn_id=result.reported_turn_id,
        sources=result.sources,
        summary=summarize_result(call.tool, text) if result.success else "",
    )


async def _clean_off_loop(text: str, user_text: bool) -> str:
    if len(text) < OFF_LOOP_CHARACTERS:
        return clean_output(text, user_text)
    return await asyncio.to_thread(clean_output, text, user_text)


def clean_output(text: str, user_text: bool = False) -> str:
    """Remove control characters, lone surrogates and secrets, so that the text can be stored and shown."""
    pieces = (text[at : at + CLEAN_CHUNK_CHARACTERS] for at in range(0, len(text), CLEAN_CHUNK_CHARACTERS))
    whole = "".join(_SURROGATES.sub("\ufffd", _CONTROL_CHARACTERS.sub("", piece)) for piece in pieces)
    return redact_user_text(whole) if user_text else redact(whole)


async def _store_full_output(session_id: str, call_id: str, text: str) -> str | None:
    """Store the whole output in a file. If the storage is unavailable, only the truncated rest is lost."""
    try:
        file = await run_in_thread_with_retry(
            partial(files.store_tool_output, UUID(session_id), call_id), text
        )
    except StorageUnavailable:
        return None
    return str(file.id)


async def _keep_images(
    session_id: UUID, media: tuple[ImagePart, ...]
) -> tuple[tuple[ImagePart, ...], list[str]]:
    """Store images for later turns, and say which ones the scan did not let through."""
    if not media:
        return (), []
    kept = await run_in_thread_with_retry(partial(_store_images, session_id), media)
    await wait_for_scans([file for _, file in kept if file is not None])
    judged = [(part, _image_refusal(part, file)) for part, file in kept]
    left_out = [f"[A picture was left out: {words}]" for _, words in judged if words]
    return tuple(part for part, words in judged if not words), left_out


def _store_images(
    session_id: UUID, media: tuple[ImagePart, ...]
) -> list[tuple[ImagePart, WorkspaceFile | None]]:
    """Store and base64-encode images off the event loop.

    An image from a file was scanned when it was read.
    """
    kept = [(part, None) if part.file_id else _store_image(session_id, part) for part in media]
    for part, _ in kept:
        _ = part.base64
    return kept


def _store_image(session_id: UUID, part: ImagePart) -> tuple[ImagePart, WorkspaceFile | None]:
    """Store one image. If the storage is unavailable, only later turns lose it."""
    try:
        file = files.store_tool_image(session_id, part.name, part.data)
    except StorageUnavailable:
        return part, None
    return replace(part, name=file.name, file_id=str(file.id)), file


def _image_refusal(part: ImagePart, file: WorkspaceFile | None) -> str:
    if file is not None:
        return describe_scan(file).get("scan", "")
    return SCAN_MISSING_NOTE if virus_scan.is_scan_enabled() and not part.file_id else ""


def truncate_middle(text: str, limit: int, call_id: str) -> tuple[str, bool]:
    """Keep the beginning and the end of a text within `limit` characters, with server tags escaped."""
    if len(text) <= limit:
        whole = escape_server_tags(text)
        if len(whole) <= limit:
            return whole, False
    tail = limit * 3 // 14
    marker = (
        f"\n\n[{len(text):,} characters in all; the middle is left out. "
        f'The whole output: read_tool_result with call_id "{call_id}".]\n\n'
    )
    head = min(settings.TOOL_OUTPUT_CHARACTERS * 5 // 7, limit - tail - len(marker))
    return escape_server_tags(text[:head])[:head] + marker + escape_server_tags(text[-tail:])[-tail:], True
