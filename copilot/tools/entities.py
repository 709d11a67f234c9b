"""Characters that HTML writes as names and numbers, as characters again."""

from __future__ import annotations

import html
import re

_ENDLESS = re.compile(
    r"&#\d{16,};?"
)  # Python refuses to read thousands of digits, and no character needs them


def unescape(text: str) -> str:
    return html.unescape(_ENDLESS.sub("\ufffd", text)) if "&" in text else text
