"""What was sent of a turn, and where: the only writer of OutboundMessage, by which another process goes on (L19)."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

from django.core.cache import caches
from django.db import connection

from config.core.errors import ServiceUnavailable
from copilot.chat import turn_details
from linking.models import OutboundMessage, PlatformConversation
from linking.platforms.base import ConversationScope, OutboundAddress

DELIVERY_WINDOW = timedelta(hours=24)  # an answer that could not be given for so long is left on the web
REPLY_TOKEN_SECONDS = 14 * 60  # Discord's last fifteen minutes; then the bot speaks for itself (L22)


@dataclass(frozen=True, kw_only=True)
class SentPart:
    """A part on the platform. Without an id it was begun, and nobody knows how that ended."""

    message_id: str
    text_hash: str
    card: str


@dataclass(frozen=True, kw_only=True)
class OutboundTurn:
    """A turn whose answer belongs into a chat."""

    turn_id: UUID
    session_id: UUID
    owner_id: int
    conversation_id: UUID
    platform: str
    address: OutboundAddress
    status: str
    sent: dict[int, SentPart]


# What follows later stays on the web once the place is closed; what was asked for there is answered there (L16).
_REPLIES_IN_CHAT_SQL = "(c.closed_at IS NULL OR t.origin = c.platform)"
_IS_PENDING_SQL = f"""
SELECT c.platform, c.bot_account FROM copilot_turn t
JOIN linking_platformconversation c ON c.id = (t.arrival->'reply'->>'conversation_id')::uuid
WHERE t.id = %s AND c.unreachable_at IS NULL AND {_REPLIES_IN_CHAT_SQL}
  AND NOT EXISTS (SELECT 1 FROM linking_outboundmessage o WHERE o.turn_id = t.id AND o.final)
"""  # noqa: S608 - both texts are ours


# From the places where somebody spoke lately to their turns: each turn once, whatever else its session holds.
_FIND_PENDING_SQL = f"""
SELECT t.id FROM linking_platformconversation c
JOIN copilot_session s ON s.id = c.session_id AND s.deleted_at IS NULL
JOIN copilot_turn t ON t.session_id = c.session_id AND t.created_at > statement_timestamp() - make_interval(secs => %(seconds)s)
    AND t.arrival->'reply'->>'conversation_id' = c.id::text
WHERE (c.platform, c.bot_account) IN (SELECT * FROM unnest(%(platforms)s::text[], %(accounts)s::text[]))
  AND c.unreachable_at IS NULL AND {_REPLIES_IN_CHAT_SQL}
  AND c.last_message_at > statement_timestamp() - make_interval(secs => %(seconds)s)
  AND NOT EXISTS (SELECT 1 FROM linking_outboundmessage o WHERE o.turn_id = t.id AND o.final)
  AND NOT (t.status = 'waiting'
           AND EXISTS (SELECT 1 FROM linking_outboundmessage o WHERE o.turn_id = t.id AND o.card > ''))
ORDER BY t.created_at LIMIT %(limit)s
"""  # noqa: S608 - both texts are ours


def is_delivery_pending(turn_id: UUID, accounts: dict[str, str]) -> bool:
    """Whether there may be an errand: one question, for most who ask have come too late."""
    with connection.cursor() as cursor:
        cursor.execute(_IS_PENDING_SQL, [turn_id])
        place = cursor.fetchone()
    return place is not None and accounts.get(place[0]) == place[1]


def load_outbound_turn(turn_id: UUID, accounts: dict[str, str]) -> OutboundTurn | None:
    """None for a turn that belongs nowhere, whose bot is not ours, or whose answer was given. `accounts`: ours."""
    standing = turn_details.get_turn_details(turn_id)
    if standing is None or standing.is_session_deleted or standing.reply is None:
        return None
    reply = standing.reply
    place = PlatformConversation.objects.filter(pk=reply.conversation_id, unreachable_at=None).first()
    if place is None or accounts.get(place.platform) != place.bot_account:
        return None
    rows = OutboundMessage.objects.filter(turn=turn_id)
    sent = {
        row.part: SentPart(message_id=row.platform_message_id, text_hash=row.text_hash, card=row.card)
        for row in rows
    }
    if any(row.final for row in rows):
        return None
    return OutboundTurn(
        turn_id=turn_id,
        session_id=standing.session_id,
        owner_id=standing.owner_id,
        conversation_id=place.pk,
        platform=place.platform,
        address=OutboundAddress(
            scope=_parse_scope(place.scope),
            container_id=place.container_id,  # where the place is now: a group may have moved (L21)
            thread_id=reply.thread,
            anchor=reply.anchor,
            reply_token=get_reply_token(place.platform, standing.run_ids),
        ),
        status=standing.status,
        sent=sent,
    )


def _parse_scope(value: str) -> ConversationScope:
    return "server" if value == "server" else "dm"


# --- parts -------------------------------------------------------------------------------------------


_INSERT_PART_SQL = """
INSERT INTO linking_outboundmessage (turn_id, part, conversation_id, platform_message_id, text_hash, card, final)
VALUES (%s, %s, %s, '', '', %s, %s) ON CONFLICT DO NOTHING
"""


def insert_part(errand: OutboundTurn, part: int, card: str) -> None:
    """Before it is sent: whoever comes after a crash knows that it may be there."""
    with connection.cursor() as cursor:
        cursor.execute(_INSERT_PART_SQL, [errand.turn_id, part, errand.conversation_id, card, False])


def record_part(turn_id: UUID, part: int, message_id: str, text_hash: str) -> None:
    OutboundMessage.objects.filter(turn=turn_id, part=part).update(
        platform_message_id=message_id, text_hash=text_hash
    )


def mark_delivered(errand: OutboundTurn) -> None:
    """The answer stands as it should, or nobody can be told: nothing more is owed."""
    if not OutboundMessage.objects.filter(turn=errand.turn_id).update(final=True):
        with connection.cursor() as cursor:
            cursor.execute(_INSERT_PART_SQL, [errand.turn_id, 1, errand.conversation_id, "", True])


def hash_content(text: str, *, with_buttons: bool) -> str:
    """Of what people see: codes of buttons are random, and another process may have made those that stand there."""
    return hashlib.sha256(f"{text}\x1f{with_buttons}".encode()).hexdigest()


def find_pending_turns(accounts: dict[str, str], limit: int = 500) -> list[UUID]:
    """Turns of our chats whose answer is not yet given in full, the oldest first; who was asked has time."""
    with connection.cursor() as cursor:
        cursor.execute(
            _FIND_PENDING_SQL,
            {
                "platforms": list(accounts),
                "accounts": list(accounts.values()),
                "seconds": DELIVERY_WINDOW.total_seconds(),
                "limit": limit,
            },
        )
        return [turn_id for (turn_id,) in cursor.fetchall()]


# --- leave to answer an interaction ------------------------------------------------------------------


def save_reply_token(platform: str, run_id: str, token: str) -> None:
    """For as long as the platform honours it; lost, the bot answers in its own name."""
    try:
        caches["shared"].set(f"reply-token:{platform}:{run_id}", token, REPLY_TOKEN_SECONDS)
    except ServiceUnavailable:
        return


def get_reply_token(platform: str, run_ids: tuple[str, ...]) -> str:
    try:
        found = caches["shared"].get_many([f"reply-token:{platform}:{run_id}" for run_id in run_ids])
    except ServiceUnavailable:
        return ""
    return next((str(token) for token in found.values()), "")
