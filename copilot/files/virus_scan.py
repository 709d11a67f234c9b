"""Load and run the configured hook that scans files before anybody may read them."""

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
    """The metadata a hook gets besides the bytes."""

    file_id: UUID
    name: str
    mime: str
    size_bytes: int
    sha256: str


ScanHook = Callable[[IO[bytes], ScannedFile], ScanVerdict]


def is_scan_enabled() -> bool:
    return bool(settings.WORKSPACE_SCAN_HOOK)


def load_hook() -> ScanHook:
    """Import the hook. Raises ImportError for a bad setting; a system check looks first."""
    found = import_string(settings.WORKSPACE_SCAN_HOOK)
    if not callable(found):
        raise ImportError(f"{settings.WORKSPACE_SCAN_HOOK} cannot be called")
    return found  # type: ignore[no-any-return]


def run_hook(stream: IO[bytes], meta: ScannedFile) -> ScanVerdict:
    """Run the hook and validate its verdict. Exceptions of the hook pass through."""
    verdict = load_hook()(stream, meta)
    if verdict not in ("clean", "infected"):
        raise ScanFailed(f"the hook answered {verdict!r}")
    return verdict
