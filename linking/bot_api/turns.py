"""Bots start turns, read how they stand, stop them, decide and answer for the people who pressed (L12, L14)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal
from uuid import UUID

from django.http import HttpResponse
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter
from pydantic import Field
from rest_framework.request import Request

from billing.rest import answer, operation
from copilot import queries as copilot
from copilot.commands import FEEDBACK_CHARACTERS
from copilot.context import Channel
from copilot.errors import InvalidRequest
from linking import conversations, deliveries, inbound
from linking.bodies import body_of
from linking.bot_api.places import Name, NoThread, Place, PlatformId, Who, bot_of
from linking.doors import BotDoor
from linking.inbound import Decided, IncomingMessage, Stopped
from linking.models import BotKey

ROLES = 100
IDEMPOTENCY_KEY = OpenApiParameter(
    "Idempotency-Key",
    OpenApiTypes.STR,
    OpenApiParameter.HEADER,
    required=True,
    description="Names the message: sent again with the same body, the first answer is returned.",
    pattern="^[A-Za-z0-9_.:-]{1,128}$",
)


class BotMessage(Place):
    """What somebody said to the bot."""

    platform_user_id: PlatformId
    display_name: Name = ""
    role_ids: Annotated[list[PlatformId], Field(max_length=ROLES)] = []
    text: str = ""
    attachments: list[str] = []
    reply_to: NoThread = ""
    mentioned: bool = True
    locale: Annotated[str, Field(pattern=r"^[A-Za-z]{2,3}(-[A-Za-z0-9]{2,8})*$", max_length=35)] = "en"


@dataclass(frozen=True, kw_only=True)
class BotStarted:
    """A turn of its own began (201), or it waits behind `turn_id` (202) and becomes one later."""

    state: Literal["started", "queued"]
    session_id: str
    conversation_id: str
    message_id: str
    run_id: str
    turn_id: str
    cursor: str
    position: int = 0
    capacity: int = 0
    ignored_attachments: list[str] | None = None


class BotTurnsView(BotDoor):
    scope = "turns:start"

    @operation(
        "Say something to the agent",
        answers={201: BotStarted, 202: BotStarted},
        body=BotMessage,
        parameters=(IDEMPOTENCY_KEY,),
    )
    def post(self, request: Request) -> HttpResponse:
        key = request.headers.get("Idempotency-Key")
        if key is None:
            raise InvalidRequest("Idempotency-Key: this header is needed.")
        said = body_of(request, BotMessage)
        self.check_platform(said.platform)
        accepted = inbound.start(_message(key, said, self.key))
        body = accepted.body()
        body.pop("replayed", None)
        response = answer(body, 201 if accepted.state == "started" else 202)
        if accepted.replayed:
            response["Idempotent-Replay"] = "true"
        return response


def _message(key: str, said: BotMessage, bot: BotKey) -> IncomingMessage:
    return IncomingMessage(
        key=key,
        where=said.where(bot),
        user_id=said.platform_user_id,
        display_name=said.display_name,
        role_ids=tuple(said.role_ids),
        text=said.text,
        attachments=tuple(said.attachments),
        reply_to=said.reply_to,
        mentioned=said.mentioned,
        locale=said.locale,
        channel=channel_of(bot),
    )


def channel_of(bot: BotKey) -> Channel:
    """What a bot behind REST can do later is what it has declared: an endpoint, and the right to answer (L16)."""
    return Channel(async_delivery=deliveries.is_on(bot_of(bot)), interactive="turns:control" in bot.scopes)


class NewConversation(Place):
    platform_user_id: PlatformId


@dataclass(frozen=True, kw_only=True)
class ConversationOpened:
    conversation_id: str
    session_id: str


class BotNewConversationView(BotDoor):
    scope = "turns:start"

    @operation("Begin a new conversation in a place", answers={201: ConversationOpened}, body=NewConversation)
    def post(self, request: Request) -> HttpResponse:
        asked = body_of(request, NewConversation)
        self.check_platform(asked.platform)
        where = asked.where(self.key)
        opened = conversations.renew(where, conversations.payer_of(where, asked.platform_user_id))
        shown = ConversationOpened(
            conversation_id=str(opened.conversation_id), session_id=str(opened.session_id)
        )
        return answer(shown, 201)


# --- one turn ----------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class BotTurnShown:
    id: str
    session_id: str
    conversation_id: str
    status: str
    run_ids: list[str]
    created_at: str
    ended_at: str | None
    failure_code: str | None
    cancel_reason: str | None
    limit_code: str | None


class BotTurnView(BotDoor):
    scope = "turns:read"

    @operation("Read a turn", answers={200: BotTurnShown})
    def get(self, request: Request, turn_id: UUID) -> HttpResponse:
        seen = inbound.turn_seen(bot_of(self.key), turn_id)
        return answer(
            BotTurnShown(
                id=str(seen.turn_id),
                session_id=str(seen.session_id),
                conversation_id=seen.reply.conversation_id if seen.reply else "",
                status=seen.status,
                run_ids=list(seen.run_ids),
                created_at=copilot.instant(seen.created_at),
                ended_at=copilot.instant(seen.ended_at) if seen.ended_at else None,
                failure_code=seen.failure_code or None,
                cancel_reason=seen.cancel_reason or None,
                limit_code=seen.limit_code or None,
            )
        )


class StopAsked(Who):
    run_id: Annotated[str, Field(max_length=128)] | None = None  # of a message that waits behind the turn


class BotStopView(BotDoor):
    scope = "turns:control"

    @operation("Stop a turn, or a message that waits behind it", answers={200: Stopped}, body=StopAsked)
    def post(self, request: Request, turn_id: UUID) -> HttpResponse:
        asked = body_of(request, StopAsked)
        bot = bot_of(self.key)
        return answer(inbound.stop(bot, turn_id, user_id=asked.platform_user_id, run_id=asked.run_id))


class BotDecision(Who):
    decision: Literal["approve", "reject"]
    feedback: Annotated[str, Field(max_length=FEEDBACK_CHARACTERS)] = ""


class BotDecideView(BotDoor):
    scope = "turns:control"

    @operation("Decide about a call; the first decision counts", answers={200: Decided}, body=BotDecision)
    def post(self, request: Request, approval_id: UUID) -> HttpResponse:
        asked = body_of(request, BotDecision)
        decided = inbound.decide(
            bot_of(self.key),
            approval_id,
            user_id=asked.platform_user_id,
            decision=asked.decision,
            feedback=asked.feedback,
        )
        return answer(decided)


class BotAnswer(Who):
    """Exactly one of text and choice."""

    text: str | None = None
    choice: str | None = None


class BotAnswerView(BotDoor):
    scope = "turns:control"

    @operation("Answer a question; the first answer counts", answers={204: None}, body=BotAnswer)
    def post(self, request: Request, question_id: UUID) -> HttpResponse:
        asked = body_of(request, BotAnswer)
        inbound.answer(
            bot_of(self.key),
            question_id,
            user_id=asked.platform_user_id,
            text=asked.text,
            choice=asked.choice,
        )
        return HttpResponse(status=204)
