"""Which session a place talks in, who pays for it, and how a new one is begun there (L9, L15)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal
from uuid import UUID

from django.db import IntegrityError, connection, transaction
from django.db.models import Exists, OuterRef, Q, QuerySet
from django.db.models.functions import Now

from copilot import sessions
from copilot.lasting import LATER
from linking.errors import NotLinked
from linking.models import PlatformConversation, PlatformLink, PlatformUserLink

Scope = Literal["server", "dm"]


@dataclass(frozen=True, kw_only=True)
class Bot:
    """One bot account; two of one platform share nothing (L1)."""

    platform: str
    bot_account: str


@dataclass(frozen=True, kw_only=True)
class Where:
    """A place on a platform as one bot account sees it; its ids are the platform's own."""

    platform: str
    bot_account: str
    scope: Scope
    container_id: str
    thread_id: str = ""
    server_id: str = ""  # in server scope

    @property
    def bot(self) -> Bot:
        return Bot(platform=self.platform, bot_account=self.bot_account)

    @property
    def open_rows(self) -> Q:
        return Q(
            platform=self.platform,
            bot_account=self.bot_account,
            container_id=self.container_id,
            thread_id=self.thread_id,
            closed_at=None,
        )

    @property
    def lock(self) -> str:
        return "\x1f".join((self.platform, self.bot_account, self.container_id, self.thread_id))


@dataclass(frozen=True, kw_only=True)
class Payer:
    """Whose account a place's turns run as: by exactly one of the links, never by the other (L9)."""

    owner_id: int
    speaks: bool  # whether the one who speaks is the payer (A11.8, L14)
    link: PlatformLink | None = None
    user_link: PlatformUserLink | None = None


@dataclass(frozen=True, kw_only=True)
class Open:
    """An open conversation."""

    conversation_id: UUID
    session_id: UUID


def payer_of(where: Where, platform_user_id: str) -> Payer:
    """By a link made with this very bot: other bots' links are as good as none, and so are a disabled account's (L9)."""
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

# The owner is compared too: after another account has claimed the server, nothing goes into the old session (A-L8.2).
# Where somebody writes to the bot it may be answered again: a refusal of long ago is no reason to stay silent for ever.
_OPENED = f"""
UPDATE linking_platformconversation c SET last_message_at = now(), unreachable_at = NULL
FROM copilot_session s
WHERE c.platform = %(platform)s AND c.bot_account = %(bot_account)s AND c.container_id = %(container)s
  AND c.thread_id = %(thread)s AND c.closed_at IS NULL AND s.id = c.session_id AND s.deleted_at IS NULL
  AND s.owner_id = %(owner)s AND c.link_id IS NOT DISTINCT FROM %(link)s
  AND c.user_link_id IS NOT DISTINCT FROM %(user_link)s AND {LATER}
RETURNING c.id, c.session_id
"""  # noqa: S608 - both texts are ours


def opened_at(where: Where, payer: Payer) -> Open | None:
    """The open conversation of a place, if it is this payer's and its session still stands."""
    with connection.cursor() as cursor:
        cursor.execute(
            _OPENED,
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
    return Open(conversation_id=row[0], session_id=row[1]) if row else None


def open_for(where: Where, payer: Payer) -> Open:
    """The place's conversation, begun if it has none; of several first messages all get the same one (A-L15.1)."""
    return opened_at(where, payer) or _begin(where, payer, anew=False)


def renew(where: Where, payer: Payer) -> Open:
    """`/new`: a turn that runs in the old session goes on and answers where it began (A-L15.2)."""
    return _begin(where, payer, anew=True)


def _begin(where: Where, payer: Payer, *, anew: bool) -> Open:
    try:
        with transaction.atomic():
            with connection.cursor() as cursor:
                cursor.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", [where.lock])
            if not anew and (found := opened_at(where, payer)) is not None:
                return found  # somebody else was first
            PlatformConversation.objects.filter(where.open_rows).update(closed_at=Now())
            session = sessions.create_quietly(payer.owner_id, platform=where.platform)
            made = _place(where, payer, session.pk)
    except IntegrityError as problem:
        raise NotLinked from problem  # the link went while its conversation began
    sessions.publish_change(session)
    return Open(conversation_id=made.pk, session_id=session.pk)


def _place(where: Where, payer: Payer, session_id: UUID) -> PlatformConversation:
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


def sessions_at(where: Where) -> list[UUID]:
    """All sessions that this place has ever talked in."""
    rows = PlatformConversation.objects.filter(
        platform=where.platform,
        bot_account=where.bot_account,
        container_id=where.container_id,
        thread_id=where.thread_id,
    )
    return list(rows.values_list("session_id", flat=True))


def session_at(where: Where) -> Open | None:
    """The place's open conversation, whoever pays for it; nothing is begun."""
    row = PlatformConversation.objects.filter(where.open_rows).values_list("pk", "session_id").first()
    return Open(conversation_id=row[0], session_id=row[1]) if row else None


_ASKING = """
SELECT c.id, c.session_id FROM linking_platformconversation c
WHERE c.platform = %s AND c.bot_account = %s AND c.container_id = %s AND c.thread_id = %s AND c.closed_at IS NULL
  AND EXISTS (SELECT 1 FROM copilot_question q WHERE q.session_id = c.session_id AND q.outcome = 'open')
  AND EXISTS (
      SELECT 1 FROM copilot_session s JOIN auth_user u ON u.id = s.owner_id WHERE s.id = c.session_id AND u.is_active
  )
"""


def session_asking(where: Where) -> Open | None:
    """The same, if a question waits there for an answer: for most messages one look tells that none does."""
    with connection.cursor() as cursor:
        cursor.execute(_ASKING, [where.platform, where.bot_account, where.container_id, where.thread_id])
        row = cursor.fetchone()
    return Open(conversation_id=row[0], session_id=row[1]) if row else None


def in_session(bot: Bot, session_id: UUID) -> PlatformConversation | None:
    """The bot's conversation in this session, open or closed; the session comes along."""
    mine = _of(bot).filter(session=session_id, session__deleted_at=None)
    return mine.select_related("session", "link").first()


def of_bot(bot: Bot, conversation_id: UUID) -> PlatformConversation | None:
    """By its id; the session comes along."""
    mine = _of(bot).filter(pk=conversation_id, session__deleted_at=None)
    return mine.select_related("session").first()


def is_of(bot: Bot, conversation_id: UUID) -> bool:
    return _of(bot).filter(pk=conversation_id).exists()


def owner_of_file(bot: Bot, file_id: UUID) -> int | None:
    """Whose a file is that lies in a session of this bot's own; of other files it knows nothing (L11)."""
    holding = _of(bot).filter(session__files=file_id, session__deleted_at=None)
    return holding.values_list("session__owner_id", flat=True).first()


def _of(bot: Bot) -> QuerySet[PlatformConversation]:
    return PlatformConversation.objects.filter(platform=bot.platform, bot_account=bot.bot_account)
