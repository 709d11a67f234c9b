"""Create snapshots of an installation, from which findings are made."""

from __future__ import annotations

from datetime import UTC, datetime

from diagnostics.findings.figures import Snapshot, Summary

NOW = datetime(2026, 11, 16, 12, tzinfo=UTC)


def make_snapshot(summary=None, **fields):
    return Snapshot(summary=Summary(taken_at=NOW, **(summary or {})), **fields)
