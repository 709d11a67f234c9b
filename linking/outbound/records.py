"""What was sent of a turn, and where: the only writer of OutboundMessage, by which another process goes on (L19)."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

from django.core.cache import caches
from django.db import connection

from copilot import turns
from copilot.errors import Unavailable
from linking.models import OutboundMessage, PlatformConversation
from linking.platforms.base import Address, Scope

OWED_FOR = timedelta(hours=24)  # an answer that could not be given for so long is left on the web
REPLY_TOKEN_SECONDS = 14 * 60  # Discord's last fifteen minutes; then the bot speaks for itself (L22)


@dataclass(frozen=True, kw_only=True)
class Sent:
    """A part on the platform. Without an id it was begun, and nobody knows how that ended."""

    message_id: str
    text_hash: str
    card: str


@dataclass(frozen=True, kw_only=True)
class Errand:
    """A turn whose answer belongs into a chat."""

    turn_id: UUID
    session_id: UUID
    owner_id: int
    conversation_id: UUID
    platform: str
    address: Address
    status: str
    sent: dict[int, Sent]


# What follows later stays on the web once the place is closed; what was asked for there is answered there (L16).
_BELONGS_THERE = "(c.closed_at IS NULL OR t.origin = c.platform)"
_OWED = f"""
SELECT c.platform, c.bot_account FROM copilot_turn t
JOIN linking_platformconversation c ON c.id = (t.arrival->'reply'->>'conversation_id')::uuid
WHERE t.id = %s AND c.unreachable_at IS NULL AND {_BELONGS_THERE}
  AND NOT EXISTS (SELECT 1 FROM linking_outboundmessage o WHERE o.turn_id = t.id AND o.final)
"""  # noqa: S608 - both texts are ours


# From the places where somebody spoke lately to their turns: each turn once, whatever else its session holds.
_ALL_OWED = f"""
SELECT t.id FROM linking_platformconversation c
JOIN copilot_session s ON s.id = c.session_id AND s.deleted_at IS NULL
JOIN copilot_turn t ON t.session_id = c.session_id AND t.created_at > statement_timestamp() - make_interval(secs => %(seconds)s)
    AND t.arrival->'reply'->>'conversation_id' = c.id::text
WHERE (c.platform, c.bot_account) IN (SELECT * FROM unnest(%(platforms)s::text[], %(accounts)s::text[]))
  AND c.unreachable_at IS NULL AND {_BELONGS_THERE}
  AND c.last_message_at > statement_timestamp() - make_interval(secs => %(seconds)s)
  AND NOT EXISTS (SELECT 1 FROM linking_outboundmessage o WHERE o.turn_id = t.id AND o.final)
  AND NOT (t.status = 'waiting'
           AND EXISTS (SELECT 1 FROM linking_outboundmessage o WHERE o.turn_id = t.id AND o.card > ''))
ORDER BY t.created_at LIMIT %(limit)s
"""  # noqa: S608 - both texts are ours


def is_owed(turn_id: UUID, accounts: dict[str, str]) -> bool:
    """Whether there may be an errand: one question, for most who ask have come too late."""
    with connection.cursor() as cursor:
        cursor.execute(_OWED, [turn_id])
        place = cursor.fetchone()
    return place is not None and accounts.get(place[0]) == place[1]


def errand_of(turn_id: UUID, accounts: dict[str, str]) -> Errand | None:
    """None for a turn that belongs nowhere, whose bot is not ours, or whose answer was given. `accounts`: ours."""
    standing = turns.standing(turn_id)
    if standing is None or standing.is_gone or standing.reply is None:
        return None
    reply = standing.reply
    place = PlatformConversation.objects.filter(pk=reply.conversation_id, unreachable_at=None).first()
    if place is None or accounts.get(place.platform) != place.bot_account:
        return None
    rows = OutboundMessage.objects.filter(turn=turn_id)
    sent = {
        row.part: Sent(message_id=row.platform_message_id, text_hash=row.text_hash, card=row.card)
        for row in rows
    }
    if any(row.final for row in rows):
        return None
    return Errand(
        turn_id=turn_id,
        session_id=standing.session_id,
        owner_id=standing.owner_id,
        conversation_id=place.pk,
        platform=place.platform,
        address=Address(
            scope=_scope(place.scope),
            container_id=place.container_id,  # where the place is now: a group may have moved (L21)
            thread_id=reply.thread,
            anchor=reply.anchor,
            reply_token=reply_token(place.platform, standing.run_ids),
        ),
        status=standing.status,
        sent=sent,
    )


def _scope(value: str) -> Scope:
    return "server" if value == "server" else "dm"


# --- parts -------------------------------------------------------------------------------------------


_BEGIN = """
INSERT INTO linking_outboundmessage (turn_id, part, conversation_id, platform_message_id, text_hash, card, final)
VALUES (%s, %s, %s, '', '', %s, %s) ON CONFLICT DO NOTHING
"""


def begin_part(errand: Errand, part: int, card: str) -> None:
    """Before it is sent: whoever comes after a crash knows that it may be there."""
    with connection.cursor() as cursor:
        cursor.execute(_BEGIN, [errand.turn_id, part, errand.conversation_id, card, False])


def keep_part(turn_id: UUID, part: int, message_id: str, text_hash: str) -> None:
    OutboundMessage.objects.filter(turn=turn_id, part=part).update(
        platform_message_id=message_id, text_hash=text_hash
    )


def finish(errand: Errand) -> None:
    """The answer stands as it should, or nobody can be told: nothing more is owed."""
    if not OutboundMessage.objects.filter(turn=errand.turn_id).update(final=True):
        with connection.cursor() as cursor:
            cursor.execute(_BEGIN, [errand.turn_id, 1, errand.conversation_id, "", True])


def hash_of(text: str, *, with_buttons: bool) -> str:
    """Of what people see: codes of buttons are random, and another process may have made those that stand there."""
    return hashlib.sha256(f"{text}\x1f{with_buttons}".encode()).hexdigest()


def owed(accounts: dict[str, str], limit: int = 500) -> list[UUID]:
    """Turns of our chats whose answer is not yet given in full, the oldest first; who was asked has time."""
    with connection.cursor() as cursor:
        cursor.execute(
            _ALL_OWED,
            {
                "platforms": list(accounts),
                "accounts": list(accounts.values()),
                "seconds": OWED_FOR.total_seconds(),
                "limit": limit,
            },
        )
        return [turn_id for (turn_id,) in cursor.fetchall()]


# --- leave to answer an interaction ------------------------------------------------------------------


def keep_reply_token(platform: str, run_id: str, token: str) -> None:
    """For as long as the platform honours it; lost, the bot answers in its own name."""
    try:
        caches["shared"].set(f"reply-token:{platform}:{run_id}", token, REPLY_TOKEN_SECONDS)
    except Unavailable:
        return


def reply_token(platform: str, run_ids: tuple[str, ...]) -> str:
    try:
        found = caches["shared"].get_many([f"reply-token:{platform}:{run_id}" for run_id in run_ids])
    except Unavailable:
        return ""
    return next((str(token) for token in found.values()), "")
