"""How long a text is for a platform, and where it may be cut without breaking a character that people see as one."""

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
_MAX_GRAPHEME_CODE_POINTS = 64  # code points of one visible character; a longer chain of marks is no writing


def count_utf16_units(text: str) -> int:
    """In units of UTF-16, without making the bytes."""
    return len(text) + sum(character > "\uffff" for character in text)


def find_last_cut(text: str, end: int) -> int:
    """The last place at or before `end` that is not inside a visible character."""
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
    """Flags are pairs of letters: an odd number before a letter means that it is a second one."""
    count = 0
    while at > count and ord(text[at - count - 1]) in _REGIONAL:
        count += 1
    return count


# MERGED platforms.splitting: A long answer in parts that a platform takes, cut where a reader would pause, with code blocks whole in each (L19).
# MERGED platforms.splitting: Parts are found one after the other, each by looking no further than it can reach: while an answer grows, the parts
# MERGED platforms.splitting: before the last stay as they are, and another process that splits the same text gets the same parts.

MeasureText = Callable[[str], int]  # of a part as it would be sent, after escaping
_FENCE_PATTERN = re.compile(r"^ {0,3}(`{3,16}+(?!`)|~{3,16}+(?!~))[ \t]*+([^\n`]*+)$", re.MULTILINE)
_MAX_INFO_CHARACTERS = (
    40  # characters; an opening line stands in every part of its block, and must leave room for it
)
_PAUSE_PATTERNS = (
    re.compile(r"\n[ \t]*\n+"),
    re.compile(r"\n"),
    re.compile(r"[.!?…。！？]['\"”’)\]]*\s+|[。！？]"),
    re.compile(r"\s+"),
)
_MIN_FILL_RATIO = 0.4  # a pause nearer to the beginning than this leaves a part too short to be worth it


@dataclass(frozen=True)
class TextPart:
    """A slice of the text; `head` and `tail` are the fence lines that keep a cut code block whole."""

    text: str
    head: str = ""
    tail: str = ""

    @property
    def full_text(self) -> str:
        return self.head + self.text + self.tail


@dataclass(frozen=True)
class _Fence:
    mark: str
    line: str  # as it opened, with its language

    @property
    def head(self) -> str:
        return f"{self.line}\n"


def split_text(text: str, *, measure: MeasureText, limit: int) -> list[TextPart]:
    """Parts that each measure at most `limit`; together, without heads and tails, they are the text."""
    return IncrementalSplitter(measure=measure, limit=limit).split(text)


class IncrementalSplitter:
    """A text that is split again and again while it grows: what can change no more is not looked at again."""

    def __init__(self, *, measure: MeasureText, limit: int) -> None:
        self._measure = measure
        self._limit = limit
        self._reset()

    def _reset(self) -> None:
        self._settled: list[TextPart] = []
        self._settled_text = ""  # theirs
        self._fence: _Fence | None = None  # what is open behind them

    def split(self, text: str) -> list[TextPart]:
        if not text.startswith(self._settled_text):
            self._reset()  # it was taken back
        parts, start, fence = list(self._settled), len(self._settled_text), self._fence
        settled, end = len(parts), start
        while start < len(text):
            part, fence = _next_part(text, start, fence, self._measure, self._limit)
            parts.append(part)
            if start + self._limit < len(text):  # it ends before all that may still come
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
            shorter = start + max((end - start) * 9 // 10, 1)  # the closing fence took its room
            end = max(find_last_cut(text, shorter), start + 1)
    return _build_part(text, start, end, fence)


def _find_farthest_end(text: str, start: int, fence: _Fence | None, measure: MeasureText, limit: int) -> int:
    """The last end whose part fits; what is measured grows with the text, so halving finds it."""
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
    """How many characters to take: up to the last paragraph, line, sentence or space; else as many as fit whole."""
    window = text[start:end]
    for pause in _PAUSE_PATTERNS:
        ends = [found.end() for found in pause.finditer(window)]
        if ends and ends[-1] >= len(window) * _MIN_FILL_RATIO:
            return ends[-1]
    cut = find_last_cut(text, end)
    while cut > start and text[cut - 1] == text[cut] == "`":
        cut -= 1  # half a fence would be none
    return (cut if cut > start else end) - start


def _build_part(text: str, start: int, end: int, fence: _Fence | None) -> tuple[TextPart, _Fence | None]:
    piece = text[start:end]
    head = fence.head if fence else ""
    after = _find_open_fence(piece, fence)
    if after is None:
        return TextPart(piece, head), None
    return TextPart(piece, head, after.mark if piece.endswith("\n") else f"\n{after.mark}"), after


def _find_open_fence(piece: str, fence: _Fence | None) -> _Fence | None:
    """Which code block is open behind the piece; a fence closes only what its own mark opened."""
    for found in _FENCE_PATTERN.finditer(piece):
        mark, info = found[1], found[2].strip()
        if fence is None:
            fence = _Fence(mark, f"{mark}{info[:_MAX_INFO_CHARACTERS]}")
        elif not info and mark[0] == fence.mark[0] and len(mark) >= len(fence.mark):
            fence = None
    return fence
