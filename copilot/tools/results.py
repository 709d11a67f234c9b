"""What becomes of a tool's output: cleaned, redacted, kept whole, and cut to what the model may get (A9.6, A9.7)."""

from __future__ import annotations

import asyncio
import json
import re
from dataclasses import dataclass, field, replace
from functools import partial
from uuid import UUID

from django.conf import settings
from pydantic import ValidationError

from copilot.bridge import retried
from copilot.errors import StorageUnavailable
from copilot.models import WorkspaceFile
from copilot.providers.base import ImagePart, ToolCall
from copilot.redaction import redact, redact_user_text
from copilot.tags import escape_server_tags
from copilot.tools import scans
from copilot.tools.base import LEAST_CHARACTERS, CallOutcome, ToolOutput
from copilot.workspace import files, scanning, sniffing

PREVIEW_CHARACTERS = 4_000
CHUNK_CHARACTERS = 1_000_000  # cleaned at a time, so that other threads get their turn in between
LARGE_CHARACTERS = 100_000  # above this, cleaning is too slow for the loop

_UNWANTED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_SURROGATES = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True, kw_only=True)
class Result:
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


class Room:
    """The characters one group may give the model; each call still out has its least part set aside.

    `taken` of them belong to calls of the group that ran before these, or run after them.
    """

    def __init__(self, calls: int, *, taken: int = 0) -> None:
        self._waiting = calls
        self._left = max(settings.TOOL_GROUP_CHARACTERS - taken, LEAST_CHARACTERS * calls)
        self._least = min(LEAST_CHARACTERS, self._left // max(calls, 1))

    def take(self, text: str, call_id: str) -> tuple[str, bool]:
        """The model's copy of the next finished output, and whether something is missing from it."""
        self._waiting -= 1
        limit = min(settings.TOOL_OUTPUT_CHARACTERS, self._left - self._least * self._waiting)
        content, truncated = fitted(text, limit, call_id)
        self._left -= len(content)
        return content, truncated


def failure(text: str, *, user_text: bool = True) -> Result:
    """A sentence of ours, which may quote what the model said; only exceptions could quote more."""
    return Result(text=text, success=False, user_text=user_text)


def of_output(output: ToolOutput, *, user_text: bool = False) -> Result:
    """Text as it is, anything else as JSON with sorted keys; media must be what they say (A9.9)."""
    if any(sniffing.image_type(part.data) != part.mime for part in output.media):
        return failure("Error: the tool returned media with invalid encoding.")
    value = output.value
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True, ensure_ascii=False)
    return Result(
        text=text,
        success=output.success,
        user_text=user_text,
        media=output.media,
        cost_microdollars=output.cost_microdollars,
        session_id=output.session_id,
        sources=output.sources,
    )


def problems(error: ValidationError) -> str:
    """Every problem of a call's arguments, for whoever looks into it; the model is told a few (A8.6)."""
    found = error.errors(include_url=False, include_context=False, include_input=False)
    return "\n".join(f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}" for problem in found)


async def conclude(
    call: ToolCall, result: Result, *, session_id: str, room: Room, duration_ms: int
) -> CallOutcome:
    """The outcome of a call; what the model or the preview lacks is kept whole before anybody hears of it."""
    media, left_out = await _kept_images(UUID(session_id), result.media)
    text = "\n\n".join([await _clean(result.text, result.user_text), *left_out])
    shown = clean(result.short, result.user_text) if result.short is not None else text
    content, truncated = room.take(shown, call.call_id)
    file_id = None
    if truncated or result.abridged or len(text) > PREVIEW_CHARACTERS:
        file_id = await _kept(session_id, call.call_id, text)
    return CallOutcome(
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


async def _clean(text: str, user_text: bool) -> str:
    if len(text) < LARGE_CHARACTERS:
        return clean(text, user_text)
    return await asyncio.to_thread(clean, text, user_text)


def clean(text: str, user_text: bool = False) -> str:
    """Fit to be stored and shown: no control characters but newline and tab, no half characters, no secrets."""
    pieces = (text[at : at + CHUNK_CHARACTERS] for at in range(0, len(text), CHUNK_CHARACTERS))
    whole = "".join(_SURROGATES.sub("\ufffd", _UNWANTED.sub("", piece)) for piece in pieces)
    return redact_user_text(whole) if user_text else redact(whole)


async def _kept(session_id: str, call_id: str, text: str) -> str | None:
    """The file that holds the whole output; a full disk costs the rest of it, not the result."""
    try:
        file = await retried(partial(files.store_tool_output, UUID(session_id), call_id), text)
    except StorageUnavailable:
        return None
    return str(file.id)


async def _kept_images(
    session_id: UUID, media: tuple[ImagePart, ...]
) -> tuple[tuple[ImagePart, ...], list[str]]:
    """Pictures with the file each is read from again by later turns (A9.9), and words for those no scan let through."""
    if not media:
        return (), []
    kept = await retried(partial(_stored_images, session_id), media)
    await scans.settled([file for _, file in kept if file is not None])
    judged = [(part, _refusal(part, file)) for part, file in kept]
    left_out = [f"[A picture was left out: {words}]" for _, words in judged if words]
    return tuple(part for part, words in judged if not words), left_out


def _stored_images(
    session_id: UUID, media: tuple[ImagePart, ...]
) -> list[tuple[ImagePart, WorkspaceFile | None]]:
    """Encoded here, off the loop; one that came out of a file was looked through when that was read."""
    kept = [(part, None) if part.file_id else _stored(session_id, part) for part in media]
    for part, _ in kept:
        _ = part.base64
    return kept


def _stored(session_id: UUID, part: ImagePart) -> tuple[ImagePart, WorkspaceFile | None]:
    """A full disk costs later turns the picture, not this one."""
    try:
        file = files.store_tool_image(session_id, part.name, part.data)
    except StorageUnavailable:
        return part, None
    return replace(part, name=file.name, file_id=str(file.id)), file


def _refusal(part: ImagePart, file: WorkspaceFile | None) -> str:
    if file is not None:
        return scans.remark(file).get("scan", "")
    return scans.UNSEEN if scanning.is_on() and not part.file_id else ""


def fitted(text: str, limit: int, call_id: str) -> tuple[str, bool]:
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
