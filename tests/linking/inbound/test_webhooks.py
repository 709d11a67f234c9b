"""Webhooks store only what is authenticated; each has its forged, replayed, oversized and odd requests (L18, L27)."""

from __future__ import annotations

import json
import time

import pytest
from django.core.management import call_command
from django.core.management.base import SystemCheckError
from django.db import DatabaseError
from django.test import Client
from kombu.exceptions import OperationalError

from config.celery import app
from linking.inbound import updates
from linking.inbound.commands import COMMANDS
from linking.models import PlatformUpdate
from linking.platforms import registry
from linking.platforms.base import FORM_TYPE, JSON_TYPE, PlatformAdapter
from tests.platform_fakes import discord, recorded, slack, telegram
from tests.support.platform_chats import DiscordChat, ScriptedChat, SlackChat, TelegramChat, chatting

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(params=["telegram", "discord", "slack", "scripted"])
def chat(request, settings, monkeypatch):
    """Nobody handles what is stored: there is no worker here."""
    fakes = {"telegram": telegram.Telegram(), "discord": discord.Discord(), "slack": slack.Slack()}
    kinds = {"telegram": TelegramChat, "discord": DiscordChat, "slack": SlackChat}
    monkeypatch.setattr("linking.tasks.enqueue_update", lambda *told, **how: None)
    with chatting(settings, monkeypatch, **fakes):
        yield ScriptedChat() if request.param == "scripted" else kinds[request.param](fakes[request.param])


def rows() -> int:
    return PlatformUpdate.objects.count()


def test_a_proven_update_is_stored_once(chat):
    """A-L23.2: the same one again, retries included, is fine and nothing new"""
    for _ in range(3):
        assert chat.say("Hello", number=7).status_code == 200
    assert rows() == 1
    assert PlatformUpdate.objects.get().payload["what"]["type"] == "said"


def test_one_flipped_byte_is_a_forgery(chat):
    """A-L18.3, A-L22.1: 401 and no row; where the proof is a secret, that is flipped"""
    body, headers = chat.update("Hello", 8)
    if chat.platform in ("telegram", "scripted"):
        forged = {name: value[:-1] + "x" for name, value in headers.items()}
        assert chat.knock(body, forged).status_code == 401
    else:
        assert chat.knock(body.replace(b"Hello", b"Jello"), headers).status_code == 401
    assert chat.knock(body, {}).status_code == 401
    assert rows() == 0


def test_an_old_request_is_a_replay(chat, time_machine):
    """A-L23.1: six minutes later; Telegram signs no time, there the update's id is what counts"""
    if chat.platform not in ("discord", "slack"):
        pytest.skip("it signs no time")
    body, headers = chat.update("Hello", 9)
    time_machine.move_to(time.time() + 360)
    assert chat.knock(body, headers).status_code == 401
    assert rows() == 0


@pytest.mark.parametrize("stamp", ["9" * 5000, "9" * 400, "-1", "1e9", "now", ""])
def test_a_time_that_is_none_is_a_forgery(chat, stamp):
    """L18: 401, whatever it contains"""
    body, headers = chat.update("Hello", 9)
    times = [name for name in headers if "timestamp" in name.lower()]
    if not times:
        pytest.skip("it signs no time")
    assert chat.knock(body, headers | dict.fromkeys(times, stamp)).status_code == 401
    assert rows() == 0


def test_what_is_too_large_or_no_update_is_refused(chat):
    """A-L18.3: oversized 413, another type 415, no JSON 400; and none of it stays"""
    _, headers = chat.update("Hello", 10)
    assert chat.knock(b"x" * (2**20 + 1), headers).status_code == 413
    for body, content_type, status in ((b"{", "application/json", 400), (b"{}", "text/plain", 415)):
        proof = proven(chat, body)
        assert chat.knock(body, proof | {"content-type": content_type}).status_code == status
    assert rows() == 0


def test_an_update_that_is_labelled_as_another_kind_is_refused_in_words(chat):
    """L18, L27: Slack alone sends forms; 415 names what would be taken, and nothing stays"""
    body, headers = chat.update("Hello", 10)
    if chat.platform == "slack":
        labels, wanted = ["", "text/plain"], "application/json or application/x-www-form-urlencoded"
    else:
        labels, wanted = ["", "text/plain", FORM_TYPE, "multipart/form-data; boundary=x"], JSON_TYPE
    for label in labels:
        answer = chat.knock(body, headers | {"content-type": label})
        told = {"code": "unsupported_media_type", "message": f"The content type must be {wanted}."}
        assert (answer.status_code, answer.json()["error"]) == (415, told)
    assert rows() == 0


@pytest.mark.parametrize(
    "label", ["application/json; charset=utf-8", "Application/JSON", "application/json;charset=UTF-8"]
)
def test_a_label_may_name_its_charset_and_be_written_in_any_case(chat, label):
    """L18: as servers in between may write it"""
    body, headers = chat.update("Hello", 11)
    assert chat.knock(body, headers | {"content-type": label}).status_code == 200
    assert rows() == 1


NO_UPDATES = {
    "null": b"null",
    "a list": b"[]",
    "a word": b'"update"',
    "a number": b"1",
    "an object without fields": b"{}",
    "no UTF-8": b'{"type": "\xff\xfe"}',
    "a byte order mark": b"\xef\xbb\xbf{}",
    "a number of thousands of digits": b'{"update_id": ' + b"9" * 5000 + b"}",
    "half of a pair": b'{"update_id": 1, "type": "\\ud800", "id": "\\ud800"}',
    "very deep": b'{"x": ' + b"[" * 100_000,
}


@pytest.mark.parametrize("body", NO_UPDATES.values(), ids=NO_UPDATES)
def test_whatever_a_proven_body_holds_it_is_no_error_of_ours(chat, body):
    """A-L18.3, L27: 400 and no row; a 500 would be sent again for a day"""
    assert chat.knock(body, proven(chat, body)).status_code == 400
    assert rows() == 0


@pytest.mark.parametrize(
    "body",
    [
        b"payload=%7B",
        b"payload=" + b"[" * 100_000,
        b"payload=null",
        b"%ff=%ff",
        b"command=%2Fpilothouse",
        b"&&&",
    ],
    ids=lambda body: body[:20].decode(),
)
def test_a_form_that_is_no_update_of_slack_is_refused(settings, monkeypatch, body):
    """L23, L27: commands and presses come as forms"""
    fake = slack.Slack()
    with chatting(settings, monkeypatch, slack=fake):
        headers = recorded.slack_headers(body, "shh") | {"content-type": "application/x-www-form-urlencoded"}
        assert SlackChat(fake).knock(body, headers).status_code == 400
    assert rows() == 0


def test_a_request_that_comes_again_in_time_is_one_update(chat):
    """L27: replayed within the five minutes, byte for byte, it has its proof and nothing comes of it"""
    body, headers = chat.update("Hello", 12)
    assert [chat.knock(body, dict(headers)).status_code for _ in range(3)] == [200] * 3
    assert rows() == 1


def test_a_press_is_proven_like_any_update(chat):
    """L14, L27: forged 401, replayed once"""
    body, headers = chat.pressing("opaque", 13)
    plain = {"content-type": headers["content-type"]} if "content-type" in headers else {}
    assert chat.knock(body, dict(plain)).status_code == 401
    assert rows() == 0
    assert [chat.knock(body, dict(headers)).status_code for _ in range(2)] == [200] * 2
    assert rows() == 1


@pytest.mark.parametrize(
    "odd", ["x" * 65, "a$b", "..%2F..", "'; DROP TABLE x;--", "../../etc/passwd", "\u202e", " ", "a\nb"]
)
def test_what_cannot_be_an_id_is_no_update(odd, settings, monkeypatch):
    """A-L18.3: 400, no row and no 503, which a platform would answer by sending it for ever"""
    fake = slack.Slack()
    with chatting(settings, monkeypatch, slack=fake):
        chat = SlackChat(fake)
        for name in ("channel", "user", "ts", "thread_ts"):
            event = recorded.slack_event(text="Hello", channel_type="channel")
            event["event"][name] = odd
            body = json.dumps(event).encode()
            assert chat.knock(body, recorded.slack_headers(body, "shh")).status_code == 400, name
        body = json.dumps(recorded.slack_event(text="Hello", event_id=odd * 2)).encode()
        assert chat.knock(body, recorded.slack_headers(body, "shh")).status_code == 400
    assert rows() == 0


def proven(chat, body: bytes) -> dict[str, str]:
    """Headers under which this very body is genuine."""
    match chat:
        case DiscordChat():
            from tests.support.platform_chats import KEY

            stamp = str(int(time.time()))
            return {
                "x-signature-timestamp": stamp,
                "x-signature-ed25519": KEY.sign(stamp.encode() + body).hex(),
            }
        case SlackChat():
            return recorded.slack_headers(body, "shh")
        case _:
            return chat.update("", 1)[1]


def test_the_platform_gets_an_error_while_the_inbox_is_unavailable(chat, monkeypatch):
    def away(*arguments: object) -> int:
        raise DatabaseError("gone")

    monkeypatch.setattr(updates, "store_update", away)
    assert chat.say("Hello").status_code == 503


def test_a_broker_that_is_away_is_not_waited_for(monkeypatch):
    """L18, A-L27.2: the update is stored and the sweep finds it; Discord and Slack wait three seconds for an answer"""
    waits: list[float] = []
    monkeypatch.setattr("kombu.utils.functional.sleep", waits.append)
    with app.connection_for_write("redis://127.0.0.1:1/0") as broker, pytest.raises(OperationalError):
        broker.default_channel  # noqa: B018 - asking for it connects
    assert waits == []


def test_an_unknown_webhook_and_a_disabled_platform_are_not_found(chat, settings):
    body, headers = chat.update("Hello", 11)
    assert (
        Client()
        .post(chat.door[:-3] + "x/", body, content_type="application/json", headers=headers)
        .status_code
        == 404
    )
    assert Client().get(chat.door).status_code == 405
    door = chat.door
    settings.TELEGRAM_BOT_TOKEN = settings.DISCORD_BOT_TOKEN = settings.SLACK_BOT_TOKEN = ""
    settings.SCRIPTED_PLATFORM = False
    assert Client().post(door, body, content_type="application/json", headers=headers).status_code == 404
    assert list(registry.iter_enabled_adapters()) == []


def test_requests_that_platforms_need_answered_at_once_are_answered_by_the_webhook(settings, monkeypatch):
    """A-L22.1: PING after its proof, Slack's challenge only after its signature, and nothing is stored"""
    fakes = {"discord": discord.Discord(), "slack": slack.Slack()}
    with chatting(settings, monkeypatch, **fakes):
        there = DiscordChat(fakes["discord"])
        ping = json.dumps({"id": "1", "type": 1}).encode()
        assert there.knock(ping, proven(there, ping)).json() == {"type": 1}
        here = SlackChat(fakes["slack"])
        asked = json.dumps({"type": "url_verification", "challenge": "c"}).encode()
        assert here.knock(asked, proven(here, asked)).json() == {"challenge": "c"}
        assert here.knock(asked, {}).status_code == 401
    assert rows() == 0


def test_a_forgetful_adapter_fails_the_systems_check(monkeypatch):
    """A-L16.3: and is named"""
    half = type("Half", (PlatformAdapter,), {"platform": "scripted"})
    monkeypatch.setattr(registry, "load_adapter_class", lambda platform: half)
    with pytest.raises(SystemCheckError, match="supports_async_delivery"):
        call_command("check")


def test_the_bots_commands_are_registered_with_the_platforms(settings, monkeypatch, capsys):
    """L15, L22: without it nobody could give a command on Discord; one platform's failure is said and stops no other"""
    here, there = telegram.Telegram(), discord.Discord()
    with here.running(), there.running(), chatting(settings, monkeypatch, telegram=here, discord=there):
        with pytest.raises(SystemExit) as left:
            call_command("publish_bot_commands")
        assert left.value.code == 0
        assert [one["command"] for one in here.commands] == list(COMMANDS)
        assert set(there.commands) == {"ask", *COMMANDS}
        assert there.commands["ask"]["options"][0]["required"]
        settings.TELEGRAM_BOT_TOKEN = "1:unknown"
        with pytest.raises(SystemExit) as left:
            call_command("publish_bot_commands")
    assert left.value.code == 1
    told = capsys.readouterr()
    assert "telegram: " in told.err
    assert "unknown" not in told.err
    assert here.refused == there.refused == []


def test_the_urls_of_the_webhooks_are_printed(settings, monkeypatch, capsys):
    """A-L18.3: of those that are on"""
    with chatting(settings, monkeypatch, telegram=telegram.Telegram()):
        call_command("show_webhook_urls")
    told = capsys.readouterr().out
    assert told.startswith("telegram: http")
    assert "slack" not in told
