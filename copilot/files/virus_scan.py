"""The hook that looks through a file before anybody may have it; whose it is, and what it found (S4)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import IO, Literal
from uuid import UUID

from django.conf import settings
from django.utils.module_loading import import_string

from config.core.errors import ScanFailed

ScanVerdict = Literal["clean", "infected"]


@dataclass(frozen=True, kw_only=True)
class ScannedFile:
    """What a hook is told of the file besides its bytes."""

    file_id: UUID
    name: str
    mime: str
    size_bytes: int
    sha256: str


ScanHook = Callable[[IO[bytes], ScannedFile], ScanVerdict]


def is_scan_enabled() -> bool:
    return bool(settings.WORKSPACE_SCAN_HOOK)


def load_hook() -> ScanHook:
    """Raises ImportError where the setting names nothing; the boot check looks first."""
    found = import_string(settings.WORKSPACE_SCAN_HOOK)
    if not callable(found):
        raise ImportError(f"{settings.WORKSPACE_SCAN_HOOK} cannot be called")
    return found  # type: ignore[no-any-return]


def run_hook(stream: IO[bytes], meta: ScannedFile) -> ScanVerdict:
    """Whatever the hook raises comes through: it is somebody else's code."""
    verdict = load_hook()(stream, meta)
    if verdict not in ("clean", "infected"):
        raise ScanFailed(f"the hook answered {verdict!r}")
    return verdict
