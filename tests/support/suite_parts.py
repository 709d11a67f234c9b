"""The two parts in which `make test` runs the suite."""

from __future__ import annotations

WITHOUT_BROWSER, IN_BROWSER = (
    "not slow and not browser",
    "browser and not slow and not looks",
)  # named as in the Makefile
