"""From an unlinked person to a chat and back, on every platform as its documents describe it (L27)."""

from __future__ import annotations

import pytest

from copilot.models import Message, Session, Turn
from copilot.providers.scripted import ScriptedCall, ScriptedText
from linking.links import confirmation
from linking.models import OutboundMessage, PlatformConversation, PlatformUpdate
from tests.platform_fakes import discord, slack, telegram
from tests.support import factories
from tests.support.platform_chats import (
    Chat,
    DiscordChat,
    ScriptedChat,
    SlackChat,
    TelegramChat,
    chatting,
    written_down,
)
from tests.support.turn_engine import Errand, add_tools, cue, until


@pytest.fixture
def fakes():
    servers = {"telegram": telegram.Telegram(), "discord": discord.Discord(), "slack": slack.Slack()}
    with servers["telegram"].running(), servers["discord"].running(), servers["slack"].running():
        yield servers


@pytest.fixture(params=["telegram", "discord", "slack", "scripted"])
def chat(request, fakes, rig, settings, monkeypatch):
    with chatting(settings, monkeypatch, **fakes):
        kinds = {"telegram": TelegramChat, "discord": DiscordChat, "slack": SlackChat}
        made = ScriptedChat() if request.param == "scripted" else kinds[request.param](fakes[request.param])
        with written_down() as out:
            yield made
        assert all(fake.refused == [] for fake in fakes.values())
    _tells_nothing(made, out.getvalue(), [fake.token for fake in fakes.values()])


def _tells_nothing(chat: Chat, written: str, tokens: list[str]) -> None:
    """A-L25.1: no id of a person, a place, a bot or a message, no token of a bot, a link or a reply, and no word, over a whole flow."""
    assert written.count("\n") > 5
    numbers = [str(number) for number in range(chat.first, next(chat.numbers))]
    links_shown = [
        value.rsplit("/", 1)[1] for one in chat.shown() for _, value in one.buttons if "/link/" in value
    ]
    for secret in (
        *chat.ids,
        *numbers,
        *tokens,
        *links_shown,
        "interaction-token",
        "Pay the rent",
        "fresh start",
    ):
        assert secret not in written, secret


def link(chat: Chat, label: str = "Connect") -> None:
    """Ask for the link, open it and confirm."""
    until(lambda: chat.button(label))
    token = chat.button(label).rsplit("/", 1)[1]
    confirmation.confirm_user_link(factories.ada(), token)


def test_a_person_links_chats_approves_starts_over_and_unlinks(chat: Chat, model, monkeypatch):
    """A-L27.1: unlinked, link, confirm, message, streamed answer, approval by button, /new, /unlink"""
    add_tools(monkeypatch, Errand("pay", approval="ask"))
    model.otherwise = lambda request: [ScriptedText("Done: it is paid.")]
    assert chat.say("Hello?").status_code == 200
    link(chat)
    assert Message.objects.count() == 0

    model.will(ScriptedText("Hello "), cue(1), ScriptedText("there, Ada."))
    before = len(chat.shown())
    assert chat.say("Hello?").status_code == 200
    until(lambda: any(text.startswith("Hello") for text in chat.texts()[before:]))
    model.give(1)
    until(lambda: "Hello there, Ada." in chat.texts())

    model.will(ScriptedText("Let me pay."), ScriptedCall("pay", {"note": "rent"}))
    chat.say("Pay the rent")
    until(lambda: chat.button("Approve"))
    chat.press(chat.button("Approve"))
    until(lambda: "Done: it is paid." in chat.texts())
    until(lambda: not chat.button("Approve"))
    until(lambda: not OutboundMessage.objects.filter(final=False).exists())

    chat.say("/new")
    until(lambda: "Started a new chat." in chat.texts())
    model.will(ScriptedText("A fresh start."))
    chat.say("Again")
    until(lambda: "A fresh start." in chat.texts())
    assert Session.objects.count() == 2
    assert PlatformConversation.objects.filter(closed_at=None).count() == 1
    assert Turn.objects.count() == 3
    assert not PlatformUpdate.objects.exclude(payload=None).exists()

    chat.say("/unlink")
    until(lambda: any(text.startswith("Disconnected") for text in chat.texts()))
    chat.say("Still there?")
    until(lambda: PlatformUpdate.objects.filter(outcome="unlinked").count() == 2)
    assert Turn.objects.count() == 3
