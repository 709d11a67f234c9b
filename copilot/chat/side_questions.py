"""Ask, stop and read side questions, which are answered outside the conversation."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import Literal
from uuid import UUID, uuid4

from config.core import rate_limits
from config.core.errors import Conflict, InvalidRequest, NotFound, ServiceUnavailable, TooManyRequests
from config.core.redis import REDIS_OUTAGE_ERRORS
from copilot import tasks
from copilot.chat import selectors
from copilot.chat.admission_limits import (
    check_limit_and_place_hold,
    check_standard_tier_allowed,
    release_hold,
)
from copilot.chat.commands import REQUEST_LIMITS, clean_text
from copilot.realtime import event_log, side_question_state
from copilot.realtime.events import SideQuestionEnded, SideQuestionExtended, SideQuestionStarted, decode_event

MAX_SIDE_QUESTION_CHARACTERS = 4_000
MAX_SIDE_QUESTION_EVENTS = 2_000  # more than one answer has


@dataclass(frozen=True, kw_only=True)
class SideQuestion:
    """A side question. Its events are in a log of its own, named `side_id`, from `cursor` on."""

    side_id: str
    session_id: UUID
    cursor: str


@dataclass(frozen=True, kw_only=True)
class SideQuestionPayload:
    side_id: str
    question: str
    text: str
    state: Literal["answering", "answered", "stopped", "failed"]
    code: str = ""


def ask_side_question(user_id: int, session_id: UUID, question: str) -> SideQuestion:
    question = _clean_question(question)
    selectors.get_session(user_id, session_id)
    check_standard_tier_allowed(user_id)
    retry_after_seconds = rate_limits.count_request(
        "side", str(user_id), limit=REQUEST_LIMITS.queue_calls, seconds=REQUEST_LIMITS.queue_calls_seconds
    )
    if retry_after_seconds is not None:
        raise TooManyRequests(
            "You're asking too quickly. Wait a moment and try again.",
            retry_after_seconds=retry_after_seconds,
        )
    side_id, session = str(uuid4()), str(session_id)
    with ExitStack() as unused_hold:
        check_limit_and_place_hold(user_id, side_id)
        unused_hold.callback(release_hold, user_id, side_id)
        cursor = _start_side_question(user_id, session, side_id, question)
        unused_hold.pop_all()  # the worker that answers it releases the hold
    return SideQuestion(side_id=side_id, session_id=session_id, cursor=cursor)


def _start_side_question(user_id: int, session: str, side_id: str, question: str) -> str:
    try:
        if not side_question_state.claim_side_question(session, side_id, user_id=user_id, question=question):
            raise Conflict(
                "A side question is already being answered. Wait for it or stop it.", code="side_busy"
            )
        started = SideQuestionStarted(asked_in=session, asked=question)
        cursor = event_log.append_events(side_id, [(started, None)])
        if not tasks.enqueue_side_question(UUID(session), side_id):
            side_question_state.release_side_question(session, side_id)
            raise ServiceUnavailable
    except REDIS_OUTAGE_ERRORS as problem:
        raise ServiceUnavailable from problem
    return cursor


def stop_side_question(user_id: int, session_id: UUID) -> bool:
    selectors.get_session(user_id, session_id)
    side_id = side_question_state.get_current_side_id(str(session_id))
    if side_id is None or not side_question_state.release_side_question(str(session_id), side_id):
        return False
    release_hold(user_id, side_id)  # perhaps no worker has begun it
    return True


def get_side_question(user_id: int, session_id: UUID, side_id: UUID) -> SideQuestionPayload:
    selectors.get_session(user_id, session_id)
    events = [
        decode_event(entry.payload)
        for entry in event_log.read_recent(str(side_id), count=MAX_SIDE_QUESTION_EVENTS)
    ]
    if not events or not isinstance(events[0], SideQuestionStarted) or events[0].asked_in != str(session_id):
        raise NotFound
    last = events[-1]
    if isinstance(last, SideQuestionEnded):
        text, state, code = last.text, last.outcome, last.code
        return SideQuestionPayload(
            side_id=str(side_id), question=events[0].asked, text=text, state=state, code=code
        )
    text = "".join(event.delta for event in events if isinstance(event, SideQuestionExtended))
    return SideQuestionPayload(side_id=str(side_id), question=events[0].asked, text=text, state="answering")


def _clean_question(question: str) -> str:
    question = clean_text(question).strip()
    if not 0 < len(question) <= MAX_SIDE_QUESTION_CHARACTERS:
        raise InvalidRequest(
            f"Side questions must be 1 to {MAX_SIDE_QUESTION_CHARACTERS:,} characters.",
            code="invalid_question",
        )
    return question
