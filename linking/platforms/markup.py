"""Markdown, as models write it, in the little markup that a platform knows; what it lacks becomes plain words (L19)."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

from markdown_it import MarkdownIt
from markdown_it.token import Token

from config.core.urls import split_url

UNSEEN = "\u200b"  # stands between a sign and what it would do
_MENTIONS = re.compile(r"@(?=everyone\b|here\b|channel\b|all\b)|<(?=[@#!])")
_INLINE = {"strong": "bold", "em": "italic", "s": "struck"}
BULLET = "•"


@dataclass(frozen=True, kw_only=True)
class Style:
    """How a platform writes what Markdown can say. Every piece of text goes through `escape` once."""

    escape: Callable[[str], str]
    bold: tuple[str, str]
    italic: tuple[str, str]
    struck: tuple[str, str]
    code: Callable[[str], str]
    block: Callable[[str, str], str]  # code and its language
    link: Callable[[str, str], str]  # address and escaped label
    quote: Callable[[str], str]


def neutralise(text: str) -> str:
    """Nobody is called by what a model wrote: what would ping a crowd, a member or a role is broken unseen."""
    return _MENTIONS.sub(lambda found: found[0] + UNSEEN, text)


def convert(text: str, style: Style) -> str:
    """What shows nothing as Markdown, such as a part that holds only the addresses of links, is shown as it stands."""
    made = _Writer(style).blocks(_parser().parse(text)).strip("\n")
    return made if made.strip() else style.escape(text)


@cache
def _parser() -> MarkdownIt:
    return MarkdownIt("commonmark", {"html": False}).enable(["strikethrough", "table"])


class _Writer:
    """Walks the tokens once; nesting is kept in stacks, because the tokens are flat."""

    def __init__(self, style: Style) -> None:
        self._style = style
        self._links: list[tuple[str, int]] = []  # open ones: address, and where the label begins

    def blocks(self, tokens: Sequence[Token], indent: str = "") -> str:
        made: list[str] = []
        at = 0
        while at < len(tokens):
            end = _end_of(tokens, at)
            block = self._block(tokens[at], tokens[at + 1 : end], indent)
            if block:
                made.append(block)
            at = end + 1
        return "\n\n".join(made)

    def _block(self, token: Token, inner: Sequence[Token], indent: str) -> str:
        match token.type:
            case "heading_open":
                return self._style.bold[0] + self._inline(inner[0]) + self._style.bold[1]
            case "fence" | "code_block":
                language = token.info.strip().split(" ")[0] if token.info else ""
                return self._style.block(token.content.rstrip("\n"), language)
            case "bullet_list_open" | "ordered_list_open":
                return self._list(token, inner, indent)
            case "blockquote_open":
                return self._style.quote(self.blocks(inner))
            case "table_open":
                return self._style.block(_table(inner), "")
            case "hr":
                return "———"
            case "inline":
                return self._inline(token)
            case _:
                return self.blocks(inner, indent)

    def _list(self, token: Token, inner: Sequence[Token], indent: str) -> str:
        number = int(token.attrs.get("start", 1)) if token.type == "ordered_list_open" else None
        lines: list[str] = []
        at = 0
        while at < len(inner):
            end = _end_of(inner, at)
            mark = BULLET if number is None else f"{number}."
            content = self.blocks(inner[at + 1 : end], indent + "  ").replace("\n\n", "\n")
            lines.append(f"{indent}{mark} {content.lstrip()}")
            number = None if number is None else number + 1
            at = end + 1
        return "\n".join(lines)

    def _inline(self, token: Token) -> str:
        made: list[str] = []
        for child in token.children or []:
            made.append(self._piece(child, made))
        return "".join(made)

    def _piece(self, child: Token, made: list[str]) -> str:
        kind = child.type.removesuffix("_open").removesuffix("_close")
        if kind in _INLINE:
            signs: tuple[str, str] = getattr(self._style, _INLINE[kind])
            return signs[0] if child.nesting == 1 else signs[1]
        match child.type:
            case "text":
                return self._style.escape(child.content)
            case "code_inline":
                return self._style.code(child.content)
            case "softbreak" | "hardbreak":
                return "\n"
            case "link_open":
                self._links.append((str(child.attrs.get("href", "")), len(made)))
                return ""
            case "link_close":
                return self._close_link(made)
            case "image":
                source = str(child.attrs.get("src", ""))
                return self._linked(source, self._style.escape(child.content or "image"))
            case _:
                return self._style.escape(child.content)

    def _close_link(self, made: list[str]) -> str:
        href, at = self._links.pop()
        label = "".join(made[at:])
        del made[at:]
        return self._linked(href, label)

    def _linked(self, href: str, label: str) -> str:
        """Only addresses that people can open become links."""
        parts = split_url(href)
        if parts is None or parts.scheme not in ("http", "https", "mailto"):
            return label
        return self._style.link(href, label or self._style.escape(href))


def _end_of(tokens: Sequence[Token], at: int) -> int:
    """Where the block that begins at `at` closes; itself, if it holds nothing."""
    depth = 0
    for index in range(at, len(tokens)):
        depth += tokens[index].nesting
        if depth == 0:
            return index
    return len(tokens) - 1


def _table(inner: Sequence[Token]) -> str:
    rows: list[list[str]] = []
    for token in inner:
        if token.type == "tr_open":
            rows.append([])
        elif token.type == "inline":
            rows[-1].append(token.content)
    widths = [max(len(row[column]) for row in rows if column < len(row)) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=False)).rstrip()
        for row in rows
    )
