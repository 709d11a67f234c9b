"""Render the Markdown of stored messages as safe HTML, with the look that the browser gives to live ones.

Anybody may write these texts, so rendering never raises and is bounded: a text that is too long, comes too late on a
costly page or breaks the renderer is shown as written. Formulas follow the same rules as static/js/formulas.js. Code is
highlighted in the browser only, because the expressions of highlighters take quadratic time on hostile texts.
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
from markdown_it.rules_block import StateBlock
from markdown_it.rules_core import StateCore
from markdown_it.rules_inline import StateInline
from markdown_it.token import Token
from markdown_it.utils import EnvType, OptionsDict

from config.core.url_safety import split_url
from copilot import metrics
from copilot.web import github_markdown

DISPLAY_OPENINGS = ("$$", r"\[")  # openings of formulas that may stand on lines of their own
_ROUND_FORMULA_INNER = r"(?:[^\\]|\\\\|\\(?![()\\]))"
_SQUARE_FORMULA_INNER = r"(?:[^\\]|\\\\|\\(?![\[\]\\]))"  # "\\[2pt]" starts a new line, not a formula
_UNTIL_SQUARE_BRACKET = re.compile(rf"({_SQUARE_FORMULA_INNER}*)(\\[\[\]])?")
_UNTIL_DOUBLE_DOLLAR = re.compile(r"((?:(?!\$\$)[\s\S])*)(\$\$)?")
_PAIRED_FORMULA = re.compile(
    r"\$\$((?:(?!\$\$)[\s\S])+)\$\$"
    rf"|\\\[({_SQUARE_FORMULA_INNER}+)\\\]"
    rf"|\\\(({_ROUND_FORMULA_INNER}+)\\\)"
)
_DOLLAR_FORMULA = re.compile(r"\$(?!\s)((?:\\[^\n]|[^$\\\n])+)(?<!\s)\$(?![\w$])", re.ASCII)
_WORD_CHARACTER = re.compile(r"[\w$]", re.ASCII)  # a formula cannot follow these
_PRICE = re.compile(r"\d(?=[\s\S]*\s)[^\\^_=+<>{}]*")  # "$5 and $" is not a formula; "$5 + x$" and "$5$" are


def add_formula_rules(parser: MarkdownIt) -> None:
    parser.block.ruler.before(
        "fence",
        "formula_block",
        _parse_formula_block,
        {"alt": ["paragraph", "reference", "blockquote", "list"]},
    )
    parser.inline.ruler.before("escape", "formula", _parse_inline_formula)
    parser.add_render_rule("formula_block", _render_formula)
    parser.add_render_rule("formula", _render_formula)


def _parse_formula_block(state: StateBlock, first: int, end: int, silent: bool) -> bool:
    """Match an opening, non-empty lines, and a closing with nothing after it."""
    opening = _read_line(state, first)[:2]
    if opening not in DISPLAY_OPENINGS or state.is_code_block(first):
        return False
    pattern, lines = (_UNTIL_DOUBLE_DOLLAR if opening == "$$" else _UNTIL_SQUARE_BRACKET), list[str]()
    for number in range(first, end):
        if state.isEmpty(number) or state.sCount[number] < state.blkIndent:
            return False
        line = _read_line(state, number)[2 if number == first else 0 :]
        match = pattern.match(line)
        assert match
        lines.append(match.group(1))
        if closing := match.group(2):
            is_closed = closing != opening or opening == "$$"
            return (
                is_closed
                and not line[match.end() :].strip()
                and _push_formula_block(state, "\n".join(lines), number + 1, silent=silent)
            )
    return False


def _read_line(state: StateBlock, number: int) -> str:
    return state.src[state.bMarks[number] + state.tShift[number] : state.eMarks[number]]


def _push_formula_block(state: StateBlock, text: str, after: int, *, silent: bool) -> bool:
    if text.strip() and not silent:
        token = state.push("formula_block", "div", 0)
        token.content = text.strip()
        token.map = [state.line, after]
        state.line = after
    return bool(text.strip())


def _parse_inline_formula(state: StateInline, silent: bool) -> bool:
    if state.src[state.pos] not in "$\\":
        return False
    match = _PAIRED_FORMULA.match(state.src, state.pos, state.posMax) or _match_dollar_formula(state)
    text = next((part for part in match.groups() if part), "").strip() if match else ""
    if not match or not text:
        return False
    if not silent:
        token = state.push("formula", "span", 0)
        token.content = text
        token.info = "display" if match.group()[:2] in DISPLAY_OPENINGS else ""
    state.pos = match.end()
    return True


def _match_dollar_formula(state: StateInline) -> re.Match[str] | None:
    """Match `$…$`, except after a letter or digit, as in US$, and between two prices."""
    before = state.src[state.pos - 1 : state.pos]
    if _WORD_CHARACTER.match(before):
        return None
    match = _DOLLAR_FORMULA.match(state.src, state.pos, state.posMax)
    return None if match and _PRICE.fullmatch(match.group(1)) else match


def _render_formula(
    renderer: RendererHTML, tokens: Sequence[Token], index: int, options: OptionsDict, env: EnvType
) -> str:
    """Render TeX source, which is readable without a script."""
    token = tokens[index]
    if token.type == "formula_block":
        return f'<div class="formula display" tabindex="0">{escape(token.content)}</div>\n'
    return f'<span class="formula{" display" if token.info else ""}">{escape(token.content)}</span>'


# --- Rendering ---

log = structlog.get_logger(__name__)
MAX_CHARACTERS = 100_000  # in one text; the slowest texts take 30 µs per character
PAGE_CPU_SECONDS = 2.0  # for all texts of a page; enough for a megabyte of ordinary Markdown
PREVIEW_BUTTON = '<button type="button" class="quiet" data-act="open-code">Preview</button>'
PREVIEW_LANGUAGES = ("html", "svg")  # shown by the artifacts panel
CODE_BLOCK_TOKENS = ("fence", "code_block")
_URL_TAIL = r"://[^\s<>\"'`]*[^\s<>\"'`.,:;!?)\]}*_]"
BARE_LINK = re.compile(f"https?{_URL_TAIL}")
_FILE_URI = r"workspace://[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}(?![0-9a-fA-F-])"
BARE_LINK_OR_FILE = re.compile(
    rf"https?{_URL_TAIL}|{_FILE_URI}(?:[/#?][^\s<>\"'`]*[^\s<>\"'`.,:;!?)\]}}*_])?"
)
WORKSPACE_SCHEME = "workspace://"
OWN_PATH = re.compile(r"/[^/\\]")
DEFAULT_LINK_REL = "noopener noreferrer nofollow"
ALLOWED_TAGS = {
    *("p", "br", "hr", "h1", "h2", "h3", "h4", "h5", "h6", "ul", "ol", "li", "blockquote"),
    *("strong", "em", "s", "code", "pre", "a", "table", "thead", "tbody", "tr", "th", "td"),
    *("div", "span", "button", "img"),
    *github_markdown.ALLOWED_TAGS,
}
ALLOWED_ATTRIBUTES = {
    **{tag: {"dir"} for tag in ("h1", "h2", "h3", "h4", "h5", "h6", "ul", "blockquote")},
    "p": {"dir", "class"},
    "sup": {"class"},
    "details": {"dir", "open"},
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
class LinkedFile:
    """A workspace file that a text names, with URLs that readers of this page may use."""

    href: str  # a path on this site
    name: str
    picture: str = ""  # the URL of its content, if it can be shown as an image


FindFile = Callable[[str], LinkedFile | None]  # by URI; returns None for files these readers may not see


class PageBudget:
    """Bound the CPU time that the Markdown of one page takes; texts after that are shown as written."""

    def __init__(self, seconds: float = PAGE_CPU_SECONDS) -> None:
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
    rel: str = DEFAULT_LINK_REL,
    budget: PageBudget | None = None,
) -> SafeString:
    """Return sanitised HTML, or the text as written if it cannot be rendered. Never raise.

    HTML in the text is shown as text, except for a few tags without attributes; images become links, so that nothing is loaded from elsewhere. With `find_file`,
    workspace files become links and images of ours, or are marked as missing.
    """
    if len(text) > MAX_CHARACTERS:
        return _render_fallback(text, "too_long")
    if budget is not None and budget.is_spent:
        return _render_fallback(text, "page_budget")
    started = time.thread_time()
    try:
        return _render_sanitized(text, find_file=find_file, rel=rel)
    except Exception as problem:  # noqa: BLE001 - one text must not break its page
        report_failure("markdown_failed", problem, characters=len(text))
        return _render_fallback(text, "failed")
    finally:
        if budget is not None:
            budget.spend(time.thread_time() - started)


def render_as_written(text: str) -> SafeString:
    return format_html('<div class="as-written" dir="auto">{}</div>', text)


def report_failure(event: str, problem: Exception, **fields: object) -> None:
    """Log where rendering failed, without the error message, which may quote the text."""
    frames = traceback.extract_tb(problem.__traceback__)
    place = f"{frames[-1].filename}:{frames[-1].lineno}" if frames else ""
    log.error(event, error=type(problem).__name__, place=place, **fields)


def _render_fallback(text: str, reason: str) -> SafeString:
    metrics.unrendered_texts.labels(reason=reason).inc()
    return render_as_written(text)


def _render_sanitized(text: str, *, find_file: FindFile | None, rel: str) -> SafeString:
    html = nh3.clean(
        _MARKDOWN.render(
            text, {"find_file": find_file, "footnotes": github_markdown.find_footnote_names(text)}
        ),
        tags=ALLOWED_TAGS,
        attributes=ALLOWED_ATTRIBUTES,
        attribute_filter=_filter_image_source,
        url_schemes={"http", "https", "mailto"},
        link_rel=rel,
    )
    return mark_safe(html)  # noqa: S308 - cleaned one line above


def _filter_image_source(tag: str, attribute: str, value: str) -> str | None:
    """Drop image sources on other sites: a page loads nothing from elsewhere."""
    is_foreign = tag == "img" and attribute == "src" and not OWN_PATH.match(value)
    return None if is_foreign else value


def extract_code_block(text: str, index: int) -> str | None:
    """Return the content of a code block by its number on the page, from 0, or None."""
    if len(text) > MAX_CHARACTERS:
        return None
    blocks = (token for token in _MARKDOWN.parse(text) if token.type in CODE_BLOCK_TOKENS)
    token = next(islice(blocks, index, None), None)
    return None if token is None else token.content


def _render_fence(
    renderer: RendererHTML, tokens: Sequence[Token], index: int, options: OptionsDict, env: EnvType
) -> str:
    token = tokens[index]
    language = token.info.strip().split(" ")[0][:32] if token.info else ""
    preview = PREVIEW_BUTTON if language.lower() in PREVIEW_LANGUAGES else ""
    return (
        f'<div class="code"><div class="code-head"><span>{escape(language or "text")}</span>{preview}'
        '<button type="button" class="quiet" data-act="copy-code">Copy</button></div>'
        f'<div class="code-body" tabindex="0"><pre><code>{escape(token.content, quote=False)}</code></pre></div></div>'
    )


def _render_link_open(
    renderer: RendererHTML, tokens: Sequence[Token], index: int, options: OptionsDict, env: EnvType
) -> str:
    token = tokens[index]
    href = str(token.attrGet("href") or "")
    if href.startswith(WORKSPACE_SCHEME) and env.get("find_file"):
        _link_to_file(token, env["find_file"](href))
    elif _is_external_link(href):
        token.attrSet("target", "_blank")
    return renderer.renderToken(tokens, index, options, env)


def _is_external_link(href: str) -> bool:
    """Tell whether a URL leaves this site; one that cannot be parsed counts as external."""
    parts = split_url(href)
    return parts is None or bool(parts.scheme) or href.startswith("//")


def _link_to_file(token: Token, linked: LinkedFile | None) -> None:
    token.attrs.pop("href")
    if linked is None:
        token.attrSet("class", "missing")
    else:
        token.attrSet("href", linked.href)
        token.attrSet("class", "file-link")


def _render_image(
    renderer: RendererHTML, tokens: Sequence[Token], index: int, options: OptionsDict, env: EnvType
) -> str:
    token = tokens[index]
    source = str(token.attrGet("src") or "")
    if source.startswith(WORKSPACE_SCHEME) and env.get("find_file"):
        return _render_file_image(env["find_file"](source), token.content)
    return f'<a href="{escape(source)}" target="_blank">{escape(token.content or "image")}</a>'


def _render_file_image(linked: LinkedFile | None, label: str) -> str:
    if linked is None:
        return f'<span class="missing">{escape(label)}</span>'
    name = escape(label or linked.name)
    if not linked.picture:
        return f'<a class="file-link" href="{escape(linked.href)}">{name}</a>'
    image = f'<img src="{escape(linked.picture)}" alt="{name}" loading="lazy">'
    return f'<a class="file-link picture" href="{escape(linked.href)}">{image}</a>'


def _render_table_open(
    renderer: RendererHTML, tokens: Sequence[Token], index: int, options: OptionsDict, env: EnvType
) -> str:
    direction = ' dir="auto"' if tokens[index].level == 0 else ""
    return f'<div class="table" tabindex="0"{direction}><table>'


def _render_table_close(
    renderer: RendererHTML, tokens: Sequence[Token], index: int, options: OptionsDict, env: EnvType
) -> str:
    return "</table></div>"


def _render_cell_open(
    renderer: RendererHTML, tokens: Sequence[Token], index: int, options: OptionsDict, env: EnvType
) -> str:
    """Set alignment as a class: the content security policy allows no style attributes."""
    token = tokens[index]
    alignment = str(token.attrs.pop("style", "")).removeprefix("text-align:")
    if alignment in {"right", "center"}:
        token.attrSet("class", alignment)
    return renderer.renderToken(tokens, index, options, env)


def _render_details_open(
    renderer: RendererHTML, tokens: Sequence[Token], index: int, options: OptionsDict, env: EnvType
) -> str:
    token = tokens[index]
    return token.content.replace(">", ' dir="auto">') if token.attrGet("dir") else token.content


def _render_content(
    renderer: RendererHTML, tokens: Sequence[Token], index: int, options: OptionsDict, env: EnvType
) -> str:
    return tokens[index].content


def _render_footnote_mark(
    renderer: RendererHTML, tokens: Sequence[Token], index: int, options: OptionsDict, env: EnvType
) -> str:
    return github_markdown.render_footnote_mark(tokens[index].content)


def _set_text_directions(state: StateCore) -> None:
    """Let each block take its text direction from its own first letter."""
    for block in state.tokens:
        if block.level == 0 and block.nesting == 1:
            block.attrSet("dir", "auto")


def _link_bare_addresses(state: StateCore) -> None:
    for block in state.tokens:
        if block.type == "inline" and block.children:
            block.children = _replace_bare_links(block.children, state.env.get("find_file"))


def _replace_bare_links(tokens: list[Token], find_file: FindFile | None) -> list[Token]:
    result: list[Token] = []
    link_depth = 0
    for token in tokens:
        link_depth += token.nesting if token.type.startswith("link_") else 0
        if token.type == "text" and not link_depth:
            result.extend(_split_links(token.content, find_file))
        elif token.type == "text" and token.content.startswith(WORKSPACE_SCHEME):
            result.append(_build_text_token(_get_link_label(token.content, find_file)))
        else:
            result.append(token)
    return result


def _split_links(text: str, find_file: FindFile | None) -> list[Token]:
    result: list[Token] = []
    end = 0
    for match in (BARE_LINK_OR_FILE if find_file else BARE_LINK).finditer(text):
        opening = Token("link_open", "a", 1, attrs={"href": match.group()})
        result += [
            _build_text_token(text[end : match.start()]),
            opening,
            _build_text_token(_get_link_label(match.group(), find_file)),
            Token("link_close", "a", -1),
        ]
        end = match.end()
    return [*result, _build_text_token(text[end:])]


def _get_link_label(address: str, find_file: FindFile | None) -> str:
    """Label a file by its name if readers may see it."""
    if find_file is None or not address.startswith(WORKSPACE_SCHEME):
        return address
    linked = find_file(address)
    return linked.name if linked else "file"


def _build_text_token(content: str) -> Token:
    return Token("text", "", 0, content=content)


def _build_parser() -> MarkdownIt:
    parser = MarkdownIt("commonmark", {"html": True, "breaks": True}).enable(["table", "strikethrough"])
    parser.disable("html_block")
    add_formula_rules(parser)
    github_markdown.add_github_rules(parser)
    parser.core.ruler.push("directions", _set_text_directions)
    parser.core.ruler.push("bare_links", _link_bare_addresses)
    rules = {
        "fence": _render_fence,
        "code_block": _render_fence,
        "link_open": _render_link_open,
        "image": _render_image,
        "table_open": _render_table_open,
        "table_close": _render_table_close,
        "th_open": _render_cell_open,
        "td_open": _render_cell_open,
        "details_open": _render_details_open,
        "details_close": _render_content,
        "footnote_mark": _render_footnote_mark,
    }
    for name, rule in rules.items():
        parser.add_render_rule(name, rule)
    return parser


_MARKDOWN = _build_parser()
