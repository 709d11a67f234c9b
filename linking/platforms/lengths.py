"""How long a text is for a platform, and where it may be cut without breaking a character that people see as one."""

from __future__ import annotations

import unicodedata

JOINER = "\u200d"
_MARKS = ("Mn", "Me", "Mc")
_SKIN_TONES = range(0x1F3FB, 0x1F400)
_TAGS = range(0xE0020, 0xE0080)
_REGIONAL = range(0x1F1E6, 0x1F200)
_JAMO = range(0x1100, 0x1200)  # parts of Korean syllables
_LONGEST = 64  # code points of one visible character; a longer chain of marks is no writing


def utf16(text: str) -> int:
    """In units of UTF-16, without making the bytes."""
    return len(text) + sum(character > "\uffff" for character in text)


def last_cut(text: str, end: int) -> int:
    """The last place at or before `end` that is not inside a visible character."""
    for at in range(end, max(end - _LONGEST, -1), -1):
        if _may_cut(text, at):
            return at
    return end


def _may_cut(text: str, at: int) -> bool:
    if at <= 0 or at >= len(text):
        return True
    before, after = text[at - 1], text[at]
    if before == "\r" and after == "\n":
        return False
    if before == JOINER or after == JOINER or _belongs_to_the_last(after):
        return False
    if ord(before) in _JAMO and ord(after) in _JAMO:
        return False
    return not (ord(after) in _REGIONAL and _flags_before(text, at) % 2)


def _belongs_to_the_last(character: str) -> bool:
    code = ord(character)
    return code in _SKIN_TONES or code in _TAGS or unicodedata.category(character) in _MARKS


def _flags_before(text: str, at: int) -> int:
    """Flags are pairs of letters: an odd number before a letter means that it is a second one."""
    count = 0
    while at > count and ord(text[at - count - 1]) in _REGIONAL:
        count += 1
    return count
