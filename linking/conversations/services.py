"""Find or start the session of a place, and the account that pays for it."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal
from uuid import UUID

from django.db import IntegrityError, connection, transaction
from django.db.models import Exists, OuterRef, Q
from django.db.models.functions import Now

from config.core.db import ASYNC_COMMIT, fetch_one
from copilot.chat import announcements, sessions
from linking.errors import NotLinked
from linking.models import Button, PlatformConversation, PlatformLink, PlatformUpdate, PlatformUserLink
from linking.models.conversations import PlatformConversationQuerySet

ConversationScope = Literal["server", "dm"]


@dataclass(frozen=True, kw_only=True)
class BotAccount:
    """A bot account; two accounts on one platform share nothing."""

    platform: str
    bot_account: str


@dataclass(frozen=True, kw_only=True)
class ConversationPlace:
    """A place on a platform as one bot account sees it, with the platform's own ids."""

    platform: str
    bot_account: str
    scope: ConversationScope
    container_id: str
    thread_id: str = ""
    server_id: str = ""  # only in servers

    @property
    def bot(self) -> BotAccount:
        return BotAccount(platform=self.platform, bot_account=self.bot_account)

    @property
    def open_filter(self) -> Q:
        return Q(
            platform=self.platform,
            bot_account=self.bot_account,
            container_id=self.container_id,
            thread_id=self.thread_id,
            closed_at=None,
        )

    @property
    def lock_key(self) -> str:
        return "\x1f".join((self.platform, self.bot_account, self.container_id, self.thread_id))


@dataclass(frozen=True, kw_only=True)
class Payer:
    """The account that pays for the turns of a place, through exactly one of the two kinds of link."""

    owner_id: int
    speaks: bool  # the speaker is the payer
    link: PlatformLink | None = None
    user_link: PlatformUserLink | None = None


@dataclass(frozen=True)
class OpenConversation:
    conversation_id: UUID
    session_id: UUID


def find_payer(where: ConversationPlace, platform_user_id: str) -> Payer:
    """Find the payer through a link of this very bot. Links of other bots and of disabled accounts do not count."""
    speaker = PlatformUserLink.objects.filter(
        platform=where.platform, bot_account=where.bot_account, platform_user_id=platform_user_id
    )
    if where.scope == "server":
        servers = PlatformLink.objects.filter(
            platform=where.platform, bot_account=where.bot_account, server_id=where.server_id
        )
        speaks = Exists(speaker.filter(user=OuterRef("owner")))
        link = servers.filter(owner__is_active=True).annotate(payer_speaks=speaks).first()
        if link is None:
            raise NotLinked("This server is not linked to an account.")
        return Payer(owner_id=link.owner_id, link=link, speaks=link.payer_speaks)
    user_link = speaker.filter(user__is_active=True).first()
    if user_link is None:
        raise NotLinked("This chat account is not linked to an account.")
    return Payer(owner_id=user_link.user_id, user_link=user_link, speaks=True)


# --- the place's session -----------------------------------------------------------------------------

# The owner is compared too: after another account has claimed the server, nothing goes into the old session. A message
# to the bot makes the place reachable again, however long ago the platform refused ours.
_TOUCH_OPEN_SQL = f"""
UPDATE linking_platformconversation c SET last_message_at = now(), unreachable_at = NULL
FROM copilot_session s
WHERE c.platform = %(platform)s AND c.bot_account = %(bot_account)s AND c.container_id = %(container)s
  AND c.thread_id = %(thread)s AND c.closed_at IS NULL AND s.id = c.session_id AND s.deleted_at IS NULL
  AND s.owner_id = %(owner)s AND c.link_id IS NOT DISTINCT FROM %(link)s
  AND c.user_link_id IS NOT DISTINCT FROM %(user_link)s AND {ASYNC_COMMIT}
RETURNING c.id AS conversation_id, c.session_id
"""  # noqa: S608 - both texts are ours


def touch_open_conversation(where: ConversationPlace, payer: Payer) -> OpenConversation | None:
    """Return the open conversation of a place if it belongs to this payer and its session still exists."""
    return fetch_one(
        OpenConversation,
        _TOUCH_OPEN_SQL,
        {
            "platform": where.platform,
            "bot_account": where.bot_account,
            "container": where.container_id,
            "thread": where.thread_id,
            "owner": payer.owner_id,
            "link": payer.link.pk if payer.link else None,
            "user_link": payer.user_link.pk if payer.user_link else None,
        },
    )


def get_or_open_conversation(where: ConversationPlace, payer: Payer) -> OpenConversation:
    """Return the place's conversation, or open one; concurrent first messages get the same one."""
    return touch_open_conversation(where, payer) or _open_conversation(where, payer, always_new=False)


def open_new_conversation(where: ConversationPlace, payer: Payer) -> OpenConversation:
    """Open a new conversation (`/new`). A running turn in the old session continues and answers there."""
    return _open_conversation(where, payer, always_new=True)


def _open_conversation(where: ConversationPlace, payer: Payer, *, always_new: bool) -> OpenConversation:
    try:
        with transaction.atomic():
            with connection.cursor() as cursor:
                cursor.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", [where.lock_key])
            if not always_new and (found := touch_open_conversation(where, payer)) is not None:
                return found  # another process was first
            PlatformConversation.objects.filter(where.open_filter).update(closed_at=Now())
            session = sessions.create_platform_session(payer.owner_id, platform=where.platform)
            made = _create_conversation(where, payer, session.pk)
    except IntegrityError as problem:
        raise NotLinked from problem  # the link was removed meanwhile
    announcements.publish_session_change(session)
    return OpenConversation(conversation_id=made.pk, session_id=session.pk)


def _create_conversation(where: ConversationPlace, payer: Payer, session_id: UUID) -> PlatformConversation:
    return PlatformConversation.objects.create(
        platform=where.platform,
        bot_account=where.bot_account,
        container_id=where.container_id,
        thread_id=where.thread_id,
        scope=where.scope,
        link=payer.link,
        user_link=payer.user_link,
        session_id=session_id,
    )


def list_place_sessions(where: ConversationPlace) -> list[UUID]:
    """List all sessions of this place, closed ones too."""
    rows = PlatformConversation.objects.filter(
        platform=where.platform,
        bot_account=where.bot_account,
        container_id=where.container_id,
        thread_id=where.thread_id,
    )
    return list(rows.values_list("session_id", flat=True))


def find_open_conversation(where: ConversationPlace) -> OpenConversation | None:
    """Return the place's open conversation, no matter who pays for it, or None."""
    found = PlatformConversation.objects.filter(where.open_filter).only("session_id").first()
    return OpenConversation(conversation_id=found.pk, session_id=found.session_id) if found else None


_FIND_ASKING_SQL = """
SELECT c.id AS conversation_id, c.session_id FROM linking_platformconversation c
WHERE c.platform = %s AND c.bot_account = %s AND c.container_id = %s AND c.thread_id = %s AND c.closed_at IS NULL
  AND EXISTS (SELECT 1 FROM copilot_question q WHERE q.session_id = c.session_id AND q.outcome = 'open')
  AND EXISTS (
      SELECT 1 FROM copilot_session s JOIN auth_user u ON u.id = s.owner_id WHERE s.id = c.session_id AND u.is_active
  )
"""


def find_conversation_with_question(where: ConversationPlace) -> OpenConversation | None:
    """Return the place's open conversation if a question waits there; one query for the many messages without one."""
    return fetch_one(
        OpenConversation,
        _FIND_ASKING_SQL,
        [where.platform, where.bot_account, where.container_id, where.thread_id],
    )


def find_conversation_in_session(bot: BotAccount, session_id: UUID) -> PlatformConversation | None:
    """Return the bot's conversation in this session, open or closed, with its session."""
    mine = _bot_conversations(bot).filter(session=session_id, session__deleted_at=None)
    return mine.select_related("session", "link").first()


def find_conversation(bot: BotAccount, conversation_id: UUID) -> PlatformConversation | None:
    """Return a conversation of this bot with its session."""
    mine = _bot_conversations(bot).filter(pk=conversation_id, session__deleted_at=None)
    return mine.select_related("session").first()


def owns_conversation(bot: BotAccount, conversation_id: UUID) -> bool:
    return _bot_conversations(bot).filter(pk=conversation_id).exists()


def find_file_owner(bot: BotAccount, file_id: UUID) -> int | None:
    """Return the owner of a file in a session of this bot; other files are unknown to it."""
    holding = _bot_conversations(bot).filter(session__files=file_id, session__deleted_at=None)
    return holding.values_list("session__owner_id", flat=True).first()


def _bot_conversations(bot: BotAccount) -> PlatformConversationQuerySet:
    return PlatformConversation.objects.filter(platform=bot.platform, bot_account=bot.bot_account)


RECENTLY_CLOSED = timedelta(days=1)  # a turn of a conversation closed this long ago has ended


def close_link_conversations(link_id: UUID, bot_account: str | None = None) -> list[UUID]:
    """Close the conversations of a link, of one bot or of all, in the caller's transaction before the link is deleted.

    Return the sessions in which turns may still run.
    """
    mine = PlatformConversation.objects.filter(link=link_id)
    return _close_conversations(mine if bot_account is None else mine.filter(bot_account=bot_account))


def close_user_link_conversations(user_link_id: UUID) -> list[UUID]:
    return _close_conversations(PlatformConversation.objects.filter(user_link=user_link_id))


def _close_conversations(some: PlatformConversationQuerySet) -> list[UUID]:
    recent = some.filter(Q(closed_at=None) | Q(closed_at__gte=Now() - RECENTLY_CLOSED))
    sessions = list(recent.order_by().values_list("session_id", flat=True).distinct())
    some.open().update(closed_at=Now())
    return sessions


def delete_user_conversations(user_id: int, limit: int = 500) -> int:
    """Delete a batch of an account's conversations and stored updates; return the number of rows.

    Unhandled updates of a place where another account talks now are kept.
    """
    mine = PlatformConversation.objects.filter(session__owner=user_id)
    places = list(mine.order_by("id").values_list("id", "platform", "container_id")[:limit])
    removed = 0
    for platform in {platform for _, platform, _ in places}:
        containers = {container for _, where, container in places if where == platform}
        here = PlatformConversation.objects.filter(platform=platform, container_id__in=containers)
        theirs = here.open().exclude(session__owner=user_id).values("container_id")
        came = PlatformUpdate.objects.filter(platform=platform, container_id__in=containers)
        removed += came.exclude(done_at=None, container_id__in=theirs).delete()[0]
    removed += PlatformConversation.objects.filter(pk__in=[place for place, _, _ in places]).delete()[0]
    return removed


# --- Buttons ---

BUTTON_CODE_BYTES = 16  # 22 characters; a captured code is useless, because the person who presses is checked
BUTTON_RETENTION = timedelta(days=8)  # a day longer than an approval waits


def create_buttons(
    conversation_id: UUID, kind: Literal["approval", "question"], subject_id: UUID, answers: Sequence[str]
) -> dict[str, str]:
    """Create a button for each answer and return its code."""
    made = [
        Button(
            code=secrets.token_urlsafe(BUTTON_CODE_BYTES),
            conversation_id=conversation_id,
            kind=kind,
            subject_id=subject_id,
            answer=answer,
        )
        for answer in answers
    ]
    return {button.answer: button.code for button in Button.objects.bulk_create(made)}


def find_button(bot: BotAccount, code: str) -> Button | None:
    mine = Button.objects.filter(
        conversation__platform=bot.platform, conversation__bot_account=bot.bot_account
    )
    return mine.filter(pk=code).first()


def delete_buttons(subject_id: UUID) -> None:
    Button.objects.filter(subject_id=subject_id).delete()


def purge_buttons() -> int:
    return Button.objects.filter(created_at__lt=Now() - BUTTON_RETENTION).delete()[0]
