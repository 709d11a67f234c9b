"""Looks what became of a sub-session, waits for it, or has it stopped (A21)."""

from __future__ import annotations

import logging

from django.conf import settings
from django.db import DatabaseError
from pydantic import Field

from copilot import ports, queries
from copilot.bridge import in_thread
from copilot.context import TurnContext
from copilot.events import JSON, MessageView, NoticeContent, ToolCallContent, ToolResultContent
from copilot.models import Message
from copilot.provenance import sources_of_session
from copilot.tools import children
from copilot.tools.base import MAX_TOOL_WAIT_SECONDS, Arguments, Invocation, Tool, ToolOutput, prose
from copilot.tools.children import Prompt

STOPPING_SECONDS = 5.0  # a stopped turn has ended within one; then it is overridden (T7.1)
PROGRESS_ROWS = 5
PROGRESS_CHARACTERS = 400
PROGRESS_KINDS = ("user", "assistant", "tool_call", "tool_result", "notice")

log = logging.getLogger(__name__)


class GetSubSessionResult(Arguments):
    session_id: str
    wait_seconds: children.Wait = Field(
        default=settings.SUB_SESSION_WAIT_SECONDS, description=children.WAITING
    )
    cancel: bool = Field(default=False, description="Stop what it does.")
    include_progress: bool = Field(default=False, description="Show its last rows too.")


async def get_sub_session_result(arguments: GetSubSessionResult, invocation: Invocation) -> ToolOutput:
    context = invocation.context
    prompt = await in_thread(_find, context, arguments.session_id)
    seconds = children.waiting_seconds(context, arguments.wait_seconds)
    stopped = False
    if arguments.cancel:
        stopped = await in_thread(_cancel, context, prompt)
        seconds = STOPPING_SECONDS
    outcome = await children.outcome_of(context, prompt, seconds)
    told = await in_thread(children.report, context, prompt, outcome, poll=TOOL.name)
    if stopped and outcome.status in children.UNFINISHED:
        told |= {"status": "cancelled", "cancelled_by": "the parent", "note": "It is about to end."}
    if arguments.include_progress:
        told |= await in_thread(_progress, prompt)
    sources = await in_thread(sources_of_session, prompt.session_id)
    return ToolOutput(value=told, session_id=str(prompt.session_id), sources=sources)


def _find(context: TurnContext, session_id: str) -> Prompt:
    return children.newest(children.of_caller(context, session_id))


def _cancel(context: TurnContext, prompt: Prompt) -> bool:
    """Whether there was something to stop; if not, its end is what is reported (A21.6)."""
    user_id, session_id = context.user_id, prompt.session_id
    if prompt.message_id is not None and ports.unsay(user_id, session_id, prompt.message_id):
        return True
    return ports.stop_turn(user_id, session_id, prompt.turn_id)


def _progress(prompt: Prompt) -> dict[str, JSON]:
    """How far it is; not being able to tell costs only this (A21.5)."""
    rows = Message.objects.filter(
        session=prompt.session_id, hidden="", sequence__isnull=False, kind__in=PROGRESS_KINDS
    )
    try:
        count = rows.count()
        last = [queries.message_view(row) for row in rows.order_by("-sequence")[:PROGRESS_ROWS]]
    except DatabaseError:
        log.warning("the progress of a sub-session could not be read", exc_info=True)
        return {}
    shown: list[JSON] = [{"kind": row.kind, "text": _line(row)} for row in reversed(last)]
    return {"rows": count, "last_rows": shown}


def _line(row: MessageView) -> str:
    match row.content:
        case ToolCallContent() as call:
            text = call.tool
        case ToolResultContent() as result:
            text = result.preview
        case NoticeContent() as notice:
            text = notice.label
        case text:
            pass
    return text[:PROGRESS_CHARACTERS]


TOOL = Tool(
    name="get_sub_session_result",
    arguments=GetSubSessionResult,
    run=get_sub_session_result,
    description=prose(__file__, usual=settings.SUB_SESSION_WAIT_SECONDS, longest=children.LONGEST_SECONDS),
    returns_user_text=True,
    timeout_seconds=MAX_TOOL_WAIT_SECONDS,
    sub_sessions=True,
    polling=True,
    repeatable=True,
)
