"""Views through which bots start, read and stop turns, decide approvals and answer questions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal
from uuid import UUID

from django.http import HttpResponse
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter
from pydantic import Field
from rest_framework.request import Request

from config.core.api.views import document_operation, respond_json
from config.core.errors import InvalidRequest
from copilot.chat.commands import MAX_FEEDBACK_CHARACTERS
from copilot.chat.turn_context import Channel
from copilot.realtime import payloads
from linking.api.serializers import parse_body
from linking.bot_api.views import (
    BotAPIView,
    DisplayName,
    OptionalPlatformId,
    PlaceBody,
    PlatformId,
    SpeakerBody,
    to_bot_account,
)
from linking.conversations import services as conversations
from linking.inbound import controls, messages
from linking.inbound.controls import Decided, Stopped
from linking.inbound.messages import IncomingMessage
from linking.models import BotKey
from linking.webhook_deliveries import endpoints

MAX_ROLES = 100
IDEMPOTENCY_KEY_HEADER = OpenApiParameter(
    "Idempotency-Key",
    OpenApiTypes.STR,
    OpenApiParameter.HEADER,
    required=True,
    description="Identifies the message. Sent again with the same body, it returns the first response.",
    pattern="^[A-Za-z0-9_.:-]{1,128}$",
)


class BotMessage(PlaceBody):
    """A message from somebody to the bot."""

    platform_user_id: PlatformId
    display_name: DisplayName = ""
    role_ids: Annotated[list[PlatformId], Field(max_length=MAX_ROLES)] = []
    text: str = ""
    attachments: list[str] = []
    reply_to: OptionalPlatformId = ""
    mentioned: bool = True
    locale: Annotated[str, Field(pattern=r"^[A-Za-z]{2,3}(-[A-Za-z0-9]{2,8})*$", max_length=35)] = "en"


@dataclass(frozen=True, kw_only=True)
class BotStarted:
    """The message started a turn (201), or is queued behind `turn_id` (202) and starts one later."""

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


class BotTurnsView(BotAPIView):
    scope = "turns:start"

    @document_operation(
        "Send a message",
        answers={201: BotStarted, 202: BotStarted},
        body=BotMessage,
        parameters=(IDEMPOTENCY_KEY_HEADER,),
    )
    def post(self, request: Request) -> HttpResponse:
        key = request.headers.get("Idempotency-Key")
        if key is None:
            raise InvalidRequest("Idempotency-Key: this header is required.")
        message = parse_body(request, BotMessage)
        self.check_platform(message.platform)
        accepted = messages.start_turn(_build_message(key, message, self.key))
        body = accepted.to_body()
        body.pop("replayed", None)
        response = respond_json(body, 201 if accepted.state == "started" else 202)
        if accepted.replayed:
            response["Idempotent-Replay"] = "true"
        return response


def _build_message(key: str, message: BotMessage, bot: BotKey) -> IncomingMessage:
    return IncomingMessage(
        key=key,
        where=message.to_conversation_place(bot),
        user_id=message.platform_user_id,
        display_name=message.display_name,
        role_ids=tuple(message.role_ids),
        text=message.text,
        attachments=tuple(message.attachments),
        reply_to=message.reply_to,
        mentioned=message.mentioned,
        locale=message.locale,
        channel=get_channel(bot),
    )


def get_channel(bot: BotKey) -> Channel:
    """Derive the channel's capabilities from the bot's delivery endpoint and the scopes of its key."""
    return Channel(
        async_delivery=endpoints.has_enabled_endpoint(to_bot_account(bot)),
        interactive="turns:control" in bot.scopes,
    )


class NewConversation(PlaceBody):
    platform_user_id: PlatformId


@dataclass(frozen=True, kw_only=True)
class ConversationOpened:
    conversation_id: str
    session_id: str


class BotNewConversationView(BotAPIView):
    scope = "turns:start"

    @document_operation(
        "Start a new conversation in a place", answers={201: ConversationOpened}, body=NewConversation
    )
    def post(self, request: Request) -> HttpResponse:
        body = parse_body(request, NewConversation)
        self.check_platform(body.platform)
        where = body.to_conversation_place(self.key)
        opened = conversations.open_new_conversation(
            where, conversations.find_payer(where, body.platform_user_id)
        )
        response_body = ConversationOpened(
            conversation_id=str(opened.conversation_id), session_id=str(opened.session_id)
        )
        return respond_json(response_body, 201)


# --- One turn ---


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


class BotTurnView(BotAPIView):
    scope = "turns:read"

    @document_operation("Read a turn", answers={200: BotTurnShown})
    def get(self, request: Request, turn_id: UUID) -> HttpResponse:
        turn = controls.get_own_turn(to_bot_account(self.key), turn_id)
        return respond_json(
            BotTurnShown(
                id=str(turn.turn_id),
                session_id=str(turn.session_id),
                conversation_id=turn.reply.conversation_id if turn.reply else "",
                status=turn.status,
                run_ids=list(turn.run_ids),
                created_at=payloads.format_timestamp(turn.created_at),
                ended_at=payloads.format_timestamp(turn.ended_at) if turn.ended_at else None,
                failure_code=turn.failure_code or None,
                cancel_reason=turn.cancel_reason or None,
                limit_code=turn.limit_code or None,
            )
        )


class StopAsked(SpeakerBody):
    run_id: Annotated[str, Field(max_length=128)] | None = None  # of a message queued behind the turn


class BotStopView(BotAPIView):
    scope = "turns:control"

    @document_operation(
        "Stop a turn, or withdraw a message queued behind it", answers={200: Stopped}, body=StopAsked
    )
    def post(self, request: Request, turn_id: UUID) -> HttpResponse:
        body = parse_body(request, StopAsked)
        bot = to_bot_account(self.key)
        return respond_json(
            controls.stop_turn(bot, turn_id, user_id=body.platform_user_id, run_id=body.run_id)
        )


class BotDecision(SpeakerBody):
    decision: Literal["approve", "reject"]
    feedback: Annotated[str, Field(max_length=MAX_FEEDBACK_CHARACTERS)] = ""


class BotDecideView(BotAPIView):
    scope = "turns:control"

    @document_operation(
        "Decide an approval; the first decision counts", answers={200: Decided}, body=BotDecision
    )
    def post(self, request: Request, approval_id: UUID) -> HttpResponse:
        body = parse_body(request, BotDecision)
        decided = controls.decide_approval(
            to_bot_account(self.key),
            approval_id,
            user_id=body.platform_user_id,
            decision=body.decision,
            feedback=body.feedback,
        )
        return respond_json(decided)


class BotAnswer(SpeakerBody):
    """An answer with exactly one of text and choice."""

    text: str | None = None
    choice: str | None = None


class BotAnswerView(BotAPIView):
    scope = "turns:control"

    @document_operation("Answer a question; the first answer counts", answers={204: None}, body=BotAnswer)
    def post(self, request: Request, question_id: UUID) -> HttpResponse:
        body = parse_body(request, BotAnswer)
        controls.answer_question(
            to_bot_account(self.key),
            question_id,
            user_id=body.platform_user_id,
            text=body.text,
            choice=body.choice,
        )
        return HttpResponse(status=204)
