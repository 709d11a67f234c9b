"""Markdown of stored messages to safe HTML, with the same look the browser gives to live ones.

Strangers write these texts, so rendering never raises and has bounds: a text that is too long, comes too late on a
costly page or breaks the renderer is shown as it was written. Code is coloured in the browser alone, because the
expressions of highlighters take quadratic time on texts made for it.
"""

from __future__ import annotations

import re
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from itertools import islice

import nh3
import structlog
from django.utils.html import format_html
from django.utils.safestring import SafeString, mark_safe
from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.rules_core import StateCore
from markdown_it.token import Token
from markdown_it.utils import EnvType, OptionsDict

from config.core.urls import split_url
from copilot import formulas, metrics

log = structlog.get_logger("markdown")
MAX_CHARACTERS = 100_000  # of one text; the slowest texts take 30 µs per character
PAGE_SECONDS = 2.0  # of CPU for all texts of a page; a megabyte of ordinary Markdown
PREVIEW = '<button type="button" class="quiet" data-act="open-code">Preview</button>'
SHOWN_LANGUAGES = ("html", "svg")  # whose blocks the panel can show
CODE_BLOCKS = ("fence", "code_block")
_REST = r"://[^\s<>\"'`]*[^\s<>\"'`.,:;!?)\]}*_]"
BARE_LINK = re.compile(f"https?{_REST}")
_FILE = r"workspace://[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}(?![0-9a-fA-F-])"
BARE_LINK_OR_FILE = re.compile(rf"https?{_REST}|{_FILE}(?:[/#?][^\s<>\"'`]*[^\s<>\"'`.,:;!?)\]}}*_])?")
WORKSPACE = "workspace://"
TASK = re.compile(r"\[([ xX])\] +(?=\S)")
OWN_PATH = re.compile(r"/[^/\\]")
OWN_LINKS = "noopener noreferrer nofollow"
TAGS = {
    *("p", "br", "hr", "h1", "h2", "h3", "h4", "h5", "h6", "ul", "ol", "li", "blockquote"),
    *("strong", "em", "s", "code", "pre", "a", "table", "thead", "tbody", "tr", "th", "td"),
    *("div", "span", "button", "img"),
}
ATTRIBUTES = {
    **{tag: {"dir"} for tag in ("p", "h1", "h2", "h3", "h4", "h5", "h6", "ul", "blockquote")},
    "a": {"href", "title", "target", "class"},
    "img": {"src", "alt", "loading"},
    "ol": {"start", "dir"},
    "th": {"class"},
    "td": {"class"},
    "div": {"class", "tabindex", "dir"},
    "span": {"class"},
    "code": {"class"},
    "button": {"class", "type", "data-act"},
}


@dataclass(frozen=True, kw_only=True)
class Linked:
    """A file of the workspace that a text names, as this page's readers can fetch it."""

    href: str  # a path of our own
    name: str
    picture: str = ""  # where its bytes are, if it can be shown as a picture


FindFile = Callable[[str], Linked | None]  # by its URI; None for what these readers cannot have


class PageBudget:
    """Bound the CPU time that the Markdown of one page takes; texts after it is spent are shown as written."""

    def __init__(self, seconds: float = PAGE_SECONDS) -> None:
        self._seconds_left = seconds

    @property
    def is_spent(self) -> bool:
        return self._seconds_left <= 0

    def spend(self, seconds: float) -> None:
        self._seconds_left -= seconds


def render(
    text: str,
    *,
    find_file: FindFile | None = None,
    rel: str = OWN_LINKS,
    budget: PageBudget | None = None,
) -> SafeString:
    """Return sanitised HTML, or the text as it was written where it cannot be rendered; never raise.

    Raw HTML in the text is shown as text; images become links, as nothing foreign is loaded. With `find_file`, files
    of the workspace are links and pictures of ours, or said to be missing.
    """
    if len(text) > MAX_CHARACTERS:
        return _unrendered(text, "too_long")
    if budget is not None and budget.is_spent:
        return _unrendered(text, "page_budget")
    began = time.thread_time()
    try:
        return _render_safely(text, find_file=find_file, rel=rel)
    except Exception as problem:  # noqa: BLE001 - one text must not take its page down
        report_failure("markdown_failed", problem, characters=len(text))
        return _unrendered(text, "failed")
    finally:
        if budget is not None:
            budget.spend(time.thread_time() - began)


def render_as_written(text: str) -> SafeString:
    return format_html('<div class="as-written" dir="auto">{}</div>', text)


def report_failure(event: str, problem: Exception, **fields: object) -> None:
    """Log where rendering failed; the message of the error may quote the text, so it is left out."""
    frames = traceback.extract_tb(problem.__traceback__)
    place = f"{frames[-1].filename}:{frames[-1].lineno}" if frames else ""
    log.error(event, error=type(problem).__name__, place=place, **fields)


def _unrendered(text: str, reason: str) -> SafeString:
    metrics.unrendered_texts.labels(reason=reason).inc()
    return render_as_written(text)


def _render_safely(text: str, *, find_file: FindFile | None, rel: str) -> SafeString:
    html = nh3.clean(
        _markdown.render(text, {"find_file": find_file}),
        tags=TAGS,
        attributes=ATTRIBUTES,
        attribute_filter=_only_our_pictures,
        url_schemes={"http", "https", "mailto"},
        link_rel=rel,
    )
    return mark_safe(html)  # noqa: S308 - cleaned one line above


def _only_our_pictures(tag: str, attribute: str, value: str) -> str | None:
    """Whatever the rules below let through: a page loads nothing from elsewhere."""
    foreign = tag == "img" and attribute == "src" and not OWN_PATH.match(value)
    return None if foreign else value


def code_block(text: str, index: int) -> str | None:
    """What stands in the code block of this number, from 0, as the page counts them; None if there is none."""
    if len(text) > MAX_CHARACTERS:
        return None
    blocks = (token for token in _markdown.parse(text) if token.type in CODE_BLOCKS)
    token = next(islice(blocks, index, None), None)
    return None if token is None else token.content


def _fence(
    renderer: RendererHTML, tokens: Sequence[Token], index: int, options: OptionsDict, env: EnvType
) -> str:
    token = tokens[index]
    language = token.info.strip().split(" ")[0][:32] if token.info else ""
    preview = PREVIEW if language.lower() in SHOWN_LANGUAGES else ""
    return (
        f'<div class="code"><div class="code-head"><span>{escape(language or "text")}</span>{preview}'
        '<button type="button" class="quiet" data-act="copy-code">Copy</button></div>'
        f'<div class="code-body" tabindex="0"><pre><code>{escape(token.content, quote=False)}</code></pre></div></div>'
    )


def _link_open(
    renderer: RendererHTML, tokens: Sequence[Token], index: int, options: OptionsDict, env: EnvType
) -> str:
    token = tokens[index]
    href = str(token.attrGet("href") or "")
    if href.startswith(WORKSPACE) and env.get("find_file"):
        _lead_to_file(token, env["find_file"](href))
    elif _leads_away(href):
        token.attrSet("target", "_blank")
    return renderer.renderToken(tokens, index, options, env)


def _leads_away(href: str) -> bool:
    """Tell whether an address leaves this site; one that cannot be parsed counts as foreign."""
    parts = split_url(href)
    return parts is None or bool(parts.scheme) or href.startswith("//")


def _lead_to_file(token: Token, linked: Linked | None) -> None:
    token.attrs.pop("href")
    if linked is None:
        token.attrSet("class", "missing")
    else:
        token.attrSet("href", linked.href)
        token.attrSet("class", "file-link")


def _image(
    renderer: RendererHTML, tokens: Sequence[Token], index: int, options: OptionsDict, env: EnvType
) -> str:
    token = tokens[index]
    source = str(token.attrGet("src") or "")
    if source.startswith(WORKSPACE) and env.get("find_file"):
        return _file_picture(env["find_file"](source), token.content)
    return f'<a href="{escape(source)}" target="_blank">{escape(token.content or "image")}</a>'


def _file_picture(linked: Linked | None, label: str) -> str:
    if linked is None:
        return f'<span class="missing">{escape(label)}</span>'
    name = escape(label or linked.name)
    if not linked.picture:
        return f'<a class="file-link" href="{escape(linked.href)}">{name}</a>'
    shown = f'<img src="{escape(linked.picture)}" alt="{name}" loading="lazy">'
    return f'<a class="file-link picture" href="{escape(linked.href)}">{shown}</a>'


def _table_open(
    renderer: RendererHTML, tokens: Sequence[Token], index: int, options: OptionsDict, env: EnvType
) -> str:
    direction = ' dir="auto"' if tokens[index].level == 0 else ""
    return f'<div class="table" tabindex="0"{direction}><table>'


def _table_close(
    renderer: RendererHTML, tokens: Sequence[Token], index: int, options: OptionsDict, env: EnvType
) -> str:
    return "</table></div>"


def _cell_open(
    renderer: RendererHTML, tokens: Sequence[Token], index: int, options: OptionsDict, env: EnvType
) -> str:
    """Alignment as a class: the content security policy allows no style attribute."""
    token = tokens[index]
    alignment = str(token.attrs.pop("style", "")).removeprefix("text-align:")
    if alignment in {"right", "center"}:
        token.attrSet("class", alignment)
    return renderer.renderToken(tokens, index, options, env)


def _find_directions(state: StateCore) -> None:
    """Each block reads from the side its own first letter says, and what is in it likewise (W2.1)."""
    for block in state.tokens:
        if block.level == 0 and block.nesting == 1:
            block.attrSet("dir", "auto")


def _tick_tasks(state: StateCore) -> None:
    """An item that begins with a box is a task; nothing here can be ticked, so its box is a sign."""
    for item, paragraph, words in zip(state.tokens, state.tokens[1:], state.tokens[2:], strict=False):
        first = words.children[0] if words.children else None
        if (item.type, paragraph.type) != ("list_item_open", "paragraph_open") or first is None:
            continue
        if first.type == "text" and (box := TASK.match(words.content)):
            first.content = ("☐ " if box[1] == " " else "☑ ") + first.content[box.end() :]


def _link_bare_addresses(state: StateCore) -> None:
    for block in state.tokens:
        if block.type == "inline" and block.children:
            block.children = _with_links(block.children, state.env.get("find_file"))


def _with_links(tokens: list[Token], find_file: FindFile | None) -> list[Token]:
    made: list[Token] = []
    inside = 0
    for token in tokens:
        inside += token.nesting if token.type.startswith("link_") else 0
        if token.type == "text" and not inside:
            made.extend(_split_links(token.content, find_file))
        else:
            made.append(token)
    return made


def _split_links(text: str, find_file: FindFile | None) -> list[Token]:
    made: list[Token] = []
    end = 0
    for found in (BARE_LINK_OR_FILE if find_file else BARE_LINK).finditer(text):
        opening = Token("link_open", "a", 1, attrs={"href": found.group()})
        made += [
            _text(text[end : found.start()]),
            opening,
            _text(_label(found.group(), find_file)),
            Token("link_close", "a", -1),
        ]
        end = found.end()
    return [*made, _text(text[end:])]


def _label(address: str, find_file: FindFile | None) -> str:
    """A file goes by its name where readers may know it."""
    if find_file is None or not address.startswith(WORKSPACE):
        return address
    linked = find_file(address)
    return linked.name if linked else "file"


def _text(content: str) -> Token:
    return Token("text", "", 0, content=content)


def _parser() -> MarkdownIt:
    parser = MarkdownIt("commonmark", {"html": False, "breaks": True}).enable(["table", "strikethrough"])
    formulas.teach(parser)
    parser.core.ruler.push("directions", _find_directions)
    parser.core.ruler.push("tasks", _tick_tasks)
    parser.core.ruler.push("bare_links", _link_bare_addresses)
    rules = {
        "fence": _fence,
        "code_block": _fence,
        "link_open": _link_open,
        "image": _image,
        "table_open": _table_open,
        "table_close": _table_close,
        "th_open": _cell_open,
        "td_open": _cell_open,
    }
    for name, rule in rules.items():
        parser.add_render_rule(name, rule)
    return parser


_markdown = _parser()
