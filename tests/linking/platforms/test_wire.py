"""Recorded requests of each platform become the same few values, or nothing (L18, L21–L23)."""

from __future__ import annotations

import json
import time
from urllib.parse import urlencode

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from linking.platforms.base import (
    DECLARED_ATTRIBUTES,
    BotIdentity,
    BotRemoved,
    BotUnblocked,
    ButtonPressed,
    MessageReceived,
    PlatformAdapter,
    ServerMoved,
    SignatureInvalid,
    Speaker,
    UpdateMalformed,
    WebhookRequest,
    find_undeclared,
)
from linking.platforms.discord.adapter import DiscordAdapter
from linking.platforms.discord.wire import GatewayMessage, parse_message
from linking.platforms.scripted import ScriptedAdapter
from linking.platforms.slack.adapter import SlackAdapter
from linking.platforms.telegram.adapter import TelegramAdapter
from tests.platform_fakes import recorded

KEY = Ed25519PrivateKey.generate()
telegram = TelegramAdapter(token=f"{recorded.TELEGRAM_BOT}:secret-token", secret="door-secret", api_url="")
discord = DiscordAdapter(
    app_id=recorded.DISCORD_APP,
    public_key=KEY.public_key().public_bytes_raw().hex(),
    token="OTAx.x.y",
    api_url="",
)
slack = SlackAdapter(app_id=recorded.SLACK_APP, signing_secret="shh", token="xoxb", api_url="")


def hear(adapter: PlatformAdapter, payload: object, **headers: str):
    return adapter.parse_webhook(WebhookRequest(headers=headers, body=json.dumps(payload).encode()))


def signed(body: bytes, stamp: int | None = None) -> dict[str, str]:
    moment = str(stamp or int(time.time()))
    return {
        "x-signature-timestamp": moment,
        "x-signature-ed25519": KEY.sign(moment.encode() + body).hex(),
    }


def test_telegrams_updates():
    said = hear(telegram, recorded.telegram_message(text="Hi 😀")).incoming
    assert (said.update_key, said.message_key, said.place.scope) == ("10", f"{recorded.ADA}:7", "dm")
    assert isinstance(said.what, MessageReceived)
    assert (said.what.text, said.what.speaker.name, said.what.mentioned) == ("Hi 😀", "Ada Lovelace", True)

    group = hear(telegram, recorded.telegram_group_message(text="😀 @PilotBot hello", offset=3)).incoming
    assert (group.place.server_id, group.place.thread_id, group.what.mentioned) == (
        str(recorded.GROUP),
        "3",
        False,
    )
    meant = telegram.resolve_mention(
        group.what, BotIdentity(account=str(recorded.TELEGRAM_BOT), name="pilotbot")
    )
    assert (meant.mentioned, meant.text) == (True, "😀  hello")
    assert not telegram.resolve_mention(
        group.what, BotIdentity(account=str(recorded.TELEGRAM_BOT), name="otherbot")
    ).mentioned

    press = hear(telegram, recorded.telegram_press("opaque-code")).incoming
    assert isinstance(press.what, ButtonPressed)
    assert (press.what.code, press.what.reply_token, press.place.container_id) == (
        "opaque-code",
        "cb1",
        str(recorded.ADA),
    )
    assert isinstance(hear(telegram, recorded.telegram_membership("kicked")).incoming.what, BotRemoved)
    assert isinstance(hear(telegram, recorded.telegram_membership("member")).incoming.what, BotUnblocked)
    moved = hear(telegram, recorded.telegram_migration("-500", "-100500")).incoming
    assert (moved.what, moved.place.server_id) == (ServerMoved(new_id="-100500"), "-500")


def test_messages_of_bots_and_unsupported_updates_are_ignored():
    """A-L18.5: nobody answers a bot, least of all ourselves"""
    echo = recorded.telegram_message(text="echo", is_bot=True)
    assert hear(telegram, echo).incoming is None
    assert hear(telegram, {"update_id": 1, "edited_message": echo["message"]}).incoming is None
    assert hear(slack, recorded.slack_event(text="echo", bot_id="B1")).incoming is None
    assert hear(slack, recorded.slack_event(text="echo", app_id=recorded.SLACK_APP)).incoming is None
    assert hear(slack, recorded.slack_event(text="x", subtype="message_changed")).incoming is None
    message = recorded.discord_message(text="echo")
    for change in ({"author": {"id": "5", "bot": True}}, {"webhook_id": "8"}, {"type": 7}):
        assert from_discord(message | change) is None


def from_discord(message: dict[str, object], parent_id: str | None = None):
    import msgspec

    return parse_message(
        msgspec.convert(message, GatewayMessage), parent_id=parent_id, bot_id=recorded.DISCORD_BOT
    )


def test_discords_interactions_and_messages():
    assert hear(discord, {"id": "1", "type": 1}).answer == {"type": 1}
    asked = hear(discord, recorded.discord_command("ask", "hello"))
    assert asked.answer == {"type": 5, "data": {}}
    assert (asked.incoming.what.text, asked.incoming.what.speaker.is_admin) == ("hello", True)
    link = hear(discord, recorded.discord_command("link", ""))
    assert link.answer == {"type": 5, "data": {"flags": 64}}
    assert (link.incoming.what.text, link.incoming.what.reply_token[:8]) == ("/link", "private:")
    press = hear(discord, recorded.discord_press("opaque"))
    assert (press.answer, press.incoming.what.code) == ({"type": 6}, "opaque")

    said = from_discord(
        recorded.discord_message(text=f"<@{recorded.DISCORD_BOT}> hello"), parent_id=recorded.CHANNEL
    )
    assert (said.place.container_id, said.place.thread_id) == (recorded.CHANNEL, recorded.THREAD)
    assert (said.what.text, said.what.mentioned, said.what.speaker.role_ids) == (
        "hello",
        True,
        (recorded.ROLE,),
    )
    assert said.message_key == f"{recorded.THREAD}:77"


def test_slacks_events_commands_and_presses():
    assert hear(slack, {"type": "url_verification", "challenge": "c"}).answer == {"challenge": "c"}
    mention = hear(
        slack,
        recorded.slack_event(
            kind="app_mention", text=f"<@{recorded.SLACK_BOT}> a &amp; b <https://x.test|x>"
        ),
    )
    message = hear(
        slack,
        recorded.slack_event(text=f"<@{recorded.SLACK_BOT}> a &amp; b <https://x.test|x>", event_id="Ev2"),
    )
    assert mention.incoming.message_key == message.incoming.message_key == f"{recorded.SLACK_CHANNEL}:100.5"
    assert mention.incoming.what.text == message.incoming.what.text == "a & b x (https://x.test)"
    assert (mention.incoming.place.thread_id, message.incoming.what.mentioned) == ("100.5", True)
    gone = hear(slack, recorded.slack_uninstalled()).incoming
    assert (gone.what, gone.place.server_id) == (BotRemoved(), recorded.TEAM)

    form = {"content-type": "Application/X-WWW-Form-Urlencoded; charset=UTF-8"}
    body = urlencode({"payload": json.dumps(recorded.slack_press("opaque"))}).encode()
    press = slack.parse_webhook(WebhookRequest(headers=form, body=body)).incoming
    assert (press.what.code, press.what.message_id, press.place.thread_id) == ("opaque", "200.1", "100.5")
    command = slack.parse_webhook(
        WebhookRequest(headers=form, body=urlencode(recorded.slack_command("new")).encode())
    ).incoming
    assert (command.what.text, command.place.scope) == ("/new", "server")


def test_a_button_of_slack_that_leads_to_a_page_is_no_press():
    """L23: Slack reports link buttons too; people who open their link are not told that the button no longer works"""
    pressed = recorded.slack_press("x")
    pressed["actions"] = [{"type": "button", "action_id": "open:Connect", "action_ts": "301.1"}]
    form = urlencode({"payload": json.dumps(pressed)}).encode()
    knock = WebhookRequest(headers={"content-type": "application/x-www-form-urlencoded"}, body=form)
    assert slack.parse_webhook(knock).incoming is None


def test_a_persons_token_that_was_revoked_removes_no_bot():
    """L23: Slack tells of both by one event"""
    told = recorded.slack_uninstalled()
    persons = {"type": "tokens_revoked", "tokens": {"oauth": [recorded.SLACK_ADA], "bot": []}}
    assert hear(slack, told | {"event": persons}).incoming is None
    bots = {"type": "tokens_revoked", "tokens": {"bot": [recorded.SLACK_BOT]}}
    assert isinstance(hear(slack, told | {"event": bots}).incoming.what, BotRemoved)


@pytest.mark.parametrize("missing", ["trigger_id", "user_id", "channel_id", "team_id"])
def test_a_command_of_slack_without_its_fields_is_unreadable(missing):
    """L18: no update, and no error of ours; the look at our certificate is answered"""
    form = {name: value for name, value in recorded.slack_command("hello").items() if name != missing}
    headers = {"content-type": "application/x-www-form-urlencoded"}
    with pytest.raises(UpdateMalformed):
        slack.parse_webhook(WebhookRequest(headers=headers, body=urlencode(form).encode()))
    assert slack.parse_webhook(WebhookRequest(headers=headers, body=b"ssl_check=1&token=x")).incoming is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("\u0130\u0130 @PilotBot hi", "\u0130\u0130  hi"),
        ("@PilotBot2 and @pilotbot, hi", "@PilotBot2 and , hi"),
    ],
)
def test_the_bots_name_is_taken_out_of_the_words_and_nothing_else(text, words):
    """L21: also behind letters that grow when they are made small, and before a name that only begins like it"""
    said = MessageReceived(
        speaker=Speaker(user_id="1"),
        message_id="1",
        text=text,
        mentioned=False,
        names=("pilotbot2", "pilotbot"),
    )
    heard = telegram.resolve_mention(said, BotIdentity(account="1", name="PilotBot"))
    assert (heard.mentioned, heard.text) == (True, words)


@pytest.mark.parametrize("adapter", [telegram, slack], ids=["telegram", "slack"])
def test_words_that_show_nothing_as_markdown_are_shown_as_they_stand(adapter):
    """L19: the last part of an answer may hold only the addresses of its links; an empty message is refused"""
    text = "[1]: https://example.com/one\n[2]: https://example.com/two"
    assert "https://example.com/one" in adapter.render_text(text).markup


@pytest.mark.parametrize(
    "adapter", [telegram, discord, slack, ScriptedAdapter(secret="s")], ids=lambda one: one.platform
)
def test_what_is_no_update_is_unreadable_and_not_an_error(adapter):
    for body in (b"", b"[]", b"{", b'{"update_id": "x", "type": []}', b"\xff\xfe"):
        with pytest.raises(UpdateMalformed):
            adapter.parse_webhook(WebhookRequest(headers={}, body=body))


def test_a_forged_or_old_interaction_is_refused():
    """A-L22.1: one flipped byte, another key, an old stamp, nothing at all"""
    body = b'{"type":1}'
    discord.verify_signature(WebhookRequest(headers=signed(body), body=body))
    for headers, sent in (
        (signed(body), b'{"type":2}'),
        (signed(body) | {"x-signature-ed25519": "00" * 64}, body),
        (signed(body) | {"x-signature-ed25519": "zz"}, body),
        (signed(body, int(time.time()) - 301), body),
        ({}, body),
    ):
        with pytest.raises(SignatureInvalid):
            discord.verify_signature(WebhookRequest(headers=headers, body=sent))


def test_a_slack_request_is_refused_when_it_comes_again_after_six_minutes():
    """A-L23.1"""
    body = b'{"type":"event_callback"}'
    slack.verify_signature(WebhookRequest(headers=recorded.slack_headers(body, "shh"), body=body))
    for headers, sent in (
        (recorded.slack_headers(body, "shh", age_seconds=360), body),
        (recorded.slack_headers(body, "other"), body),
        (recorded.slack_headers(body, "shh"), body + b" "),
        ({}, body),
    ):
        with pytest.raises(SignatureInvalid):
            slack.verify_signature(WebhookRequest(headers=headers, body=sent))


def test_an_adapter_that_declares_not_everything_is_found_out():
    """A-L16.3"""
    assert "supports_async_delivery" in DECLARED_ATTRIBUTES

    class Forgetful(ScriptedAdapter):
        pass

    forgotten = type(
        "Half",
        (PlatformAdapter,),
        {name: 1 for name in DECLARED_ATTRIBUTES if name != "supports_async_delivery"},
    )
    assert find_undeclared(Forgetful) == []
    assert find_undeclared(forgotten) == ["supports_async_delivery"]
