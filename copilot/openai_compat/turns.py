"""Run one turn per compatible-API request: open or continue a session, follow the turn, clean up afterwards.

A session created for one answer is deleted once its caller has the answer or has left: nobody else could read it, so
whatever still runs in it is stopped. In a session that is kept, the turn continues without its caller.
"""

from __future__ import annotations

import asyncio
import secrets
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Generic, TypeVar
from uuid import UUID

import msgspec
from django.db.models import Q

from config.core.batching import GroupCommit
from config.core.db import run_in_thread
from config.core.errors import InvalidRequest, NotFound
from config.core.json_values import JSON
from copilot.agent.structured_output import unwrap_json
from copilot.chat import (
    admission,
    admission_outcomes,
    approvals,
    branches,
    client_tools,
    sessions,
    stop,
    turn_results,
    turn_transitions,
)
from copilot.chat import selectors as chat_selectors
from copilot.chat.commands import ResendMessage, SendMessage, clean_text
from copilot.chat.permissions import UNRESTRICTED, intersect_permissions, permissions_for_scopes
from copilot.chat.turn_context import ApiRequest, InboundContext
from copilot.chat.turn_results import TurnResult, wait_for_turn
from copilot.exports.imports import import_history
from copilot.files import services as files
from copilot.models import Message, WorkspaceFile
from copilot.openai_compat.base import ApiCaller
from copilot.openai_compat.files import StoredFiles, store_request_files
from copilot.openai_compat.requests import RequestMessage, TurnRequest
from copilot.realtime.event_log import LogEntry
from copilot.realtime.events import ENDING_KINDS
from copilot.realtime.fanout import CursorLost, EventFeed, FeedOverflowed, open_session_feed
from copilot.realtime.payloads import Tokens, format_timestamp

# The caller could not answer a question while it waits, so the model has to ask in its answer instead.
WITHOUT_QUESTIONS = replace(UNRESTRICTED, denied_tools=frozenset({"ask_user"}))
NO_TOOLS = replace(UNRESTRICTED, tools=frozenset(), mcp_servers=frozenset())


@dataclass(frozen=True, kw_only=True)
class TurnOrder:
    """A turn to run: in `session_id`, or in a new session that is `kept` or deleted after the answer."""

    request: TurnRequest
    tier: str
    mode: str
    prefix: str  # starts the run id that the caller sees
    kept: bool = False
    session_id: UUID | None = None
    retry_message_id: UUID | None = None  # the message of the session to answer again
    api_request: ApiRequest | None = None
    client_only: bool = False  # the model gets no tools but the caller's

    @property
    def wants_json(self) -> bool:
        return self.api_request is not None and self.api_request.parameters.output_format is not None


@dataclass(kw_only=True)
class AcceptedTurn:
    """A turn that was accepted. While not `started`, `turn_id` is the turn it waits behind."""

    caller: ApiCaller
    session_id: UUID
    turn_id: UUID
    run_id: str
    cursor: str
    started: bool
    kept: bool
    continues: bool = False  # with results of the caller's tools, in a turn that had begun before
    files: Sequence[WorkspaceFile] = ()  # stored for it
    has_ended: bool = False  # as far as its caller has seen

    def get_outcome(self) -> TurnResult:
        return self._note_outcome(
            turn_results.get_turn_result(self.caller.user_id, self.turn_id, run_id=self.run_id or None)
        )

    async def wait_for_outcome(self, timeout_seconds: float) -> TurnResult:
        return self._note_outcome(
            await wait_for_turn(
                self.caller.user_id,
                self.turn_id,
                run_id=self.run_id or None,
                timeout_seconds=timeout_seconds,
                connection=self.caller.connection,
            )
        )

    def _note_outcome(self, outcome: TurnResult) -> TurnResult:
        self.has_ended = outcome.status in ("succeeded", "failed", "cancelled")
        return outcome


@asynccontextmanager
async def run_turn(caller: ApiCaller, order: TurnOrder) -> AsyncIterator[AcceptedTurn]:
    """Run a turn, and clean up even if the caller disconnects at any await."""
    start = asyncio.create_task(_store_files_and_begin(caller, order))
    try:
        yield await asyncio.shield(start)
    finally:
        cleanup = asyncio.create_task(_clean_up_when_started(start))
        _cleanup_tasks.add(cleanup)
        cleanup.add_done_callback(_cleanup_tasks.discard)
        await asyncio.shield(cleanup)


async def _store_files_and_begin(caller: ApiCaller, order: TurnOrder) -> AcceptedTurn:
    stored = await store_request_files(caller.user_id, order.request.list_files())
    return await run_in_thread(_begin_with_files, caller, order, stored)


def _begin_with_files(caller: ApiCaller, order: TurnOrder, stored: StoredFiles) -> AcceptedTurn:
    with ExitStack() as undo:
        undo.callback(files.discard_files, stored.new)
        run = _begin_turn(caller, order, stored)
        undo.pop_all()
    run.files = stored.new
    return run


# Sessions whose answers end together are deleted by one statement.
_answered_sessions: GroupCommit[tuple[int, UUID], None] = GroupCommit(stop.delete_answered_sessions)
_cleanup_tasks: set[asyncio.Task[None]] = set()  # the event loop keeps only weak references to tasks


async def _clean_up_when_started(start: asyncio.Task[AcceptedTurn]) -> None:
    await asyncio.wait([start])
    if start.exception() is not None or start.result().kept:
        return
    run = start.result()
    if run.has_ended:
        if run.files:
            await run_in_thread(files.discard_files, run.files)
        await _answered_sessions.write((run.caller.user_id, run.session_id))
    else:
        await run_in_thread(_clean_up_session, run)


def _begin_turn(caller: ApiCaller, order: TurnOrder, stored: StoredFiles) -> AcceptedTurn:
    if order.session_id is not None and order.request.results and _waits_for_results(order.session_id):
        if not order.request.text and not order.request.files:
            return _continue_turn(caller, order, order.session_id)
        _submit_results(caller, order, order.session_id, run_id=None)
    session_id, is_new = _find_or_create_session(caller.user_id, order, stored)
    run_id = _make_run_id(order, session_id)
    with ExitStack() as rollback:
        if is_new:
            rollback.callback(sessions.delete_session, caller.user_id, session_id)
        accepted = _submit_command(
            _build_send_command(caller, order, session_id, run_id, stored), order.retry_message_id
        )
        rollback.pop_all()
    return AcceptedTurn(
        caller=caller,
        session_id=session_id,
        turn_id=accepted.turn_id,
        run_id=run_id,
        cursor=accepted.cursor,
        started=isinstance(accepted, admission_outcomes.SubmissionStarted),
        kept=order.kept or order.session_id is not None,
    )


def _make_run_id(order: TurnOrder, session_id: UUID) -> str:
    return f"{order.prefix}{session_id.hex}{secrets.token_hex(8)}"


def _waits_for_results(session_id: UUID) -> bool:
    turn_id = turn_transitions.get_paused_turn_id(session_id)
    return turn_id is not None and bool(approvals.list_open_client_calls(turn_id))


def _continue_turn(caller: ApiCaller, order: TurnOrder, session_id: UUID) -> AcceptedTurn:
    run_id = _make_run_id(order, session_id)
    accepted = _submit_results(caller, order, session_id, run_id=run_id)
    return AcceptedTurn(
        caller=caller,
        session_id=session_id,
        turn_id=accepted.turn_id,
        run_id=run_id,
        cursor=accepted.cursor,
        started=True,
        kept=True,
        continues=True,
    )


def _submit_results(
    caller: ApiCaller, order: TurnOrder, session_id: UUID, *, run_id: str | None
) -> client_tools.AcceptedResults:
    return client_tools.submit_tool_results(
        client_tools.SubmitToolResults(
            session_id=session_id,
            user_id=caller.user_id,
            run_id=run_id,
            results=order.request.results,
            api_request=order.api_request or ApiRequest(),
        )
    )


def _build_send_command(
    caller: ApiCaller, order: TurnOrder, session_id: UUID, run_id: str, stored: StoredFiles
) -> SendMessage:
    """Build the message, with `api` as its origin and without the tool that asks questions.

    The body of a request is bounded as a whole, so that its texts need no limit of their own.
    """
    permissions = intersect_permissions(permissions_for_scopes(caller.scopes), WITHOUT_QUESTIONS)
    if order.client_only:
        permissions = intersect_permissions(permissions, NO_TOOLS)
    return SendMessage(
        session_id=session_id,
        user_id=caller.user_id,
        text=clean_text(order.request.text),
        attachments=tuple(stored.attachments[file].file_id for file in order.request.files),
        tier=order.tier,
        mode=order.mode,
        run_id=run_id,
        origin="api",
        permissions=permissions,
        inbound_context=InboundContext(api_request=order.api_request),
    )


def _submit_command(
    command: SendMessage, retry_message_id: UUID | None
) -> admission_outcomes.SubmissionStarted | admission_outcomes.SubmissionQueued:
    if retry_message_id is None:
        return admission.submit_message(command)
    return branches.resend_message(
        ResendMessage(
            session_id=command.session_id,
            user_id=command.user_id,
            message_id=retry_message_id,
            tier=command.tier,
            run_id=command.run_id,
            origin=command.origin,
            permissions=command.permissions,
        )
    )


def _find_or_create_session(user_id: int, order: TurnOrder, stored: StoredFiles) -> tuple[UUID, bool]:
    """Return the session to run in, and whether it was created for this."""
    if order.session_id is not None:
        return order.session_id, False
    at = format_timestamp(datetime.now(UTC))
    history = build_history_document(order.request.history, at, stored)
    by_id = {view.file_id: view for view in stored.attachments.values()}
    return import_history(
        user_id, history, at=at, instructions="", listed=order.kept, attachments=by_id
    ), True


def build_history_document(
    history: list[RequestMessage], at: str, stored: StoredFiles | None = None
) -> list[dict[str, JSON]]:
    """Convert messages to the form of the conversation document; empty ones are left out."""
    entries = []
    for number, message in enumerate(history):
        if entry := _build_history_entry(message, number, at, history):
            if stored is not None:
                entry["attachments"] = [stored.attachments[file].file_id for file in message.files]
            entries.append(entry)
    return entries


def _build_history_entry(
    message: RequestMessage, number: int, at: str, history: list[RequestMessage]
) -> dict[str, JSON] | None:
    parts: list[JSON] = []
    if message.role == "tool":
        names = {call.call_id: call.tool for other in history for call in other.calls}
        parts.append(
            {
                "type": "tool_result",
                "call_id": message.tool_call_id or "-",
                "tool": names.get(message.tool_call_id, "unknown"),
                "success": True,
                "text": message.text,
                "duration_ms": 0,
            }
        )
    elif message.text or message.files:
        parts.append({"type": message.role, "text": message.text})
    for call in message.calls:
        parts.append(
            {"type": "tool_call", "call_id": call.call_id, "tool": call.tool, "arguments": call.arguments}
        )
    if not parts:
        return None
    return {
        "id": str(number),
        "sequence": number,
        "branch": 0,
        "author": "",
        "created_at": at,
        "attachments": [],
        "role": "user" if message.role == "user" else "assistant",
        "parts": parts,
    }


def _clean_up_session(run: AcceptedTurn) -> None:
    """Delete a session whose caller left early, and stop its turn; list it instead if it waits for a person.

    A turn that waits for its caller's tools is rebuilt from the caller's next request.
    """
    try:
        if run.get_outcome().approval_ids:
            sessions.list_session(run.caller.user_id, run.session_id)
        else:
            stop.delete_session_and_stop(run.caller.user_id, run.session_id)
            files.discard_files(run.files)
    except NotFound:
        return  # removed meanwhile


# --- Earlier runs ---


def find_session_by_name(user_id: int, name: str, *, prefix: str) -> UUID:
    """Find the user's session by a name that this API gave out."""
    digits = name.removeprefix(prefix)[:32]
    try:
        session_id = UUID(hex=digits) if name.startswith(prefix) else UUID(name)
    except ValueError:
        raise NotFound from None
    return chat_selectors.get_session(user_id, session_id).pk


def find_run_message(user_id: int, run_id: str, *, prefix: str) -> Message:
    session_id = find_session_by_name(user_id, run_id, prefix=prefix)
    found = Message.objects.filter(session=session_id, run_id=run_id).first()
    if found is None:
        raise NotFound
    return found


def find_session_to_continue(user_id: int, run_id: str, *, prefix: str) -> UUID:
    """Find the session of a run; refuse if it has later messages, because a session only continues at its end."""
    not_found = InvalidRequest(
        "There is no such response.", code="previous_response_not_found", param="previous_response_id"
    )
    try:
        message = find_run_message(user_id, run_id, prefix=prefix)
    except NotFound:
        raise not_found from None
    later = Message.objects.filter(session=message.session_id, hidden="", sequence__gt=message.sequence or 0)
    if message.hidden or later.filter(Q(kind=Message.Kind.USER) | Q(run_id__isnull=False)).exists():
        raise InvalidRequest(
            "Only the latest response of a conversation can be continued.",
            code="previous_response_superseded",
            param="previous_response_id",
        )
    return message.session_id


# --- Following a turn in the event log ---

TEXT_SEPARATOR = "\n\n"  # as in the text of a turn result
LOST_LOG_TIMEOUT_SECONDS = 3_600  # no turn lasts longer; used only when the log has lost its beginning
KEEP_ALIVE_SECONDS = 8.0  # clients and proxies give up on silent streams; the rows are checked as often
_NAMING_KINDS = frozenset({"turn.queued", "turn.started"}) | ENDING_KINDS
_FINAL_KINDS = ENDING_KINDS | {"turn.paused"}
_TEXT_KINDS = frozenset({"text.extended", "step.retracted"})

T = TypeVar("T")


@dataclass(frozen=True)
class AnswerDelta:
    delta: str


@dataclass(frozen=True)
class KeepAlive:
    """Nothing happened for a while; send a keep-alive."""


@dataclass(frozen=True)
class TurnOver:
    """The turn has ended; `text` is the whole answer that was handed out."""

    outcome: TurnResult
    text: str


class LoggedSummary(msgspec.Struct):
    tokens: Tokens


class LoggedEvent(msgspec.Struct):
    """The fields of an event that are read here."""

    turn_id: str = ""
    run_ids: list[str] = []
    row_id: str = ""
    delta: str = ""
    offset: int = 0
    limit_code: str | None = None
    summary: LoggedSummary | None = None


_decoder = msgspec.json.Decoder(LoggedEvent)


class TurnLogReader(ABC, Generic[T]):
    """Read the events of the run's own turn; a queued run learns its turn from the run id."""

    def __init__(self, run: AcceptedTurn) -> None:
        self.run = run
        self.cursor = run.cursor
        self.is_over = False
        self.is_paused = False
        self._turn_id = str(run.turn_id) if run.started else ""

    def read_entries(self, entries: list[LogEntry]) -> list[T]:
        found: list[T] = []
        for entry in entries:
            self.cursor = entry.cursor
            if not self.is_over and self.wants_kind(entry.kind):
                self._read_entry(entry, found)
        return found

    def _read_entry(self, entry: LogEntry, found: list[T]) -> None:
        event = _decoder.decode(entry.payload)
        if entry.kind in _NAMING_KINDS and self.run.run_id in event.run_ids:
            self._turn_id = event.turn_id
        if event.turn_id == self._turn_id:
            found += self.convert_entry(entry, event)
            self.is_over = entry.kind in _FINAL_KINDS
            self.is_paused = entry.kind == "turn.paused"

    def wants_kind(self, kind: str) -> bool:
        """Tell whether events of this kind need to be decoded at all."""
        return True

    @abstractmethod
    def convert_entry(self, entry: LogEntry, event: LoggedEvent) -> list[T]: ...


async def follow_log(reader: TurnLogReader[T]) -> AsyncGenerator[list[T] | KeepAlive, None]:
    """Yield what happens until the turn has ended or waits for a person."""
    while not reader.is_over:
        try:
            connection = reader.run.caller.connection
            async with open_session_feed(reader.run.session_id, reader.cursor, connection=connection) as feed:
                async for batch in _read_batches(feed, reader):
                    yield batch
        except FeedOverflowed:
            continue  # the client is too slow; continue from its cursor
        except CursorLost:
            await reader.run.wait_for_outcome(LOST_LOG_TIMEOUT_SECONDS)
            return


async def _read_batches(
    feed: EventFeed, reader: TurnLogReader[T]
) -> AsyncGenerator[list[T] | KeepAlive, None]:
    """Yield what is new, and a keep-alive whenever nothing was yielded for a while, whatever else the log says."""
    clock = asyncio.get_running_loop()
    deadline = clock.time() + KEEP_ALIVE_SECONDS
    while not reader.is_over:
        try:
            async with asyncio.timeout_at(deadline):
                batch = await anext(feed)
        except TimeoutError:
            await run_in_thread(_check_turn_row, reader)
            yield KeepAlive()
        else:
            if not (found := reader.read_entries(batch)):
                continue
            yield found
        deadline = clock.time() + KEEP_ALIVE_SECONDS


def _check_turn_row(reader: TurnLogReader[T]) -> None:
    """Ask the database: events can be lost with Redis, rows cannot."""
    reader.is_over = reader.run.get_outcome().status not in ("queued", "running")


# --- Following the text of the answer ---


class _TextReader(TurnLogReader[str]):
    def __init__(self, run: AcceptedTurn) -> None:
        super().__init__(run)
        self.text = ""
        self._row_id = ""
        self._row_length = 0
        self._is_text_complete = run.started  # a queued message may be taken by a turn that has already begun
        self._success: LoggedEvent | None = None

    def wants_kind(self, kind: str) -> bool:
        return kind in _TEXT_KINDS or kind in _NAMING_KINDS or kind in _FINAL_KINDS

    def convert_entry(self, entry: LogEntry, event: LoggedEvent) -> list[str]:
        if entry.kind == "turn.succeeded":
            self._success = event
        elif entry.kind == "step.retracted":
            self._is_text_complete = False
        elif entry.kind == "text.extended":
            return self._extend_text(event)
        return []

    def _extend_text(self, event: LoggedEvent) -> list[str]:
        """Append what is new. After an outage of Redis a row is published again from its beginning."""
        separator = ""
        if event.row_id != self._row_id:
            separator = TEXT_SEPARATOR if self.text else ""
            self._row_id, self._row_length = event.row_id, 0
        if event.offset > self._row_length:
            self._is_text_complete = False
            self._row_length = event.offset
        delta = event.delta[self._row_length - event.offset :]
        if not delta:
            return []
        self._row_length += len(delta)
        self.text += separator + delta
        return [separator + delta]

    def read_success(self) -> TurnOver | None:
        """Return the ending as the log told it, which saves five queries; None if only the rows know it."""
        success = self._success
        if success is None or success.summary is None or not self._is_text_complete:
            return None
        outcome = TurnResult(
            turn_id=success.turn_id,
            status="succeeded",
            text=self.text,
            last_text=self.text,
            limit_code=success.limit_code or "",
            usage=success.summary.tokens,
        )
        return TurnOver(outcome, self.text)

    def take_remaining_text(self, outcome: TurnResult) -> str:
        """Return stored text that the log did not deliver. Retracted text cannot be taken back."""
        rest = outcome.text[len(self.text) :] if outcome.text.startswith(self.text) else ""
        self.text += rest
        return rest


async def follow_answer(
    run: AcceptedTurn, order: TurnOrder
) -> AsyncGenerator[AnswerDelta | KeepAlive | TurnOver, None]:
    """Yield the answer while it is written; `TurnOver` comes once, at the end.

    JSON is yielded at the end, once it is known to be valid: what was streamed could not be taken back.
    """
    reader = _TextReader(run)
    while True:
        async for deltas in follow_log(reader):
            if isinstance(deltas, KeepAlive):
                yield deltas
            elif not order.wants_json:
                yield AnswerDelta("".join(deltas))
        if not order.wants_json and not run.continues and (over := reader.read_success()) is not None:
            run.has_ended = True
            yield over
            return
        outcome = await run_in_thread(run.get_outcome)
        if not (reader.is_paused and outcome.status in ("queued", "running")):
            break
        reader.is_over = reader.is_paused = False  # that was the pause before this request
    if order.wants_json:
        if outcome.status == "succeeded" and outcome.limit_code != "invalid_output":
            yield AnswerDelta(unwrap_json(outcome.last_text))
    elif rest := reader.take_remaining_text(outcome):
        yield AnswerDelta(rest)
    yield TurnOver(outcome, reader.text)
