"""Filter visible text as it streams: leaked reasoning becomes reasoning, leaked tool calls are removed.

Models served without the right template write their control markers as plain text. The filter knows the
common spellings, holds back only what may still become a marker, and leaves code alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Literal

from copilot import metrics
from copilot.providers.base import ReasoningDelta, TextDelta

TextPiece = TextDelta | ReasoningDelta
# Route to reasoning; remove up to its end; remove only the marker itself.
MarkerEffect = Literal["think", "drop", "skip"]

_TAGS = ("think", "thinking", "thought", "reasoning", "seed:think", "antml:thinking")
_TAG_ENDS = tuple(f"</{tag}>" for tag in _TAGS)
_CHANNEL_ENDS = (
    "<|start|>assistant<|channel|>final<|message|>",
    "<|channel|>final<|message|>",
    "<|end|>",
    "<|return|>",
)
_CALL_TAGS = (
    "tool_call",
    "tool_calls",
    "tool_use",
    "function_call",
    "function_calls",
    "antml:function_calls",
    "minimax:tool_call",
    "｜dsml｜function_calls",
    "｜dsml｜tool_calls",
    "｜dsml｜invoke",
    "|dsml|function_calls",
    "|dsml|invoke",
    "antml:invoke",
)
_THINK: dict[str, tuple[str, ...]] = {
    **{f"<{tag}>": _TAG_ENDS for tag in _TAGS},
    "◁think▷": ("◁/think▷",),
    "[think]": ("[/think]",),
    "<|channel|>analysis<|message|>": _CHANNEL_ENDS,
    "<|channel>thought": ("<channel|>",),
    "<|begin_of_thought|>": ("<|end_of_thought|>",),
}
_DROP: dict[str, tuple[str, ...]] = {
    **{f"<{tag}{end}": (f"</{tag}>",) for tag in _CALL_TAGS for end in "> \n"},
    "<invoke name=": ("</invoke>",),
    "<function=": ("</function>",),
    "<|tool_calls_section_begin|>": ("<|tool_calls_section_end|>",),
    "<|tool_call_begin|>": ("<|tool_call_end|>",),
    "<｜tool▁calls▁begin｜>": ("<｜tool▁calls▁end｜>",),
    "<|tool_call>": ("<tool_call|>",),
    "<|channel|>commentary to=": ("<|call|>", "<|end|>"),
}
_SKIP = frozenset(
    {end for ends in (*_THINK.values(), *_DROP.values()) for end in ends}
    | {"<|start|>assistant", "<|channel|>commentary<|message|>", "<|im_end|>", "<|im_start|>assistant"}
)
_MARKERS: dict[str, tuple[MarkerEffect, tuple[str, ...]]] = {
    **dict.fromkeys(_SKIP, ("skip", ())),
    **{marker: ("drop", ends) for marker, ends in _DROP.items()},
    **{marker: ("think", ends) for marker, ends in _THINK.items()},
}
_LONGEST = max(map(len, _MARKERS))
_BEGINNINGS = frozenset(marker[:n] for marker in _MARKERS for n in range(1, len(marker)))


def _compile_markers(markers: Iterable[str]) -> re.Pattern[str]:
    longest_first = sorted(markers, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first)), re.IGNORECASE)


_MARKER = _compile_markers(_MARKERS)
_END = {ends: _compile_markers(ends) for _, ends in _MARKERS.values() if ends}
_POINT = re.compile(r"[<◁\[]|`+|~+|\n")
_LINE_LEAD = " \t\r>-*+.)0123456789"  # a fence may be inside a quote or a list
_CUT_OFF = 4  # from this length on, an unfinished marker at the end is dropped; a shorter one may be text


class TextFilter:
    """Filter one reply: `feed` what arrives, `finish` at the end. `removed` counts leaked tool calls."""

    __slots__ = (
        "_code",
        "_direct",
        "_ends",
        "_fresh",
        "_held",
        "_line_blank",
        "_mode",
        "_started",
        "removed",
    )

    def __init__(self, *, continues: bool = False) -> None:
        self.removed = 0
        self._mode: Literal["text", "inline", "fence", "think", "drop"] = "text"
        self._code = ""  # the run of backticks or tildes that opened the current code
        self._ends: tuple[str, ...] = ()  # markers that end the current thought or leaked call
        self._held = ""  # may still become a marker
        self._fresh = False  # a thought has begun and has no text yet
        self._line_blank = True
        self._started = continues  # a continued answer keeps its leading newlines
        self._direct = continues

    def is_plain(self, text: str) -> bool:
        """Check whether `text` needs no filtering, which is the common case and must stay cheap."""
        if not self._direct or _POINT.search(text):
            return False
        if self._line_blank:
            self._line_blank = not text.strip(_LINE_LEAD)
        return True

    def feed(self, text: str) -> list[TextPiece]:
        return self._route(self._held + text, final=False)

    def finish(self) -> list[TextPiece]:
        """Return what was held back, unless it is an incomplete marker."""
        held = self._held
        if len(held) >= _CUT_OFF and held[0] in "<◁[":
            if any(marker.startswith(held.lower()) for marker in _DROP):
                self._count_removed()
            held = ""
        return self._route(held, final=True)

    def _route(self, buffer: str, *, final: bool) -> list[TextPiece]:
        pieces: list[TextPiece] = []
        self._held = ""
        while buffer:
            if self._mode in ("think", "drop"):
                buffer = self._inside(buffer, pieces, final=final)
            else:
                buffer = self._outside(buffer, pieces, final=final)
        self._direct = self._started and not self._held and self._mode not in ("think", "drop")
        return pieces

    def _inside(self, buffer: str, pieces: list[TextPiece], *, final: bool) -> str:
        found = _END[self._ends].search(buffer)
        if found:
            inner, rest = buffer[: found.start()], buffer[found.end() :]
        else:
            self._held = "" if final else buffer[_find_partial_end(buffer, self._ends) :]
            inner, rest = buffer[: len(buffer) - len(self._held)], ""
        if self._mode == "think":
            inner = inner.lstrip() if self._fresh else inner
            if inner:
                self._fresh = False
                pieces.append(ReasoningDelta(inner))
        if found:
            self._mode = "text"
        return rest

    def _outside(self, buffer: str, pieces: list[TextPiece], *, final: bool) -> str:
        position = 0
        while found := _POINT.search(buffer, position):
            start, point = found.start(), found.group()
            self._advance(buffer[position:start])
            position = found.end()
            if point == "\n":
                self._end_line()
            elif point[0] in "`~":
                if position == len(buffer) and not final:  # the run may continue
                    return self._hold(buffer, start, pieces)
                self._toggle_code(point)
            elif self._mode == "text":
                if marker := _MARKER.match(buffer, start):
                    self._emit_text(buffer[:start], pieces)
                    self._enter(marker.group().lower())
                    return buffer[marker.end() :]
                if not final and len(buffer) - start < _LONGEST and buffer[start:].lower() in _BEGINNINGS:
                    return self._hold(buffer, start, pieces)
                self._line_blank = False
        self._advance(buffer[position:])
        self._emit_text(buffer, pieces)
        return ""

    def _emit_text(self, text: str, pieces: list[TextPiece]) -> None:
        if not self._started:
            text = text.lstrip("\r\n")
            self._started = bool(text)
        if text:
            pieces.append(TextDelta(text))

    def _hold(self, buffer: str, start: int, pieces: list[TextPiece]) -> str:
        self._emit_text(buffer[:start], pieces)
        self._held = buffer[start:]
        return ""

    def _enter(self, marker: str) -> None:
        effect, ends = _MARKERS[marker]
        if effect == "skip":
            return
        self._mode, self._ends, self._fresh = effect, ends, True
        if effect == "drop":
            self._count_removed()

    def _count_removed(self) -> None:
        self.removed += 1
        metrics.leaked_calls.inc()

    def _advance(self, text: str) -> None:
        if self._line_blank and text:
            self._line_blank = not text.strip(_LINE_LEAD)

    def _end_line(self) -> None:
        if self._mode == "inline" and self._line_blank:  # the end of a paragraph closes inline code
            self._mode = "text"
        self._line_blank = True

    def _toggle_code(self, run: str) -> None:
        if self._mode == "text":
            if len(run) >= 3 and self._line_blank:
                self._mode, self._code = "fence", run
            elif run[0] == "`":
                self._mode, self._code = "inline", run
        elif self._mode == "inline":
            self._mode = "text" if run == self._code else "inline"
        elif self._line_blank and run.startswith(self._code):
            self._mode = "text"
        self._line_blank = False


def _find_partial_end(buffer: str, ends: tuple[str, ...]) -> int:
    longest = max(map(len, ends)) - 1
    for start in range(max(0, len(buffer) - longest), len(buffer)):
        suffix = buffer[start:].lower()
        if any(end.startswith(suffix) for end in ends):
            return start
    return len(buffer)
