"""Store the meaning of chat buttons; the platform gets only their codes."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from datetime import timedelta
from typing import Literal
from uuid import UUID

from django.db.models.functions import Now

from linking.conversations.services import BotAccount
from linking.models import Button

BUTTON_CODE_BYTES = (
    16  # 22 characters: a captured one is worth nothing, because who presses it is asked again
)
BUTTON_RETENTION = timedelta(days=8)  # a day longer than an approval waits


def create_buttons(
    conversation_id: UUID, kind: Literal["approval", "question"], subject_id: UUID, answers: Sequence[str]
) -> dict[str, str]:
    """A code for each answer."""
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
    """Of this bot's conversations alone."""
    mine = Button.objects.filter(
        conversation__platform=bot.platform, conversation__bot_account=bot.bot_account
    )
    return mine.filter(pk=code).first()


def delete_buttons(subject_id: UUID) -> None:
    """They die with what they were for."""
    Button.objects.filter(subject_id=subject_id).delete()


def purge_buttons() -> int:
    return Button.objects.filter(created_at__lt=Now() - BUTTON_RETENTION).delete()[0]
