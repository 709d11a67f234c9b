"""Files that somebody sends along are put into the conversation, like any upload (L8, L20, L25)."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from copilot.commands import LIMITS
from copilot.errors import Refused, Unavailable
from copilot.workspace import files
from linking import caps, conversations, outbound
from linking.conversations import Where
from linking.platforms.base import Away, CallRefused, Said, SentFile, Unreachable

log = logging.getLogger(__name__)

TRIES = 3
LARGEST_BYTES = 20 * 2**20  # what Telegram gives to bots; the others are asked for no more


@dataclass(frozen=True, kw_only=True)
class Attached:
    """What goes with a message. `sources` names it as the platform does: in a repetition the ids are others."""

    ids: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    left_out: int = 0  # too large, not given by the platform, or without room in the account


def attached(where: Where, said: Said) -> Attached:
    """Refuses NotLinked, and in a server what its owner does not allow: members fill nobody's workspace unasked."""
    if not said.files:
        return Attached()
    payer = conversations.payer_of(where, said.speaker.user_id)
    if payer.link is not None:
        caps.foresee(
            payer.link,
            caps.Said(
                run_id="",
                container_id=where.container_id,
                platform_user_id=said.speaker.user_id,
                role_ids=said.speaker.role_ids,
                mentioned=said.mentioned,
            ),
        )
    wanted = [file for file in said.files if file.size <= LARGEST_BYTES][: LIMITS.attachments]
    place = conversations.open_for(where, payer) if wanted else None
    kept = [_kept(where.platform, payer.owner_id, place, file) for file in wanted if place is not None]
    ids = tuple(file_id for file_id in kept if file_id)
    return Attached(
        ids=ids,
        sources=tuple(file.reference for file in said.files),
        left_out=len(said.files) - len(ids),
    )


def _kept(platform: str, owner_id: int, place: conversations.Open, file: SentFile) -> str:
    """Nothing for a file that the platform does not give, or that the account has no room for."""
    try:
        content = _fetched(platform, file)
        if len(content) > LARGEST_BYTES:
            return ""
        stored = files.store(
            owner_id, name=file.name, content=content, source="platform", session_id=place.session_id
        )
    except Unavailable:
        raise
    except (Away, CallRefused, Unreachable, Refused) as problem:
        log.info("a file of conversation %s was left out: %s", place.conversation_id, type(problem).__name__)
        return ""
    return str(stored.pk)


def _fetched(platform: str, file: SentFile) -> bytes:
    """A few tries: a file that never comes must not hold up its chat for ever (L18)."""
    for _ in range(TRIES - 1):
        try:
            return outbound.fetch_file(platform, file)
        except Away:
            continue
    return outbound.fetch_file(platform, file)
