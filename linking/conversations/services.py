"""Find or start the session of a place, and the account that pays for it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Literal
from uuid import UUID

from django.db import IntegrityError, connection, transaction
from django.db.models import Exists, OuterRef, Q, QuerySet
from django.db.models.functions import Now

from config.core.db import ASYNC_COMMIT
from copilot.chat import announcements, sessions
from linking.errors import NotLinked
from linking.models import PlatformConversation, PlatformLink, PlatformUpdate, PlatformUserLink

ConversationScope = Literal["server", "dm"]


@dataclass(frozen=True, kw_only=True)
class BotAccount:
    """One bot account; two of one platform share nothing."""

    platform: str
    bot_account: str


@dataclass(frozen=True, kw_only=True)
class ConversationPlace:
    """A place on a platform as one bot account sees it; its ids are the platform's own."""

    platform: str
    bot_account: str
    scope: ConversationScope
    container_id: str
    thread_id: str = ""
    server_id: str = ""  # in server scope

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
    """The account that a place's turns run as, by exactly one of the two kinds of link."""

    owner_id: int
    speaks: bool  # whether the one who speaks is the payer
    link: PlatformLink | None = None
    user_link: PlatformUserLink | None = None


@dataclass(frozen=True, kw_only=True)
class OpenConversation:
    """An open conversation."""

    conversation_id: UUID
    session_id: UUID


def find_payer(where: ConversationPlace, platform_user_id: str) -> Payer:
    """By a link made with this very bot: other bots' links are as good as none, and so are a disabled account's."""
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

# The owner is compared too: after another account has claimed the server, nothing goes into the old session.
# Where somebody writes to the bot it may be answered again: a refusal of long ago is no reason to stay silent for ever.
_TOUCH_OPEN_SQL = f"""
UPDATE linking_platformconversation c SET last_message_at = now(), unreachable_at = NULL
FROM copilot_session s
WHERE c.platform = %(platform)s AND c.bot_account = %(bot_account)s AND c.container_id = %(container)s
  AND c.thread_id = %(thread)s AND c.closed_at IS NULL AND s.id = c.session_id AND s.deleted_at IS NULL
  AND s.owner_id = %(owner)s AND c.link_id IS NOT DISTINCT FROM %(link)s
  AND c.user_link_id IS NOT DISTINCT FROM %(user_link)s AND {ASYNC_COMMIT}
RETURNING c.id, c.session_id
"""  # noqa: S608 - both texts are ours


def touch_open_conversation(where: ConversationPlace, payer: Payer) -> OpenConversation | None:
    """The open conversation of a place, if it is this payer's and its session still stands."""
    with connection.cursor() as cursor:
        cursor.execute(
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
        row = cursor.fetchone()
    return OpenConversation(conversation_id=row[0], session_id=row[1]) if row else None


def get_or_open_conversation(where: ConversationPlace, payer: Payer) -> OpenConversation:
    """The place's conversation, begun if it has none; of several first messages all get the same one."""
    return touch_open_conversation(where, payer) or _open_conversation(where, payer, anew=False)


def open_new_conversation(where: ConversationPlace, payer: Payer) -> OpenConversation:
    """`/new`: a turn that runs in the old session goes on and answers where it began."""
    return _open_conversation(where, payer, anew=True)


def _open_conversation(where: ConversationPlace, payer: Payer, *, anew: bool) -> OpenConversation:
    try:
        with transaction.atomic():
            with connection.cursor() as cursor:
                cursor.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", [where.lock_key])
            if not anew and (found := touch_open_conversation(where, payer)) is not None:
                return found  # somebody else was first
            PlatformConversation.objects.filter(where.open_filter).update(closed_at=Now())
            session = sessions.create_platform_session(payer.owner_id, platform=where.platform)
            made = _create_conversation(where, payer, session.pk)
    except IntegrityError as problem:
        raise NotLinked from problem  # the link went while its conversation began
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
    """All sessions that this place has ever talked in."""
    rows = PlatformConversation.objects.filter(
        platform=where.platform,
        bot_account=where.bot_account,
        container_id=where.container_id,
        thread_id=where.thread_id,
    )
    return list(rows.values_list("session_id", flat=True))


def find_open_conversation(where: ConversationPlace) -> OpenConversation | None:
    """The place's open conversation, whoever pays for it; nothing is begun."""
    row = PlatformConversation.objects.filter(where.open_filter).values_list("pk", "session_id").first()
    return OpenConversation(conversation_id=row[0], session_id=row[1]) if row else None


_FIND_ASKING_SQL = """
SELECT c.id, c.session_id FROM linking_platformconversation c
WHERE c.platform = %s AND c.bot_account = %s AND c.container_id = %s AND c.thread_id = %s AND c.closed_at IS NULL
  AND EXISTS (SELECT 1 FROM copilot_question q WHERE q.session_id = c.session_id AND q.outcome = 'open')
  AND EXISTS (
      SELECT 1 FROM copilot_session s JOIN auth_user u ON u.id = s.owner_id WHERE s.id = c.session_id AND u.is_active
  )
"""


def find_conversation_with_question(where: ConversationPlace) -> OpenConversation | None:
    """The same, if a question waits there for an answer: for most messages one look tells that none does."""
    with connection.cursor() as cursor:
        cursor.execute(
            _FIND_ASKING_SQL, [where.platform, where.bot_account, where.container_id, where.thread_id]
        )
        row = cursor.fetchone()
    return OpenConversation(conversation_id=row[0], session_id=row[1]) if row else None


def find_conversation_in_session(bot: BotAccount, session_id: UUID) -> PlatformConversation | None:
    """The bot's conversation in this session, open or closed; the session comes along."""
    mine = _bot_conversations(bot).filter(session=session_id, session__deleted_at=None)
    return mine.select_related("session", "link").first()


def find_conversation(bot: BotAccount, conversation_id: UUID) -> PlatformConversation | None:
    """By its id; the session comes along."""
    mine = _bot_conversations(bot).filter(pk=conversation_id, session__deleted_at=None)
    return mine.select_related("session").first()


def owns_conversation(bot: BotAccount, conversation_id: UUID) -> bool:
    return _bot_conversations(bot).filter(pk=conversation_id).exists()


def find_file_owner(bot: BotAccount, file_id: UUID) -> int | None:
    """Return the owner of a file in a session of this bot; other files are unknown to it."""
    holding = _bot_conversations(bot).filter(session__files=file_id, session__deleted_at=None)
    return holding.values_list("session__owner_id", flat=True).first()


def _bot_conversations(bot: BotAccount) -> QuerySet[PlatformConversation]:
    return PlatformConversation.objects.filter(platform=bot.platform, bot_account=bot.bot_account)


RECENTLY_CLOSED = timedelta(days=1)  # a turn of a conversation closed this long ago has ended


def close_link_conversations(link_id: UUID, bot_account: str | None = None) -> list[UUID]:
    """Of all bots or of one; in the caller's transaction, before the link goes. The sessions in which turns may run."""
    mine = PlatformConversation.objects.filter(link=link_id)
    return _close_conversations(mine if bot_account is None else mine.filter(bot_account=bot_account))


def close_user_link_conversations(user_link_id: UUID) -> list[UUID]:
    return _close_conversations(PlatformConversation.objects.filter(user_link=user_link_id))


def _close_conversations(some: QuerySet[PlatformConversation]) -> list[UUID]:
    recent = some.filter(Q(closed_at=None) | Q(closed_at__gte=Now() - RECENTLY_CLOSED))
    sessions = list(recent.order_by().values_list("session_id", flat=True).distinct())
    some.filter(closed_at=None).update(closed_at=Now())
    return sessions


def delete_user_conversations(user_id: int, limit: int = 500) -> int:
    """An account goes: its map of places, and what came in from there. How many rows, at most a batch.

    Where somebody else talks by now, what came and was not handled yet is theirs.
    """
    mine = PlatformConversation.objects.filter(session__owner=user_id)
    places = list(mine.order_by("id").values_list("id", "platform", "container_id")[:limit])
    removed = 0
    for platform in {platform for _, platform, _ in places}:
        containers = {container for _, where, container in places if where == platform}
        here = PlatformConversation.objects.filter(platform=platform, container_id__in=containers)
        theirs = here.filter(closed_at=None).exclude(session__owner=user_id).values("container_id")
        came = PlatformUpdate.objects.filter(platform=platform, container_id__in=containers)
        removed += came.exclude(done_at=None, container_id__in=theirs).delete()[0]
    removed += PlatformConversation.objects.filter(pk__in=[place for place, _, _ in places]).delete()[0]
    return removed
