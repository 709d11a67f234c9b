"""Buttons in a chat bear random codes; what one means is kept here, and who presses it is asked again (L14)."""

from __future__ import annotations

from typing import Literal

from copilot.errors import NotFound
from linking import conversations
from linking.conversations import Bot
from linking.inbound import controls
from linking.inbound.controls import Decided


def press(bot: Bot, code: str, *, user_id: str) -> Decided | Literal["answered"]:
    """Raises what deciding or answering would: 403 for others, 409 with the state when it is over."""
    button = conversations.button(bot, code)
    if button is None:
        raise NotFound
    if button.kind == "question":
        controls.answer(bot, button.subject_id, user_id=user_id, choice=button.answer)
        conversations.forget_buttons(button.subject_id)
        return "answered"
    decision: controls.Decision = "approve" if button.answer == "approve" else "reject"
    decided = controls.decide(bot, button.subject_id, user_id=user_id, decision=decision)
    conversations.forget_buttons(button.subject_id)
    return decided
