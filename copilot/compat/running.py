"""One request, one turn: begun in a session of its own or an older one, followed to its ending, tidied up after (E4.2).

A session made for one answer goes when its caller has the answer, or has gone: nobody else could ever read it, so what
still runs in it is stopped. In a session that stays, a turn goes on without its caller, as on every other door.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from uuid import UUID

from copilot import dispatch, outcomes, preferences, queries, sessions
from copilot.bridge import in_thread
from copilot.commands import Resend, SendMessage, clean_text, parse_send
from copilot.compat.asking import Asked, Line
from copilot.compat.doors import Caller
from copilot.errors import InvalidRequest, NotFound
from copilot.events import JSON, instant
from copilot.models import Message
from copilot.permissions import UNRESTRICTED, intersect, permissions_for_scopes
from copilot.workspace.retelling import retell

# A question could only be answered elsewhere, while the caller waits: the model asks in its answer instead.
NO_QUESTIONS = replace(UNRESTRICTED, denied_tools=frozenset({"ask_user"}))
LONG_INSTRUCTIONS = "Instructions for this conversation:\n\n"


@dataclass(frozen=True, kw_only=True)
class Order:
    """What is to be run: in `session_id`, or in a new session that is `kept` or made for one answer."""

    asked: Asked
    tier: str
    mode: str
    prefix: str  # of the name under which the run is known outside
    kept: bool = False
    session_id: UUID | None = None
    again: UUID | None = None  # a message of the session that is to be answered once more


@dataclass(frozen=True, kw_only=True)
class Run:
    """A turn that was accepted. `turn_id` is its own only when `started`; else the one it waits behind."""

    caller: Caller
    session_id: UUID
    turn_id: UUID
    run_id: str
    cursor: str
    started: bool
    kept: bool

    def outcome(self) -> outcomes.Outcome:
        return outcomes.at_once(self.caller.user_id, self.turn_id, run_id=self.run_id or None)

    def limit_code(self, outcome: outcomes.Outcome) -> str:
        return queries.turn_of(self.caller.user_id, UUID(outcome.turn_id)).limit_code


@asynccontextmanager
async def running(caller: Caller, order: Order) -> AsyncIterator[Run]:
    """A caller may hang up at any await, these among them: what was begun is tidied up all the same."""
    begun = asyncio.create_task(in_thread(_begin, caller, order))
    try:
        yield await asyncio.shield(begun)
    finally:
        tidied = asyncio.create_task(_tidied(begun))
        _tidying.add(tidied)
        tidied.add_done_callback(_tidying.discard)
        await asyncio.shield(tidied)


_tidying: set[asyncio.Task[None]] = set()  # the loop itself holds no task that nobody awaits


async def _tidied(begun: asyncio.Task[Run]) -> None:
    await asyncio.wait([begun])
    if begun.exception() is None and not begun.result().kept:
        await in_thread(_tidy, begun.result())


def _begin(caller: Caller, order: Order) -> Run:
    session_id, made = _place(caller.user_id, order)
    kept = order.kept or order.session_id is not None
    run_id = f"{order.prefix}{session_id.hex}{secrets.token_hex(8)}"
    with ExitStack() as undo:
        if made:
            undo.callback(sessions.delete, caller.user_id, session_id)
        accepted = _submit(_command(caller, order, session_id, run_id), order.again)
        undo.pop_all()
    return Run(
        caller=caller,
        session_id=session_id,
        turn_id=accepted.turn_id,
        run_id=run_id,
        cursor=accepted.cursor,
        started=isinstance(accepted, dispatch.Started),
        kept=kept,
    )


def _command(caller: Caller, order: Order, session_id: UUID, run_id: str) -> SendMessage:
    """The one place where a message of these doors is bound to its channel (A31.3)."""
    return parse_send(
        {"text": order.asked.text, "tier": order.tier, "mode": order.mode, "run_id": run_id},
        session_id=session_id,
        user_id=caller.user_id,
        origin="api",
        permissions=intersect(permissions_for_scopes(caller.scopes), NO_QUESTIONS),
    )


def _submit(command: SendMessage, again: UUID | None) -> dispatch.Started | dispatch.Queued:
    if again is None:
        return dispatch.submit(command)
    return dispatch.resend(
        Resend(
            session_id=command.session_id,
            user_id=command.user_id,
            message_id=again,
            tier=command.tier,
            run_id=command.run_id,
            origin=command.origin,
            permissions=command.permissions,
        )
    )


def _place(user_id: int, order: Order) -> tuple[UUID, bool]:
    """The session to speak in, and whether it was made for this."""
    asked, instructions = order.asked, clean_text(order.asked.instructions)
    if order.session_id is not None:
        if instructions:
            sessions.shape(user_id, order.session_id, {"instructions": instructions})
        return order.session_id, False
    past = asked.past
    if len(instructions) > preferences.MAX_INSTRUCTIONS:  # more than a session holds: they open its past
        past, instructions = [Line(role="user", text=LONG_INSTRUCTIONS + instructions), *past], ""
    at = instant(datetime.now(UTC))
    session = retell(user_id, past_of(past, at), at=at, instructions=instructions, listed=order.kept)
    return session.pk, True


def past_of(past: list[Line], at: str) -> list[dict[str, JSON]]:
    """Lines in the form of the conversation document; those that say nothing are left out."""
    return [told for number, line in enumerate(past) if (told := _told(line, number, at, past))]


def _told(line: Line, number: int, at: str, past: list[Line]) -> dict[str, JSON] | None:
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


def _tidy(run: Run) -> None:
    """A session made for one answer goes, with what still runs in it; one that waits for a person is shown to him."""
    try:
        if run.outcome().status == "waiting":
            sessions.list_after_all(run.caller.user_id, run.session_id)
        else:
            dispatch.remove_session(run.caller.user_id, run.session_id)
    except NotFound:
        return  # removed meanwhile


# --- what was said before ----------------------------------------------------------------------------


def session_named(user_id: int, name: str, *, prefix: str) -> UUID:
    """The user's session in a name that these doors gave."""
    digits = name.removeprefix(prefix)[:32]
    try:
        session_id = UUID(hex=digits) if name.startswith(prefix) else UUID(name)
    except ValueError:
        raise NotFound from None
    return queries.session_of(user_id, session_id).pk


def message_of(user_id: int, run_id: str, *, prefix: str) -> Message:
    """The message that began a run."""
    session_id = session_named(user_id, run_id, prefix=prefix)
    found = Message.objects.filter(session=session_id, run_id=run_id).first()
    if found is None:
        raise NotFound
    return found


def continued(user_id: int, run_id: str, *, prefix: str) -> UUID:
    """The session of a run, as long as nothing was said after it: a session has one end to go on from."""
    unknown = InvalidRequest(
        "There is no such response.", code="previous_response_not_found", param="previous_response_id"
    )
    try:
        message = message_of(user_id, run_id, prefix=prefix)
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
