"""Formulas in Markdown: where TeX begins and ends, by the same rules as static/js/formulas.js (W2.1)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape

from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.rules_block import StateBlock
from markdown_it.rules_inline import StateInline
from markdown_it.token import Token
from markdown_it.utils import EnvType, OptionsDict

OPENINGS = ("$$", r"\[")  # of a formula that may stand on lines of its own
_ROUND_INNER = r"(?:[^\\]|\\\\|\\(?![()\\]))"
_SQUARE_INNER = r"(?:[^\\]|\\\\|\\(?![\[\]\\]))"  # "\\[2pt]" begins a line, no formula
_SQUARE = re.compile(rf"({_SQUARE_INNER}*)(\\[\[\]])?")
_DOUBLE = re.compile(r"((?:(?!\$\$)[\s\S])*)(\$\$)?")
_PAIRS = re.compile(
    r"\$\$((?:(?!\$\$)[\s\S])+)\$\$" rf"|\\\[({_SQUARE_INNER}+)\\\]" rf"|\\\(({_ROUND_INNER}+)\\\)"
)
_DOLLARS = re.compile(r"\$(?!\s)((?:\\[^\n]|[^$\\\n])+)(?<!\s)\$(?![\w$])", re.ASCII)
_JOINED = re.compile(r"[\w$]", re.ASCII)  # what a formula does not follow
_MONEY = re.compile(r"\d(?=[\s\S]*\s)[^\\^_=+<>{}]*")  # "$5 and $" is no formula; "$5 + x$" and "$5$" are


def teach(parser: MarkdownIt) -> None:
    parser.block.ruler.before(
        "fence", "formula_block", _block, {"alt": ["paragraph", "reference", "blockquote", "list"]}
    )
    parser.inline.ruler.before("escape", "formula", _inline)
    parser.add_render_rule("formula_block", _shown)
    parser.add_render_rule("formula", _shown)


def _block(state: StateBlock, first: int, end: int, silent: bool) -> bool:
    """Lines from an opening to its closing, none of them empty, and nothing after it."""
    opening = _line(state, first)[:2]
    if opening not in OPENINGS or state.is_code_block(first):
        return False
    until, lines = (_DOUBLE if opening == "$$" else _SQUARE), list[str]()
    for number in range(first, end):
        if state.isEmpty(number) or state.sCount[number] < state.blkIndent:
            return False
        line = _line(state, number)[2 if number == first else 0 :]
        found = until.match(line)
        assert found
        lines.append(found.group(1))
        if mark := found.group(2):
            whole = mark != opening or opening == "$$"
            return (
                whole
                and not line[found.end() :].strip()
                and _take(state, "\n".join(lines), number + 1, silent=silent)
            )
    return False


def _line(state: StateBlock, number: int) -> str:
    return state.src[state.bMarks[number] + state.tShift[number] : state.eMarks[number]]


def _take(state: StateBlock, text: str, after: int, *, silent: bool) -> bool:
    if text.strip() and not silent:
        token = state.push("formula_block", "div", 0)
        token.content = text.strip()
        token.map = [state.line, after]
        state.line = after
    return bool(text.strip())


def _inline(state: StateInline, silent: bool) -> bool:
    if state.src[state.pos] not in "$\\":
        return False
    found = _PAIRS.match(state.src, state.pos, state.posMax) or _dollars(state)
    text = next((part for part in found.groups() if part), "").strip() if found else ""
    if not found or not text:
        return False
    if not silent:
        token = state.push("formula", "span", 0)
        token.content = text
        token.info = "display" if found.group()[:2] in OPENINGS else ""
    state.pos = found.end()
    return True


def _dollars(state: StateInline) -> re.Match[str] | None:
    """Not after a letter or a digit, as in US$, and not between two prices."""
    before = state.src[state.pos - 1 : state.pos]
    if _JOINED.match(before):
        return None
    found = _DOLLARS.match(state.src, state.pos, state.posMax)
    return None if found and _MONEY.fullmatch(found.group(1)) else found


def _shown(
    renderer: RendererHTML, tokens: Sequence[Token], index: int, options: OptionsDict, env: EnvType
) -> str:
    """As TeX, which reads well enough without a script."""
    token = tokens[index]
    if token.type == "formula_block":
        return f'<div class="formula display" tabindex="0">{escape(token.content)}</div>\n'
    return f'<span class="formula{" display" if token.info else ""}">{escape(token.content)}</span>'
