"""What a scan says of the files that a tool made, in words for the model (S4)."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final
from uuid import UUID

from django.conf import settings
from pydantic import ValidationError

from config.core.db import run_in_thread, run_in_thread_with_retry
from config.core.errors import StorageUnavailable
from config.core.redaction import redact, redact_user_text
from copilot.chat.prompt_tags import escape_server_tags
from copilot.files import content_types, virus_scan
from copilot.files import services as files
from copilot.models import WorkspaceFile
from copilot.providers.base import ImagePart, ToolCall
from copilot.tools.base import MIN_RESULT_CHARACTERS, ToolCallOutcome, ToolOutput

SCAN_WAIT_SECONDS = (
    5.0  # a scan takes a fraction of one; with no scanner at work every call of a turn waits so long
)
SCAN_POLL_SECONDS = 0.1

SCAN_PENDING_NOTE: Final = "still being checked; until that ends well nobody can open, read or share it."
SCAN_INFECTED_NOTE: Final = (
    "in quarantine, because a scan found something harmful; nobody can open, read or share it."
)
SCAN_MISSING_NOTE: Final = "it could not be kept, and so not be checked."


async def wait_for_scans(made: Sequence[WorkspaceFile]) -> None:
    """Wait a little for the scans of new files; each file says afterwards what it is."""
    until = time.monotonic() + SCAN_WAIT_SECONDS
    while waiting := [file for file in made if file.scan == WorkspaceFile.Scan.PENDING]:
        await run_in_thread(files.refresh_scans, waiting)
        if time.monotonic() >= until:
            return
        if any(file.scan == WorkspaceFile.Scan.PENDING for file in waiting):
            await asyncio.sleep(SCAN_POLL_SECONDS)


def describe_scan(file: WorkspaceFile) -> dict[str, str]:
    """The field that a result has for a file which cannot be used; none for any other."""
    if file.scan in files.USABLE_SCANS:
        return {}
    return {"scan": SCAN_INFECTED_NOTE if file.scan == WorkspaceFile.Scan.INFECTED else SCAN_PENDING_NOTE}


# MERGED tools.results: What becomes of a tool's output: cleaned, redacted, kept whole, and cut to what the model may get (A9.6, A9.7).

PREVIEW_CHARACTERS = 4_000
CLEAN_CHUNK_CHARACTERS = 1_000_000  # cleaned at a time, so that other threads get their turn in between
OFF_LOOP_CHARACTERS = 100_000  # above this, cleaning is too slow for the loop

_CONTROL_CHARACTERS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_SURROGATES = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True, kw_only=True)
class ToolRunResult:
    """What a call came to. `short` is the model's copy where it is not simply the text."""

    text: str
    success: bool
    user_text: bool = False  # written by people, models or strangers: no place to look for our own secrets
    short: str | None = None
    abridged: bool = False  # … and lacks something that the text has
    media: tuple[ImagePart, ...] = field(default=(), repr=False)
    cost_microdollars: int | None = None
    session_id: str | None = None
    sources: tuple[str, ...] = ()


class OutputBudget:
    """The characters one group may give the model; each call still out has its least part set aside.

    `taken` of them belong to calls of the group that ran before these, or run after them.
    """

    def __init__(self, calls: int, *, taken: int = 0) -> None:
        self._waiting = calls
        self._left = max(settings.TOOL_GROUP_CHARACTERS - taken, MIN_RESULT_CHARACTERS * calls)
        self._least = min(MIN_RESULT_CHARACTERS, self._left // max(calls, 1))

    def fit_output(self, text: str, call_id: str) -> tuple[str, bool]:
        """The model's copy of the next finished output, and whether something is missing from it."""
        self._waiting -= 1
        limit = min(settings.TOOL_OUTPUT_CHARACTERS, self._left - self._least * self._waiting)
        content, truncated = truncate_middle(text, limit, call_id)
        self._left -= len(content)
        return content, truncated


def make_failure(text: str, *, user_text: bool = True) -> ToolRunResult:
    """A sentence of ours, which may quote what the model said; only exceptions could quote more."""
    return ToolRunResult(text=text, success=False, user_text=user_text)


def make_result(output: ToolOutput, *, user_text: bool = False) -> ToolRunResult:
    """Text as it is, anything else as JSON with sorted keys; media must be what they say (A9.9)."""
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
        sources=output.sources,
    )


def list_argument_problems(error: ValidationError) -> str:
    """Every problem of a call's arguments, for whoever looks into it; the model is told a few (A8.6)."""
    found = error.errors(include_url=False, include_context=False, include_input=False)
    return "\n".join(f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}" for problem in found)


async def build_outcome(
    call: ToolCall, result: ToolRunResult, *, session_id: str, room: OutputBudget, duration_ms: int
) -> ToolCallOutcome:
    """The outcome of a call; what the model or the preview lacks is kept whole before anybody hears of it."""
    media, left_out = await _keep_images(UUID(session_id), result.media)
    text = "\n\n".join([await _clean_off_loop(result.text, result.user_text), *left_out])
    shown = clean_output(result.short, result.user_text) if result.short is not None else text
    content, truncated = room.fit_output(shown, call.call_id)
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
        sources=result.sources,
    )


async def _clean_off_loop(text: str, user_text: bool) -> str:
    if len(text) < OFF_LOOP_CHARACTERS:
        return clean_output(text, user_text)
    return await asyncio.to_thread(clean_output, text, user_text)


def clean_output(text: str, user_text: bool = False) -> str:
    """Fit to be stored and shown: no control characters but newline and tab, no half characters, no secrets."""
    pieces = (text[at : at + CLEAN_CHUNK_CHARACTERS] for at in range(0, len(text), CLEAN_CHUNK_CHARACTERS))
    whole = "".join(_SURROGATES.sub("\ufffd", _CONTROL_CHARACTERS.sub("", piece)) for piece in pieces)
    return redact_user_text(whole) if user_text else redact(whole)


async def _store_full_output(session_id: str, call_id: str, text: str) -> str | None:
    """The file that holds the whole output; a full disk costs the rest of it, not the result."""
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
    """Pictures with the file each is read from again by later turns (A9.9), and words for those no scan let through."""
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
    """Encoded here, off the loop; one that came out of a file was looked through when that was read."""
    kept = [(part, None) if part.file_id else _store_image(session_id, part) for part in media]
    for part, _ in kept:
        _ = part.base64
    return kept


def _store_image(session_id: UUID, part: ImagePart) -> tuple[ImagePart, WorkspaceFile | None]:
    """A full disk costs later turns the picture, not this one."""
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
    """The beginning and the end of a text within `limit` characters, server tags made harmless (A15.6)."""
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
