"""The `get_sub_session_result` tool: report on a sub-session, wait for it, or stop it."""

from __future__ import annotations

import structlog
from django.db import DatabaseError
from pydantic import Field

from config.core.db import run_in_thread
from config.core.json_values import JSON
from copilot.chat import serializers as chat_serializers
from copilot.chat.provenance import list_session_sources
from copilot.chat.stop import drop_queued_messages, stop_session
from copilot.chat.turn_context import TurnContext
from copilot.models import Message
from copilot.realtime.payloads import MessagePayload, NoticeContent, ToolCallContent, ToolResultContent
from copilot.tools.base import (
    MAX_TOOL_WAIT_SECONDS,
    Tool,
    ToolArguments,
    ToolInvocation,
    ToolOutput,
    load_description,
)
from copilot.tools.builtin import sub_session_tools
from copilot.tools.builtin.sub_session_tools import SubSessionPrompt

STOP_WAIT_SECONDS = 5.0  # a stopped turn ends within one second; after that recovery ends it
MAX_PROGRESS_ROWS = 5
MAX_PROGRESS_CHARACTERS = 400
PROGRESS_KINDS = ("user", "assistant", "tool_call", "tool_result", "notice")

log = structlog.get_logger(__name__)


class GetSubSessionResult(ToolArguments):
    session_id: str
    wait_seconds: sub_session_tools.WaitSeconds = Field(
        default=sub_session_tools.DEFAULT_WAIT_SECONDS, description=sub_session_tools.WAIT_DESCRIPTION
    )
    cancel: bool = Field(default=False, description="Stop what it does.")
    include_progress: bool = Field(default=False, description="Show its last rows too.")


async def get_sub_session_result(arguments: GetSubSessionResult, invocation: ToolInvocation) -> ToolOutput:
    context = invocation.context
    prompt = await run_in_thread(_find_prompt, context, arguments.session_id)
    seconds = sub_session_tools.compute_wait_seconds(context, arguments.wait_seconds)
    stopped = False
    if arguments.cancel:
        stopped = await run_in_thread(_cancel_prompt, context, prompt)
        seconds = STOP_WAIT_SECONDS
    outcome = await sub_session_tools.wait_for_outcome(invocation, prompt, seconds)
    report = await run_in_thread(sub_session_tools.build_report, context, prompt, outcome, poll=TOOL.name)
    if stopped and outcome.status in sub_session_tools.UNFINISHED_STATUSES:
        report |= {"status": "cancelled", "cancelled_by": "the parent", "note": "It is about to end."}
    if arguments.include_progress:
        report |= await run_in_thread(_read_progress, prompt)
    sources = await run_in_thread(list_session_sources, prompt.session_id)
    return ToolOutput(
        value=report,
        session_id=str(prompt.session_id),
        reported_turn_id=sub_session_tools.get_reported_turn_id(outcome),
        sources=sources,
    )


def _find_prompt(context: TurnContext, session_id: str) -> SubSessionPrompt:
    return sub_session_tools.find_latest_prompt(sub_session_tools.get_sub_session(context, session_id))


def _cancel_prompt(context: TurnContext, prompt: SubSessionPrompt) -> bool:
    """Stop the prompt, and return whether there was anything left to stop."""
    user_id, session_id = context.user_id, prompt.session_id
    if prompt.message_id is not None and drop_queued_messages(
        session_id, None, prompt.message_id, by="parent"
    ):
        return True
    return stop_session(user_id, session_id, turn_id=prompt.turn_id, by="parent").state == "stopping"


def _read_progress(prompt: SubSessionPrompt) -> dict[str, JSON]:
    """Return the last rows of the sub-session; a failed read only omits them."""
    rows = Message.objects.visible().filter(session=prompt.session_id, kind__in=PROGRESS_KINDS)
    try:
        count = rows.count()
        last = [
            chat_serializers.serialize_message(row) for row in rows.order_by("-sequence")[:MAX_PROGRESS_ROWS]
        ]
    except DatabaseError:
        log.warning("sub_session_progress_unreadable", child_session_id=str(prompt.session_id), exc_info=True)
        return {}
    shown: list[JSON] = [{"kind": row.kind, "text": _row_text(row)} for row in reversed(last)]
    return {"rows": count, "last_rows": shown}


def _row_text(row: MessagePayload) -> str:
    match row.content:
        case ToolCallContent() as call:
            text = call.tool
        case ToolResultContent() as result:
            text = result.preview
        case NoticeContent() as notice:
            text = notice.label
        case text:
            pass
    return text[:MAX_PROGRESS_CHARACTERS]


TOOL = Tool(
    name="get_sub_session_result",
    arguments=GetSubSessionResult,
    run=get_sub_session_result,
    description=load_description(
        __file__, usual=sub_session_tools.DEFAULT_WAIT_SECONDS, longest=sub_session_tools.MAX_WAIT_SECONDS
    ),
    returns_user_text=True,
    timeout_seconds=MAX_TOOL_WAIT_SECONDS,
    sub_sessions=True,
    polling=True,
    repeatable=True,
)
