"""Convert Markdown to a platform's markup; what the platform does not support becomes plain text."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

from markdown_it import MarkdownIt
from markdown_it.token import Token

from config.core.url_safety import split_url

ZERO_WIDTH_SPACE = "\u200b"  # breaks up a mention without being seen
_MENTION_PATTERN = re.compile(r"@(?=everyone\b|here\b|channel\b|all\b)|<(?=[@#!])")
_INLINE_STYLES = {"strong": "bold", "em": "italic", "s": "struck"}
BULLET = "•"


@dataclass(frozen=True, kw_only=True)
class MarkupStyle:
    """A platform's markup. Every piece of text goes through `escape` once."""

    escape: Callable[[str], str]
    bold: tuple[str, str]
    italic: tuple[str, str]
    struck: tuple[str, str]
    code: Callable[[str], str]
    block: Callable[[str, str], str]  # code and its language
    link: Callable[[str, str], str]  # URL and escaped label
    quote: Callable[[str], str]


def neutralise_mentions(text: str) -> str:
    """Break up mentions invisibly, so that a model's text notifies no channel, member or role."""
    return _MENTION_PATTERN.sub(lambda match: match[0] + ZERO_WIDTH_SPACE, text)


def convert_markdown(text: str, style: MarkupStyle) -> str:
    """Convert Markdown; text that renders to nothing, such as link definitions alone, is returned escaped."""
    markup = _MarkupWriter(style).write_blocks(_get_parser().parse(text)).strip("\n")
    return markup if markup.strip() else style.escape(text)


@cache
def _get_parser() -> MarkdownIt:
    return MarkdownIt("commonmark", {"html": False}).enable(["strikethrough", "table"])


class _MarkupWriter:
    """Write the flat list of tokens in one pass."""

    def __init__(self, style: MarkupStyle) -> None:
        self._style = style
        self._links: list[tuple[str, int]] = []  # open links: URL and start of the label

    def write_blocks(self, tokens: Sequence[Token], indent: str = "") -> str:
        pieces: list[str] = []
        at = 0
        while at < len(tokens):
            end = _find_block_end(tokens, at)
            block = self._write_block(tokens[at], tokens[at + 1 : end], indent)
            if block:
                pieces.append(block)
            at = end + 1
        return "\n\n".join(pieces)

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
        pieces: list[str] = []
        for child in token.children or []:
            pieces.append(self._write_inline_token(child, pieces))
        return "".join(pieces)

    def _write_inline_token(self, child: Token, pieces: list[str]) -> str:
        kind = child.type.removesuffix("_open").removesuffix("_close")
        if kind in _INLINE_STYLES:
            opening, closing = getattr(self._style, _INLINE_STYLES[kind])
            return str(opening if child.nesting == 1 else closing)
        match child.type:
            case "text":
                return self._style.escape(child.content)
            case "code_inline":
                return self._style.code(child.content)
            case "softbreak" | "hardbreak":
                return "\n"
            case "link_open":
                self._links.append((str(child.attrs.get("href", "")), len(pieces)))
                return ""
            case "link_close":
                return self._close_link(pieces)
            case "image":
                source = str(child.attrs.get("src", ""))
                return self._write_link(source, self._style.escape(child.content or "image"))
            case _:
                return self._style.escape(child.content)

    def _close_link(self, pieces: list[str]) -> str:
        href, at = self._links.pop()
        label = "".join(pieces[at:])
        del pieces[at:]
        return self._write_link(href, label)

    def _write_link(self, href: str, label: str) -> str:
        """Write a link, or only its label if the URL is not one that people can open."""
        parts = split_url(href)
        if parts is None or parts.scheme not in ("http", "https", "mailto"):
            return label
        return self._style.link(href, label or self._style.escape(href))


def _find_block_end(tokens: Sequence[Token], at: int) -> int:
    """Return the index of the token that closes the block starting at `at`."""
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
