"""Every adapter keeps the same contract with its platform, by the vendor's own client over a real socket (L19–L24)."""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

import pytest

from linking.platforms.base import (
    AttachedFile,
    ButtonPressed,
    CallRefused,
    ChatUnreachable,
    MessageButton,
    MessageGone,
    OutboundAddress,
    OutgoingMessage,
    PlatformAdapter,
    PlatformBusy,
    PlatformPlace,
    PlatformUnavailable,
    Speaker,
)
from linking.platforms.discord import adapter as discord_adapter
from linking.platforms.discord.adapter import DiscordAdapter
from linking.platforms.scripted import ScriptedAdapter, ScriptedWorld
from linking.platforms.slack.adapter import SlackAdapter
from linking.platforms.telegram.adapter import TelegramAdapter
from tests.platform_fakes import discord, recorded, slack, telegram
from tests.support.platform_chats import make_room

PLATFORMS = ("telegram", "discord", "slack", "scripted")
PLACE = {
    "telegram": str(recorded.ADA),
    "discord": recorded.CHANNEL,
    "slack": recorded.SLACK_CHANNEL,
    "scripted": "c1",
}


@dataclass
class Stage:
    """An adapter, and what its platform shows."""

    adapter: PlatformAdapter
    fake: telegram.Telegram | discord.Discord | slack.Slack | None
    world: ScriptedWorld
    to: OutboundAddress

    def texts(self) -> list[str]:
        if self.fake is None:
            return [one.text for one in self.world.list_messages(self.to.container_id)]
        return [
            getattr(one, "text", "") or getattr(one, "content", "")
            for one in self.fake.shown(self.to.container_id)
        ]

    def fail(self, how: str) -> None:
        if self.fake is None:
            self.world.failures.append({"busy": PlatformBusy(1), "broken": PlatformUnavailable("x")}[how])
            return
        module = {"telegram": telegram, "discord": discord, "slack": slack}[self.adapter.platform]
        seconds = 31 if module is discord else 1  # less than that its client waits by itself
        self.fake.failures.append(module.too_many(seconds) if how == "busy" else module.broken())

    def shut(self) -> None:
        match self.fake:
            case telegram.Telegram():
                self.fake.blocked.add(self.to.container_id)
            case discord.Discord():
                self.fake.forbidden.add(self.to.container_id)
            case slack.Slack():
                self.fake.shut.add(self.to.container_id)
            case _:
                self.world.failures.append(ChatUnreachable("x"))


@pytest.fixture(scope="module")
def fakes():
    servers = {"telegram": telegram.Telegram(), "discord": discord.Discord(), "slack": slack.Slack()}
    with servers["telegram"].running(), servers["discord"].running(), servers["slack"].running():
        yield servers


@pytest.fixture(autouse=True)
def _room(monkeypatch) -> None:
    make_room(monkeypatch)


@pytest.fixture(autouse=True)
def _fresh_places(fakes) -> None:
    """The servers serve all tests here, and one of them has places closed."""
    for fake in fakes.values():
        fake.messages.clear()
        fake.failures.clear()
        fake.refused.clear()
        for closed in ("blocked", "forbidden", "shut"):
            getattr(fake, closed, set()).clear()


@pytest.fixture(params=PLATFORMS)
async def stage(request, fakes) -> AsyncIterator[Stage]:
    fake = fakes.get(request.param)
    world = ScriptedWorld()
    adapter = build(request.param, fake, world)
    yield Stage(adapter, fake, world, OutboundAddress(scope="dm", container_id=PLACE[request.param]))
    await adapter.aclose()
    assert fake is None or fake.refused == []


def build(platform: str, fake, world: ScriptedWorld) -> PlatformAdapter:
    match platform:
        case "telegram":
            return TelegramAdapter(token=fake.token, secret="s", api_url=fake.url)
        case "discord":
            return DiscordAdapter(
                app_id=fake.app_id, public_key="", token=fake.token, api_url=f"{fake.url}/api"
            )
        case "slack":
            return SlackAdapter(app_id="A1", signing_secret="s", token=fake.token, api_url=fake.url)
        case _:
            return ScriptedAdapter(secret="s", world=world)


def words(adapter: PlatformAdapter, text: str, *buttons: MessageButton, nonce: str = "") -> OutgoingMessage:
    return OutgoingMessage(body=adapter.render_text(text), buttons=buttons, nonce=nonce, opens=True)


async def test_a_message_is_sent_and_changed(stage: Stage):
    adapter = stage.adapter
    buttons = (
        MessageButton(label="Approve", code="a" * 22),
        MessageButton(label="Reject", code="b" * 22, danger=True),
    )
    sent = await adapter.send_message(stage.to, words(adapter, "Hello **there** & <you>", *buttons))
    await adapter.show_typing(stage.to)
    if stage.fake is None:
        stage.world._edited[sent] = 0.0
    await adapter.edit_message(stage.to, sent, words(adapter, "Hello again"))
    assert stage.texts() == ["Hello again"]
    await adapter.edit_message(
        stage.to, sent, words(adapter, "Hello again")
    ) if stage.fake else None  # "not modified"


async def test_what_the_platform_says_of_a_failure_is_said_in_our_words(stage: Stage):
    """A-L25.2: and neither the token nor an id nor a text is in it"""
    adapter = stage.adapter
    raised: list[BaseException] = []

    async def fails(kind: type[Exception], call: Callable) -> Exception:
        with pytest.raises(kind) as caught:
            await call()
        raised.append(caught.value)
        return caught.value

    stage.fail("busy")
    busy = await fails(PlatformBusy, lambda: adapter.send_message(stage.to, words(adapter, "private words")))
    assert busy.retry_after_seconds in (1, 31)
    stage.fail("broken")
    await fails(PlatformUnavailable, lambda: adapter.send_message(stage.to, words(adapter, "private words")))
    await fails(
        MessageGone, lambda: adapter.edit_message(stage.to, "999999", words(adapter, "private words"))
    )
    stage.shut()
    await fails(ChatUnreachable, lambda: adapter.send_message(stage.to, words(adapter, "private words")))
    told = "".join("".join(traceback.format_exception(one)) for one in raised)
    for secret in (getattr(stage.fake, "token", "none"), "private words"):
        assert secret not in told.replace('words(adapter, "private words")', "")


ODD_WAITS = [-5, 10**20, float("nan"), float("inf"), "soon", "Wed, 21 Oct 2065 07:28:00 GMT", "", None, []]


@pytest.mark.parametrize("wait", ODD_WAITS, ids=repr)
async def test_a_senseless_retry_after_is_reported_as_a_busy_or_unavailable_platform(
    stage: Stage, wait, monkeypatch
):
    """L19: what a platform says of how long to wait may be nonsense; it is asked again, and nothing breaks"""
    if stage.fake is None:
        pytest.skip("it asks for what a test says")
    # Discord's client would sleep for NaN seconds until our own limit ends the call.
    monkeypatch.setattr(discord_adapter, "CALL_TIMEOUT_SECONDS", 2.0)
    module = {"telegram": telegram, "discord": discord, "slack": slack}[stage.adapter.platform]
    stage.fake.failures.extend(
        module.too_many(wait) for _ in range(5)
    )  # as often as a client tries by itself
    with pytest.raises((PlatformBusy, PlatformUnavailable)) as caught:
        await stage.adapter.send_message(stage.to, words(stage.adapter, "Hello"))
    stage.fake.failures.clear()
    if isinstance(caught.value, PlatformBusy):
        assert 0 < caught.value.retry_after_seconds <= 24 * 3600


async def test_a_call_cancelled_during_a_global_wait_of_discord_blocks_no_other_call(fakes):
    """L19: a notice has twenty seconds, and Discord may ask everybody for thirty"""
    fake: discord.Discord = fakes["discord"]
    fake.failures.clear()
    fake.failures.append(discord.too_many(25, everywhere=True))
    adapter = build("discord", fake, ScriptedWorld())
    to = OutboundAddress(scope="dm", container_id=PLACE["discord"])
    leaving = asyncio.create_task(adapter.send_message(to, words(adapter, "One.")))
    while adapter._client is None or adapter._client._global_over.is_set():  # noqa: ASYNC110 - its own
        await asyncio.sleep(0.01)
    leaving.cancel()
    await asyncio.gather(leaving, return_exceptions=True)
    assert await asyncio.wait_for(adapter.send_message(to, words(adapter, "Two.")), 20)
    await adapter.aclose()


async def test_a_place_that_asked_for_patience_gets_it_from_everybody(fakes):
    """L19, L20: Telegram's limit is for the chat, no matter what is sent there next"""
    fake: telegram.Telegram = fakes["telegram"]
    fake.failures.clear()
    fake.failures.append(telegram.too_many(60))
    adapter = build("telegram", fake, ScriptedWorld())
    shut, other = (OutboundAddress(scope="dm", container_id=name) for name in ("51", "52"))
    for _ in range(2):
        before = len(fake.calls)
        with pytest.raises(PlatformBusy) as caught:
            await adapter.send_message(shut, words(adapter, "Hello"))
    assert len(fake.calls) == before
    assert 50 < caught.value.retry_after_seconds <= 60
    assert await adapter.send_message(other, words(adapter, "Hello"))
    await adapter.aclose()


@pytest.mark.parametrize("text", ["``````", "# ", "> ", "```\n\n```"])
async def test_markup_around_nothing_is_shown_as_it_was_written(fakes, text):
    """L19: Telegram takes no message that shows nothing"""
    fake: telegram.Telegram = fakes["telegram"]
    fake.refused.clear()
    adapter = build("telegram", fake, ScriptedWorld())
    sent = await adapter.send_message(OutboundAddress(scope="dm", container_id="44"), words(adapter, text))
    await adapter.aclose()
    assert fake.messages[int(sent)].text.strip() == text.strip()
    assert fake.refused == []


async def test_words_that_slack_takes_in_no_form_are_refused_for_good(fakes):
    """L19: such an answer stays on the web; nobody tries for ever"""
    fake: slack.Slack = fakes["slack"]
    fake.failures.clear()
    fake.failures.extend(slack.no("invalid_arguments") for _ in range(2))
    adapter = build("slack", fake, ScriptedWorld())
    with pytest.raises(CallRefused):
        await adapter.send_message(OutboundAddress(scope="dm", container_id="D9"), words(adapter, "Hello"))
    await adapter.aclose()


@pytest.mark.parametrize(
    ("error", "problem"),
    [
        ("rate_limited", PlatformBusy),
        ("restricted_action_thread_locked", ChatUnreachable),
        ("fatal_error", PlatformUnavailable),
    ],
)
async def test_slacks_own_words_are_understood(fakes, error, problem):
    """L19: too often, out of reach, out of order"""
    fake: slack.Slack = fakes["slack"]
    fake.failures.clear()
    fake.failures.append(slack.no(error))
    adapter = build("slack", fake, ScriptedWorld())
    with pytest.raises(problem):
        await adapter.send_message(OutboundAddress(scope="dm", container_id="D8"), words(adapter, "Hello"))
    await adapter.aclose()


async def test_a_platform_that_is_not_there_is_away(stage: Stage):
    """A-L25.2: the address that failed holds the token, and is not told"""
    if stage.fake is None:
        pytest.skip("it is in memory")
    adapter = build(stage.adapter.platform, stage.fake, stage.world)
    for name in ("_api_url", "api_url"):
        if hasattr(adapter, name):
            setattr(adapter, name, "http://127.0.0.1:9")
    with pytest.raises(PlatformUnavailable) as caught:
        await adapter.send_message(stage.to, words(adapter, "x"))
    await adapter.aclose()
    assert stage.fake.token not in "".join(traceback.format_exception(caught.value))


async def test_a_part_with_a_nonce_is_sent_once(stage: Stage):
    """A-L19.5: where the platform drops repetitions"""
    if stage.adapter.platform not in ("discord", "scripted"):
        pytest.skip("it knows no nonce")
    one = await stage.adapter.send_message(stage.to, words(stage.adapter, "once", nonce="n1"))
    two = await stage.adapter.send_message(stage.to, words(stage.adapter, "once", nonce="n1"))
    assert (one, stage.texts()) == (two, ["once"])


async def test_a_private_notice_reaches_one_person_alone(stage: Stage):
    adapter = stage.adapter
    public = OutboundAddress(scope="server", container_id=PLACE[adapter.platform])
    link = MessageButton(label="Connect", url="https://pilothouse.test/link/x")
    await adapter.send_private(public, "77", words(adapter, "Only you", link))
    if isinstance(stage.fake, slack.Slack):
        assert [one.only_for for one in stage.fake.shown(recorded.SLACK_CHANNEL)] == ["77"]
        stage.fake.messages.clear()
    elif stage.fake is not None:
        assert stage.texts() == []  # not in the channel: in a chat of their own
    pressed = ButtonPressed(speaker=Speaker(user_id="77"), message_id="1", code="c", reply_token="t1")
    if isinstance(stage.fake, discord.Discord):
        stage.fake.interaction("t1", promised=False)
    await adapter.answer_button_press(public, pressed, "Approved.")


async def test_files_go_both_ways(stage: Stage):
    """A-L19.1: by the vendor's own client, as bytes"""
    content = bytes(range(256))
    sent = await stage.adapter.send_file(stage.to, "chart.png", content)
    assert sent
    assert (stage.fake or stage.world).files[-1] == ("chart.png", content)
    if stage.fake is None:
        return
    stage.fake.kept["papers.pdf"] = content
    roads = {"telegram": "papers.pdf", "discord": "/attachments/papers.pdf", "slack": "/files-pri/papers.pdf"}
    road = roads[stage.adapter.platform]
    address = f"{stage.fake.url}{road}" if road.startswith("/") else road
    asked = AttachedFile(reference=address, name="papers.pdf", size=256)
    assert await stage.adapter.fetch_file(asked) == content


async def test_slacks_token_goes_to_slack_alone(fakes):
    """A-L25.2: a file may be hosted elsewhere, as its sender claims"""
    adapter = build("slack", fakes["slack"], ScriptedWorld())
    for address in (
        "https://slack.com.evil.test/f",
        "http://files.slack.com/f",
        "https://evilslack.com/f",
        f"{fakes['telegram'].url}/f",
    ):
        with pytest.raises(CallRefused):
            await adapter.fetch_file(AttachedFile(reference=address, name="f", size=1))
    assert adapter._is_slack_url("https://files.slack.com/files-pri/T1/f")


async def test_who_administers_a_server_is_known(stage: Stage):
    place = PlatformPlace(scope="server", server_id="500", container_id=PLACE[stage.adapter.platform])
    (stage.fake.admins if stage.fake else stage.world.admins).add("77")
    assert await stage.adapter.is_server_admin(place, "77")
    assert not await stage.adapter.is_server_admin(place, "78")


async def test_a_server_has_a_name_for_the_confirmation_page(stage: Stage):
    """L6: asked of the platform where its updates do not say it"""
    silent = isinstance(stage.fake, discord.Discord | slack.Slack)
    place = PlatformPlace(
        scope="server", server_id="500", container_id="1", server_name="" if silent else "Boats"
    )
    assert await stage.adapter.fetch_server_name(place) == "Boats"


async def test_an_answer_finds_a_group_that_moved_meanwhile(fakes):
    """A-L21.2: new messages follow it, files too; earlier messages stayed behind and are sent again"""
    fake: telegram.Telegram = fakes["telegram"]
    fake.messages.clear()
    fake.files.clear()
    adapter = build("telegram", fake, ScriptedWorld())
    old = OutboundAddress(scope="server", container_id="-500", anchor="7")
    sent = await adapter.send_message(old, words(adapter, "First half"))
    fake.moved["-500"] = "-100500"
    with pytest.raises(MessageGone):
        await adapter.edit_message(old, sent, words(adapter, "All of it"))
    await adapter.send_message(old, words(adapter, "All of it"))
    fresh = build("telegram", fake, ScriptedWorld())
    await fresh.send_file(old, "all.txt", b"of it")
    await fresh.send_message(old, words(fresh, "Also all of it"))
    await fresh.aclose()
    await adapter.aclose()
    assert [one.text for one in fake.shown("-100500")] == ["All of it", "Also all of it"]
    assert fake.files == [("all.txt", b"of it")]


async def test_a_group_where_the_bot_may_not_speak_is_out_of_reach(fakes):
    """L19: restricted there, it stops sending, as when it was removed"""
    fake: telegram.Telegram = fakes["telegram"]
    fake.silenced.add("-700")
    adapter = build("telegram", fake, ScriptedWorld())
    with pytest.raises(ChatUnreachable):
        await adapter.send_message(
            OutboundAddress(scope="server", container_id="-700"), words(adapter, "Hello")
        )
    await adapter.aclose()


async def test_telegram_gets_plain_words_where_it_cannot_read_ours(fakes):
    """A-L19.4: the same part, and nothing lost"""
    fake: telegram.Telegram = fakes["telegram"]
    adapter = build("telegram", fake, ScriptedWorld())
    odd = words(adapter, "x")
    odd = OutgoingMessage(body=type(odd.body)(markup="<b>half", plain="**half"))
    sent = await adapter.send_message(OutboundAddress(scope="dm", container_id="43"), odd)
    await adapter.aclose()
    assert fake.messages[int(sent)].text == "**half"
    assert fake.refused == ["HTML that cannot be parsed"]


async def test_an_interaction_is_answered_by_its_token_and_later_by_the_bot(fakes):
    """A-L22.2: after fifteen minutes the token is void"""
    fake: discord.Discord = fakes["discord"]
    fake.messages.clear()
    fake.failures.clear()
    fake.forbidden.clear()
    now = [0.0]
    fake.clock = lambda: now[0]
    fake.interaction("t2", recorded.CHANNEL)
    adapter = build("discord", fake, ScriptedWorld())
    to = OutboundAddress(scope="server", container_id=recorded.CHANNEL, reply_token="public:t2")
    sent = await adapter.send_message(to, words(adapter, "Thinking"))
    assert fake.calls[-1].endswith(f"/webhooks/{fake.app_id}/t2/messages/@original")
    now[0] = 16 * 60
    with pytest.raises(MessageGone):
        await adapter.edit_message(to, sent, words(adapter, "Done"))
    await adapter.edit_message(
        OutboundAddress(scope="server", container_id=recorded.CHANNEL), sent, words(adapter, "Done")
    )
    await adapter.aclose()
    assert [one.content for one in fake.shown(recorded.CHANNEL)] == ["Done"]


async def test_the_scripted_platform_insists_on_its_limits():
    """A-L24.1: over-long texts, too-fast edits, unknown messages, too much on a button"""
    world = ScriptedWorld()
    adapter = ScriptedAdapter(secret="s", world=world)
    to = OutboundAddress(scope="dm", container_id="c1")
    with pytest.raises(CallRefused):
        await adapter.send_message(to, words(adapter, "x" * 1001))
    with pytest.raises(CallRefused):
        await adapter.send_message(to, words(adapter, "x", MessageButton(label="x", code="y" * 65)))
    sent = await adapter.send_message(to, words(adapter, "x"))
    with pytest.raises(PlatformBusy):
        await adapter.edit_message(to, sent, words(adapter, "y"))
    with pytest.raises(MessageGone):
        await adapter.edit_message(to, "m99", words(adapter, "y"))


def test_the_vendors_clients_write_nothing_to_our_logs(caplog):
    """A-L25.1: their lines hold addresses, ids and bodies"""
    for name in (
        "telegram",
        "telegram.Bot",
        "discord.http",
        "discord.gateway",
        "slack_sdk.web",
        "aiohttp.client",
    ):
        assert not logging.getLogger(name).isEnabledFor(logging.WARNING), name
