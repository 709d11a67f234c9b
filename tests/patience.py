"""How long a test waits for what must come: a machine under load is slow, never wrong."""

from __future__ import annotations

PATIENCE_SECONDS = 40.0  # well below pytest's own limit for a whole test
