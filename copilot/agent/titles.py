"""Name a session after its first exchange, by a model or else from the user's own words."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass, replace
from functools import cache
from uuid import UUID

from django.conf import settings

from config.core.db import run_in_thread
from copilot import metrics
from copilot.agent import one_shot_requests
from copilot.agent.model_context import PROMPTS_DIRECTORY
from copilot.agent.one_shot_requests import OneShotCause, OneShotQuestion
from copilot.chat import sessions
from copilot.chat.prompt_tags import escape_server_tags, strip_server_tags
from copilot.models import Message, Turn
from copilot.providers.base import CatalogueEntry, ProviderFailure

MAX_EXCERPT_CHARACTERS = 500  # of the message and of the answer, each
TITLE_TIMEOUT_SECONDS = 15.0
TITLE_TEMPERATURE = 0.2
TITLE_MAX_TOKENS, TITLE_MORE_TOKENS = 512, 1_024
MAX_TITLE_CHARACTERS = 80
MAX_LOCAL_SOURCE_CHARACTERS = 4_000  # of a message, more than its first words
LOCAL_WORDS, LOCAL_CHARACTERS, OTHER_SCRIPT_CHARACTERS = 4, 60, 24
PROMPT_FILES = ("title.md", "title_again.md")

_THOUGHTS = re.compile(r"<(think|thinking|reasoning)\b[^<>]*>.*?(</\1\s*>|\Z)", re.IGNORECASE | re.DOTALL)
_PREFIX = re.compile(r"^\s*(?:(?:chat|conversation)\s+)?title\s*[::-]\s*", re.IGNORECASE)
_MARKDOWN = re.compile(r"[*`~]+|^[\s>#_-]+|(?<![\s_])[\s_]++$|(?<!\w)_|_(?!\w)")
_QUOTES = "\"'“”„‘’«»‹›"
_TAG = re.compile(r"<\s*/?\s*[a-z!]", re.IGNORECASE)
_META = re.compile(
    r"^(the user|user (?:wants|asks|is)|i (?:should|will|need|must|can|think|have)|i'(?:ll|m)|let me|let's|"
    r"we (?:should|need)|here(?:'s| is| are)|okay,|sure[,!]|certainly)\b",
    re.IGNORECASE,
)
_ACKNOWLEDGEMENT = re.compile(
    r"^(ok|okay|k|done|all set|all done|sure|yes|no|got it|understood|noted|thanks|thank you|great|fine)$",
    re.IGNORECASE,
)
_SENTENCE = re.compile(r"(?<![.!?…。!?])[.!?…。!?]++(?=\s|$)|[。!?]|\n")
_WORD = re.compile(r"\w[\w'’+#./-]*")
_STOP_WORDS = frozenset(
    """
    a about all am an and any are as at be been but by can could did do does for from get give got had has have
    hello hey hi how i i'd i'll i'm i've if in into is it it's its just let like make may me my need no not now
    of ok okay on one or our out please should so some tell than thank thanks that that's the their them then
    there these they this to up us use want was we were what what's when where which who why will with would yes
    you your
    """.split()  # noqa: SIM905 - easier to read than a hundred quotes
)


# --- When and from what ---


def is_title_due(title: str, origin: str) -> bool:
    """Check for a default or unusable title, or for automatic titles that are refreshed."""
    if origin == "default":
        return True
    return origin == "auto" and (settings.TITLE_REFRESH_EXCHANGES > 0 or not is_usable_title(title))


@dataclass(frozen=True, kw_only=True)
class TitleExchange:
    message: str
    answer: str


@dataclass(frozen=True, kw_only=True)
class TitleTask:
    """The data for naming a session, read once before the model is called."""

    cause: OneShotCause
    exchange: TitleExchange
    origin: str  # of the present title
    models: tuple[CatalogueEntry, ...]

    @property
    def is_first(self) -> bool:
        return self.origin == "default"


async def name_session(turn_id: UUID) -> None:
    """Name the session of an ended turn. A title that is lost with its worker is made after the next turn."""
    task = await run_in_thread(_load_task, turn_id)
    if task is None:
        return
    title = await _ask_models(task)
    source = "model" if title else "none"
    if not title and task.is_first and (title := build_local_title(task.exchange.message)):
        source = "local"
    metrics.titles.labels(source).inc()
    if title or task.is_first:
        await run_in_thread(_store_title, task, title)


def _load_task(turn_id: UUID) -> TitleTask | None:
    turn = Turn.objects.select_related("session").filter(pk=turn_id).first()
    if turn is None or not is_title_due(turn.session.title, turn.session.title_origin):
        return None
    first = turn.session.title_origin == "default"
    if not first and is_usable_title(turn.session.title) and not _is_refresh_due(turn.session_id):
        return None
    return TitleTask(
        cause=OneShotCause.for_turn(turn, "title"),
        exchange=_load_exchange(turn, first=first),
        origin=turn.session.title_origin,
        models=one_shot_requests.list_models_to_ask(),
    )


def _store_title(task: TitleTask, title: str) -> None:
    sessions.set_automatic_title(task.cause.session_id, title, instead_of=task.origin)


def _is_refresh_due(session_id: UUID) -> bool:
    every = settings.TITLE_REFRESH_EXCHANGES
    return every > 0 and Turn.objects.filter(session=session_id, status="succeeded").count() % every == 0


def _load_exchange(turn: Turn, *, first: bool) -> TitleExchange:
    rows = Message.objects.filter(session=turn.session_id, hidden="", sequence__isnull=False)
    messages = rows.filter(kind="user") if first else rows.filter(kind="user", turn=turn)
    answers = rows.filter(turn=turn, kind__in=["assistant", "tool_call"]).order_by("sequence")
    return TitleExchange(
        message=_strip_markup(messages.order_by("sequence").values_list("content", flat=True).first() or ""),
        answer=_strip_markup(_first_substantive_answer(list(answers.values_list("kind", "content")))),
    )


def _first_substantive_answer(rows: list[tuple[str, str]]) -> str:
    followed_by = [*(kind for kind, _ in rows[1:]), ""]
    texts = zip(rows, followed_by, strict=False)  # with no rows, followed_by is longer
    return next((text for (kind, text), after in texts if kind == "assistant" and after != "tool_call"), "")


def _strip_markup(text: str) -> str:
    return strip_server_tags(_THOUGHTS.sub(" ", text)).strip()


# --- By a model ---


async def _ask_models(task: TitleTask) -> str:
    """Return the first usable title from small, then standard models; empty when all fail."""
    for entry in task.models:
        try:
            if title := await _ask_model(entry, task.exchange, task.cause):
                return title
        except ProviderFailure:
            continue  # try the next model; this one's usage is recorded
    return ""


async def _ask_model(entry: CatalogueEntry, exchange: TitleExchange, cause: OneShotCause) -> str:
    """Try one prompt after the other, with more output tokens if the reply used them up."""
    message, answer = exchange.message[:MAX_EXCERPT_CHARACTERS], exchange.answer[:MAX_EXCERPT_CHARACTERS]
    text = f"<message>\n{message}\n</message>\n<answer>\n{answer}\n</answer>"
    for prompt_file in PROMPT_FILES:
        question = OneShotQuestion(
            system=_read_instructions(prompt_file),
            text=escape_server_tags(text),
            max_tokens=TITLE_MAX_TOKENS,
            timeout_seconds=TITLE_TIMEOUT_SECONDS,
            temperature=TITLE_TEMPERATURE,
        )
        reply = await one_shot_requests.ask_model(entry, question, cause)
        if not reply.text and reply.unfinished:
            question = replace(question, max_tokens=TITLE_MORE_TOKENS)
            reply = await one_shot_requests.ask_model(entry, question, cause)
        if title := clean_title(reply.text):
            return title
    return ""


@cache
def _read_instructions(file: str) -> str:
    return (PROMPTS_DIRECTORY / file).read_text(encoding="utf-8").strip()


def clean_title(reply: str) -> str:
    text = " ".join(_THOUGHTS.sub(" ", reply).split())
    for _ in range(3):  # quotes around a prefix around quotes
        text = _PREFIX.sub("", _MARKDOWN.sub("", text).strip().rstrip(".").strip(_QUOTES).strip())
    if not is_usable_title(text):
        return ""
    return (
        text if len(text) <= MAX_TITLE_CHARACTERS else text[:MAX_TITLE_CHARACTERS].rsplit(" ", 1)[0].rstrip()
    )


def is_usable_title(title: str) -> bool:
    bare = title.strip().rstrip(".!")
    return bool(bare) and not (_TAG.search(title) or _META.match(title) or _ACKNOWLEDGEMENT.match(bare))


# --- From the user's words ---


def build_local_title(text: str) -> str:
    sentence = next(
        (part.strip() for part in _SENTENCE.split(text[:MAX_LOCAL_SOURCE_CHARACTERS]) if part.strip()), ""
    )
    if _is_other_script(sentence):
        return sentence[:OTHER_SCRIPT_CHARACTERS].strip()
    words = [word.rstrip(".'’/-") for word in _WORD.findall(sentence)]
    meaningful = [word for word in words if word.lower().replace("’", "'") not in _STOP_WORDS]
    if len(meaningful) < 2 < len(words):
        return ""  # a single word says less than the default title, which has the first words
    title = " ".join(meaningful[:LOCAL_WORDS])[:LOCAL_CHARACTERS].strip()
    return title[:1].upper() + title[1:]


def _is_other_script(text: str) -> bool:
    letters = [letter for letter in text if letter.isalpha()]
    latin = sum(unicodedata.name(letter, "").startswith("LATIN") for letter in letters)
    return bool(letters) and 2 * latin < len(letters)
