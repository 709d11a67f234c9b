"""Chat on a platform: post updates to our webhook as the platform does, and read what it shows."""

from __future__ import annotations

import asyncio
import copy
import itertools
import json
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import StringIO
from typing import Any
from urllib.parse import urlencode

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from django.contrib.auth.models import User
from django.test import Client

from config import logging_config
from config.core.redis import get_async_redis
from linking.links import confirmation, tokens
from linking.links.tokens import TokenRequest
from linking.models import PlatformUpdate
from linking.outbound import worker
from linking.outbound.worker import OutboundWorker, _ProcessState
from linking.platforms import registry, scripted
from linking.platforms.base import ButtonPressed, IncomingUpdate, MessageReceived, PlatformPlace, Speaker
from linking.platforms.discord import adapter as discord_adapter
from linking.platforms.rate_limits import CallLimit
from linking.platforms.slack import adapter as slack_adapter
from linking.platforms.telegram import adapter as telegram_adapter
from tests.platform_fakes import discord, recorded, slack, telegram
from tests.support import factories
from tests.support.timeouts import PATIENCE_SECONDS

KEY = Ed25519PrivateKey.generate()
QUICK = {"dm": 0.02, "server": 0.02}
ADAPTERS = {
    "telegram": telegram_adapter.TelegramAdapter,
    "discord": discord_adapter.DiscordAdapter,
    "slack": slack_adapter.SlackAdapter,
    "scripted": scripted.ScriptedAdapter,
}


@dataclass(frozen=True)
class Shown:
    """A message as people see it."""

    text: str
    buttons: tuple[tuple[str, str], ...]  # label, and its code or address
    only_for: str = ""


class Chat:
    """One channel on one platform. Message ids count up."""

    platform = ""
    container = ""
    ids: tuple[str, ...] = ()  # the platform's ids, which no log may contain

    def __init__(self) -> None:
        self.first = 10**9 + int(time.time() * 1000) % 10**9  # long enough to be found in a log
        self.numbers = itertools.count(self.first)

    # specific to each platform
    def update(self, text: str, number: int) -> tuple[bytes, dict[str, str]]:
        raise NotImplementedError

    def pressing(self, code: str, number: int) -> tuple[bytes, dict[str, str]]:
        raise NotImplementedError

    def shown(self) -> list[Shown]:
        raise NotImplementedError

    # the same for all
    def say(self, text: str, number: int | None = None) -> Any:
        return self.knock(*self.update(text, next(self.numbers) if number is None else number))

    def press(self, code: str) -> Any:
        return self.knock(*self.pressing(code, next(self.numbers)))

    def knock(self, body: bytes, headers: dict[str, str]) -> Any:
        content_type = headers.pop("content-type", "application/json")
        answer = Client().post(self.door, body, content_type=content_type, headers=headers)
        worker.wait_until_sent(PATIENCE_SECONDS)
        return answer

    @property
    def door(self) -> str:
        adapter = registry.build_adapter(self.platform)
        assert adapter is not None
        return f"/hooks/{self.platform}/{registry.get_webhook_slug(adapter)}/"

    def texts(self) -> list[str]:
        return [one.text for one in self.shown()]

    def last(self) -> str:
        return self.texts()[-1] if self.shown() else ""

    def button(self, label: str) -> str:
        found = [value for one in self.shown() for name, value in one.buttons if name == label]
        return found[-1] if found else ""


class TelegramChat(Chat):
    platform, container = "telegram", str(recorded.ADA)
    ids = (str(recorded.ADA), str(recorded.TELEGRAM_BOT))

    def __init__(self, fake: telegram.Telegram) -> None:
        super().__init__()
        self.fake = fake

    def _signed(self, payload: object) -> tuple[bytes, dict[str, str]]:
        return json.dumps(payload).encode(), {"x-telegram-bot-api-secret-token": "door-secret"}

    def update(self, text: str, number: int) -> tuple[bytes, dict[str, str]]:
        return self._signed(recorded.telegram_message(text=text, update_id=number, message_id=number))

    def pressing(self, code: str, number: int) -> tuple[bytes, dict[str, str]]:
        return self._signed(recorded.telegram_press(code, update_id=number, press_id=f"press{number}"))

    def shown(self) -> list[Shown]:
        return [
            Shown(
                one.text, tuple((b["text"], b.get("url") or b.get("callback_data", "")) for b in one.buttons)
            )
            for one in self.fake.shown(self.container)
        ]


class DiscordChat(Chat):
    """Use a direct chat by slash commands: `/ask` for messages, the others by name."""

    platform, container = "discord", recorded.CHANNEL
    ids = (recorded.CHANNEL, recorded.DISCORD_ADA, recorded.DISCORD_BOT, recorded.DISCORD_APP)

    def __init__(self, fake: discord.Discord) -> None:
        super().__init__()
        self.fake = fake

    def _signed(self, payload: dict[str, object]) -> tuple[bytes, dict[str, str]]:
        body, stamp = json.dumps(payload).encode(), str(int(time.time()))
        self.fake.interaction(str(payload["token"]), promised=payload["type"] == 2)
        signature = KEY.sign(stamp.encode() + body).hex()
        return body, {"x-signature-timestamp": stamp, "x-signature-ed25519": signature}

    def update(self, text: str, number: int) -> tuple[bytes, dict[str, str]]:
        name, words = ("ask", text) if not text.startswith("/") else (text[1:], "")
        return self._signed(recorded.discord_command(name, words, interaction_id=str(number), dm=True))

    def pressing(self, code: str, number: int) -> tuple[bytes, dict[str, str]]:
        return self._signed(recorded.discord_press(code, interaction_id=str(number), dm=True))

    def shown(self) -> list[Shown]:
        return [
            Shown(
                one.content,
                tuple((b["label"], b.get("url") or b.get("custom_id", "")) for b in one.buttons),
                "them" if one.flags else "",
            )
            for one in self.fake.messages.values()
        ]


class SlackChat(Chat):
    platform, container = "slack", recorded.SLACK_DM
    ids = (recorded.SLACK_DM, recorded.SLACK_ADA, recorded.TEAM, recorded.SLACK_APP)

    def __init__(self, fake: slack.Slack) -> None:
        super().__init__()
        self.fake = fake

    def update(self, text: str, number: int) -> tuple[bytes, dict[str, str]]:
        event = recorded.slack_event(
            text=text, event_id=f"Ev{number}", ts=f"{number}.5", channel=self.container, channel_type="im"
        )
        body = json.dumps(event).encode()
        return body, recorded.slack_headers(body, "shh")

    def pressing(self, code: str, number: int) -> tuple[bytes, dict[str, str]]:
        payload = recorded.slack_press(code, channel=self.container, number=str(number))
        body = urlencode({"payload": json.dumps(payload)}).encode()
        form = {"content-type": "application/x-www-form-urlencoded"}
        return body, recorded.slack_headers(body, "shh") | form

    def shown(self) -> list[Shown]:
        return [
            Shown(
                one.markup or one.text,
                tuple((b["text"]["text"], b.get("url") or b.get("value", "")) for b in one.buttons),
                one.only_for,
            )
            for one in self.fake.shown(self.container)
        ]


class ScriptedChat(Chat):
    platform = "scripted"

    def __init__(self, container: str = "scripted-room-1", user: str = "scripted-ada") -> None:
        super().__init__()
        self.container, self.user = container, user
        self.ids = (container, user)
        self.place = PlatformPlace(scope="dm", container_id=container)

    def _signed(self, incoming: IncomingUpdate) -> tuple[bytes, dict[str, str]]:
        adapter = registry.build_adapter("scripted")
        assert isinstance(adapter, scripted.ScriptedAdapter)
        return msgspec.json.encode(incoming), {scripted.SECRET_HEADER: adapter._secret}

    def incoming(self, text: str, number: int) -> IncomingUpdate:
        said = MessageReceived(
            speaker=Speaker(user_id=self.user, name="Ada"), message_id=f"{number}", text=text, mentioned=True
        )
        return IncomingUpdate(
            update_key=f"{self.container}.{number}",
            message_key=f"{self.container}:{number}",
            place=self.place,
            what=said,
        )

    def update(self, text: str, number: int) -> tuple[bytes, dict[str, str]]:
        return self._signed(self.incoming(text, number))

    def pressing(self, code: str, number: int) -> tuple[bytes, dict[str, str]]:
        pressed = ButtonPressed(
            speaker=Speaker(user_id=self.user), message_id="m1", code=code, reply_token=f"press{number}"
        )
        return self._signed(IncomingUpdate(update_key=f"p{number}", place=self.place, what=pressed))

    def shown(self) -> list[Shown]:
        return [
            Shown(one.text, tuple((b.label, b.url or b.code) for b in one.buttons), one.only_for)
            for one in scripted.SHARED_WORLD.list_messages(self.container)
        ]


@contextmanager
def chatting(settings: Any, monkeypatch: pytest.MonkeyPatch, **fakes: Any) -> Iterator[None]:
    """Enable platforms that answer quickly, with an outbound worker for this test only."""
    for adapter in ADAPTERS.values():
        monkeypatch.setattr(adapter, "min_edit_interval_seconds", QUICK)
    make_room(monkeypatch)
    settings.SCRIPTED_PLATFORM = True
    scripted.SHARED_WORLD.__init__()  # type: ignore[misc]  # everybody holds this object
    for name, fake in fakes.items():
        _switch_on(settings, name, fake)
    with _silent_about_ids():
        try:
            yield
        finally:
            close_courier()


@contextmanager
def _silent_about_ids() -> Iterator[None]:
    """A-L25.1: no log of any test contains an id of a platform."""
    watch = _Watch()
    logging.getLogger().addHandler(watch)
    try:
        yield
    finally:
        logging.getLogger().removeHandler(watch)
    assert watch.found == []


class _Watch(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self._plain = logging.Formatter()

    def emit(self, record: logging.LogRecord) -> None:
        line = self._plain.format(
            copy.copy(record)
        )  # including what was raised; the record is left unchanged
        self.found += [f"{record.name}: {one}" for one in recorded.IDS if one in line]


def make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disable rate limits of platforms, which this test is not about."""
    for module, name in (
        (telegram_adapter, "OVERALL_LIMIT"),
        (telegram_adapter, "CHAT_LIMIT"),
        (telegram_adapter, "GROUP_LIMIT"),
        (slack_adapter, "CHANNEL_LIMIT"),
        (slack_adapter, "EDIT_LIMIT"),
    ):
        monkeypatch.setattr(module, name, CallLimit(calls=10_000, seconds=1.0))


def _switch_on(settings: Any, name: str, fake: Any) -> None:
    match name:
        case "telegram":
            settings.TELEGRAM_BOT_TOKEN, settings.TELEGRAM_SECRET = fake.token, "door-secret"
            settings.TELEGRAM_API_URL = fake.url
        case "discord":
            settings.DISCORD_APP_ID, settings.DISCORD_BOT_TOKEN = fake.app_id, fake.token
            settings.DISCORD_PUBLIC_KEY = KEY.public_key().public_bytes_raw().hex()
            settings.DISCORD_API_URL = f"{fake.url}/api"
        case "slack":
            settings.SLACK_BOT_TOKEN, settings.SLACK_SIGNING_SECRET = fake.token, "shh"
            settings.SLACK_APP_ID, settings.SLACK_API_URL = recorded.SLACK_APP, fake.url
        case _:
            raise AssertionError(f"there is no fake of {name}")


@contextmanager
def written_down() -> Iterator[StringIO]:
    """Collect every line that a production log would contain."""
    out = StringIO()
    logs: Any = logging_config.build_logging_config(production=True, level="INFO")
    formatter = logs["formatters"]["line"]
    handler = logging.StreamHandler(out)
    handler.setFormatter(formatter.pop("()")(**formatter))
    logging.getLogger().addHandler(handler)
    try:
        yield out
    finally:
        logging.getLogger().removeHandler(handler)
        logging_config.build_logging_config(production=False, level="INFO")


def close_courier(courier: OutboundWorker | None = None) -> None:
    """Close the worker as if it had died, so that another can send what it was sending."""
    found = courier or _ProcessState.worker
    if found is not None:

        async def close_log() -> None:
            await get_async_redis().aclose()

        asyncio.run_coroutine_threadsafe(close_log(), found._loop).result(20)
    worker.reset_worker()


def handled() -> bool:
    worker.wait_until_sent(PATIENCE_SECONDS)
    return not PlatformUpdate.objects.filter(done_at=None).exists()


def link_chat_accounts(*users: str, owner: User | None = None) -> None:
    """Link these chat accounts to Ada or to someone else."""
    for user in users:
        asked = TokenRequest(platform="scripted", bot_account="scripted-bot", subject_id=user)
        confirmation.confirm_user_link(owner or factories.ada(), tokens.create_user_token(asked).token)
