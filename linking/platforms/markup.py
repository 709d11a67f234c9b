"""Markdown, as models write it, in the little markup that a platform knows; what it lacks becomes plain words (L19)."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

from markdown_it import MarkdownIt
from markdown_it.token import Token

from config.core.url_safety import split_url

ZERO_WIDTH_SPACE = "\u200b"  # stands between a sign and what it would do
_MENTION_PATTERN = re.compile(r"@(?=everyone\b|here\b|channel\b|all\b)|<(?=[@#!])")
_INLINE_STYLES = {"strong": "bold", "em": "italic", "s": "struck"}
BULLET = "•"


@dataclass(frozen=True, kw_only=True)
class MarkupStyle:
    """How a platform writes what Markdown can say. Every piece of text goes through `escape` once."""

    escape: Callable[[str], str]
    bold: tuple[str, str]
    italic: tuple[str, str]
    struck: tuple[str, str]
    code: Callable[[str], str]
    block: Callable[[str, str], str]  # code and its language
    link: Callable[[str, str], str]  # address and escaped label
    quote: Callable[[str], str]


def neutralise_mentions(text: str) -> str:
    """Nobody is called by what a model wrote: what would ping a crowd, a member or a role is broken unseen."""
    return _MENTION_PATTERN.sub(lambda found: found[0] + ZERO_WIDTH_SPACE, text)


def convert_markdown(text: str, style: MarkupStyle) -> str:
    """What shows nothing as Markdown, such as a part that holds only the addresses of links, is shown as it stands."""
    made = _MarkupWriter(style).write_blocks(_get_parser().parse(text)).strip("\n")
    return made if made.strip() else style.escape(text)


@cache
def _get_parser() -> MarkdownIt:
    return MarkdownIt("commonmark", {"html": False}).enable(["strikethrough", "table"])


class _MarkupWriter:
    """Walks the tokens once; nesting is kept in stacks, because the tokens are flat."""

    def __init__(self, style: MarkupStyle) -> None:
        self._style = style
        self._links: list[tuple[str, int]] = []  # open ones: address, and where the label begins

    def write_blocks(self, tokens: Sequence[Token], indent: str = "") -> str:
        made: list[str] = []
        at = 0
        while at < len(tokens):
            end = _find_block_end(tokens, at)
            block = self._write_block(tokens[at], tokens[at + 1 : end], indent)
            if block:
                made.append(block)
            at = end + 1
        return "\n\n".join(made)

    def _write_block(self, token: Token, inner: Sequence[Token], indent: str) -> str:
        match token.type:
            case "heading_open":
                return self._style.bold[0] + self._write_inline(inner[0]) + self._style.bold[1]
            case "fence" | "code_block":
                language = token.info.strip().split(" ")[0] if token.info else ""
                return self._style.block(token.content.rstrip("\n"), language)
            case "bullet_list_open" | "ordered_list_open":
                return self._write_list(token, inner, indent)
            case "blockquote_open":
                return self._style.quote(self.write_blocks(inner))
            case "table_open":
                return self._style.block(_format_table(inner), "")
            case "hr":
                return "———"
            case "inline":
                return self._write_inline(token)
            case _:
                return self.write_blocks(inner, indent)

    def _write_list(self, token: Token, inner: Sequence[Token], indent: str) -> str:
        number = int(token.attrs.get("start", 1)) if token.type == "ordered_list_open" else None
        lines: list[str] = []
        at = 0
        while at < len(inner):
            end = _find_block_end(inner, at)
            mark = BULLET if number is None else f"{number}."
            content = self.write_blocks(inner[at + 1 : end], indent + "  ").replace("\n\n", "\n")
            lines.append(f"{indent}{mark} {content.lstrip()}")
            number = None if number is None else number + 1
            at = end + 1
        return "\n".join(lines)

    def _write_inline(self, token: Token) -> str:
        made: list[str] = []
        for child in token.children or []:
            made.append(self._write_inline_token(child, made))
        return "".join(made)

    def _write_inline_token(self, child: Token, made: list[str]) -> str:
        kind = child.type.removesuffix("_open").removesuffix("_close")
        if kind in _INLINE_STYLES:
            signs: tuple[str, str] = getattr(self._style, _INLINE_STYLES[kind])
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
                return self._write_link(source, self._style.escape(child.content or "image"))
            case _:
                return self._style.escape(child.content)

    def _close_link(self, made: list[str]) -> str:
        href, at = self._links.pop()
        label = "".join(made[at:])
        del made[at:]
        return self._write_link(href, label)

    def _write_link(self, href: str, label: str) -> str:
        """Only addresses that people can open become links."""
        parts = split_url(href)
        if parts is None or parts.scheme not in ("http", "https", "mailto"):
            return label
        return self._style.link(href, label or self._style.escape(href))


def _find_block_end(tokens: Sequence[Token], at: int) -> int:
    """Where the block that begins at `at` closes; itself, if it holds nothing."""
    depth = 0
    for index in range(at, len(tokens)):
        depth += tokens[index].nesting
        if depth == 0:
            return index
    return len(tokens) - 1


def _format_table(inner: Sequence[Token]) -> str:
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
