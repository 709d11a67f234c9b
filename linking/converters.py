"""URL path converter for link tokens. Other strings are 404 without a database query."""

from __future__ import annotations


class LinkTokenConverter:
    regex = "[A-Za-z0-9_-]{1,64}"

    def to_python(self, value: str) -> str:
        return value

    def to_url(self, value: str) -> str:
        return value
