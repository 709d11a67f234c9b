"""Take the results of tools that the caller of the API runs itself, and resume the turn that waits for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from uuid import UUID, uuid4

import msgspec
import structlog
from django.conf import settings
from django.db import connection, transaction
from django.db.models import Max

from config.core.errors import Conflict, InvalidRequest, StorageUnavailable
from copilot import tasks
from copilot.chat import approvals, selectors, turn_transitions
from copilot.chat.admission_limits import check_account_is_active, check_limit_and_place_hold, release_hold
from copilot.chat.announcements import publish_events
from copilot.chat.approval_decisions import build_resumed_events, take_lease_for_resumed
from copilot.chat.messages import build_result_data
from copilot.chat.turn_context import ApiRequest
from copilot.files import services as files
from copilot.models import Approval, Message
from copilot.realtime import event_log
from copilot.realtime.events import Event, ToolFinished
from copilot.realtime.payloads import ToolResultContent
from copilot.tools.results import PREVIEW_CHARACTERS, clean_output, truncate_middle

log = structlog.get_logger(__name__)


@dataclass(frozen=True, kw_only=True)
class ClientToolResult:
    call_id: str
    text: str
    success: bool = True


@dataclass(frozen=True, kw_only=True)
class SubmitToolResults:
    """The results of all calls that a turn of the session handed to its caller."""

    session_id: UUID
    user_id: int
    run_id: str | None  # names the part of the turn that these results start; None: a message follows them
    results: Sequence[ClientToolResult]
    api_request: ApiRequest  # for the rest of the turn


@dataclass(frozen=True, kw_only=True)
class AcceptedResults:
    turn_id: UUID
    cursor: str
    is_resumed: bool  # False while a person has to decide about other calls


def submit_tool_results(command: SubmitToolResults) -> AcceptedResults:
    """Store the results and resume the turn, or refuse them all.

    Results are refused unless they answer exactly the calls that the session's turn waits for. The message that may
    follow them ends the turn and starts another, which reads them.
    """
    check_account_is_active(command.user_id)
    selectors.get_session(command.user_id, command.session_id)
    cursor = event_log.get_last_cursor(str(command.session_id))
    with ExitStack() as holds:
        with transaction.atomic():
            paused = turn_transitions.lock_paused_turn(session_id=command.session_id)
            if paused is None or paused.is_stopping:
                raise Conflict(
                    "No turn of this conversation waits for tool results.", code="no_pending_tool_calls"
                )
            calls = {str(row.call_id): row for row in approvals.list_open_client_calls(paused.turn_id)}
            _check_results(calls, command.results)
            rows = _insert_results(paused, calls, command)
            resumed = None
            if command.run_id is not None:
                _add_run_id(paused.turn_id, command)
            if (
                command.run_id is not None
                and not Approval.objects.requested().filter(turn=paused.turn_id).exists()
            ):
                check_limit_and_place_hold(command.user_id, paused.turn_id)
                holds.callback(release_hold, command.user_id, paused.turn_id)
                resumed = approvals.resume_paused_turn(paused)
        holds.pop_all()
    _store_full_results(command)
    events: list[tuple[Event, str | None]] = [
        (event, str(paused.turn_id)) for event in _build_result_events(rows)
    ]
    if resumed is not None:
        take_lease_for_resumed(resumed)
        events += build_resumed_events(resumed)
    publish_events(command.session_id, command.user_id, events)
    if resumed is not None:
        tasks.wake_worker(paused.turn_id)
    return AcceptedResults(turn_id=paused.turn_id, cursor=cursor, is_resumed=resumed is not None)


def _check_results(calls: Mapping[str, Message], results: Sequence[ClientToolResult]) -> None:
    sent = [result.call_id for result in results]
    if repeated := sorted({call_id for call_id in sent if sent.count(call_id) > 1}):
        raise InvalidRequest(
            f"There are two results for {repeated[0][:128]!r}.", code="duplicate_tool_result"
        )
    if unknown := [call_id for call_id in sent if call_id not in calls]:
        raise InvalidRequest(
            f"No tool call {unknown[0][:128]!r} waits for a result.", code="unknown_tool_call"
        )
    if missing := [call_id for call_id in calls if call_id not in sent]:
        raise InvalidRequest(
            f"The result of the tool call {missing[0]!r} is missing.", code="missing_tool_result"
        )


def _insert_results(
    paused: turn_transitions.PausedTurn, calls: Mapping[str, Message], command: SubmitToolResults
) -> list[Message]:
    """Store the results in the order of their calls. The first one carries the run id."""
    last = Message.objects.filter(session=paused.session_id).aggregate(last=Max("sequence"))["last"] or 0
    by_call = {result.call_id: result for result in command.results}
    rows = []
    for place, (call_id, call) in enumerate(calls.items(), start=1):
        text = clean_output(by_call[call_id].text, user_text=True)
        content, truncated = truncate_middle(text, settings.TOOL_OUTPUT_CHARACTERS, call_id)
        data = build_result_data(
            str(call.data["tool"]), success=by_call[call_id].success, preview=text[:PREVIEW_CHARACTERS]
        )
        rows.append(
            Message(
                id=uuid4(),
                session_id=paused.session_id,
                turn_id=paused.turn_id,
                sequence=last + place,
                kind=Message.Kind.TOOL_RESULT,
                content=content,
                call_id=call_id,
                data=data | {"truncated": truncated},
                run_id=command.run_id if place == 1 else None,
            )
        )
    return Message.objects.bulk_create(rows)


def _add_run_id(turn_id: UUID, command: SubmitToolResults) -> None:
    request = msgspec.json.encode(command.api_request).decode()
    with connection.cursor() as cursor:
        cursor.execute(
            """
            UPDATE copilot_turn SET run_ids = run_ids || to_jsonb(ARRAY[%s::text]),
                   inbound_context = jsonb_set(inbound_context, '{api_request}', %s::jsonb)
            WHERE id = %s AND status = 'waiting'
            """,
            [command.run_id, request, turn_id],
        )


def _store_full_results(command: SubmitToolResults) -> None:
    """Keep what the model reads only in part, for the tool that reads the rest."""
    for result in command.results:
        if len(result.text) <= settings.TOOL_OUTPUT_CHARACTERS:
            continue
        text = clean_output(result.text, user_text=True)
        try:
            files.store_tool_output(command.session_id, result.call_id, text)
        except StorageUnavailable:
            log.warning("tool_result_not_stored", session_id=command.session_id, call_id=result.call_id)


def _build_result_events(rows: Sequence[Message]) -> list[Event]:
    events: list[Event] = []
    for view in selectors.serialize_messages_by_id([row.pk for row in rows]):
        content = view.content
        assert isinstance(content, ToolResultContent)
        events.append(
            ToolFinished(
                call_id=content.call_id,
                row_id=view.id,
                success=content.success,
                duration_ms=content.duration_ms,
                preview=content.preview,
                truncated=content.truncated,
                message=view,
            )
        )
    return events
