"""A message arrives: its row, without a place yet (T3.3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from uuid import UUID

import msgspec
from django.db import connection

from config.core.client_address import hash_client_address
from copilot import traces
from copilot.commands import SendMessage
from copilot.context import Arrival
from copilot.events import JSON, AttachmentView
from copilot.lasting import LATER
from copilot.models import Message
from copilot.tags import block

_json = msgspec.json.Encoder()

SENT = (
    "\x00"  # in a message's context: where its statement writes the sender's local time; no text can hold it
)


@dataclass(frozen=True)
class Accepted:
    accept_number: int
    created_at: datetime
    recalls: bool = False  # the session's first, of a user with memories (A25.2)
    builds: UUID | None = None  # the agent that the session builds (A27.7)


# What is known of a user without asking: part of the statements below, reads %(user_id)s. Names are the user's own
# words, so they are escaped; of very many files it is enough to know that there are.
_KNOWN = r"""
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
_AROUND = dict(
    zip(("known_begins", "known_ends"), f"\n\n{block('user_context', SENT)}".split(SENT), strict=True)
)


# The session is held while its number is drawn: numbers of one session become visible in their order (T6.1).
# Whether it is the first is asked of two indexes: for a plain NOT EXISTS the planner may read the whole table.
_ACCEPT = f"""
WITH held AS (
    SELECT s.id, s.builds_id, COALESCE(NULLIF(p.timezone, ''), 'UTC') AS zone
    FROM copilot_session s JOIN auth_user u ON u.id = s.owner_id
    LEFT JOIN copilot_preferences p ON p.owner_id = s.owner_id
    WHERE s.id = %(session_id)s AND s.owner_id = %(user_id)s AND s.deleted_at IS NULL AND u.is_active
      AND (%(lasting)s OR {LATER})
    FOR NO KEY UPDATE OF s
), numbered AS (
    SELECT held.id, held.builds_id, nextval('copilot_accept_numbers') AS number,
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
           || CASE WHEN %(introduces)s AND n.first THEN COALESCE({_KNOWN}, '') ELSE '' END,
           %(data)s
    FROM numbered n
    ON CONFLICT (session_id, run_id) WHERE run_id IS NOT NULL DO NOTHING
    RETURNING accept_number, created_at
)
SELECT stored.accept_number, stored.created_at,
       n.first AND EXISTS (SELECT 1 FROM copilot_memoryitem i WHERE i.owner_id = %(user_id)s), n.builds_id
FROM stored CROSS JOIN numbered n
"""  # noqa: S608 - both texts are ours
_INTRODUCE = f"""
UPDATE copilot_message SET server_context = server_context || COALESCE({_KNOWN}, '')
WHERE id = %(id)s AND sequence IS NULL
"""  # noqa: S608


def accept(
    message_id: UUID,
    command: SendMessage,
    attachments: Sequence[AttachmentView],
    server_context: str,
    *,
    lasting: bool = True,
) -> Accepted | None:
    """Store a message without a place, `SENT` in its context filled in; None when the session is not the user's, or the run_id is taken.

    Not `lasting`: before anybody is told, the caller opens a turn with it or settles.
    """
    with connection.cursor() as cursor:
        cursor.execute(
            _ACCEPT,
            {
                "id": message_id,
                "lasting": lasting,
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
                "server_context": server_context.split(SENT),
                "data": _json.encode(_data(command)).decode(),
                "introduces": introduces(command),
                **_AROUND,
            },
        )
        row = cursor.fetchone()
    return Accepted(*row) if row else None


def introduces(command: SendMessage) -> bool:
    """Whether the model may learn who the owner is: not in a channel, where others read, nor where nobody speaks."""
    return command.of_owner and command.arrival.reply is None and command.permissions.files == "workspace"


def introduce(message_id: UUID, user_id: int) -> None:
    """The same for a message that takes the place of a session's first one (A15.3)."""
    with connection.cursor() as cursor:
        cursor.execute(_INTRODUCE, {"id": message_id, "user_id": user_id, **_AROUND})


def _data(command: SendMessage) -> dict[str, JSON]:
    """What the turn that will answer it is opened with, then or later: its parent, and which way it came (A21.2, L16)."""
    data: dict[str, JSON] = {}
    if command.parent is not None:
        data["parent_turn"] = str(command.parent.turn_id)
        data["budget"] = command.parent.budget_microdollars
    if command.page_context is not None and command.page_context.text:
        data["context_sources"] = ["the page that was open"]
    address = hash_client_address() if command.origin in ("web", "api") else None  # not a platform's own
    arrival = replace(
        command.arrival, request_id=traces.request_id(), traceparent=traces.here(), address=address
    )
    if arrival != Arrival():
        data["arrival"] = msgspec.to_builtins(arrival)
    return data


_ADD_CONTEXT = """
UPDATE copilot_message SET server_context = server_context || %(told)s,
       data = data || CASE WHEN %(sources)s::jsonb = '[]' THEN '{}' ELSE jsonb_build_object(
           'context_sources', COALESCE(data->'context_sources', '[]') || %(sources)s::jsonb) END
WHERE id = %(id)s AND sequence IS NULL
"""


def add_context(message_id: UUID, told: str, *, sources: Sequence[str] = ()) -> None:
    """One more block of server context, unless a turn has taken the message: then it is frozen (A15.3).

    `sources` name the untrusted text that it was made from.
    """
    named = _json.encode(list(sources)).decode()
    with connection.cursor() as cursor:
        cursor.execute(_ADD_CONTEXT, {"id": message_id, "told": f"\n\n{told}", "sources": named})


def discard(message_id: UUID) -> bool:
    """Take back a message that was not accepted after all; False when a turn has taken it already."""
    deleted, _ = Message.objects.filter(pk=message_id, sequence=None, dropped_at=None).delete()
    return bool(deleted)
