"""In servers our bots answer who calls them, where they were called (L21–L23)."""

from __future__ import annotations

import json

import pytest
from django.core.cache import caches

from copilot.models import Message, Session, Turn
from linking.links import confirmation, tokens
from linking.links import services as links
from linking.links.tokens import TokenRequest
from linking.models import PlatformLink, PlatformUpdate
from linking.platforms import registry
from tests.platform_fakes import discord, recorded, slack, telegram
from tests.support import factories
from tests.support.bots import link_ada
from tests.support.platform_chats import DiscordChat, SlackChat, TelegramChat, chatting, handled
from tests.support.turn_engine import quiet, until


def claimed(platform: str, server_id: str) -> None:
    account = registry.build_adapter(platform).bot_account
    asked = TokenRequest(platform=platform, bot_account=account, subject_id=server_id, subject_name="Boats")
    confirmation.confirm_server_link(
        factories.ada(), tokens.create_server_token(asked, requester_is_admin=True).token
    )


@pytest.fixture
def fakes(rig, settings, monkeypatch):
    caches["shared"].clear()
    servers = {"telegram": telegram.Telegram(), "discord": discord.Discord(), "slack": slack.Slack()}
    with servers["telegram"].running(), servers["discord"].running(), servers["slack"].running():
        with chatting(settings, monkeypatch, **servers):
            yield servers
        assert all(fake.refused == [] for fake in servers.values())


def test_a_mention_in_a_slack_channel_is_answered_in_its_own_thread(fakes):
    """A-L23.2: app_mention and message of one post are one turn; two posts are two threads"""
    claimed("slack", recorded.TEAM)
    chat = SlackChat(fakes["slack"])
    for kind, event_id, ts in (
        ("app_mention", "Ev1", "100.5"),
        ("message", "Ev2", "100.5"),
        ("app_mention", "Ev3", "200.7"),
        ("message", "Ev4", "300.9"),
    ):
        text = f"<@{recorded.SLACK_BOT}> hello" if ts != "300.9" else "not for the bot"
        body = json.dumps(recorded.slack_event(kind=kind, text=text, event_id=event_id, ts=ts)).encode()
        assert chat.knock(body, recorded.slack_headers(body, "shh")).status_code == 200
    until(handled)
    until(lambda: [one.markup for one in fakes["slack"].shown(recorded.SLACK_CHANNEL)] == ["Aye.", "Aye."])
    assert {one.thread_ts for one in fakes["slack"].shown(recorded.SLACK_CHANNEL)} == {"100.5", "200.7"}
    assert Turn.objects.count() == 2
    assert set(Message.objects.filter(kind="user").values_list("author", flat=True)) == {"Ada Lovelace"}
    assert fakes["slack"].calls.count("users.info") == 1


def test_a_thread_in_a_direct_chat_of_slack_is_answered_in_the_thread(fakes):
    """L23, L15: always in the thread, although a direct chat is one conversation; a command and a press too"""
    link_ada("slack", recorded.SLACK_ADA, bot_account=registry.build_adapter("slack").bot_account)
    fake, chat = fakes["slack"], SlackChat(fakes["slack"])
    for number, (text, thread) in enumerate((("hello", ""), ("and here?", "1.5"), ("/status", "1.5")), 2):
        where = {"channel": recorded.SLACK_DM, "channel_type": "im"} | (
            {"thread_ts": thread} if thread else {}
        )
        told = recorded.slack_event(text=text, event_id=f"Ev{number}", ts=f"{number}.5", **where)
        body = json.dumps(told).encode()
        assert chat.knock(body, recorded.slack_headers(body, "shh")).status_code == 200
        until(handled)
        quiet(Session.objects.get())
        until(lambda number=number: len(fake.shown(recorded.SLACK_DM)) == number - 1)
    chat.press("unknown")  # the card that it stood on hangs in the thread 100.5
    until(lambda: len(fake.shown(recorded.SLACK_DM)) == 4)
    assert [one.thread_ts for one in fake.shown(recorded.SLACK_DM)] == ["", "1.5", "1.5", "100.5"]


def test_a_telegram_group_hears_the_bot_where_it_calls_it_by_name(fakes):
    """A-L21.2: the name is asked for once; the topic and the answered message are kept"""
    claimed("telegram", str(recorded.GROUP))
    fake = fakes["telegram"]
    chat = TelegramChat(fake)
    for number, text in enumerate(("@PilotBot hello", "@OtherBot hello", "/ask@PilotBot again"), start=1):
        at = text.index("@")
        update = recorded.telegram_group_message(text=text, offset=at, update_id=number, message_id=number)
        assert chat.knock(*chat._signed(update)).status_code == 200
        until(handled)
    until(lambda: [one.text for one in fake.shown(str(recorded.GROUP))] == ["Aye.", "Aye."])
    assert [(one.thread_id, one.reply_to) for one in fake.shown(str(recorded.GROUP))] == [
        ("3", "1"),
        ("3", "3"),
    ]
    assert fake.calls.count("getMe") == 1
    assert Turn.objects.count() == 2
    rows = Message.objects.filter(kind="user").order_by("sequence")
    assert list(rows.values_list("content", flat=True)) == ["hello", "again"]


def test_a_discord_server_is_answered_by_the_promised_reply_and_linked_in_private(fakes):
    """A-L22.2: an ephemeral link, a public answer, and nothing left open"""
    fake = fakes["discord"]
    chat = DiscordChat(fake)

    def command(name: str, words: str, number: str) -> None:
        body, headers = chat._signed(recorded.discord_command(name, words, interaction_id=number))
        assert chat.knock(body, headers).status_code == 200
        until(handled)

    command("ask", "hello?", "1")  # not linked: answered privately, and the promised reply is removed
    [prompt] = fake.shown(recorded.CHANNEL)
    assert ("isn't connected" in prompt.content, prompt.flags) == (True, 64 | 4)
    command("ask", "hello??", "11")  # told before; what was promised must not stay open for all that
    assert fake.shown(recorded.CHANNEL)[-1].flags == 64 | 4
    command("link", "", "2")
    url = chat.button("Connect")
    confirmation.confirm_server_link(factories.ada(), url.rsplit("/", 1)[1])
    command("ask", "hello!", "3")
    until(lambda: "Aye." in chat.texts())
    assert next(call for call in fake.calls if "interaction-token-3" in call).startswith("PATCH")
    assert PlatformUpdate.objects.filter(outcome="started").count() == 1
    link = PlatformLink.objects.get()
    assert link.server_name == "Boats"
    links.update_server_link(link.owner_id, link.pk, {"state": "paused"})
    for number in ("4", "5"):  # once an hour is for channels: who asked is told each time, alone
        command("ask", "hello?", number)
        assert (
            "paused" in fake.shown(recorded.CHANNEL)[-1].content,
            fake.shown(recorded.CHANNEL)[-1].flags,
        ) == (True, 64 | 4)
    assert fake.promised == set()
