"""Create snapshots of an installation, from which findings are made."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from diagnostics.findings.figures import Snapshot, Summary

NOW = datetime(2026, 11, 16, 12, tzinfo=UTC)


def make_snapshot(summary: Mapping[str, Any] | None = None, **fields: Any) -> Snapshot:
    return Snapshot(summary=Summary(taken_at=NOW, **(summary or {})), **fields)
