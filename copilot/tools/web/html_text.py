"""Turn HTML into a title and readable text, in one pass whose time is proportional to the size of the page."""

from __future__ import annotations

import html
import re
from dataclasses import dataclass
from typing import Literal
from urllib.parse import urljoin

_OVERLONG_NUMBERS = re.compile(r"&#\d{16,};?")  # int() refuses thousands of digits


def unescape_html(text: str) -> str:
    return html.unescape(_OVERLONG_NUMBERS.sub("\ufffd", text)) if "&" in text else text


TextStyle = Literal["text", "markdown"]

# No part matches past the next "<" and nothing is tried twice, so that the time is proportional to the size.
_TAG = re.compile(r"""<(/?)([A-Za-z][A-Za-z0-9:-]*+)((?:[^<>"']|"[^"<]*"|'[^'<]*')*+)>""")
_MARKUP = re.compile(r"<[!?/A-Za-z]")
_ATTRIBUTE = re.compile(r"""(?:^|\s)(href|alt)\s*=\s*(?:"([^"]*)"|'([^']*)'|([^\s"'>]+))""", re.IGNORECASE)
_SPACES = re.compile(r"[ \t\n\r\f\v\u00a0]+")
_BLANK_LINES = re.compile(r"\n{3,}")
_SKIPPED_ELEMENTS = {
    name: re.compile(rf"</{name}\b[^>]*>?", re.IGNORECASE)
    for name in ("script", "style", "noscript", "template", "svg", "iframe", "textarea", "object", "canvas")
}
_BLOCK_ELEMENTS = frozenset(
    [
        "p",
        "div",
        "section",
        "article",
        "main",
        "header",
        "footer",
        "aside",
        "nav",
        "ul",
        "ol",
        "dl",
        "table",
        "form",
        "fieldset",
        "blockquote",
        "figure",
        "pre",
        "hr",
        "h1",
        "h2",
        "h3",
        "h4",
        "h5",
        "h6",
        "details",
        "summary",
        "address",
        "body",
        "head",
    ]
)
_LINE_ELEMENTS = frozenset(["br", "tr", "li", "dt", "dd", "option", "figcaption", "caption"])
_HEADINGS = {f"h{level}": "#" * level + " " for level in range(1, 7)}
_WEB_SCHEMES = ("http://", "https://")
MAX_TITLE_CHARACTERS = 300
MAX_SOURCE_CHARACTERS = 2_000_000  # read: a second or two at worst
MAX_TEXT_CHARACTERS = 500_000  # written: an absolute link can be a thousand times longer than its source


@dataclass(frozen=True, kw_only=True)
class HtmlPage:
    title: str
    text: str
    cut: bool  # the text is incomplete


def extract_text(source: str, *, base_url: str, style: TextStyle) -> HtmlPage:
    writer = _TextWriter(base_url, style)
    _scan_html(source[:MAX_SOURCE_CHARACTERS], writer)
    return writer.build_page(cut=len(source) > MAX_SOURCE_CHARACTERS or writer.is_full)


def _scan_html(source: str, writer: _TextWriter) -> None:
    at, endless = 0, set[str]()
    while at < len(source) and not writer.is_full:
        markup = _MARKUP.search(source, at)
        if markup is None:
            writer.write_text(source[at:])
            return
        writer.write_text(source[at : markup.start()])
        at = _skip_markup(source, markup.start(), writer, endless)


def _skip_markup(source: str, at: int, writer: _TextWriter, endless: set[str]) -> int:
    """Handle the markup at `at`, and return where to continue.

    `endless` remembers elements without an end tag, so that it is not searched for again.
    """
    if source.startswith("<!--", at):
        end = source.find("-->", at + 4)
        return len(source) if end == -1 else end + 3
    if source.startswith(("<!", "<?"), at):
        end = source.find(">", at)
        return len(source) if end == -1 else end + 1
    tag = _TAG.match(source, at)
    if tag is None:
        writer.write_text("<")
        return at + 1
    closing, name = bool(tag[1]), tag[2].lower()
    if not closing and name in _SKIPPED_ELEMENTS and name not in endless:
        end_tag = _SKIPPED_ELEMENTS[name].search(source, tag.end())
        if end_tag is not None:
            return end_tag.end()
        endless.add(name)
        return len(source) if name in {"script", "style"} else tag.end()
    writer.write_tag(name, tag[3], closing=closing)
    return tag.end()


class _TextWriter:
    def __init__(self, base_url: str, style: TextStyle) -> None:
        self._base_url = base_url
        self._markdown = style == "markdown"
        self._out: list[str] = []
        self._written = 0
        self._title: list[str] = []
        self._in_title = False
        self._preformatted = 0
        self._link: tuple[str, int] | None = None  # its target, and where its text begins

    @property
    def is_full(self) -> bool:
        return self._written > MAX_TEXT_CHARACTERS

    def write_text(self, raw: str) -> None:
        text = unescape_html(raw)
        if self._in_title:
            self._title.append(text)
        elif self._preformatted:
            self._put(text)
        elif text := _SPACES.sub(" ", text):
            fresh = not self._out or self._out[-1].endswith(("\n", " "))
            self._put(text.lstrip(" ") if fresh else text)

    def write_tag(self, name: str, attributes: str, *, closing: bool) -> None:
        if name == "title":
            self._in_title = not closing and not self._title
        elif name == "a":
            self._end_link() if closing else self._begin_link(attributes)
        elif name == "img" and not closing:
            self._image(attributes)
        elif name in _BLOCK_ELEMENTS:
            self._block(name, closing=closing)
        elif name in _LINE_ELEMENTS and not (closing and name == "br"):
            self._line(name, closing=closing)
        elif name in {"td", "th"} and closing:
            self._put(" | " if self._markdown else "\t")

    def build_page(self, *, cut: bool) -> HtmlPage:
        self._end_link()
        lines = (line.rstrip() for line in "".join(self._out).split("\n"))
        text = _BLANK_LINES.sub("\n\n", "\n".join(lines)).strip()
        title = _SPACES.sub(" ", "".join(self._title)).strip()[:MAX_TITLE_CHARACTERS]
        return HtmlPage(title=title, text=text, cut=cut)

    def _put(self, text: str) -> None:
        self._out.append(text)
        self._written += len(text)

    def _block(self, name: str, *, closing: bool) -> None:
        if name == "pre":
            self._preformatted = 0 if closing else 1
            fence = "```\n" if self._markdown else ""
            self._put(f"\n{fence}\n" if closing else f"\n\n{fence}")
            return
        self._put("\n\n")
        if self._markdown and name in _HEADINGS and not closing:
            self._put(_HEADINGS[name])
        if self._markdown and name == "hr":
            self._put("---\n\n")

    def _line(self, name: str, *, closing: bool) -> None:
        if not closing:
            self._put("\n- " if name == "li" else "\n")

    def _begin_link(self, attributes: str) -> None:
        self._end_link()
        target = _find_attribute(attributes, "href")
        if target and not target.startswith("#"):
            self._link = target, len(self._out)

    def _end_link(self) -> None:
        if self._link is None:
            return
        (target, start), self._link = self._link, None
        label = _SPACES.sub(" ", "".join(self._out[start:])).strip()
        address = _join_url(self._base_url, target) if label else ""
        if not address.startswith(_WEB_SCHEMES) or label == address:
            return
        del self._out[start:]
        self._put(f"[{label}]({address})" if self._markdown else f"{label} ({address})")

    def _image(self, attributes: str) -> None:
        if described := _find_attribute(attributes, "alt").strip():
            self._put(f"[image: {described}]")


def _join_url(base: str, target: str) -> str:
    try:
        return urljoin(base, target.strip())
    except ValueError:  # such as a bracket that never closes
        return ""


def _find_attribute(attributes: str, name: str) -> str:
    for found in _ATTRIBUTE.finditer(attributes):
        if found[1].lower() == name:
            return unescape_html(found[2] or found[3] or found[4] or "")
    return ""
