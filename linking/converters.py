"""What may stand for a link token in a path: anything else is no address of ours, and asks the database nothing."""

from __future__ import annotations


class LinkTokenConverter:
    regex = "[A-Za-z0-9_-]{1,64}"

    def to_python(self, value: str) -> str:
        return value

    def to_url(self, value: str) -> str:
        return value
