"""Files that somebody sends along in a direct message are put into its conversation, like any upload (L20, L25)."""

from __future__ import annotations

import logging

from copilot.commands import LIMITS
from copilot.errors import Refused, Unavailable
from copilot.workspace import files
from linking import conversations, outbound
from linking.conversations import Where
from linking.platforms.base import CallRefused, Said, SentFile, Unreachable

log = logging.getLogger(__name__)

LARGEST_BYTES = 20 * 2**20  # what Telegram gives to bots; the others are asked for no more


def attached(where: Where, said: Said) -> tuple[str, ...]:
    """Ids of what could be kept. In servers nothing is: members do not fill the owner's workspace. Raises NotLinked."""
    wanted = [file for file in said.files if file.size <= LARGEST_BYTES][: LIMITS.attachments]
    if where.scope == "server" or not wanted:
        return ()
    payer = conversations.payer_of(where, said.speaker.user_id)
    place = conversations.open_for(where, payer)
    kept = [_kept(where.platform, payer.owner_id, place, file) for file in wanted]
    return tuple(file_id for file_id in kept if file_id)


def _kept(platform: str, owner_id: int, place: conversations.Open, file: SentFile) -> str:
    """Nothing for a file that the platform does not give, or that the account has no room for."""
    try:
        content = outbound.fetch_file(platform, file)
        stored = files.store(
            owner_id, name=file.name, content=content, source="upload", session_id=place.session_id
        )
    except Unavailable:
        raise
    except (CallRefused, Unreachable, Refused) as problem:
        log.info("a file of conversation %s was left out: %s", place.conversation_id, type(problem).__name__)
        return ""
    return str(stored.pk)
