"""Names a conversation after its first exchange: by a model, or else by the user's own words (A18)."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from uuid import UUID

from django.conf import settings

from copilot import metrics, sessions
from copilot.agent import inquiries
from copilot.agent.inquiries import Cause, Question
from copilot.agent.prompt import PROMPTS
from copilot.models import Message, Turn
from copilot.providers.base import Entry, ProviderFailure
from copilot.tags import escape_server_tags, strip_server_tags

GIVEN_CHARACTERS = 500  # of the message and of the answer
SECONDS = 15.0
TEMPERATURE = 0.2
TOKENS, MORE_TOKENS = 512, 1_024
MOST_CHARACTERS = 80
LOCAL_READ = 4_000  # of a message; its first words are in there
LOCAL_WORDS, LOCAL_CHARACTERS, OTHER_SCRIPT_CHARACTERS = 4, 60, 24
WORDINGS = ("title.md", "title_again.md")

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
    """.split()  # noqa: SIM905 - a hundred quotes would say no more
)


# --- when, and about what ----------------------------------------------------------------------------


def is_due(title: str, origin: str) -> bool:
    """After an answer: no better title was looked for yet, the one found is no title, or it may be time again."""
    if origin == "default":
        return True
    return origin == "auto" and (settings.TITLE_REFRESH_EXCHANGES > 0 or not usable(title))


@dataclass(frozen=True, kw_only=True)
class Exchange:
    said: str
    answered: str


def name(turn_id: UUID) -> None:
    """Give the turn's session a title of its own, unless a person has named it (A18.1, A18.4)."""
    turn = Turn.objects.select_related("session").filter(pk=turn_id).first()
    if turn is None or not is_due(turn.session.title, turn.session.title_origin):
        return
    first = turn.session.title_origin == "default"
    if not first and usable(turn.session.title) and not _is_time(turn.session_id):
        return
    exchange = _exchange(turn, first=first)
    title = _from_model(exchange, Cause.of(turn, "title"))
    source = "model" if title else "none"
    if not title and first and (title := local(exchange.said)):
        source = "local"
    metrics.titles.labels(source).inc()
    if title or first:
        sessions.name_automatically(turn.session_id, title, instead_of=turn.session.title_origin)


def _is_time(session_id: UUID) -> bool:
    every = settings.TITLE_REFRESH_EXCHANGES
    return every > 0 and Turn.objects.filter(session=session_id, status="succeeded").count() % every == 0


def _exchange(turn: Turn, *, first: bool) -> Exchange:
    """What was said first, or in this turn, and the turn's first answer that is more than words before a call."""
    rows = Message.objects.filter(session=turn.session_id, hidden="", sequence__isnull=False)
    said = rows.filter(kind="user") if first else rows.filter(kind="user", turn=turn)
    answers = rows.filter(turn=turn, kind__in=["assistant", "tool_call"]).order_by("sequence")
    return Exchange(
        said=_plain(said.order_by("sequence").values_list("content", flat=True).first() or ""),
        answered=_plain(_substantive(list(answers.values_list("kind", "content")))),
    )


def _substantive(rows: list[tuple[str, str]]) -> str:
    followed_by = [*(kind for kind, _ in rows[1:]), ""]
    texts = zip(rows, followed_by, strict=False)  # of no rows nothing follows
    return next((text for (kind, text), after in texts if kind == "assistant" and after != "tool_call"), "")


def _plain(text: str) -> str:
    """Without thoughts and markers of the server's."""
    return strip_server_tags(_THOUGHTS.sub(" ", text)).strip()


# --- by a model --------------------------------------------------------------------------------------


def _from_model(exchange: Exchange, cause: Cause) -> str:
    """The first usable title of the small models, then of the standard ones; nothing when all fail."""
    for entry in inquiries.models():
        try:
            title = next((found for text in _replies(entry, exchange, cause) if (found := clean(text))), "")
        except ProviderFailure:
            continue  # the next one may know; what this one took is recorded
        if title:
            return title
    return ""


def _replies(entry: Entry, exchange: Exchange, cause: Cause) -> Iterator[str]:
    """One reply for each wording; with more room when the first was used up by something else."""
    said, answered = exchange.said[:GIVEN_CHARACTERS], exchange.answered[:GIVEN_CHARACTERS]
    given = f"<message>\n{said}\n</message>\n<answer>\n{answered}\n</answer>"
    for wording in WORDINGS:
        question = Question(
            system=_wording(wording),
            text=escape_server_tags(given),
            most_tokens=TOKENS,
            seconds=SECONDS,
            temperature=TEMPERATURE,
        )
        reply = inquiries.ask(entry, question, cause)
        if not reply.text and reply.unfinished:
            reply = inquiries.ask(entry, replace(question, most_tokens=MORE_TOKENS), cause)
        yield reply.text


@cache
def _wording(file: str) -> str:
    return (PROMPTS / file).read_text(encoding="utf-8").strip()


def clean(reply: str) -> str:
    """A reply as a title, or nothing when it is none (A18.2)."""
    text = " ".join(_THOUGHTS.sub(" ", reply).split())
    for _ in range(3):  # quotes around a prefix around quotes
        text = _PREFIX.sub("", _MARKDOWN.sub("", text).strip().rstrip(".").strip(_QUOTES).strip())
    if not usable(text):
        return ""
    return text if len(text) <= MOST_CHARACTERS else text[:MOST_CHARACTERS].rsplit(" ", 1)[0].rstrip()


def usable(title: str) -> bool:
    """Neither empty nor markup, talk about the task, or a mere acknowledgement."""
    bare = title.strip().rstrip(".!")
    return bool(bare) and not (_TAG.search(title) or _META.match(title) or _ACKNOWLEDGEMENT.match(bare))


# --- by the user's words -----------------------------------------------------------------------------


def local(text: str) -> str:
    """The first words that say something, without any model; nothing when none do (A18.3)."""
    sentence = next((part.strip() for part in _SENTENCE.split(text[:LOCAL_READ]) if part.strip()), "")
    if _is_other_script(sentence):
        return sentence[:OTHER_SCRIPT_CHARACTERS].strip()
    words = [word.rstrip(".'’/-") for word in _WORD.findall(sentence)]
    telling = [word for word in words if word.lower().replace("’", "'") not in _STOP_WORDS]
    if len(telling) < 2 < len(words):
        return ""  # one word of many says less than the first words, which are the title already
    title = " ".join(telling[:LOCAL_WORDS])[:LOCAL_CHARACTERS].strip()
    return title[:1].upper() + title[1:]


def _is_other_script(text: str) -> bool:
    letters = [letter for letter in text if letter.isalpha()]
    latin = sum(unicodedata.name(letter, "").startswith("LATIN") for letter in letters)
    return bool(letters) and 2 * latin < len(letters)
