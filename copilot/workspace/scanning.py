"""The hook that looks through a file before anybody may have it; whose it is, and what it found (S4)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import IO, Literal
from uuid import UUID

from django.conf import settings
from django.utils.module_loading import import_string

from copilot.errors import ScanFailed

Verdict = Literal["clean", "infected"]


@dataclass(frozen=True, kw_only=True)
class Meta:
    """What a hook is told of the file besides its bytes."""

    file_id: UUID
    name: str
    mime: str
    size_bytes: int
    sha256: str


Hook = Callable[[IO[bytes], Meta], Verdict]


def is_on() -> bool:
    return bool(settings.WORKSPACE_SCAN_HOOK)


def hook() -> Hook:
    """Raises ImportError where the setting names nothing; the boot check looks first."""
    found = import_string(settings.WORKSPACE_SCAN_HOOK)
    if not callable(found):
        raise ImportError(f"{settings.WORKSPACE_SCAN_HOOK} cannot be called")
    return found  # type: ignore[no-any-return]


def judge(stream: IO[bytes], meta: Meta) -> Verdict:
    """Whatever the hook raises comes through: it is somebody else's code."""
    verdict = hook()(stream, meta)
    if verdict not in ("clean", "infected"):
        raise ScanFailed(f"the hook answered {verdict!r}")
    return verdict
