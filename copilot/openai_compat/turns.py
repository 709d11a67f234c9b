"""One request, one turn: begun in a session of its own or an older one, followed to its ending, tidied up after (E4.2).

A session made for one answer goes when its caller has the answer, or has gone: nobody else could ever read it, so what
still runs in it is stopped. In a session that stays, a turn goes on without its caller, as on every other door.
"""

from __future__ import annotations

import asyncio
import secrets
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Generic, TypeVar
from uuid import UUID

import msgspec

from config.core.db import run_in_thread
from config.core.errors import InvalidRequest, NotFound
from config.core.json_values import JSON
from copilot.accounts import preferences
from copilot.chat import admission, admission_outcomes, branches, sessions, stop, turn_results
from copilot.chat import selectors as chat_selectors
from copilot.chat.commands import ResendMessage, SendMessage, clean_text, parse_message
from copilot.chat.permissions import UNRESTRICTED, intersect_permissions, permissions_for_scopes
from copilot.chat.turn_results import ROW_POLL_SECONDS, TurnResult, wait_for_turn
from copilot.exports.imports import import_history
from copilot.models import Message
from copilot.openai_compat.base import ApiCaller
from copilot.openai_compat.requests import RequestMessage, TurnRequest
from copilot.realtime.event_log import LogEntry
from copilot.realtime.events import ENDING_KINDS
from copilot.realtime.fanout import CursorLost, EventFeed, FeedOverflowed, open_session_feed
from copilot.realtime.payloads import format_timestamp

# A question could only be answered elsewhere, while the caller waits: the model asks in its answer instead.
WITHOUT_QUESTIONS = replace(UNRESTRICTED, denied_tools=frozenset({"ask_user"}))
LONG_INSTRUCTIONS_HEADING = "Instructions for this conversation:\n\n"


@dataclass(frozen=True, kw_only=True)
class TurnOrder:
    """What is to be run: in `session_id`, or in a new session that is `kept` or made for one answer."""

    asked: TurnRequest
    tier: str
    mode: str
    prefix: str  # of the name under which the run is known outside
    kept: bool = False
    session_id: UUID | None = None
    again: UUID | None = None  # a message of the session that is to be answered once more


@dataclass(frozen=True, kw_only=True)
class AcceptedTurn:
    """A turn that was accepted. `turn_id` is its own only when `started`; else the one it waits behind."""

    caller: ApiCaller
    session_id: UUID
    turn_id: UUID
    run_id: str
    cursor: str
    started: bool
    kept: bool

    def get_outcome(self) -> turn_results.TurnResult:
        return turn_results.get_turn_result(self.caller.user_id, self.turn_id, run_id=self.run_id or None)

    def get_limit_code(self, outcome: turn_results.TurnResult) -> str:
        return chat_selectors.get_turn(self.caller.user_id, UUID(outcome.turn_id)).limit_code


@asynccontextmanager
async def run_turn(caller: ApiCaller, order: TurnOrder) -> AsyncIterator[AcceptedTurn]:
    """A caller may hang up at any await, these among them: what was begun is tidied up all the same."""
    begun = asyncio.create_task(run_in_thread(_begin_turn, caller, order))
    try:
        yield await asyncio.shield(begun)
    finally:
        tidied = asyncio.create_task(_clean_up_when_begun(begun))
        _cleanup_tasks.add(tidied)
        tidied.add_done_callback(_cleanup_tasks.discard)
        await asyncio.shield(tidied)


_cleanup_tasks: set[asyncio.Task[None]] = set()  # the loop itself holds no task that nobody awaits


async def _clean_up_when_begun(begun: asyncio.Task[AcceptedTurn]) -> None:
    await asyncio.wait([begun])
    if begun.exception() is None and not begun.result().kept:
        await run_in_thread(_clean_up_session, begun.result())


def _begin_turn(caller: ApiCaller, order: TurnOrder) -> AcceptedTurn:
    session_id, made = _find_or_create_session(caller.user_id, order)
    kept = order.kept or order.session_id is not None
    run_id = f"{order.prefix}{session_id.hex}{secrets.token_hex(8)}"
    with ExitStack() as undo:
        if made:
            undo.callback(sessions.delete_session, caller.user_id, session_id)
        accepted = _submit_command(_build_send_command(caller, order, session_id, run_id), order.again)
        undo.pop_all()
    return AcceptedTurn(
        caller=caller,
        session_id=session_id,
        turn_id=accepted.turn_id,
        run_id=run_id,
        cursor=accepted.cursor,
        started=isinstance(accepted, admission_outcomes.SubmissionStarted),
        kept=kept,
    )


def _build_send_command(caller: ApiCaller, order: TurnOrder, session_id: UUID, run_id: str) -> SendMessage:
    """The one place where a message of these doors is bound to its channel (A31.3)."""
    return parse_message(
        {"text": order.asked.text, "tier": order.tier, "mode": order.mode, "run_id": run_id},
        session_id=session_id,
        user_id=caller.user_id,
        origin="api",
        permissions=intersect_permissions(permissions_for_scopes(caller.scopes), WITHOUT_QUESTIONS),
    )


def _submit_command(
    command: SendMessage, again: UUID | None
) -> admission_outcomes.SubmissionStarted | admission_outcomes.SubmissionQueued:
    if again is None:
        return admission.submit_message(command)
    return branches.resend_message(
        ResendMessage(
            session_id=command.session_id,
            user_id=command.user_id,
            message_id=again,
            tier=command.tier,
            run_id=command.run_id,
            origin=command.origin,
            permissions=command.permissions,
        )
    )


def _find_or_create_session(user_id: int, order: TurnOrder) -> tuple[UUID, bool]:
    """The session to speak in, and whether it was made for this."""
    asked, instructions = order.asked, clean_text(order.asked.instructions)
    if order.session_id is not None:
        if instructions:
            sessions.update_session_settings(user_id, order.session_id, {"instructions": instructions})
        return order.session_id, False
    past = asked.past
    if (
        len(instructions) > preferences.MAX_INSTRUCTIONS_CHARACTERS
    ):  # more than a session holds: they open its past
        past, instructions = (
            [RequestMessage(role="user", text=LONG_INSTRUCTIONS_HEADING + instructions), *past],
            "",
        )
    at = format_timestamp(datetime.now(UTC))
    session = import_history(
        user_id, build_history_document(past, at), at=at, instructions=instructions, listed=order.kept
    )
    return session.pk, True


def build_history_document(past: list[RequestMessage], at: str) -> list[dict[str, JSON]]:
    """Lines in the form of the conversation document; those that say nothing are left out."""
    return [
        told for number, line in enumerate(past) if (told := _build_history_entry(line, number, at, past))
    ]


def _build_history_entry(
    line: RequestMessage, number: int, at: str, past: list[RequestMessage]
) -> dict[str, JSON] | None:
    parts: list[JSON] = []
    if line.role == "tool":
        names = {call.call_id: call.tool for one in past for call in one.calls}
        parts.append(
            {
                "type": "tool_result",
                "call_id": line.answers or "-",
                "tool": names.get(line.answers, "unknown"),
                "success": True,
                "text": line.text,
                "duration_ms": 0,
            }
        )
    elif line.text:
        parts.append({"type": line.role, "text": line.text})
    for call in line.calls:
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
        "role": "user" if line.role == "user" else "assistant",
        "parts": parts,
    }


def _clean_up_session(run: AcceptedTurn) -> None:
    """A session made for one answer goes, with what still runs in it; one that waits for a person is shown to him."""
    try:
        if run.get_outcome().status == "waiting":
            sessions.list_session(run.caller.user_id, run.session_id)
        else:
            stop.delete_session_and_stop(run.caller.user_id, run.session_id)
    except NotFound:
        return  # removed meanwhile


# --- what was said before ----------------------------------------------------------------------------


def find_session_by_name(user_id: int, name: str, *, prefix: str) -> UUID:
    """The user's session in a name that these doors gave."""
    digits = name.removeprefix(prefix)[:32]
    try:
        session_id = UUID(hex=digits) if name.startswith(prefix) else UUID(name)
    except ValueError:
        raise NotFound from None
    return chat_selectors.get_session(user_id, session_id).pk


def find_run_message(user_id: int, run_id: str, *, prefix: str) -> Message:
    """The message that began a run."""
    session_id = find_session_by_name(user_id, run_id, prefix=prefix)
    found = Message.objects.filter(session=session_id, run_id=run_id).first()
    if found is None:
        raise NotFound
    return found


def find_session_to_continue(user_id: int, run_id: str, *, prefix: str) -> UUID:
    """The session of a run, as long as nothing was said after it: a session has one end to go on from."""
    unknown = InvalidRequest(
        "There is no such response.", code="previous_response_not_found", param="previous_response_id"
    )
    try:
        message = find_run_message(user_id, run_id, prefix=prefix)
    except NotFound:
        raise unknown from None
    later = Message.objects.filter(session=message.session_id, kind=Message.Kind.USER, hidden="")
    if message.hidden or later.filter(sequence__gt=message.sequence or 0).exists():
        raise InvalidRequest(
            "Only the latest response of a conversation can be continued.",
            code="previous_response_superseded",
            param="previous_response_id",
        )
    return message.session_id


# MERGED compat.following: A turn while it runs, from the session's log; the rows have the last word (T8, T10).

TEXT_SEPARATOR = "\n\n"  # as an outcome's text has it
LOST_LOG_TIMEOUT_SECONDS = (
    3_600  # a turn lasts no longer; only a log that forgot its beginning makes anybody wait this way
)
_NAMING_KINDS = frozenset({"turn.queued", "turn.started"}) | ENDING_KINDS
_FINAL_KINDS = ENDING_KINDS | {"turn.paused"}

T = TypeVar("T")


@dataclass(frozen=True)
class AnswerDelta:
    delta: str


@dataclass(frozen=True)
class KeepAlive:
    """Nothing for a while: time for a sign of life."""


@dataclass(frozen=True)
class TurnOver:
    """`text` is what was handed out, which is all of the answer."""

    outcome: TurnResult
    text: str


class LoggedEvent(msgspec.Struct):
    """What is read of an event here."""

    turn_id: str = ""
    run_ids: list[str] = []
    row_id: str = ""
    delta: str = ""


_decoder = msgspec.json.Decoder(LoggedEvent)


class TurnLogReader(ABC, Generic[T]):
    """Keeps to the run's own turn, which a run that waits learns by its name."""

    def __init__(self, run: AcceptedTurn) -> None:
        self.run = run
        self.cursor = run.cursor
        self.is_over = False
        self._turn_id = str(run.turn_id) if run.started else ""

    def read_entries(self, entries: list[LogEntry]) -> list[T]:
        """What these entries say of the turn."""
        found: list[T] = []
        for entry in entries:
            self.cursor = entry.cursor
            if not self.is_over and self.wants_kind(entry.kind):
                self._read_entry(entry, found)
        return found

    def _read_entry(self, entry: LogEntry, found: list[T]) -> None:
        line = _decoder.decode(entry.payload)
        if entry.kind in _NAMING_KINDS and self.run.run_id in line.run_ids:
            self._turn_id = line.turn_id
        if line.turn_id == self._turn_id:
            found += self.convert_entry(entry, line)
            self.is_over = entry.kind in _FINAL_KINDS

    def wants_kind(self, kind: str) -> bool:
        """Whether an event of this kind is worth reading at all."""
        return True

    @abstractmethod
    def convert_entry(self, entry: LogEntry, line: LoggedEvent) -> list[T]:
        """What an event of the turn says."""


async def follow_log(reader: TurnLogReader[T]) -> AsyncGenerator[list[T] | KeepAlive, None]:
    """Until the turn has ended or waits for a person."""
    while not reader.is_over:
        try:
            connection = reader.run.caller.connection
            async with open_session_feed(reader.run.session_id, reader.cursor, connection=connection) as feed:
                async for batch in _read_batches(feed, reader):
                    yield batch
        except FeedOverflowed:
            continue  # too slow a client: on from its place in the log
        except CursorLost:
            run = reader.run
            await wait_for_turn(
                run.caller.user_id,
                run.turn_id,
                run_id=run.run_id or None,
                timeout_seconds=LOST_LOG_TIMEOUT_SECONDS,
                connection=run.caller.connection,
            )
            return


async def _read_batches(
    feed: EventFeed, reader: TurnLogReader[T]
) -> AsyncGenerator[list[T] | KeepAlive, None]:
    while not reader.is_over:
        try:
            async with asyncio.timeout(ROW_POLL_SECONDS):
                batch = await anext(feed)
        except TimeoutError:
            await run_in_thread(_check_turn_row, reader)
            yield KeepAlive()
        else:
            if found := reader.read_entries(batch):
                yield found


def _check_turn_row(reader: TurnLogReader[T]) -> None:
    """News can be lost with Redis, the rows cannot."""
    reader.is_over = reader.run.get_outcome().status not in ("queued", "running")


# --- the text alone ----------------------------------------------------------------------------------


class _TextReader(TurnLogReader[str]):
    def __init__(self, run: AcceptedTurn) -> None:
        super().__init__(run)
        self.text = ""
        self._row_id = ""

    def wants_kind(self, kind: str) -> bool:
        return kind == "text.extended" or kind in _NAMING_KINDS or kind in _FINAL_KINDS

    def convert_entry(self, entry: LogEntry, line: LoggedEvent) -> list[str]:
        if entry.kind != "text.extended":
            return []
        delta = line.delta
        if self.text and line.row_id != self._row_id:
            delta = TEXT_SEPARATOR + delta
        self._row_id = line.row_id
        self.text += delta
        return [delta]

    def take_remaining_text(self, outcome: TurnResult) -> str:
        """What the rows have and the log did not tell; text that was taken back cannot be."""
        rest = outcome.text[len(self.text) :] if outcome.text.startswith(self.text) else ""
        self.text += rest
        return rest


async def follow_answer(run: AcceptedTurn) -> AsyncGenerator[AnswerDelta | KeepAlive | TurnOver, None]:
    """The answer as it is written; `Over` comes once and last."""
    reader = _TextReader(run)
    async for deltas in follow_log(reader):
        yield deltas if isinstance(deltas, KeepAlive) else AnswerDelta("".join(deltas))
    outcome = await run_in_thread(run.get_outcome)
    if rest := reader.take_remaining_text(outcome):
        yield AnswerDelta(rest)
    yield TurnOver(outcome, reader.text)
