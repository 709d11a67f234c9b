"""Updates from unlinked people, servers and platforms, and the bots' replies (L4, L9, L21, L23, L25)."""

from __future__ import annotations

import json
import threading
from collections import Counter
from dataclasses import replace

import msgspec
import pytest
from django.core import mail

from config.core.errors import OutcomeUnknown
from copilot.chat import admission, slash_commands
from copilot.models import Message, Session, Turn, WorkspaceFile
from copilot.providers.scripted import ScriptedText
from linking import tasks
from linking.conversations import services as conversations
from linking.conversations.services import BotAccount, ConversationPlace
from linking.links import confirmation, tokens
from linking.links import services as links
from linking.links.tokens import TokenRequest
from linking.models import LinkToken, PlatformConversation, PlatformLink, PlatformUpdate
from linking.outbound import worker
from linking.platforms import registry, scripted
from linking.platforms.base import (
    AttachedFile,
    BotRemoved,
    ChatUnreachable,
    IncomingUpdate,
    MessageReceived,
    PlatformPlace,
    PlatformUnavailable,
    ServerMoved,
    Speaker,
)
from tests.platform_fakes import recorded, slack, telegram
from tests.support import factories
from tests.support.platform_chats import (
    ScriptedChat,
    SlackChat,
    TelegramChat,
    chatting,
    close_courier,
    handled,
    link_chat_accounts,
    written_down,
)
from tests.support.turn_engine import cue, until


@pytest.fixture
def chat(rig, settings, monkeypatch):
    with chatting(settings, monkeypatch):
        yield ScriptedChat()


class Server(ScriptedChat):
    """A channel of a server, where Bob writes."""

    def __init__(self, user: str = "77", mentioned: bool = True) -> None:
        super().__init__("channel-1", user)
        self.place = PlatformPlace(
            scope="server", server_id="server-1", server_name="Boats", container_id="channel-1"
        )
        self.mentioned = mentioned

    def incoming(self, text: str, number: int) -> IncomingUpdate:
        said = MessageReceived(
            speaker=Speaker(user_id=self.user, name="Bob"),
            message_id=str(number),
            text=text,
            mentioned=self.mentioned,
        )
        return IncomingUpdate(update_key=f"s.{number}", place=self.place, what=said)


def claimed(platform: str, server_id: str, bot_account: str = "") -> PlatformLink:
    """Linked with our own bot, unless told otherwise."""
    asked = TokenRequest(
        platform=platform,
        bot_account=bot_account or registry.build_adapter(platform).bot_account,
        subject_id=server_id,
        subject_name="Boats",
    )
    token = tokens.create_server_token(asked, requester_is_admin=True).token
    return confirmation.confirm_server_link(factories.ada(), token)


def test_an_unlinked_person_is_greeted_once_and_starts_nothing(chat: ScriptedChat):
    """A-L9.1: with a private link, at most once in ten minutes"""
    claimed("scripted", "server-1")  # owning a server grants nothing here
    for number in range(3):
        chat.say("Hello?", number=number)
    until(handled)
    [greeting] = chat.shown()
    assert greeting.buttons[0][0] == "Connect"
    assert Turn.objects.count() == 0


def test_a_servers_link_is_sent_privately_to_its_admin(chat: ScriptedChat):
    """A-L4.3: never in public, and to nobody else"""
    bob = Server()
    bob.say("/link")
    scripted.SHARED_WORLD.admins.add("77")
    bob.say("/link")
    refusal, offer = bob.shown()
    assert (refusal.only_for, refusal.buttons) == ("77", ())
    assert (offer.only_for, offer.buttons[0][0]) == ("77", "Connect")


def test_an_unlinked_person_who_asks_for_help_gets_a_link_too(chat: ScriptedChat):
    """L9: how everybody begins on Telegram, where opening the bot sends `/start`"""
    chat.say("/help")
    until(handled)
    help_text, greeting = chat.shown()
    assert "**Commands**" in help_text.text
    assert greeting.buttons[0][0] == "Connect"
    link_chat_accounts("scripted-ada")
    chat.say("/help")
    until(handled)
    assert len(chat.shown()) == 3


@pytest.mark.parametrize(
    ("text", "words"),
    [("Hello?", "isn't connected"), ("/link", "Only an admin"), ("/help", "**Commands**")],
)
def test_a_person_without_direct_messages_is_answered_in_the_group(chat: ScriptedChat, text, words):
    """A-L9.2: most members of a group of Telegram have no chat of their own with the bot; a link stays private"""
    bob = Server()
    scripted.SHARED_WORLD.failures.extend([None] * (text == "/link") + [ChatUnreachable("no chat")])
    bob.say(text)
    until(handled)
    [told] = bob.shown()
    assert (told.only_for, words in told.text, told.buttons) == ("", True, ())


def test_who_is_linked_in_a_direct_message_is_asked_for_a_servers_link_there(chat: ScriptedChat):
    """A-L9.2: a private reply to the person who called us, and silence otherwise"""
    link_chat_accounts("77")
    Server(mentioned=False).say("just talking")
    bob = Server()
    bob.say("Hello?")
    until(handled)
    [prompt] = bob.shown()
    assert (prompt.only_for, "isn't connected" in prompt.text) == ("77", True)
    assert Turn.objects.count() == 0


def test_a_group_that_became_a_supergroup_keeps_its_owner_and_its_session(chat: ScriptedChat):
    """A-L21.2: one transaction, and what began under the new id gives way"""
    link = claimed("scripted", "-500")
    bot = BotAccount(platform="scripted", bot_account="scripted-bot")
    where = ConversationPlace(
        platform="scripted", bot_account="scripted-bot", scope="server", server_id="-500", container_id="-500"
    )
    opened = conversations.get_or_open_conversation(where, conversations.find_payer(where, "77"))
    place = PlatformPlace(scope="server", server_id="-500", container_id="-500")
    chat.knock(
        *chat._signed(IncomingUpdate(update_key="m1", place=place, what=ServerMoved(new_id="-100500")))
    )
    link.refresh_from_db()
    assert (link.server_id, link.owner) == ("-100500", factories.ada())
    moved = PlatformConversation.objects.get(closed_at=None)
    assert (moved.container_id, moved.session_id) == ("-100500", opened.session_id)
    assert bot.bot_account == moved.bot_account


def test_what_an_owner_allowed_in_a_group_is_allowed_in_its_supergroup(chat: ScriptedChat, model):
    """A-L21.2: the group is its own channel, so its id stands among the allowed ones; topics go with it"""
    link = claimed("scripted", "-500")
    links.update_server_link(link.owner_id, link.pk, {"allowed_channels": ["-500", "-7"]})
    place = PlatformPlace(scope="server", server_id="-500", container_id="-500")
    chat.knock(
        *chat._signed(IncomingUpdate(update_key="m1", place=place, what=ServerMoved(new_id="-100500")))
    )
    link.refresh_from_db()
    assert link.allowed_channels == ["-100500", "-7"]
    bob = Server()
    for topic in ("", "3"):
        bob.place = PlatformPlace(
            scope="server", server_id="-100500", container_id="-100500", thread_id=topic
        )
        bob.say("Hello")
        until(handled)
    assert Turn.objects.filter(origin="scripted").count() == 2


def test_every_bot_of_a_group_goes_with_it_when_it_moves(chat: ScriptedChat):
    """A-L21.2: somebody else's bot in the same group is told of no move, and continues in its session"""
    claimed("scripted", "-500", bot_account="theirs")
    where = ConversationPlace(
        platform="scripted", bot_account="theirs", scope="server", server_id="-500", container_id="-500"
    )
    opened = conversations.get_or_open_conversation(where, conversations.find_payer(where, "77"))
    place = PlatformPlace(scope="server", server_id="-500", container_id="-500")
    chat.knock(
        *chat._signed(IncomingUpdate(update_key="m1", place=place, what=ServerMoved(new_id="-100500")))
    )
    there = replace(where, server_id="-100500", container_id="-100500")
    assert conversations.get_or_open_conversation(there, conversations.find_payer(there, "77")) == opened


def test_a_link_asked_for_before_a_group_moved_is_made_for_where_it_is_now(chat: ScriptedChat):
    """A-L21.2: a confirmation after the upgrade links the supergroup, not the id that is no longer used"""
    asked = TokenRequest(
        platform="scripted", bot_account="scripted-bot", subject_id="-500", notify_container="-500"
    )
    token = tokens.create_server_token(asked, requester_is_admin=True).token
    place = PlatformPlace(scope="server", server_id="-500", container_id="-500")
    chat.knock(
        *chat._signed(IncomingUpdate(update_key="m1", place=place, what=ServerMoved(new_id="-100500")))
    )
    assert confirmation.confirm_server_link(factories.ada(), token).server_id == "-100500"
    assert LinkToken.objects.get().notify_container == "-100500"


def test_the_owner_of_a_link_sees_that_the_bot_was_removed(rig, settings, monkeypatch):
    """A-L23.3: Slack's uninstall event"""
    fake = slack.Slack()
    with chatting(settings, monkeypatch, slack=fake):
        link = claimed("slack", recorded.TEAM, bot_account=recorded.SLACK_APP)
        mail.outbox.clear()
        gone = recorded.slack_uninstalled()
        tokens = {"type": "tokens_revoked", "tokens": {"oauth": [], "bot": [recorded.SLACK_BOT]}}
        for told in (gone, gone | {"event": tokens, "event_id": "Ev10"}):  # Slack says it twice
            body = json.dumps(told).encode()
            assert SlackChat(fake).knock(body, recorded.slack_headers(body, "shh")).status_code == 200
    link.refresh_from_db()
    assert link.state == "bot_removed"
    assert [message.to for message in mail.outbox] == [["ada@example.com"]]


def test_one_post_that_comes_as_two_events_is_one_update(rig, settings, monkeypatch):
    """A-L23.2: app_mention and message"""
    fake = slack.Slack()
    monkeypatch.setattr("linking.tasks.enqueue_update", lambda *told, **how: None)
    with chatting(settings, monkeypatch, slack=fake):
        for kind, event_id in (("app_mention", "Ev1"), ("message", "Ev2")):
            body = json.dumps(
                recorded.slack_event(kind=kind, text=f"<@{recorded.SLACK_BOT}> hi", event_id=event_id)
            ).encode()
            assert SlackChat(fake).knock(body, recorded.slack_headers(body, "shh")).status_code == 200
    assert PlatformUpdate.objects.count() == 1


def test_a_place_that_is_shut_hears_nothing_until_somebody_writes_there_again(chat: ScriptedChat, model):
    """A-L19.5: blocked, so nothing is sent, and answers stay on the web meanwhile; a message to the bot
    opens the chat again"""
    link_chat_accounts("scripted-ada")
    model.will(cue(1), ScriptedText("To nobody."))
    chat.say("Hello")
    model.reaches(1)
    chat.knock(*chat._signed(IncomingUpdate(update_key="r1", place=chat.place, what=BotRemoved())))
    close_courier()
    model.give(1)
    until(lambda: Turn.objects.filter(status="succeeded").count() == 1)
    tasks.sweep()
    assert worker.find_undelivered_turns() == []
    chat.say("Anybody?")
    until(lambda: "Aye." in chat.texts())
    until(lambda: Turn.objects.filter(status="succeeded").count() == 2)


def test_no_id_no_token_and_no_word_comes_into_a_log(rig, model, settings, monkeypatch):
    """A-L25.1, A-L25.2: not when all is well, and not when everything fails"""
    fake = telegram.Telegram(token="700900100200:very-secret-telegram-token")
    chat = TelegramChat(fake)
    chat.container = "987654321012345"
    with written_down() as out, fake.running(), chatting(settings, monkeypatch, telegram=fake):
        monkeypatch.setattr(
            chat,
            "update",
            lambda text, number: chat._signed(
                recorded.telegram_message(
                    text=text, update_id=number, message_id=number, chat_id=987654321012345
                )
            ),
        )
        chat.say("my private words")
        until(lambda: chat.button("Connect"))
        token = chat.button("Connect").rsplit("/", 1)[1]
        confirmation.confirm_user_link(factories.ada(), token)
        fake.failures.extend([telegram.too_many(1), telegram.broken()])
        model.will(ScriptedText("an answer in confidence"))
        chat.say("more private words")
        until(lambda: "an answer in confidence" in chat.texts())
        body, _ = chat.update("x", 5)
        chat.knock(body, {"x-telegram-bot-api-secret-token": "forged"})
        monkeypatch.setattr("linking.inbound.update_handler.handle_platform_update", lambda *arguments: 1 / 0)
        chat.say("poison words")
        door = chat.door
    written = out.getvalue()
    assert written.count("\n") > 5
    for secret in (fake.token, "very-secret", chat.container, "private words", "confidence", "poison", token):
        assert secret not in written, secret
    assert door.split("/")[3] not in written


def with_files(chat: ScriptedChat, text: str, number: int, *files: AttachedFile) -> None:
    said = chat.incoming(text, number)
    chat.knock(
        *chat._signed(msgspec.structs.replace(said, what=msgspec.structs.replace(said.what, files=files)))
    )


def swept() -> bool:
    tasks.sweep()
    return handled()


PAPERS = AttachedFile(reference="the boat's papers", name="papers.txt", size=17, type="text/plain")
FILM = AttachedFile(reference="x", name="film.mp4", size=21 * 2**20)


def test_a_file_in_a_direct_message_goes_with_it(chat: ScriptedChat, model):
    """A-L25.1: kept like any upload, in its conversation alone; what is too large is said"""
    link_chat_accounts("scripted-ada")
    with_files(chat, "Look at this", 1, PAPERS, FILM)
    until(lambda: "Aye." in chat.texts())
    [message] = Message.objects.filter(kind="user")
    assert [one["name"] for one in message.attachments] == ["papers.txt"]
    assert "papers.txt" in model.said_to()
    assert chat.texts()[0].startswith("One file couldn't be added")


def test_a_message_of_files_alone_is_a_message_and_of_none_that_fit_is_none(chat: ScriptedChat, model):
    """A-L18.2: only attachments, in a direct message"""
    link_chat_accounts("scripted-ada")
    with_files(chat, "", 1, PAPERS)
    until(lambda: chat.texts() == ["Aye."])
    with_files(chat, "", 2, FILM, FILM)
    until(handled)
    assert chat.texts()[1].startswith("2 files couldn't be added")
    assert Turn.objects.count() == 1


ODD = {
    "100 KB": ("word " * 20_480, "Messages can be up to"),
    "emoji alone": ("🧭⛵️👩‍👩‍👧‍👧" * 20, "Aye."),
    "nothing between words": ("a\x00b \\u0000 c", "Aye."),
    "blank": (" \n\t ", "The message is empty."),
    "hostile": ("'; DROP TABLE x;-- ../../etc/passwd %2F $", "Aye."),
}


@pytest.mark.parametrize("odd", ODD.values(), ids=list(ODD))
def test_whatever_somebody_writes_is_taken_or_refused_in_words(chat: ScriptedChat, model, odd):
    """A-L18.2: nothing is lost in silence, and nothing is tried for ever"""
    link_chat_accounts("scripted-ada")
    text, answer = odd
    assert chat.say(text).status_code == 200
    until(handled)
    until(lambda: chat.texts()[-1:] and chat.texts()[-1].startswith(answer))
    said = Message.objects.filter(kind="user").values_list("content", flat=True)
    assert list(said) == ([text.replace("\x00", "")] if answer == "Aye." else [])
    assert PlatformUpdate.objects.get().attempts == 1


def test_a_slow_platform_delays_no_other_chat(rig, model, settings, monkeypatch):
    """A-L19.5: one chat waits for its platform, another is answered meanwhile"""
    fake = telegram.Telegram()
    with fake.running(), chatting(settings, monkeypatch, telegram=fake):
        link_chat_accounts("scripted-ada")
        account = registry.build_adapter("telegram").bot_account
        asked = TokenRequest(platform="telegram", bot_account=account, subject_id=str(recorded.ADA))
        confirmation.confirm_user_link(factories.ada(), tokens.create_user_token(asked).token)
        slow, quick = TelegramChat(fake), ScriptedChat()
        answers_again = threading.Event()
        fake.failures.extend([answers_again, answers_again])  # the sign of life, and the answer
        slow.say("Hello")
        quick.say("Hello")
        until(lambda: quick.texts() == ["Aye."])
        assert slow.texts() == []
        answers_again.set()
        until(lambda: slow.texts() == ["Aye."])


def test_a_members_file_lies_in_the_servers_conversation_within_its_rules(chat: ScriptedChat, model):
    """A-L8.3, A-L8.4: its turn sees it; what the owner does not allow is not even fetched"""
    link = claimed("scripted", "server-1")
    bob = Server()
    with_files(bob, "Look at this", 1, PAPERS)
    until(lambda: "Aye." in bob.texts())
    assert "papers.txt" in model.said_to()
    [file] = WorkspaceFile.objects.all()
    assert (file.owner, file.source) == (factories.ada(), "platform")
    assert file.session == Session.objects.get(platform="scripted")
    fetched = scripted.SHARED_WORLD.calls.count("fetch_file")
    with_files(Server(mentioned=False), "just for you all", 2, PAPERS)
    links.update_server_link(link.owner_id, link.pk, {"daily_cap_microdollars": 0})
    with_files(bob, "and this", 3, PAPERS)
    until(handled)
    assert scripted.SHARED_WORLD.calls.count("fetch_file") == fetched
    assert Turn.objects.count() == 1
    assert "server has reached its limit" in bob.texts()[-1]


def test_a_file_that_the_platform_never_gives_does_not_hold_up_its_chat(chat: ScriptedChat, model):
    """A-L18.4: after three tries it is left out, which is said, and the words go on"""
    link_chat_accounts("scripted-ada")
    scripted.SHARED_WORLD.posted.clear()
    scripted.SHARED_WORLD.failures.extend([PlatformUnavailable("no answer")] * 3)
    with_files(chat, "Look at this", 1, PAPERS)
    until(handled)
    until(lambda: "Aye." in chat.texts())
    assert "couldn't be added" in chat.texts()[0]
    assert not WorkspaceFile.objects.exists()


def test_a_message_with_a_file_whose_outcome_was_unknown_is_said_once(chat: ScriptedChat, model, monkeypatch):
    """A-L18.2: files are fetched again and get other ids; the message is the same"""
    link_chat_accounts("scripted-ada")
    submit = admission.submit_message
    raised: list[Exception] = []

    def unsure(command: object) -> object:
        outcome = submit(command)
        if not raised:
            raised.append(OutcomeUnknown())
            raise raised[0]
        return outcome

    monkeypatch.setattr(slash_commands, "submit_message", unsure)
    monkeypatch.setattr("linking.conversations.idempotency.CLAIM_ABANDONED_SECONDS", 0)
    with_files(chat, "Look at this", 1, PAPERS)
    until(lambda: Message.objects.filter(kind="user").count() == 1)
    PlatformUpdate.objects.update(received_at="2026-01-01T00:00:00Z")
    until(swept)  # the first handler may still be at it
    until(lambda: chat.texts() == ["Aye."])
    assert Message.objects.filter(kind="user").count() == 1
    assert PlatformUpdate.objects.get().outcome == "started"


def test_a_turn_that_was_stopped_before_it_said_anything_says_so(chat: ScriptedChat, model):
    """A-L19.2: nobody is left with a sign of life alone"""
    link_chat_accounts("scripted-ada")
    model.will(cue(1), ScriptedText("never"))
    chat.say("Hello")
    model.reaches(1)
    chat.say("/stop")
    until(
        lambda: len([text for text in chat.texts() if "Stopped" in text]) == 2
    )  # the command's, and the turn's


def test_members_of_a_linked_server_talk_within_its_rules(chat: ScriptedChat, model):
    """A-L8.4: who is not called stays out of it, a cap of nothing is said once, and the owner pays"""
    link = claimed("scripted", "server-1")
    Server(mentioned=False).say("just talking")
    bob = Server()
    bob.say("Hello?")
    until(lambda: bob.texts() == ["Aye."])
    assert Turn.objects.get().session.owner == factories.ada()
    links.update_server_link(factories.ada().pk, link.pk, {"daily_cap_microdollars": 0})
    for number in (901, 902):
        bob.say("More?", number=number)
    until(handled)
    [_, refusal] = bob.shown()
    assert "server has reached its limit" in refusal.text
    assert Turn.objects.count() == 1


def test_a_busy_group_gets_one_notice_of_the_queue_and_one_of_its_limit(chat: ScriptedChat, model):
    """L8: one notice for each reason, however many messages a channel has no room for"""
    claimed("scripted", "server-1")
    bob = Server()
    model.will(ScriptedText("One."), cue(1))
    bob.say("first", number=700)
    model.reaches(1)
    for number in range(701, 714):
        bob.say("and?", number=number)
    until(handled)
    outcomes = Counter(PlatformUpdate.objects.values_list("outcome", flat=True))
    assert outcomes == {"started": 1, "queued": 10, "refused": 3}
    assert sum("in the queue" in text for text in bob.texts()) == 1
    assert sum("full" in text or "wait" in text for text in bob.texts()) == 1
    model.give(1)
