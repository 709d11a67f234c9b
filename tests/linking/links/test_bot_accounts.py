"""A link is with the bot it was made with: every other bot of the platform is told that nothing is linked."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import User
from django.test import Client

from copilot.models import Message, Session, Turn
from linking import selectors
from linking.errors import LinkTokenExpired
from linking.links import confirmation, tokens
from linking.links import services as links
from linking.links.tokens import TokenRequest
from linking.models import LinkToken, PlatformLink, PlatformUserLink
from linking.selectors import get_bot_names
from tests.support import factories, link_factories
from tests.support.bots import caller, channel, link_ada, link_guild
from tests.support.rest_clients import code_of, person
from tests.support.turn_engine import Errand, add_tools, ended, until

pytestmark = pytest.mark.django_db


@pytest.fixture
def other(rig):
    """Another bot of the platform on which Ada and her server are linked."""
    link_ada()
    link_guild()
    return caller(account="bot-2")


@pytest.mark.attack
@pytest.mark.parametrize("said", [{}, channel()], ids=["direct message", "server"])
def test_a_bot_starts_nothing_for_people_who_linked_another_bot(other, said):
    answer = other.say("k1", **said)
    assert (answer.status_code, code_of(answer)) == (404, "not_linked")
    assert not Turn.objects.exists()
    assert not Message.objects.exists()
    assert not Session.objects.exists()


@pytest.mark.attack
def test_a_bot_learns_nothing_of_links_with_other_bots(other):
    server = other.post("servers/resolve", {"server_id": "guild"}).json()
    user = other.post("users/resolve", {"platform_user_id": "ada-1"}).json()
    unknown = other.post("users/resolve", {"platform_user_id": "nobody"}).json()
    assert server["linked"] is False
    assert user == unknown


@pytest.mark.attack
def test_a_bot_decides_nothing_by_an_identity_that_another_bot_proved(rig, model, monkeypatch):
    """In a server of its own link: who says to be the payer has linked another bot alone."""
    from copilot.models import Approval
    from copilot.providers.scripted import ScriptedCall

    link_ada()
    link_guild(bot_account="bot-2")
    bot = caller(account="bot-2")
    add_tools(monkeypatch, Errand("web_search", approval="ask"))
    PlatformLink.objects.update(tools=["web_search"])
    model.will(ScriptedCall("web_search", {}))
    assert bot.say("k1", **channel()).status_code == 201
    until(lambda: Approval.objects.exists())
    decided = bot.post(
        f"approvals/{Approval.objects.get().pk}/decide",
        {"platform_user_id": "ada-1", "decision": "approve"},
    )
    assert (decided.status_code, code_of(decided)) == (403, "not_the_payer")


def test_the_bot_a_link_was_created_with_keeps_working(rig, model):
    link_ada()
    link_guild()
    bot = caller()
    for key, said in (("k1", {}), ("k2", channel())):
        answer = bot.say(key, **said)
        assert answer.status_code == 201
        assert ended(answer.json()["turn_id"]).status == "succeeded"


def test_a_person_links_and_unlinks_each_bot_separately(rig):
    for account in ("bot-1", "bot-2"):
        asked = TokenRequest(platform="telegram", bot_account=account, subject_id="ada-1")
        confirmation.confirm_user_link(factories.ada(), tokens.create_user_token(asked).token)
    first, second = PlatformUserLink.objects.order_by("bot_account")
    assert (first.bot_account, second.bot_account) == ("bot-1", "bot-2")
    links.revoke_user_link(factories.ada().pk, first.pk)
    assert caller().say("k1").status_code == 404
    assert caller(account="bot-2").say("k1").status_code == 201


def test_one_chat_account_may_be_linked_to_another_account_with_another_bot():
    link_ada()
    asked = TokenRequest(platform="telegram", bot_account="bot-2", subject_id="ada-1")
    confirmation.confirm_user_link(factories.bob(), tokens.create_user_token(asked).token)
    assert selectors.find_user_link("telegram", "bot-1", "ada-1").user == factories.ada()
    assert selectors.find_user_link("telegram", "bot-2", "ada-1").user == factories.bob()


@pytest.mark.attack
def test_a_bot_cannot_void_or_use_up_the_tokens_of_another(settings):
    settings.LINK_TOKENS_PER_SUBJECT_HOUR = 2
    mine = link_factories.user_token()
    for _ in range(2):
        tokens.create_user_token(
            TokenRequest(platform="telegram", bot_account="bot-2", subject_id=link_factories.PERSON)
        )
    assert tokens.get_token_status("telegram", link_factories.BOT, mine.token).status == "pending"
    newer = link_factories.user_token()
    with pytest.raises(LinkTokenExpired):
        confirmation.confirm_user_link(factories.ada(), mine.token)  # its own newer one has replaced it
    confirmation.confirm_user_link(factories.ada(), newer.token)


# --- pages -------------------------------------------------------------------------------------------


def signed_in(user: User) -> Client:
    client = Client()
    client.force_login(user)
    return client


def test_the_page_names_the_bot_before_and_after_confirming():
    link_factories.bot_key("telegram", name="Boat helper")
    token = link_factories.user_token().token
    page = signed_in(factories.ada()).get(f"/link/{token}").content.decode()
    assert "With the bot “Boat helper”" in page
    confirmation.confirm_user_link(factories.ada(), token)
    listed = signed_in(factories.ada()).get("/settings/chats/").content.decode()
    assert "acts as you in direct messages to Boat helper" in listed
    assert "Each connection works with one bot only." in listed


def test_the_page_asks_for_a_new_link_where_the_bot_is_unknown():
    link_factories.user_link(bot_account="")
    link_factories.server_link(bot_account="")
    listed = signed_in(factories.ada()).get("/settings/chats/").content.decode()
    assert listed.count("we don't know which bot this was set up with. Send /link to the bot again.") == 2


def test_the_rest_api_names_the_bot_of_a_link():
    link_factories.user_link()
    link_factories.server_link()
    for kind in ("user-links", "server-links"):
        shown = person(factories.ada()).get(f"/api/v1/linking/{kind}").json()
        assert [one["bot_account"] for one in shown["items"]] == [link_factories.BOT]


def test_a_bots_name_is_what_staff_called_its_key():
    link_factories.bot_key("telegram", name="Old", bot_account="bot-9")
    link_factories.bot_key("telegram", name="New", bot_account="bot-9")
    named = get_bot_names([("telegram", "bot-9"), ("slack", "bot-9")])
    assert named == {("telegram", "bot-9"): "New", ("slack", "bot-9"): "bot-9"}


def test_a_link_without_a_bot_serves_none_until_it_is_linked_again(rig):
    link_ada(bot_account="")
    assert PlatformUserLink.objects.get().bot_account == ""
    bot = caller()
    assert code_of(bot.say("k1")) == "not_linked"
    asked = TokenRequest(platform="telegram", bot_account="bot-1", subject_id="ada-1")
    confirmation.confirm_user_link(factories.ada(), tokens.create_user_token(asked).token)
    assert PlatformUserLink.objects.get().bot_account == "bot-1"
    assert LinkToken.objects.filter(used_at__isnull=False).count() == 1
    assert bot.say("k2").status_code == 201
