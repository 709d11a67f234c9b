"""A long answer in parts that a platform takes, cut where a reader would pause, with code blocks whole in each (L19).

Parts are found one after the other, each by looking no further than it can reach: while an answer grows, the parts
before the last stay as they are, and another process that splits the same text gets the same parts.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from linking.platforms.lengths import last_cut

Measure = Callable[[str], int]  # of a part as it would be sent, after escaping
_FENCE = re.compile(r"^ {0,3}(`{3,16}+(?!`)|~{3,16}+(?!~))[ \t]*+([^\n`]*+)$", re.MULTILINE)
_LONGEST_INFO = (
    40  # characters; an opening line stands in every part of its block, and must leave room for it
)
_PAUSES = (
    re.compile(r"\n[ \t]*\n+"),
    re.compile(r"\n"),
    re.compile(r"[.!?…。！？]['\"”’)\]]*\s+|[。！？]"),
    re.compile(r"\s+"),
)
_LEAST_FILLED = 0.4  # a pause nearer to the beginning than this leaves a part too short to be worth it


@dataclass(frozen=True)
class Part:
    """A slice of the text; `head` and `tail` are the fence lines that keep a cut code block whole."""

    text: str
    head: str = ""
    tail: str = ""

    @property
    def shown(self) -> str:
        return self.head + self.text + self.tail


@dataclass(frozen=True)
class _Fence:
    mark: str
    line: str  # as it opened, with its language

    @property
    def head(self) -> str:
        return f"{self.line}\n"


def split(text: str, *, measure: Measure, limit: int) -> list[Part]:
    """Parts that each measure at most `limit`; together, without heads and tails, they are the text."""
    return Growing(measure=measure, limit=limit).split(text)


class Growing:
    """A text that is split again and again while it grows: what can change no more is not looked at again."""

    def __init__(self, *, measure: Measure, limit: int) -> None:
        self._measure = measure
        self._limit = limit
        self._forget()

    def _forget(self) -> None:
        self._settled: list[Part] = []
        self._text = ""  # theirs
        self._fence: _Fence | None = None  # what is open behind them

    def split(self, text: str) -> list[Part]:
        if not text.startswith(self._text):
            self._forget()  # it was taken back
        parts, start, fence = list(self._settled), len(self._text), self._fence
        settled, end = len(parts), start
        while start < len(text):
            part, fence = _next_part(text, start, fence, self._measure, self._limit)
            parts.append(part)
            if start + self._limit < len(text):  # it ends before all that may still come
                settled, end, self._fence = len(parts), start + len(part.text), fence
            start += len(part.text)
        self._settled, self._text = parts[:settled], text[:end]
        return parts


def _next_part(
    text: str, start: int, fence: _Fence | None, measure: Measure, limit: int
) -> tuple[Part, _Fence | None]:
    end = _farthest(text, start, fence, measure, limit)
    if end < len(text):
        end = start + _pause(text, start, end)
        while end > start + 1 and measure(_part(text, start, end, fence)[0].shown) > limit:
            shorter = start + max((end - start) * 9 // 10, 1)  # the closing fence took its room
            end = max(last_cut(text, shorter), start + 1)
    return _part(text, start, end, fence)


def _farthest(text: str, start: int, fence: _Fence | None, measure: Measure, limit: int) -> int:
    """The last end whose part fits; what is measured grows with the text, so halving finds it."""
    low, high = start + 1, min(len(text), start + limit)
    if measure(_part(text, start, high, fence)[0].shown) <= limit:
        return high
    while low < high:
        middle = (low + high + 1) // 2
        if measure(_part(text, start, middle, fence)[0].shown) <= limit:
            low = middle
        else:
            high = middle - 1
    return low


def _pause(text: str, start: int, end: int) -> int:
    """How many characters to take: up to the last paragraph, line, sentence or space; else as many as fit whole."""
    window = text[start:end]
    for pause in _PAUSES:
        ends = [found.end() for found in pause.finditer(window)]
        if ends and ends[-1] >= len(window) * _LEAST_FILLED:
            return ends[-1]
    cut = last_cut(text, end)
    while cut > start and text[cut - 1] == text[cut] == "`":
        cut -= 1  # half a fence would be none
    return (cut if cut > start else end) - start


def _part(text: str, start: int, end: int, fence: _Fence | None) -> tuple[Part, _Fence | None]:
    piece = text[start:end]
    head = fence.head if fence else ""
    after = _fence_after(piece, fence)
    if after is None:
        return Part(piece, head), None
    return Part(piece, head, after.mark if piece.endswith("\n") else f"\n{after.mark}"), after


def _fence_after(piece: str, fence: _Fence | None) -> _Fence | None:
    """Which code block is open behind the piece; a fence closes only what its own mark opened."""
    for found in _FENCE.finditer(piece):
        mark, info = found[1], found[2].strip()
        if fence is None:
            fence = _Fence(mark, f"{mark}{info[:_LONGEST_INFO]}")
        elif not info and mark[0] == fence.mark[0] and len(mark) >= len(fence.mark):
            fence = None
    return fence
