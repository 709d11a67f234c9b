"""A person asks something aside, or wants no answer any more (A30.3)."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import Literal
from uuid import UUID, uuid4

from copilot import queries, tasks
from copilot.commands import LIMITS, clean_text
from copilot.dispatch.choosing import check_standard
from copilot.dispatch.limits import check_and_admit, let_go
from copilot.errors import Conflict, InvalidRequest, NotFound, TooMany, Unavailable
from copilot.events import SideEnded, SideExtended, SideStarted, decode
from copilot.live import asides, counters, stream
from copilot.live.client import RedisDown

QUESTION_CHARACTERS = 4_000
EVENTS_READ = 2_000  # more than one answer tells


@dataclass(frozen=True, kw_only=True)
class Aside:
    """Its events are in a log of its own, which `side_id` names and `cursor` begins."""

    side_id: str
    session_id: UUID
    cursor: str


@dataclass(frozen=True, kw_only=True)
class AsideSeen:
    side_id: str
    question: str
    text: str
    state: Literal["answering", "answered", "stopped", "failed"]
    code: str = ""


def ask_aside(user_id: int, session_id: UUID, question: str) -> Aside:
    """Answered beside whatever runs there; one at a time for each session."""
    question = _checked(question)
    queries.session_of(user_id, session_id)
    check_standard(user_id)
    wait = counters.hit("side", str(user_id), limit=LIMITS.queue_calls, seconds=LIMITS.queue_calls_seconds)
    if wait is not None:
        raise TooMany("Too many questions in a short time.", retry_after_seconds=wait)
    side_id, session = str(uuid4()), str(session_id)
    with ExitStack() as unused:
        check_and_admit(user_id, side_id)
        unused.callback(let_go, user_id, side_id)
        cursor = _begin(user_id, session, side_id, question)
        unused.pop_all()  # whoever answers it lets go of what is held
    return Aside(side_id=side_id, session_id=session_id, cursor=cursor)


def _begin(user_id: int, session: str, side_id: str, question: str) -> str:
    try:
        if not asides.claim(session, side_id, user_id=user_id, question=question):
            raise Conflict("One question aside at a time.", code="side_busy")
        started = SideStarted(asked_in=session, asked=question)
        cursor = stream.publish_now(side_id, [(started, None)])
        if not tasks.send_aside(UUID(session), side_id):
            asides.let_go(session, side_id)
            raise Unavailable
    except RedisDown as problem:
        raise Unavailable from problem
    return cursor


def stop_aside(user_id: int, session_id: UUID) -> bool:
    """False when nothing was being answered."""
    queries.session_of(user_id, session_id)
    side_id = asides.under_way(str(session_id))
    if side_id is None or not asides.let_go(str(session_id), side_id):
        return False
    let_go(user_id, side_id)  # no worker may have begun it
    return True


def aside_of(user_id: int, session_id: UUID, side_id: UUID) -> AsideSeen:
    """As far as it has come, for those who look instead of listening; it is gone after a while."""
    queries.session_of(user_id, session_id)
    told = [decode(entry.payload) for entry in stream.recent(str(side_id), count=EVENTS_READ)]
    if not told or not isinstance(told[0], SideStarted) or told[0].asked_in != str(session_id):
        raise NotFound
    last = told[-1]
    if isinstance(last, SideEnded):
        text, state, code = last.text, last.outcome, last.code
        return AsideSeen(side_id=str(side_id), question=told[0].asked, text=text, state=state, code=code)
    text = "".join(event.delta for event in told if isinstance(event, SideExtended))
    return AsideSeen(side_id=str(side_id), question=told[0].asked, text=text, state="answering")


def _checked(question: str) -> str:
    question = clean_text(question).strip()
    if not 0 < len(question) <= QUESTION_CHARACTERS:
        raise InvalidRequest(
            f"A question aside has 1 to {QUESTION_CHARACTERS:,} characters.", code="invalid_question"
        )
    return question
