"""Parse what GitHub adds to Markdown: a few harmless HTML tags, details, footnotes, callouts and task lists.

static/js/lib/github_markdown.js follows the same rules. Tags count only in pairs, no attribute is read but `open`, and each
rule takes time in proportion to the text.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from html import escape
from itertools import chain

from django.utils.translation import gettext as _
from markdown_it import MarkdownIt
from markdown_it.ruler import RuleOptionsType
from markdown_it.rules_block import StateBlock
from markdown_it.rules_core import StateCore
from markdown_it.rules_inline import StateInline
from markdown_it.token import Token

ALLOWED_TAGS = {
    *("b", "i", "u", "del", "ins", "mark", "small", "q", "sub", "sup", "kbd", "details", "summary"),
}
MAX_DETAILS_DEPTH = 5
_TAG = re.compile(r"<(/?)(br|sub|sup|kbd|mark|ins|del|small|q|u|b|i|s|em|strong)\s*/?>", re.IGNORECASE)
_DETAILS = re.compile(r" {0,3}<details(\s+open)?\s*>[ \t]*\n?", re.IGNORECASE)
_SUMMARY = re.compile(r"[ \t\n]{0,8}<summary>([\s\S]*?)</summary>[ \t]*\n?", re.IGNORECASE)
_DETAILS_TAG = re.compile(r"<(/?)details(?:\s+open)?\s*>", re.IGNORECASE)
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")
_FOOTNOTE_LABEL = r"(\d{1,3}|[a-z][\w-]{0,31})"
_FOOTNOTE_MARK = re.compile(rf"\[\^{_FOOTNOTE_LABEL}\](?!\()", re.IGNORECASE | re.ASCII)
_FOOTNOTE = re.compile(rf" {{0,3}}\[\^{_FOOTNOTE_LABEL}\]:[ \t]*", re.IGNORECASE | re.ASCII)
_NAMED_FOOTNOTE = re.compile(r"^ {0,3}\[\^([a-z][\w-]{0,31})\]:", re.IGNORECASE | re.ASCII | re.MULTILINE)
_CALLOUT = re.compile(r"\[!(NOTE|TIP|IMPORTANT|WARNING|CAUTION)\][ \t]*(?:\n|$)", re.IGNORECASE)
_TASK_CHECKBOX = re.compile(r"\[([ xX])\] +(?=\S)")


def add_github_rules(parser: MarkdownIt) -> None:
    """Add the rules; the parser must allow HTML within a line and none on lines of its own."""
    interrupts: RuleOptionsType = {"alt": ["paragraph", "reference", "blockquote", "list"]}
    parser.block.ruler.before("fence", "details", _parse_details, interrupts)
    parser.block.ruler.before("fence", "footnote", _parse_footnote, interrupts)
    parser.inline.ruler.before("link", "footnote_mark", _parse_footnote_mark)
    parser.core.ruler.push("inline_tags", _pair_inline_tags)
    parser.core.ruler.push("callouts", _mark_callouts)
    parser.core.ruler.push("tasks", _mark_task_items)


def find_footnote_names(text: str) -> frozenset[str]:
    """Find the named footnotes that a text defines; a name in brackets is a footnote only then."""
    return (
        frozenset(match[1].lower() for match in _NAMED_FOOTNOTE.finditer(text))
        if "[^" in text
        else frozenset()
    )


# --- Tags within a line ---


def _pair_inline_tags(state: StateCore) -> None:
    for block in state.tokens:
        if block.type == "inline" and block.children is not None:
            _pair_tags(block.children)
            if label := block.meta.get("footnote"):
                block.children.insert(0, _build_html(f"<sup>{escape(label)}</sup> ", "html_inline"))


def _pair_tags(tokens: list[Token]) -> None:
    """Keep tags that have their counterpart at the same level; the others become text."""
    levels: list[list[tuple[Token, str]]] = [[]]
    counts: list[Counter[str]] = [Counter()]
    for token in tokens:
        if token.type != "html_inline":
            if token.nesting == 1:
                levels.append([])
                counts.append(Counter())
            elif token.nesting == -1 and len(levels) > 1:
                levels.pop()
                counts.pop()
            continue
        match = _TAG.fullmatch(token.content)
        token.type = "text"  # until its counterpart comes
        if match is not None:
            _pair_tag(token, match, levels[-1], counts[-1])


def _pair_tag(
    token: Token, match: re.Match[str], opened: list[tuple[Token, str]], counts: Counter[str]
) -> None:
    closing, tag = bool(match[1]), match[2].lower()
    if tag == "br":
        if not closing:
            _keep_tag(token, "<br>")
    elif not closing:
        opened.append((token, tag))
        counts[tag] += 1
    elif counts[tag]:
        while True:
            other, other_tag = opened.pop()
            counts[other_tag] -= 1
            if other_tag == tag:
                break
        _keep_tag(other, f"<{tag}>")
        _keep_tag(token, f"</{tag}>")


def _keep_tag(token: Token, html: str) -> None:
    token.type, token.content = "html_inline", html


# --- Details ---


def _parse_details(state: StateBlock, first: int, end: int, silent: bool) -> bool:
    depth = state.env.get("details_depth", 0)
    if depth >= MAX_DETAILS_DEPTH or state.is_code_block(first):
        return False
    line = state.src[state.bMarks[first] + state.tShift[first] : state.eMarks[first]]
    opening = _DETAILS.match(line) if line.startswith("<") else None
    if opening is None or silent:
        return opening is not None
    lines = (_read_line(state, number) for number in range(first + 1, end))
    body, used = _split_details_body(chain([line[opening.end() :] + "\n"], lines))
    state.line = first + used
    summary = _SUMMARY.match(body)
    _push_html(state, f"<details{' open' if opening[1] else ''}>", "details_open", nesting=1)
    _push_html(state, "<summary>")
    _push_inline(state, (summary[1].strip() if summary else "") or _("Details"))
    _push_html(state, '</summary><div class="details-body">\n')
    before = len(state.tokens)
    state.env["details_depth"] = depth + 1
    state.md.block.parse(body[summary.end() if summary else 0 :], state.md, state.env, state.tokens)
    state.env["details_depth"] = depth
    for token in state.tokens[before:]:
        token.level += 1
    _push_html(state, "</div></details>\n", "details_close", nesting=-1)
    return True


def _read_line(state: StateBlock, number: int) -> str:
    return state.getLines(number, number + 1, state.blkIndent, True)


def _split_details_body(lines: Iterable[str]) -> tuple[str, int]:
    """Return the text before the closing tag, and how many lines the block takes. Unclosed, it takes all."""
    depth, fence, body = 1, "", list[str]()
    for number, line in enumerate(lines, start=1):
        mark = match[1] if (match := _FENCE.match(line)) else ""
        if fence:
            fence = "" if mark.startswith(fence) else fence
        elif mark:
            fence = mark
        else:
            for tag in _DETAILS_TAG.finditer(line):
                depth += -1 if tag[1] else 1
                if not depth:
                    return "".join([*body, line[: tag.start()]]), number
        body.append(line)
    return "".join(body), len(body)


def _push_html(state: StateBlock, html: str, kind: str = "html_block", *, nesting: int = 0) -> None:
    token = state.push(kind, "details" if nesting else "", 1 if nesting == 1 else -1 if nesting else 0)
    token.content = html


def _push_inline(state: StateBlock, text: str) -> None:
    token = state.push("inline", "", 0)
    token.content, token.children, token.map = text, [], [state.line, state.line]


# --- Footnotes ---


def _parse_footnote(state: StateBlock, first: int, end: int, silent: bool) -> bool:
    line = state.src[state.bMarks[first] + state.tShift[first] : state.eMarks[first]]
    match = _FOOTNOTE.match(line) if line.startswith("[^") and not state.is_code_block(first) else None
    if match is None:
        return False
    if silent:
        return True
    after = first + 1
    while after < end and not state.isEmpty(after) and state.sCount[after] >= state.blkIndent:
        if state.src.startswith("[^", state.bMarks[after] + state.tShift[after]):
            break
        after += 1
    text = state.getLines(first, after, state.blkIndent, False).strip()
    opening = state.push("paragraph_open", "p", 1)
    opening.attrSet("class", "footnote-text")
    state.line = after
    _push_inline(state, text[text.index("]:") + 2 :].strip())
    state.tokens[-1].meta["footnote"] = match[1]
    state.push("paragraph_close", "p", -1)
    return True


def _parse_footnote_mark(state: StateInline, silent: bool) -> bool:
    if not state.src.startswith("[^", state.pos):
        return False
    match = _FOOTNOTE_MARK.match(state.src, state.pos, state.posMax)
    if match is None or state.linkLevel > 0:
        return False
    label = match[1]
    if not label[0].isdigit() and label.lower() not in state.env.get("footnotes", ()):
        return False
    if not silent:
        state.push("footnote_mark", "sup", 0).content = label
    state.pos = match.end()
    return True


def render_footnote_mark(label: str) -> str:
    return (
        f'<sup class="footnote-mark"><button type="button" data-act="footnote">{escape(label)}</button></sup>'
    )


# --- Callouts and tasks ---


def _mark_callouts(state: StateCore) -> None:
    """Turn a quote that begins with a line such as [!NOTE] into a box with a title."""
    result: list[Token] = []
    quotes: list[bool] = []  # whether each open quote is a callout
    tokens = iter(range(len(state.tokens)))
    for index in tokens:
        token = state.tokens[index]
        if token.type == "blockquote_close" and quotes.pop():
            token.tag = "div"
        result.append(token)
        if token.type != "blockquote_open":
            continue
        kind = _read_callout_kind(state.tokens[index + 1 : index + 3])
        quotes.append(bool(kind))
        if not kind:
            continue
        token.tag = "div"
        token.attrSet("class", f"callout {kind}")
        result.append(_build_html(f'<p class="callout-title">{escape(_get_callout_title(kind))}</p>\n'))
        if not _drop_first_line(state.tokens[index + 2]):
            for _skipped in range(3):
                next(tokens)
    state.tokens = result


def _read_callout_kind(following: list[Token]) -> str:
    if [token.type for token in following] != ["paragraph_open", "inline"]:
        return ""
    match = _CALLOUT.match(following[1].content)
    return match[1].lower() if match else ""


def _drop_first_line(inline: Token) -> bool:
    """Drop the marker's line; return whether anything is left."""
    children = inline.children or []
    breaks = (number for number, child in enumerate(children) if child.type in {"softbreak", "hardbreak"})
    end = next(breaks, None)
    inline.children = [] if end is None else children[end + 1 :]
    return end is not None


def _get_callout_title(kind: str) -> str:
    titles = {
        "note": _("Note"),
        "tip": _("Tip"),
        "important": _("Important"),
        "warning": _("Warning"),
        "caution": _("Caution"),
    }
    return titles[kind]


def _mark_task_items(state: StateCore) -> None:
    """Turn a checkbox at the start of an item into a symbol, because nothing here can be ticked."""
    for item, paragraph, inline in zip(state.tokens, state.tokens[1:], state.tokens[2:], strict=False):
        first = inline.children[0] if inline.children else None
        if (item.type, paragraph.type) != ("list_item_open", "paragraph_open") or first is None:
            continue
        if first.type == "text" and (box := _TASK_CHECKBOX.match(inline.content)):
            first.content = first.content[box.end() :]
            done = box[1] != " "
            mark = f'<span class="task{" done" if done else ""}">{"☑" if done else "☐"}</span> '
            assert inline.children is not None
            inline.children.insert(0, _build_html(mark, "html_inline"))


def _build_html(html: str, kind: str = "html_block") -> Token:
    return Token(kind, "", 0, content=html)
