"""Untrusted text costs linear time: every regular expression, and every function that takes such text."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from config.core import redaction
from config.core.errors import InvalidRequest
from config.core.url_safety import get_host_and_port, split_url
from config.http import handler
from config.logging_config import redact_log_event
from copilot.agent import titles
from copilot.chat import approval_decisions, prompt_tags, slash_commands
from copilot.exports import documents
from copilot.files import content_types, downloads
from copilot.memories.services import _extract_words
from copilot.providers import failures, text_filter
from copilot.schedules import cron
from copilot.sharing import payloads
from copilot.tools.builtin import web_search
from copilot.tools.web import html_text
from copilot.web import markdown, transcript
from linking.models.fields import clean_name
from linking.platforms import markup, text_split
from linking.platforms.slack import wire as slack_wire
from linking.platforms.telegram import adapter as telegram_adapter
from tests.support.paths import ROOT

pytestmark = pytest.mark.attack
PACKAGES = ("billing", "config", "copilot", "diagnostics", "linking")

# --- what is pumped ----------------------------------------------------------------------------------

PUMPS = (
    *(
        "a",
        " ",
        "0",
        "\n",
        "\t",
        "-",
        "_",
        ".",
        "'",
        '"',
        "\\",
        "(",
        "[",
        "{",
        "<",
        ">",
        "&",
        "|",
        "$",
        "`",
        "*",
        "é",
    ),
    *(
        "a ",
        " a",
        "a\n",
        "\n ",
        "a.",
        "a-",
        "a_",
        "A0",
        "0.",
        "1e",
        "..",
        ". ",
        "//",
        "/a",
        "a=",
        "; ",
        ", ",
        "| ",
        "|-",
    ),
    *(
        "[a](",
        "![",
        "[[a]",
        "[a]: b\n",
        "[a]: b 'c\n",
        "](",
        "*a ",
        "**a",
        "_a ",
        "~~a",
        "*_",
        "`a``",
        "> ",
        "- ",
        "* - ",
    ),
    *(
        "1. ",
        "- [ ] a\n",
        "|a\n|-\n|a\n\n",
        "a|b\n-|-\n",
        "```\n",
        "~~~\n",
        "```a\n~~~\n",
        "``` ",
        "    a\n",
        "# a\n",
    ),
    *(
        "a\n=\n",
        "$a ",
        "$1 a",
        "$$",
        "$$a",
        "$$\n",
        "\\(",
        "\\(a",
        "\\[",
        "\\[a\n",
        "$a\\",
        "\\$",
        "&#35;",
        "&#x",
        "&amp;",
    ),
    *(
        "<a",
        "<a ",
        "<a b='",
        '<a b="c',
        "</",
        "<!--",
        "<!--a",
        "<!A",
        "<?",
        "<![CDATA[",
        "<script ",
        "<think ",
        "<think>a",
    ),
    *(
        "</think",
        "<meta charset",
        "charset=",
        "<http://a",
        "<a@b",
        "http://",
        "http://a",
        "https://[",
        "http://a:",
        "a@b.",
    ),
    *(
        "://a:",
        "workspace://",
        "workspace://00000000-0000-0000-0000-000000000000/",
        "<@A|",
        "<http:a",
        "<http://a|b",
        "@all",
    ),
    *(
        "\x1b[",
        "\x1b]",
        "\x1b[0;",
        "-----BEGIN A",
        "eyJa",
        "eyJaaaaaaaa.",
        "sk-",
        "Bearer ",
        "Bearer a",
        "%20",
        "DETAIL:",
    ),
    *(
        "<system_note ",
        "<system_note>",
        "</system_note",
        "< system_note",
        "title: ",
        "/a ",
        "\u200b",
        "\ufeff",
        "x" * 60 + " ",
    ),
    *(
        "\\u00",
        "\\054",
        '\\"',
        "a,",
        "en;q=",
        "0-",
        "*/",
        "* * ",
        "\r\n",
        "/v1/linking/",
        "  \n",
        "!\n",
        "é ",
        "\u3002",
    ),
)


# One beginning, a long run, and an end that does not fit.
RUNS = tuple(
    (begin, run, end)
    for begin, end in (
        ("```", "`"),
        ("a", "!"),
        ("<a", "<"),
        ("<think>", "</think"),
        ("http://a", '"'),
        ("$", " "),
        (".", "x"),
    )
    for run in (" ", "a", "\t", "'", "-", "\\", ".", "a=", "0")
)


def pumped(pump: str | tuple[str, str, str], length: int, *, end: str = "") -> str:
    if isinstance(pump, tuple):
        begin, run, end = pump
        return begin + (run * (length // len(run) + 1))[:length] + end
    return (pump * (length // len(pump) + 1))[:length] + end


class Growth(NamedTuple):
    quarter: float
    whole: float

    @property
    def is_linear(self) -> bool:
        """A quadratic function takes sixteen times as long for four times the text."""
        return self.whole <= 9 * self.quarter


def seconds_of(act: Callable[[Any], object], text: object) -> float:
    began = time.thread_time()
    act(text)
    return time.thread_time() - began


def grows_too_fast(
    act: Callable[[Any], object], make: Callable[[int], object], length: int, *, least: float
) -> Growth | None:
    """What takes less than `least` is not judged: its figures are noise. A bad figure is measured three times."""
    whole = seconds_of(act, make(length))
    if whole < least:
        return None
    found = Growth(seconds_of(act, make(length // 4)), whole)
    for _ in range(2):
        if found.is_linear:
            return None
        found = Growth(seconds_of(act, make(length // 4)), min(found.whole, seconds_of(act, make(length))))
    return None if found.is_linear else found


# --- every expression --------------------------------------------------------------------------------

# By what is used of them alone: a search would begin at every place, a match begins at one.
ANCHORED = {
    "copilot.web.markdown._DOLLAR_FORMULA": "match",  # from the dollar at the parser's position; escaped ones do not count
    "copilot.web.markdown._UNTIL_DOUBLE_DOLLAR": "match",
    "copilot.web.markdown._PRICE": "fullmatch",
    "copilot.web.markdown._PAIRED_FORMULA": "match",
    "copilot.web.markdown._UNTIL_SQUARE_BRACKET": "match",
    "copilot.providers.failures.PARAMETERS": "match",
    "copilot.exports.documents.HEADING": "fullmatch",
    "copilot.files.content_types._COMMENT": "match",
    "copilot.files.content_types._HTML": "match",
}


@cache
def modules() -> list[ModuleType]:
    """Import all modules, without a check of ours that reads nothing but the files of this repository."""
    found = []
    for package in PACKAGES:
        root = importlib.import_module(package)
        for info in pkgutil.walk_packages(root.__path__, f"{package}."):
            if not re.search(r"\.migrations|\.management|\.prose_check", info.name):
                found.append(importlib.import_module(info.name))
    return found


def patterns_in(value: object, depth: int = 0) -> Iterator[re.Pattern]:
    """Those of a module's variables, also inside tuples, maps and objects of ours."""
    if isinstance(value, re.Pattern):
        yield value
    elif depth < 3:
        if isinstance(value, dict):
            inside = [*value.keys(), *value.values()]
        elif isinstance(value, list | tuple | set | frozenset):
            inside = list(value)
        elif type(value).__module__.partition(".")[0] in PACKAGES:
            inside = list(getattr(value, "__dict__", {}).values())
        else:
            inside = []
        for one in inside:
            yield from patterns_in(one, depth + 1)


@cache
def expressions() -> dict[re.Pattern, str]:
    found: dict[re.Pattern, str] = {}
    for module in modules():
        for name, value in vars(module).items():
            for pattern in patterns_in(value):
                found.setdefault(pattern, f"{module.__name__}.{name}")
    return found


def literals(pattern: re.Pattern) -> set[str]:
    """Runs of plain characters in an expression: what begins a match is most likely to be tried again and again."""
    text = pattern.pattern if isinstance(pattern.pattern, str) else pattern.pattern.decode("latin-1")
    return set(re.findall(r"[A-Za-z<>/:@#=-]{2,}", text))


def applied(pattern: re.Pattern, name: str) -> Callable[[Any], object]:
    method = ANCHORED.get(name)
    return getattr(pattern, method) if method else lambda text: sum(1 for _ in pattern.finditer(text))


def test_every_expression_takes_linear_time():
    problems = []
    for pattern, name in expressions().items():
        act = applied(pattern, name)
        own = [one + end for one in literals(pattern) for end in ("", "a")]
        for pump in (*PUMPS, *RUNS, *own):

            def made(length, pump=pump, pattern=pattern):
                text = pumped(pump, length)
                return text if isinstance(pattern.pattern, str) else text.encode()

            if grown := grows_too_fast(act, made, 2_000, least=0.004):
                problems.append((name, pump, grown))
                break
    assert problems == []


# Made where they are used: from names or words of our own, or without any repetition.
INSIDE_FUNCTIONS = {
    ("config/dev/servers.py", "_read_version"): "what a program of ours prints",
    ("config/dev/security_audit.py", "_read_locked_packages"): "our own lock files",
    ("copilot/accounts/devices.py", "describe_device"): "plain words, in 500 characters of a user agent",
    ("config/core/api/schema.py", "get_operation_id"): "names of our classes",
    ("config/core/hashed_keys.py", "_pattern"): "fixed lengths, without repetition that could backtrack",
    ("copilot/providers/text_filter.py", "_compile_markers"): "makes constants of the module",
    ("config/core/redaction.py", "_make_prefix_pattern"): "makes constants of the module",
    ("copilot/tools/sandbox/bubblewrap.py", "from_report"): "what the kernel says of a process",
    ("copilot/sharing/payloads.py", "_make_cleaner"): "names of people, escaped, without repetition",
    ("diagnostics/probes/configuration.py", "probe_allowed_hosts"): "the environment",
    ("diagnostics/probes/servers.py", "_explain_postgres_refusal"): "what our own Postgres says",
    ("diagnostics/probes/servers.py", "_explain_redis_refusal"): "what our own Redis says",
    (
        "linking/links/bot_keys.py",
        "validate_bot_key",
    ): "the shape of a platform's id, of 200 characters at most",
    ("linking/links/services.py", "_validate_list"): "the same",
    ("linking/links/tokens.py", "_validate_request"): "the same",
    ("linking/platforms/telegram/wire.py", "resolve_mention"): "one escaped name, without repetition",
}


def calls_of_re(path: Path) -> Iterator[tuple[str, ast.Call]]:
    """Each call of the module `re`, with the function that contains it; "" for those of the module itself."""

    def walk(node: ast.AST, inside: str) -> Iterator[tuple[str, ast.Call]]:
        for child in ast.iter_child_nodes(node):
            here = child.name if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef) else inside
            if isinstance(child, ast.Call) and isinstance(child.func, ast.Attribute):
                owner = child.func.value
                if (
                    isinstance(owner, ast.Name)
                    and owner.id in ("re", "regex")
                    and child.func.attr != "escape"
                ):
                    yield here, child
            yield from walk(child, here)

    text = path.read_text()
    return walk(ast.parse(text), "") if re.search(r"\b(re|regex)\.", text) else iter(())


def product_files() -> Iterator[Path]:
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            if "migrations" not in path.parts and path.name != "prose_check.py":
                yield path


def test_every_expression_is_a_constant_of_its_module_or_listed_here():
    """So that the test above finds it; one made in a function is listed with the reason why it is harmless."""
    calls = [
        (str(path.relative_to(ROOT)), inside, call)
        for path in product_files()
        for inside, call in calls_of_re(path)
    ]
    strays = {(path, inside) for path, inside, _ in calls if inside}
    assert strays - INSIDE_FUNCTIONS.keys() == set()
    assert INSIDE_FUNCTIONS.keys() - strays == set()  # nothing is listed that is gone
    known = {pattern.pattern for pattern in expressions()}
    constants = {
        call.args[0].value
        for _, inside, call in calls
        if not inside and call.func.attr == "compile" and isinstance(call.args[0], ast.Constant)
    }
    assert constants - known == set()


def test_addresses_are_parsed_by_the_function_that_never_raises():
    """`urlsplit` raises on ordinary sentences; who calls it reads an address of our own configuration."""
    own = {
        "billing/checks.py",
        "billing/redirects.py",
        "config/core/url_safety.py",
        "config/env.py",
        "config/social_auth.py",
        "copilot/admin/catalogue.py",
        "copilot/files/storage.py",
        "diagnostics/audit_delivery.py",
        "diagnostics/probes/configuration.py",
        "diagnostics/probes/runner.py",
        "linking/checks.py",
    }
    callers = {
        str(path.relative_to(ROOT))
        for path in product_files()
        if re.search(r"\burl(split|parse)\(", path.read_text())
    }
    assert callers - own == set()


# --- every function ----------------------------------------------------------------------------------


class Taker(NamedTuple):
    """A function that takes untrusted text, and its maximum length."""

    act: Callable[[str], object]
    limit: int
    quick: int = 4_000  # as much is enough to see the growth of most


def _refusable(act: Callable[[str], object]) -> Callable[[str], object]:
    def tried(text: str) -> object:
        try:
            return act(text)
        except InvalidRequest:
            return None

    return tried


def _fed(text: str) -> None:
    cleaner = text_filter.TextFilter()
    for at in range(0, len(text), 40):
        cleaner.feed(text[at : at + 40])
    cleaner.finish()


def _published(text: str) -> object:
    """The last of many people's names is looked for in a text made of the others'."""
    names = [f"Member{number} of the club" for number in range(200)]
    rows = [payloads.TranscriptRow(kind="user", created_at="", text="Hello", member=name) for name in names]
    rows.append(payloads.TranscriptRow(kind="assistant", created_at="", text=text))
    return payloads.build_payload(rows, title="", included=payloads.IncludedParts())


TAKERS = {
    "markdown.render": Taker(markdown.render, markdown.MAX_CHARACTERS, 1_200),
    "markdown.code_block": Taker(
        lambda text: markdown.extract_code_block(text, 10**6), markdown.MAX_CHARACTERS, 1_200
    ),
    "manuscripts.contained": Taker(documents.contain_text, 64_000),
    "manuscripts.fenced": Taker(documents.fence_text, 64_000),
    "markup.convert": Taker(
        lambda text: markup.convert_markdown(text, telegram_adapter.TELEGRAM_STYLE), 40_000, 1_200
    ),
    "splitting.split": Taker(lambda text: text_split.split_text(text, measure=len, limit=100), 64_000, 1_200),
    "slack_wire.plain": Taker(lambda text: slack_wire.to_plain_text(text, "U1"), 40_000),
    "telegram._seen": Taker(telegram_adapter._strip_markup, 40_000),
    "names.clean_name": Taker(clean_name, 64_000),
    "titles.clean": Taker(titles.clean_title, 8_000),
    "titles._plain": Taker(titles._strip_markup, 64_000),
    "titles.local": Taker(titles.build_local_title, 64_000),
    "tags.strip_server_tags": Taker(prompt_tags.strip_server_tags, 64_000),
    "tags.drop_server_blocks": Taker(prompt_tags.drop_server_blocks, 64_000),
    "tags.escape_server_tags": Taker(prompt_tags.escape_server_tags, 64_000),
    "redaction.redact": Taker(redaction.redact, 64_000),
    "publication.payload_of": Taker(_published, 16_000),
    "publication.file_ids": Taker(lambda text: payloads.find_file_ids([text]), 64_000),
    "deciding.clean_feedback": Taker(_refusable(approval_decisions.clean_feedback), 64_000),
    "memories.keywords": Taker(_extract_words, 64_000),
    "slashes.typed": Taker(slash_commands.parse_slash_command, 64_000),
    "cron.read": Taker(_refusable(lambda text: cron.parse_cron(text, "UTC")), 4_000),
    "cron.zone": Taker(_refusable(lambda text: cron.parse_cron("0 9 * * 1", text)), 4_000),
    "shell.of": Taker(lambda text: transcript.parse_shell_output("run", {"command": text}, text), 64_000),
    "pages.readable": Taker(
        lambda text: html_text.extract_text(text, base_url="https://a.example/", style="markdown"), 200_000
    ),
    "engines._text": Taker(web_search._strip_markup, 20_000),
    "entities.unescape": Taker(html_text.unescape_html, 64_000),
    "sniffing.detect": Taker(lambda text: content_types.detect_content_type(text.encode(), "a"), 8_000),
    "failures.clean_details": Taker(failures.clean_details, 64_000),
    "clean.Cleaner": Taker(_fed, 20_000),
    "logs.scrub": Taker(lambda text: redact_log_event(None, "info", {"event": text}), 64_000),
    "urls.split_url": Taker(split_url, 64_000),
    "urls.host_and_port": Taker(get_host_and_port, handler.MAX_HEADER_BYTES),
    "downloads._part": Taker(lambda text: downloads._parse_range(text, 100), handler.MAX_HEADER_BYTES),
}


@pytest.mark.parametrize("name", TAKERS)
def test_untrusted_text_takes_linear_time(name):
    act, limit, quick = TAKERS[name]
    problems = []
    for pump in (*PUMPS, *RUNS):
        grown = grows_too_fast(
            act, lambda length, pump=pump: pumped(pump, length), min(limit, quick), least=0.02
        )
        if grown:
            problems.append((pump, grown))
    assert problems == []


@pytest.mark.slow
@pytest.mark.parametrize("name", TAKERS)
def test_untrusted_text_takes_linear_time_up_to_its_limit(name):
    act, limit, _ = TAKERS[name]
    problems = []
    for pump in (*PUMPS, *RUNS):
        grown = grows_too_fast(act, lambda length, pump=pump: pumped(pump, length), limit, least=0.1)
        if grown:
            problems.append((pump, grown))
    assert problems == []


# --- whatever is written -----------------------------------------------------------------------------

PIECES = st.sampled_from(PUMPS) | st.text(max_size=8)
TEXTS = st.lists(PIECES, max_size=12).map("".join)


@given(TEXTS)
def test_any_text_is_rendered_and_none_is_given_up(text):
    html = markdown.render(text)
    assert "as-written" not in html
    assert "<script" not in html


@given(TEXTS)
def test_any_text_is_written_for_the_platforms_and_exported(text):
    assert isinstance(markup.convert_markdown(text, telegram_adapter.TELEGRAM_STYLE), str)
    assert isinstance(documents.contain_text(text), str)
    parts = text_split.split_text(text, measure=len, limit=20)
    assert "".join(part.text for part in parts) == text
    assert isinstance(get_host_and_port(text), str)
