"""Parse URLs that strangers wrote: the standard parser raises on some ordinary text, which callers here cannot forget.

`urlsplit` refuses `https://[your-domain]/`, and its `port` raises for `:99999` only when it is read. Code that takes
addresses from people, models or headers calls these instead; a test of the tree holds it to that.
"""

from __future__ import annotations

from urllib.parse import SplitResult, urlsplit


def split_url(text: str) -> SplitResult | None:
    """Return the parts of a URL with a readable port, or None for text that is no URL."""
    try:
        parts = urlsplit(text)
        _ = parts.port
    except ValueError:
        return None
    return parts


def host_and_port(text: str) -> str:
    """Return what an Origin or Referer header names, as a Host header would; empty if it names nothing."""
    parts = split_url(text)
    return parts.netloc if parts is not None else ""
