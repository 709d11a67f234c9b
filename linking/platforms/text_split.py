"""Split long texts into parts that fit a platform, at natural pauses and with code blocks kept whole.

Parts are found one after the other, each without looking further than it can reach. So the parts before the last stay
the same while an answer grows, and another process that splits the same text gets the same parts.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass

ZERO_WIDTH_JOINER = "\u200d"
_MARKS = ("Mn", "Me", "Mc")
_SKIN_TONES = range(0x1F3FB, 0x1F400)
_TAGS = range(0xE0020, 0xE0080)
_REGIONAL = range(0x1F1E6, 0x1F200)
_JAMO = range(0x1100, 0x1200)  # parts of Korean syllables
_MAX_GRAPHEME_CODE_POINTS = 64  # longer chains of combining marks are not real text
_MAX_INFO_CHARACTERS = 40  # the opening line of a code block is repeated in every part and must leave room
_MIN_FILL_RATIO = 0.4  # a pause before this share of the limit would make the part too short


MeasureText = Callable[[str], int]  # length of a part as it would be sent, after escaping
_FENCE_PATTERN = re.compile(r"^ {0,3}(`{3,16}+(?!`)|~{3,16}+(?!~))[ \t]*+([^\n`]*+)$", re.MULTILINE)
_PAUSE_PATTERNS = (
    re.compile(r"\n[ \t]*\n+"),
    re.compile(r"\n"),
    re.compile(r"[.!?…。！？]['\"”’)\]]*\s+|[。！？]"),
    re.compile(r"\s+"),
)


# --- Characters ---


def count_utf16_units(text: str) -> int:
    return len(text) + sum(character > "\uffff" for character in text)


def find_last_cut(text: str, end: int) -> int:
    """Return the last position at or before `end` that is not inside a visible character."""
    for at in range(end, max(end - _MAX_GRAPHEME_CODE_POINTS, -1), -1):
        if _is_cut_allowed(text, at):
            return at
    return end


def _is_cut_allowed(text: str, at: int) -> bool:
    if at <= 0 or at >= len(text):
        return True
    before, after = text[at - 1], text[at]
    if before == "\r" and after == "\n":
        return False
    if before == ZERO_WIDTH_JOINER or after == ZERO_WIDTH_JOINER or _extends_previous(after):
        return False
    if ord(before) in _JAMO and ord(after) in _JAMO:
        return False
    return not (ord(after) in _REGIONAL and _count_flags_before(text, at) % 2)


def _extends_previous(character: str) -> bool:
    code = ord(character)
    return code in _SKIN_TONES or code in _TAGS or unicodedata.category(character) in _MARKS


def _count_flags_before(text: str, at: int) -> int:
    """Count regional indicators before a position; flags are pairs, so an odd count means inside a flag."""
    count = 0
    while at > count and ord(text[at - count - 1]) in _REGIONAL:
        count += 1
    return count


# --- Parts ---


@dataclass(frozen=True)
class TextPart:
    """A slice of the text; `head` and `tail` are the fence lines that complete a cut code block."""

    text: str
    head: str = ""
    tail: str = ""

    @property
    def full_text(self) -> str:
        return self.head + self.text + self.tail


@dataclass(frozen=True)
class _Fence:
    mark: str
    line: str  # the opening line, with its language

    @property
    def head(self) -> str:
        return f"{self.line}\n"


def split_text(text: str, *, measure: MeasureText, limit: int) -> list[TextPart]:
    """Split the text into parts of at most `limit`; without heads and tails they add up to the text."""
    return IncrementalSplitter(measure=measure, limit=limit).split(text)


class IncrementalSplitter:
    """Split a growing text repeatedly without redoing the parts that can no longer change."""

    def __init__(self, *, measure: MeasureText, limit: int) -> None:
        self._measure = measure
        self._limit = limit
        self._reset()

    def _reset(self) -> None:
        self._settled: list[TextPart] = []
        self._settled_text = ""  # the text of the settled parts
        self._fence: _Fence | None = None  # the code block that is open after them

    def split(self, text: str) -> list[TextPart]:
        if not text.startswith(self._settled_text):
            self._reset()  # the text was retracted
        parts, start, fence = list(self._settled), len(self._settled_text), self._fence
        settled, end = len(parts), start
        while start < len(text):
            part, fence = _next_part(text, start, fence, self._measure, self._limit)
            parts.append(part)
            if start + self._limit < len(text):  # more text cannot change this part
                settled, end, self._fence = len(parts), start + len(part.text), fence
            start += len(part.text)
        self._settled, self._settled_text = parts[:settled], text[:end]
        return parts


def _next_part(
    text: str, start: int, fence: _Fence | None, measure: MeasureText, limit: int
) -> tuple[TextPart, _Fence | None]:
    end = _find_farthest_end(text, start, fence, measure, limit)
    if end < len(text):
        end = start + _find_pause(text, start, end)
        while end > start + 1 and measure(_build_part(text, start, end, fence)[0].full_text) > limit:
            shorter = start + max((end - start) * 9 // 10, 1)  # make room for the closing fence
            end = max(find_last_cut(text, shorter), start + 1)
    return _build_part(text, start, end, fence)


def _find_farthest_end(text: str, start: int, fence: _Fence | None, measure: MeasureText, limit: int) -> int:
    """Find the last end whose part fits, by binary search."""
    low, high = start + 1, min(len(text), start + limit)
    if measure(_build_part(text, start, high, fence)[0].full_text) <= limit:
        return high
    while low < high:
        middle = (low + high + 1) // 2
        if measure(_build_part(text, start, middle, fence)[0].full_text) <= limit:
            low = middle
        else:
            high = middle - 1
    return low


def _find_pause(text: str, start: int, end: int) -> int:
    """Return the number of characters up to the last paragraph, line, sentence or space, or else as many as fit."""
    window = text[start:end]
    for pause in _PAUSE_PATTERNS:
        ends = [found.end() for found in pause.finditer(window)]
        if ends and ends[-1] >= len(window) * _MIN_FILL_RATIO:
            return ends[-1]
    cut = find_last_cut(text, end)
    while cut > start and text[cut - 1] == text[cut] == "`":
        cut -= 1  # do not cut a fence in half
    return (cut if cut > start else end) - start


def _build_part(text: str, start: int, end: int, fence: _Fence | None) -> tuple[TextPart, _Fence | None]:
    piece = text[start:end]
    head = fence.head if fence else ""
    after = _find_open_fence(piece, fence)
    if after is None:
        return TextPart(piece, head), None
    return TextPart(piece, head, after.mark if piece.endswith("\n") else f"\n{after.mark}"), after


def _find_open_fence(piece: str, fence: _Fence | None) -> _Fence | None:
    """Return the code block that is open after the piece; a fence closes only a block with the same mark."""
    for found in _FENCE_PATTERN.finditer(piece):
        mark, info = found[1], found[2].strip()
        if fence is None:
            fence = _Fence(mark, f"{mark}{info[:_MAX_INFO_CHARACTERS]}")
        elif not info and mark[0] == fence.mark[0] and len(mark) >= len(fence.mark):
            fence = None
    return fence
