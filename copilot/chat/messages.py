"""Write the messages of a session: inbound ones, those a running turn appends under its fence, and imported ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import NamedTuple
from uuid import UUID, uuid4

import msgspec
from django.db import IntegrityError, connection, transaction
from django.db.models import Max

from config.core import trace_context
from config.core.client_address import hash_client_address
from config.core.db import ASYNC_COMMIT, fetch_one
from config.core.errors import FenceLost
from config.core.json_values import JSON
from copilot.chat.commands import SendMessage
from copilot.chat.permissions import NO_PERMISSIONS
from copilot.chat.prompt_tags import build_server_block
from copilot.chat.turn_context import InboundContext
from copilot.models import Message, Turn
from copilot.realtime.payloads import AttachmentPayload


class LockedTurn(NamedTuple):
    session_id: UUID
    stopped: bool  # a stop was requested


def lock_running_turn(turn_id: UUID, fence: int) -> LockedTurn:
    """Lock the turn against takeover and stop."""
    turn = fetch_one(
        LockedTurn,
        """
        SELECT session_id, stop_requested_at IS NOT NULL AS stopped FROM copilot_turn
        WHERE id = %s AND fence = %s AND status = 'running' FOR UPDATE
        """,
        [turn_id, fence],
    )
    if turn is None:
        raise FenceLost(f"turn {turn_id} is not held under fence {fence}")
    return turn


# --- Inbound messages --------------------------------------------------------------------------------

_json = msgspec.json.Encoder()

# The statement puts the sender's local time here in a message's context. No text in Postgres can contain it.
SENT_TIME_PLACEHOLDER = "\x00"


@dataclass(frozen=True)
class AcceptedMessage:
    accept_number: int
    created_at: datetime
    wants_memories: bool = False  # it is the session's first, and its user has memories
    built_agent_id: UUID | None = None  # the agent that the session edits, if it is a builder session


# The name and the number of files of %(user_id)s, as part of the statements below. Names are escaped, because
# users choose them; the count stops at 1000, because more files tell the model nothing new.
_USER_CONTEXT_SQL = r"""
(SELECT %(known_begins)s || concat_ws(E'\n', known.name, known.files) || %(known_ends)s
 FROM (SELECT 'name: ' || NULLIF(replace(replace(replace(btrim(regexp_replace(
                  concat_ws(' ', w.first_name, w.last_name), '\s+', ' ', 'g')),
                  '&', '&amp;'), '<', '&lt;'), '>', '&gt;'), '') AS name,
              'files in the workspace: ' || NULLIF((SELECT count(*) FROM (
                  SELECT 1 FROM copilot_workspacefile f WHERE f.owner_id = w.id AND f.deleted_at IS NULL
                  AND f.purged_at IS NULL AND f.source <> 'tool_output' LIMIT 1000) few), 0) AS files
       FROM auth_user w WHERE w.id = %(user_id)s) known
 WHERE COALESCE(known.name, known.files) IS NOT NULL)
"""
_USER_CONTEXT_MARKUP = dict(
    zip(
        ("known_begins", "known_ends"),
        f"\n\n{build_server_block('user_context', SENT_TIME_PLACEHOLDER)}".split(SENT_TIME_PLACEHOLDER),
        strict=True,
    )
)


# The session is locked while the number is drawn, so that the numbers of one session become visible in order.
# Two index lookups find out whether it is the first message: for a plain NOT EXISTS the planner may read the
# whole table.
_INSERT_MESSAGE = f"""
WITH held AS (
    SELECT s.id, s.built_agent_id, COALESCE(NULLIF(p.timezone, ''), 'UTC') AS zone
    FROM copilot_session s JOIN auth_user u ON u.id = s.owner_id
    LEFT JOIN copilot_preferences p ON p.owner_id = s.owner_id
    WHERE s.id = %(session_id)s AND s.owner_id = %(user_id)s AND s.deleted_at IS NULL AND u.is_active
      AND (%(durable)s OR {ASYNC_COMMIT})
    FOR NO KEY UPDATE OF s
), numbered AS (
    SELECT held.id, held.built_agent_id, nextval('copilot_accept_numbers') AS number,
           to_char(now() AT TIME ZONE held.zone, 'FMDay, YYYY-MM-DD HH24:MI') || ' (' || held.zone || ')' AS sent,
           (SELECT MAX(e.sequence) FROM copilot_message e WHERE e.session_id = held.id) IS NULL
           AND NOT EXISTS (SELECT 1 FROM copilot_message e WHERE e.session_id = held.id
                           AND e.sequence IS NULL AND e.dropped_at IS NULL) AS first
    FROM held
), stored AS (
    INSERT INTO copilot_message (id, session_id, kind, content, author, attachments, accept_number, queue_order,
                                 run_id, origin, tier, mode, page_context, permissions, server_context, data)
    SELECT %(id)s, n.id, 'user', %(content)s, %(author)s, %(attachments)s, n.number, n.number,
           %(run_id)s, %(origin)s, %(tier)s, %(mode)s, %(page_context)s, %(permissions)s,
           array_to_string(%(server_context)s::text[], n.sent)
           || CASE WHEN %(introduces)s AND n.first THEN COALESCE({_USER_CONTEXT_SQL}, '') ELSE '' END,
           %(data)s
    FROM numbered n
    ON CONFLICT (session_id, run_id) WHERE run_id IS NOT NULL DO NOTHING
    RETURNING accept_number, created_at
)
SELECT stored.accept_number, stored.created_at,
       n.first AND EXISTS (SELECT 1 FROM copilot_memoryitem i WHERE i.owner_id = %(user_id)s) AS wants_memories,
       n.built_agent_id AS built_agent_id
FROM stored CROSS JOIN numbered n
"""  # noqa: S608 - both texts are ours
_ADD_USER_CONTEXT = f"""
UPDATE copilot_message SET server_context = server_context || COALESCE({_USER_CONTEXT_SQL}, '')
WHERE id = %(id)s AND sequence IS NULL
"""  # noqa: S608


def insert_message(
    message_id: UUID,
    command: SendMessage,
    attachments: Sequence[AttachmentPayload],
    server_context: str,
    *,
    durable: bool = True,
) -> AcceptedMessage | None:
    """Store a message without a place, with SENT_TIME_PLACEHOLDER in its context filled in.

    Return None when the session is not the user's, or the run_id is taken. Without `durable`, the caller
    must open a turn with the message or flush the WAL before anything is acknowledged.
    """
    return fetch_one(
        AcceptedMessage,
        _INSERT_MESSAGE,
        {
            "id": message_id,
            "durable": durable,
            "session_id": command.session_id,
            "user_id": command.user_id,
            "content": command.text,
            "author": command.author,
            "attachments": _json.encode(list(attachments)).decode(),
            "run_id": command.run_id,
            "origin": command.origin,
            "tier": command.tier,
            "mode": command.mode,
            "page_context": _json.encode(command.page_context).decode() if command.page_context else None,
            "permissions": _json.encode(command.permissions.to_json()).decode(),
            "server_context": server_context.split(SENT_TIME_PLACEHOLDER),
            "data": _json.encode(_build_message_data(command)).decode(),
            "introduces": may_include_user_context(command),
            **_USER_CONTEXT_MARKUP,
        },
    )


def may_include_user_context(command: SendMessage) -> bool:
    """Allow the owner's name only where nobody else reads it: not in a channel, and not without a speaker."""
    return (
        command.of_owner
        and command.inbound_context.reply is None
        and command.permissions.files == "workspace"
    )


def add_user_context(message_id: UUID, user_id: int) -> None:
    with connection.cursor() as cursor:
        cursor.execute(_ADD_USER_CONTEXT, {"id": message_id, "user_id": user_id, **_USER_CONTEXT_MARKUP})


def _build_message_data(command: SendMessage) -> dict[str, JSON]:
    data: dict[str, JSON] = {}
    if command.parent is not None:
        data["parent_turn"] = str(command.parent.turn_id)
        data["budget"] = command.parent.budget_microdollars
    if command.page_context is not None and command.page_context.text:
        data["context_sources"] = ["the page that was open"]
    # Messages of chat platforms come from the platform's own addresses, which say nothing about the sender.
    address_hash = hash_client_address() if command.origin in ("web", "api") else None
    inbound_context = replace(
        command.inbound_context,
        request_id=trace_context.get_request_id(),
        traceparent=trace_context.get_traceparent(),
        address_hash=address_hash,
    )
    if inbound_context != InboundContext():
        data["inbound_context"] = msgspec.to_builtins(inbound_context)
    return data


_APPEND_SERVER_CONTEXT = """
UPDATE copilot_message SET server_context = server_context || %(text)s,
       data = data || CASE WHEN %(sources)s::jsonb = '[]' THEN '{}' ELSE jsonb_build_object(
           'context_sources', COALESCE(data->'context_sources', '[]') || %(sources)s::jsonb) END
WHERE id = %(id)s AND sequence IS NULL
"""


def append_server_context(message_id: UUID, text: str, *, sources: Sequence[str] = ()) -> None:
    """Append a block of server context, unless a turn has taken the message and so frozen it.

    `sources` name the untrusted texts that the block was made from.
    """
    encoded_sources = _json.encode(list(sources)).decode()
    with connection.cursor() as cursor:
        cursor.execute(
            _APPEND_SERVER_CONTEXT, {"id": message_id, "text": f"\n\n{text}", "sources": encoded_sources}
        )


def discard_pending_message(message_id: UUID) -> bool:
    deleted, _ = Message.objects.queued().filter(pk=message_id).delete()
    return bool(deleted)


# --- Messages of a running turn ----------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class NewMessage:
    """A message that a turn appends; it gets the next sequence number of its session."""

    id: UUID
    turn_id: UUID
    fence: int
    kind: str
    content: str = ""
    data: dict[str, JSON] = field(default_factory=dict)
    call_id: str | None = None
    model: str = ""
    streaming: bool = False
    attachments: Sequence[AttachmentPayload] = ()  # images of a tool result


@dataclass(frozen=True)
class PlacedMessage:
    sequence: int
    created_at: datetime


_APPEND_MESSAGES = f"""
INSERT INTO copilot_message (id, session_id, turn_id, sequence, kind, content, data, call_id, model, streaming,
                             attachments)
SELECT r.id, t.session_id, t.id, last.sequence + r.ordinal, r.kind, r.content, r.data, r.call_id, r.model, r.streaming,
       r.attachments
FROM unnest(%s::uuid[], %s::uuid[], %s::bigint[], %s::int[], %s::text[], %s::text[], %s::jsonb[], %s::text[],
            %s::text[], %s::boolean[], %s::jsonb[])
     AS r(id, turn_id, fence, ordinal, kind, content, data, call_id, model, streaming, attachments)
JOIN copilot_turn t ON t.id = r.turn_id AND t.fence = r.fence AND t.status = 'running'
CROSS JOIN LATERAL (SELECT COALESCE(MAX(m.sequence), 0) AS sequence FROM copilot_message m
                    WHERE m.session_id = t.session_id) last
WHERE %s OR {ASYNC_COMMIT}
FOR SHARE OF t
ON CONFLICT DO NOTHING
RETURNING id, sequence, created_at
"""  # noqa: S608 - both texts are ours


def append_messages(rows: Sequence[NewMessage]) -> dict[UUID, PlacedMessage]:
    """Store messages of any number of turns in one statement; those missing from the answer were refused.

    Refused are rows of an older fence, and a second result for one call. The share lock makes a takeover
    wait for this statement, and lets this statement see a takeover that came first. Rows that only begin to
    stream are still empty, so their commit does not wait for the disk.
    """
    ordinals: dict[UUID, int] = {}
    numbers = []
    for row in rows:
        ordinals[row.turn_id] = ordinals.get(row.turn_id, 0) + 1
        numbers.append(ordinals[row.turn_id])
    with connection.cursor() as cursor:
        cursor.execute(
            _APPEND_MESSAGES,
            [
                [row.id for row in rows],
                [row.turn_id for row in rows],
                [row.fence for row in rows],
                numbers,
                [row.kind for row in rows],
                [row.content for row in rows],
                [_json.encode(row.data).decode() for row in rows],
                [row.call_id for row in rows],
                [row.model for row in rows],
                [row.streaming for row in rows],
                [_json.encode(row.attachments).decode() for row in rows],
                not all(row.streaming and not row.content for row in rows),
            ],
        )
        return {message_id: PlacedMessage(sequence, at) for message_id, sequence, at in cursor.fetchall()}


@dataclass(frozen=True, kw_only=True)
class StreamingDraft:
    """The present text of a streaming message."""

    row_id: UUID
    turn_id: UUID
    fence: int
    content: str
    streaming: bool


def save_drafts(drafts: Sequence[StreamingDraft]) -> set[tuple[UUID, int]]:
    """Checkpoint or finish streaming rows in one statement; return the (row, fence) pairs that were saved."""
    ordered = sorted(drafts, key=lambda draft: draft.row_id)
    with connection.cursor() as cursor:
        cursor.execute(
            """
            UPDATE copilot_message m SET content = d.content, streaming = d.streaming
            FROM unnest(%s::uuid[], %s::uuid[], %s::bigint[], %s::text[], %s::boolean[])
                 AS d(id, turn_id, fence, content, streaming)
            JOIN copilot_turn t ON t.id = d.turn_id AND t.fence = d.fence AND t.status = 'running'
            WHERE m.id = d.id AND m.streaming
            RETURNING m.id, d.fence
            """,
            [
                [draft.row_id for draft in ordered],
                [draft.turn_id for draft in ordered],
                [draft.fence for draft in ordered],
                [draft.content for draft in ordered],
                [draft.streaming for draft in ordered],
            ],
        )
        return {(row_id, fence) for row_id, fence in cursor.fetchall()}


def append_replay_data(row_id: UUID, turn_id: UUID, fence: int, data: str) -> None:
    """Keep opaque provider data for the turn's next model calls; people never see it."""
    with connection.cursor() as cursor:
        cursor.execute(
            """
            UPDATE copilot_message m SET replay = m.replay || to_jsonb(ARRAY[%s::text]) FROM copilot_turn t
            WHERE m.id = %s AND t.id = %s AND t.fence = %s AND t.status = 'running' AND m.turn_id = t.id
            """,
            [data, row_id, turn_id, fence],
        )


def retract_messages(turn_id: UUID, fence: int, row_ids: Sequence[UUID]) -> None:
    """Hide the rows of a step that is retried; they are kept for audit."""
    with transaction.atomic():
        lock_running_turn(turn_id, fence)
        Message.objects.filter(turn=turn_id, pk__in=row_ids).update(
            hidden=Message.Hidden.RETRACTED, streaming=False
        )


def post_notice(session_id: UUID, turn_id: UUID | None, code: str) -> UUID:
    """Post a notice from outside a turn; try again if a running turn takes the sequence number first."""
    while True:
        try:
            return _insert_notice(session_id, turn_id, code)
        except IntegrityError:
            continue


def _insert_notice(session_id: UUID, turn_id: UUID | None, code: str) -> UUID:
    row = uuid4()
    with connection.cursor() as cursor:
        cursor.execute(
            """
            INSERT INTO copilot_message (id, session_id, turn_id, sequence, kind, data)
            SELECT %s, %s, %s, COALESCE(MAX(sequence), 0) + 1, 'notice', %s::jsonb
            FROM copilot_message WHERE session_id = %s
            """,
            [row, session_id, turn_id, _json.encode({"code": code}).decode(), session_id],
        )
    return row


ReadStreamedText = Callable[[str, dict[str, str]], dict[str, str]]  # (session, saved text by row) → full text


@dataclass(frozen=True)
class ClosedMessages:
    """Streaming rows that became final, as (id, kind), and the results that open calls got."""

    ended: list[tuple[UUID, str]]
    results: list[UUID]


def close_open_messages(
    session_id: UUID,
    turn_id: UUID,
    result: str,
    *,
    read_streamed_text: ReadStreamedText,
    fence: int | None = None,
    cancelled: bool = False,
) -> ClosedMessages:
    streaming_rows = {str(row.pk): row for row in Message.objects.filter(turn=turn_id, streaming=True)}
    saved = {row_id: row.content for row_id, row in streaming_rows.items()}
    texts = read_streamed_text(str(session_id), saved) if streaming_rows else {}
    with transaction.atomic():
        if fence is not None:
            lock_running_turn(turn_id, fence)
        for row_id, row in streaming_rows.items():
            row.content, row.streaming = texts.get(row_id, row.content), False
            row.save(update_fields=["content", "streaming"])
        answered_calls = Message.objects.filter(turn=turn_id, kind="tool_result").values("call_id")
        calls = Message.objects.filter(turn=turn_id, kind="tool_call", hidden="").exclude(
            call_id__in=answered_calls
        )
        last = Message.objects.filter(session=session_id).aggregate(last=Max("sequence"))["last"] or 0
        results = Message.objects.bulk_create(
            Message(
                session_id=session_id,
                turn_id=turn_id,
                sequence=last + place,
                kind="tool_result",
                content=result,
                call_id=call.call_id,
                data=build_result_data(call.data["tool"], success=False, preview=result)
                | ({"cancelled": True} if cancelled else {}),
            )
            for place, call in enumerate(calls.order_by("sequence"), start=1)
        )
    return ClosedMessages(
        [(row.pk, row.kind) for row in streaming_rows.values()], [row.pk for row in results]
    )


def build_result_data(tool: str, *, success: bool, preview: str, duration_ms: int = 0) -> dict[str, JSON]:
    return {
        "tool": tool,
        "success": success,
        "preview": preview,
        "duration_ms": duration_ms,
        "truncated": False,
        "file_id": None,
    }


# --- Imported history --------------------------------------------------------------------------------


MESSAGE_BATCH_SIZE = 500


@dataclass(frozen=True, kw_only=True)
class ImportedMessage:
    """A message of an imported conversation; its place in the list becomes its sequence number."""

    id: UUID
    turn_id: UUID
    kind: str
    content: str
    created_at: datetime
    data: dict[str, JSON] = field(default_factory=dict)
    call_id: str | None = None
    author: str = ""
    attachments: Sequence[AttachmentPayload] = ()
    branch: int = 0
    mid_turn: bool = False
    tier: str = ""


def insert_imported_messages(
    session_id: UUID, rows: Sequence[ImportedMessage], *, origin: str
) -> dict[UUID, int]:
    """Store the messages of a new session; return the highest accept number of each turn that has one."""
    numbers = iter(_draw_accept_numbers(sum(row.kind == "user" for row in rows)))
    accepted: dict[UUID, int] = {}
    messages: list[Message] = []
    for sequence, row in enumerate(rows, start=1):
        number = next(numbers) if row.kind == "user" else None
        if number is not None:
            accepted[row.turn_id] = number
        messages.append(
            _build_message(session_id, row, sequence, number, origin if number is not None else "")
        )
    Message.objects.bulk_create(messages, batch_size=MESSAGE_BATCH_SIZE)
    return accepted


def _draw_accept_numbers(count: int) -> list[int]:
    with connection.cursor() as cursor:
        cursor.execute("SELECT nextval('copilot_accept_numbers') FROM generate_series(1, %s)", [count])
        return sorted(number for (number,) in cursor.fetchall())


def _build_message(
    session_id: UUID, row: ImportedMessage, sequence: int, number: int | None, origin: str
) -> Message:
    return Message(
        id=row.id,
        session_id=session_id,
        turn_id=row.turn_id,
        sequence=sequence,
        kind=row.kind,
        content=row.content,
        data=row.data,
        call_id=row.call_id,
        author=row.author,
        attachments=msgspec.to_builtins(list(row.attachments)),
        branch=row.branch,
        mid_turn=row.mid_turn,
        tier=row.tier,
        origin=origin,
        accept_number=number,
        created_at=row.created_at,
    )


TURN_BATCH_SIZE = 500


@dataclass(frozen=True, kw_only=True)
class ImportedTurn:
    id: UUID
    began_at: datetime
    ended_at: datetime


def insert_imported_turns(
    session_id: UUID, turns: Sequence[ImportedTurn], *, origin: str, accepted: Mapping[UUID, int]
) -> None:
    """Store the turns as succeeded and without permissions. `accepted` are accept numbers by turn."""
    Turn.objects.bulk_create(
        (
            Turn(
                id=turn.id,
                session_id=session_id,
                status=Turn.Status.SUCCEEDED,
                origin=origin,
                permissions=NO_PERMISSIONS.to_json(),
                accepted_through=accepted.get(turn.id, 0),
                fence=0,
                token=uuid4(),
                created_at=turn.began_at,
                queued_at=turn.began_at,
                started_at=turn.began_at,
                ended_at=turn.ended_at,
            )
            for turn in turns
        ),
        batch_size=TURN_BATCH_SIZE,
    )
