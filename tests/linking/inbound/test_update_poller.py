"""run_bot: one active process per bot account, nothing lost by a death, nothing stored twice (L24, L21, L22)."""

from __future__ import annotations

import asyncio
import io
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from datetime import timedelta

import msgspec
import pytest
from asgiref.sync import sync_to_async
from django.core.management import call_command
from django.db import OperationalError
from django.db.models.functions import Now

from linking.inbound import update_poller, updates
from linking.inbound.update_poller import UpdatePoller
from linking.models import BotRunner, PlatformUpdate
from linking.platforms.base import (
    IncomingUpdate,
    MessageReceived,
    PlatformMisconfigured,
    PlatformPlace,
    Speaker,
)
from linking.platforms.discord.adapter import DiscordAdapter
from linking.platforms.discord.gateway import DiscordGateway
from linking.platforms.scripted import LineFetcher
from linking.platforms.slack.adapter import SlackAdapter
from linking.platforms.slack.socket_mode import SlackSocketMode
from linking.platforms.telegram.adapter import TelegramAdapter
from linking.platforms.telegram.polling import TelegramPolling
from tests.platform_fakes import discord, recorded, slack, telegram
from tests.support.timeouts import PATIENCE_SECONDS

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def fake():
    made = telegram.Telegram()
    with made.running():
        yield made


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(update_poller, "LEASE_RENEW_SECONDS", 0.2)


def store(platform: str, bot_account: str, incoming: IncomingUpdate) -> None:
    updates.store_update(platform, bot_account, incoming)


def polling(
    fake: telegram.Telegram, keep: Callable[[str, str, IncomingUpdate], None] = store
) -> UpdatePoller:
    adapter = TelegramAdapter(token=fake.token, secret="s", api_url=fake.url)
    return UpdatePoller(TelegramPolling(adapter, seconds=1), "telegram", adapter.bot_account, keep)


@asynccontextmanager
async def running(*some: UpdatePoller) -> AsyncIterator[list[asyncio.Task[None]]]:
    tasks = [asyncio.create_task(runner.run(replace_webhook=False)) for runner in some]
    try:
        yield tasks
    finally:
        for runner in some:
            runner.stop()
        for task in tasks:
            with suppress(asyncio.CancelledError):
                await asyncio.wait_for(task, PATIENCE_SECONDS)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not await sync_to_async(condition)():  # noqa: ASYNC110 - rows have no events
            await asyncio.sleep(0.01)


def keys() -> list[str]:
    return list(PlatformUpdate.objects.order_by("id").values_list("update_key", flat=True))


def update(number: int) -> dict[str, object]:
    return recorded.telegram_message(text=f"line {number}", update_id=number, message_id=number)


async def test_a_poller_that_dies_after_storing_repeats_and_doubles_nothing(fake):
    """A-L21.3: the offset moves on only behind what is stored"""

    def store_and_die(platform: str, bot_account: str, incoming: IncomingUpdate) -> None:
        updates.store_update(platform, bot_account, incoming)
        raise RuntimeError("killed")

    fake.say(update(10))
    with pytest.raises(RuntimeError, match="killed"):
        await polling(fake, store_and_die).run(replace_webhook=False)
    assert fake.offsets == []
    async with running(polling(fake)):
        fake.say(update(11))
        await until(lambda: keys() == ["10", "11"])


async def test_a_runner_that_is_stopped_does_not_wait_for_a_database_that_is_down(fake, monkeypatch):
    """A-L24.2: what could not be stored was not confirmed, so that Telegram gives it to the next one"""
    monkeypatch.setattr("linking.inbound.update_poller.STORE_TIMEOUT_SECONDS", 0.05)
    tried = threading.Event()

    def away(platform: str, bot_account: str, incoming: IncomingUpdate) -> None:
        tried.set()
        raise OperationalError

    fake.say(update(10))
    async with running(polling(fake, away)):
        await until(tried.is_set)
    assert fake.offsets == []
    async with running(polling(fake)):
        await until(lambda: keys() == ["10"])


async def test_updates_whose_ids_fall_by_a_million_are_stored(fake):
    """A-L21.1: after a quiet week Telegram's numbers start again; the offset only ever confirms what was received"""
    async with running(polling(fake)):
        fake.say(update(5_000_000))
        await until(lambda: keys() == ["5000000"])
        await until(lambda: fake.updates == [])
    fake.offsets.clear()
    async with running(polling(fake)):
        fake.say(update(4_000_000))
        await until(lambda: keys() == ["5000000", "4000000"])


async def test_of_two_runners_one_fetches_and_the_other_follows_when_it_dies(fake, monkeypatch):
    """A-L24.1: kill -9, so that nobody says goodbye"""
    first, second = polling(fake), polling(fake)
    async with running(first) as [active]:
        await until(lambda: BotRunner.objects.filter(holder=first._holder).exists())
        async with running(second):
            fake.say(update(1))
            await until(lambda: keys() == ["1"])
            assert await sync_to_async(lambda: BotRunner.objects.get().holder)() == first._holder
            with monkeypatch.context() as dying:
                dying.setattr(update_poller, "release_runner_lease", lambda *names: None)
                active.cancel()
                await asyncio.wait([active])
            aged = Now() - timedelta(seconds=1)  # thirty seconds later
            await sync_to_async(lambda: BotRunner.objects.filter(holder=first._holder).update(until=aged))()
            fake.say(update(2))
            await until(lambda: BotRunner.objects.filter(holder=second._holder).exists())
            await until(lambda: keys() == ["1", "2"])


async def test_who_lost_the_row_stops_fetching_at_once(fake):
    """A-L24.1: a process that was frozen finds another one in its place"""
    runner = polling(fake)
    async with running(runner):
        await until(lambda: BotRunner.objects.filter(holder=runner._holder).exists())
        other = await sync_to_async(lambda: BotRunner.objects.update(holder="another"))()
        assert other == 1
        assert not await sync_to_async(update_poller.renew_runner_lease)(
            "telegram", str(recorded.TELEGRAM_BOT), runner._holder
        )
        assert not await sync_to_async(update_poller.claim_runner_lease)(
            "telegram", str(recorded.TELEGRAM_BOT), runner._holder
        )


async def test_a_stop_in_the_middle_of_a_batch_stores_all_of_it(fake):
    """A-L24.2: and the offset is not beyond it"""
    begun, go_on = threading.Event(), threading.Event()

    def slowly(platform: str, bot_account: str, incoming: IncomingUpdate) -> None:
        begun.set()
        assert go_on.wait(PATIENCE_SECONDS)
        updates.store_update(platform, bot_account, incoming)

    for number in (1, 2, 3):
        fake.say(update(number))
    runner = polling(fake, slowly)
    task = asyncio.create_task(runner.run(replace_webhook=False))
    assert await asyncio.to_thread(begun.wait, PATIENCE_SECONDS)
    runner.stop()
    await asyncio.sleep(0)
    go_on.set()
    await asyncio.wait_for(task, PATIENCE_SECONDS)
    assert await sync_to_async(keys)() == ["1", "2", "3"]
    assert fake.offsets == []
    assert await sync_to_async(lambda: BotRunner.objects.get().holder)() == ""


async def test_polling_and_a_webhook_exclude_each_other(fake):
    """A-L21.3: said clearly, and removed only when asked to"""
    fake.webhook = {"url": "https://pilothouse.test/hooks/telegram/x/"}
    with pytest.raises(PlatformMisconfigured, match="--replace-webhook"):
        await polling(fake).run(replace_webhook=False)
    runner = polling(fake)
    task = asyncio.create_task(runner.run(replace_webhook=True))
    await until(lambda: fake.webhook == {})
    runner.stop()
    await asyncio.wait_for(task, PATIENCE_SECONDS)


@pytest.mark.parametrize("platform", ["telegram", "discord", "slack", "scripted"])
def test_missing_credentials_stop_it_before_it_connects(settings, capsys, platform):
    """A-L24.2: exit code 2"""
    settings.TELEGRAM_BOT_TOKEN = settings.DISCORD_BOT_TOKEN = settings.SLACK_BOT_TOKEN = ""
    settings.SCRIPTED_PLATFORM = False
    with pytest.raises(SystemExit) as left:
        call_command("run_bot", platform)
    assert left.value.code == 2
    assert "no credentials" in capsys.readouterr().err


def test_the_webhook_is_set_with_its_secret_and_removed(fake, settings, capsys):
    """A-L21.3: manage.py telegram_webhook"""
    settings.TELEGRAM_BOT_TOKEN, settings.TELEGRAM_SECRET = fake.token, "door-secret"
    settings.TELEGRAM_API_URL = fake.url
    call_command("telegram_webhook", "set")
    assert fake.webhook["secret_token"] == "door-secret"
    assert "callback_query" in str(fake.webhook["allowed_updates"])
    call_command("telegram_webhook", "info")
    assert "is ours" in capsys.readouterr().out
    call_command("telegram_webhook", "delete")
    assert fake.webhook == {}


# --- Discord's gateway -------------------------------------------------------------------------------


@pytest.fixture
def gateway():
    made = discord.Discord()
    with made.running():
        yield made


def listening(fake: discord.Discord) -> UpdatePoller:
    adapter = DiscordAdapter(app_id=fake.app_id, public_key="", token=fake.token, api_url=f"{fake.url}/api")
    url = fake.url.replace("http", "ws") + "/gateway"
    return UpdatePoller(DiscordGateway(adapter, gateway_url=url), "discord", adapter.bot_account, store)


async def test_a_cut_socket_is_resumed_and_no_message_counts_twice(gateway):
    """A-L22.3"""
    async with running(listening(gateway)):
        await until(lambda: gateway.sockets != [])
        gateway.say(
            "MESSAGE_CREATE", recorded.discord_message(text=f"<@{recorded.DISCORD_BOT}> one", message_id="71")
        )
        await until(lambda: keys() == ["71"])
        gateway.cut()
        gateway.say(
            "MESSAGE_CREATE", recorded.discord_message(text=f"<@{recorded.DISCORD_BOT}> two", message_id="72")
        )
        await until(lambda: gateway.resumed == 1 and gateway.sockets != [])
        gateway.say(
            "MESSAGE_CREATE",
            recorded.discord_message(text=f"<@{recorded.DISCORD_BOT}> three", message_id="73"),
        )
        await until(lambda: keys() == ["71", "72", "73"])
    assert gateway.identified == 1


@pytest.mark.parametrize(("code", "reason"), [(4004, "token"), (4014, "message content intent")])
async def test_a_fatal_code_says_why_and_ends(gateway, code, reason):
    """A-L22.3: exit code 2 and the reason, instead of trying for ever"""
    gateway.close_code = code
    with pytest.raises(PlatformMisconfigured, match=reason):
        await asyncio.wait_for(listening(gateway).run(replace_webhook=False), PATIENCE_SECONDS)


async def test_lines_of_a_terminal_are_updates_of_the_scripted_platform():
    """A-L24.1: text, or JSON as the webhook takes it; anything else is left out"""
    place = PlatformPlace(scope="dm", container_id="c1")
    said = MessageReceived(speaker=Speaker(user_id="u1"), message_id="1", text="hi", mentioned=True)
    update = msgspec.json.encode(IncomingUpdate(update_key="k1", place=place, what=said)).decode()
    lines = io.StringIO(f"Hello there\n\n{{broken\n{update}\n")
    async with running(UpdatePoller(LineFetcher(lines), "scripted", "scripted-bot", store)):
        await until(lambda: len(keys()) == 2)
    rows = await sync_to_async(lambda: list(PlatformUpdate.objects.order_by("id")))()
    assert [row.payload["what"]["text"] for row in rows] == ["Hello there", "hi"]
    assert rows[1].update_key == "k1"


# --- Slack's Socket Mode -----------------------------------------------------------------------------


@pytest.fixture
def workspace():
    made = slack.Slack()
    with made.running():
        yield made


def over_socket(fake: slack.Slack, keep: Callable[[str, str, IncomingUpdate], None] = store) -> UpdatePoller:
    adapter = SlackAdapter(app_id="A1", signing_secret="s", token=fake.token, api_url=fake.url)
    return UpdatePoller(
        SlackSocketMode(adapter, app_token=fake.app_token), "slack", adapter.bot_account, keep
    )


async def test_slacks_socket_is_acknowledged_behind_what_is_stored(workspace):
    """A-L23.2: after a crash before it is stored, it is received again and counts once"""

    def store_and_die(platform: str, bot_account: str, incoming: IncomingUpdate) -> None:
        updates.store_update(platform, bot_account, incoming)
        raise RuntimeError("killed")

    workspace.say("e1", "events_api", recorded.slack_event(text="hello", event_id="Ev0001"))
    with pytest.raises(RuntimeError, match="killed"):
        await asyncio.wait_for(over_socket(workspace, store_and_die).run(replace_webhook=False), 40)
    assert list(workspace.envelopes) == ["e1"]
    async with running(over_socket(workspace)):
        await until(lambda: workspace.envelopes == {})
        workspace.say("e2", "slash_commands", recorded.slack_command("new"))
        workspace.say("e3", "interactive", recorded.slack_press("opaque"))
        workspace.say("e4", "events_api", {"type": 7})  # what nobody can read is not sent for ever
        await until(lambda: workspace.envelopes == {})
        await until(lambda: len(keys()) == 3)
    kinds = await sync_to_async(
        lambda: list(PlatformUpdate.objects.order_by("id").values_list("kind", flat=True))
    )()
    assert kinds == ["said", "said", "pressed"]


async def test_a_socket_without_a_token_that_slack_knows_is_not_opened(workspace):
    """A-L24.2: said clearly, instead of trying for ever"""
    for token, reason in (
        ("", "SLACK_APP_TOKEN is missing"),
        ("xapp-wrong", "Slack rejected SLACK_APP_TOKEN"),
    ):
        adapter = SlackAdapter(app_id="A1", signing_secret="s", token=workspace.token, api_url=workspace.url)
        runner = UpdatePoller(SlackSocketMode(adapter, app_token=token), "slack", "A1", store)
        with pytest.raises(PlatformMisconfigured, match=reason):
            await asyncio.wait_for(runner.run(replace_webhook=False), PATIENCE_SECONDS)


async def test_a_second_poller_gets_an_error(fake):
    """A-L21.3: Telegram answers 409 to one of two; it ends instead of taking turns"""
    fake._polling = True  # by somebody else, somewhere
    with pytest.raises(PlatformMisconfigured, match="Another process is already polling"):
        await asyncio.wait_for(polling(fake).run(replace_webhook=False), PATIENCE_SECONDS)
