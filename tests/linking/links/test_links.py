"""L4, L5, L8, L9: tokens, confirming and unlinking, as the functions that every entry point calls."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest
import time_machine
from django.core import mail
from django.db import DataError, IntegrityError, connection, transaction
from django.db.models import F
from django.utils import timezone
from kombu.exceptions import OperationalError

from config.core.errors import InvalidRequest
from copilot.accounts import deletion
from linking import selectors, tasks
from linking.conversations import services as conversations
from linking.conversations.services import BotAccount
from linking.errors import (
    LinkAlreadyExists,
    LinkFlowMismatch,
    LinkNotFound,
    LinkTokenExpired,
    NotAuthorised,
    NotServerAdmin,
    RateLimited,
)
from linking.links import confirmation, tokens
from linking.links import services as links
from linking.models import LinkToken, PlatformConversation, PlatformLink, PlatformUpdate, PlatformUserLink
from linking.models.fields import clean_name
from tests.support import factories, link_factories
from tests.support.turn_engine import cue, ended, start, together

pytestmark = pytest.mark.django_db

OURS = BotAccount(platform="discord", bot_account=link_factories.BOT)


def state_of(token: tokens.NewToken, platform: str = "discord") -> str:
    return tokens.get_token_status(platform, link_factories.BOT, token.token).status


def aged(**passed: float) -> None:
    """As if all tokens had been made that much earlier, by the database's clock."""
    ago = timedelta(**passed)
    LinkToken.objects.update(created_at=F("created_at") - ago, expires_at=F("expires_at") - ago)


# --- tokens ------------------------------------------------------------------------------------------


def test_a_token_is_random_short_enough_for_a_deep_link_and_stored_as_a_digest():
    """L4"""
    made = link_factories.server_token()
    assert re.fullmatch(r"[A-Za-z0-9_-]{43}", made.token)
    assert made.link_url.endswith(f"/link/{made.token}")
    row = LinkToken.objects.get()
    assert made.token not in str(LinkToken.objects.values().get())
    assert row.digest == tokens.hash_token(made.token)
    assert made.expires_at - row.created_at == timedelta(minutes=30)


def test_a_newer_token_takes_the_place_of_the_pending_one():
    """A-L4.1"""
    ada = factories.ada()
    first, second = link_factories.server_token(), link_factories.server_token()
    assert state_of(first) == "superseded"
    with pytest.raises(LinkTokenExpired):
        confirmation.confirm_server_link(ada, first.token)
    confirmation.confirm_server_link(ada, second.token)
    assert state_of(second) == "linked"


@pytest.mark.parametrize("rounds", [2, pytest.param(50, marks=[pytest.mark.slow, pytest.mark.timeout(600)])])
@pytest.mark.django_db(transaction=True)
def test_of_many_tokens_made_together_one_is_pending(settings, rounds):
    """A-L4.2"""
    settings.LINK_TOKENS_PER_SUBJECT_HOUR = 10_000
    for _ in range(rounds):
        made = together(*[link_factories.server_token] * 20)
        assert all(isinstance(one, tokens.NewToken) for one in made), made
        assert LinkToken.objects.filter(used_at=None, superseded_at=None).count() == 1


def test_no_token_is_made_for_what_is_linked():
    """A-L4.3"""
    link_factories.server_link(factories.bob())
    with pytest.raises(LinkAlreadyExists):
        link_factories.server_token()
    assert not LinkToken.objects.exists()


def test_a_token_expires_by_the_databases_clock():
    """A-L4.4: a web host whose clock is behind changes nothing"""
    made = link_factories.server_token()
    assert 1795 < tokens.get_token_status("discord", link_factories.BOT, made.token).seconds_left <= 1800
    aged(minutes=30, seconds=1)
    with time_machine.travel(timezone.now() - timedelta(hours=2)):
        assert state_of(made) == "expired"
        with pytest.raises(LinkTokenExpired):
            confirmation.confirm_server_link(factories.ada(), made.token)
    assert not PlatformLink.objects.exists()


def test_only_an_admin_of_a_server_gets_a_link_for_it(settings):
    """L4"""
    asked = link_factories.request(link_factories.SERVER)
    with pytest.raises(NotServerAdmin):
        tokens.create_server_token(asked, requester_is_admin=False)
    settings.LINK_REQUIRE_SERVER_ADMIN = False
    tokens.create_server_token(asked, requester_is_admin=False)


def test_tokens_are_issued_so_often_and_no_more(settings):
    """L4: per subject and hour, and per key and minute"""
    for _ in range(5):
        link_factories.server_token()
    with pytest.raises(RateLimited):
        link_factories.server_token()
    aged(hours=1)
    link_factories.server_token()
    settings.LINK_TOKENS_PER_KEY_MINUTE = 2
    key = link_factories.bot_key().row
    for number in range(2):
        tokens.create_user_token(link_factories.request(f"person-{number}", key=key))
    with pytest.raises(RateLimited):
        tokens.create_user_token(link_factories.request("person-9", key=key))


def test_a_bot_account_sees_the_status_of_its_own_tokens_alone():
    """L4, L2: and never who confirmed"""
    made = link_factories.server_token()
    for platform, account in (("slack", link_factories.BOT), ("discord", "another")):
        with pytest.raises(LinkNotFound):
            tokens.get_token_status(platform, account, made.token)
    confirmation.confirm_server_link(factories.ada(), made.token)
    assert state_of(made) == "linked"
    links.revoke_server_link(factories.ada().pk, PlatformLink.objects.get().pk)
    assert state_of(made) == "unlinked"
    link_factories.server_link(factories.bob())
    assert state_of(made) == "unlinked"


@pytest.mark.parametrize("odd", ["", "a b", "x" * 65, "é", "1;drop", "a/b", "a\n"])
def test_platform_ids_are_checked_by_the_endpoint_and_by_the_database(odd):
    """L3"""
    with pytest.raises(InvalidRequest):
        link_factories.server_token(odd)
    with pytest.raises((IntegrityError, DataError)), transaction.atomic():
        link_factories.server_link(server_id=odd)


# --- confirming --------------------------------------------------------------------------------------


@pytest.mark.parametrize("rounds", [10, pytest.param(50, marks=[pytest.mark.slow, pytest.mark.timeout(600)])])
@pytest.mark.django_db(transaction=True)
def test_of_two_who_confirm_at_once_one_owns_the_server(rounds):
    """A-L5.1: the other is told that the token is used"""
    ada, bob = factories.ada(), factories.bob()
    for number in range(rounds):
        token = link_factories.server_token(f"server-{number}").token
        outcomes = together(
            lambda token=token: confirmation.confirm_server_link(ada, token),
            lambda token=token: confirmation.confirm_server_link(bob, token),
        )
        won = [one for one in outcomes if isinstance(one, PlatformLink)]
        lost = [one for one in outcomes if isinstance(one, LinkTokenExpired)]
        assert (len(won), len(lost)) == (1, 1), outcomes
        link = PlatformLink.objects.get(server_id=f"server-{number}")
        assert (
            LinkToken.objects.get(digest=tokens.hash_token(token)).used_by_id
            == link.owner_id
            == won[0].owner_id
        )


@pytest.mark.parametrize("rounds", [5, pytest.param(50, marks=[pytest.mark.slow, pytest.mark.timeout(600)])])
@pytest.mark.django_db(transaction=True)
def test_two_tokens_of_one_server_make_one_link(monkeypatch, rounds):
    """A-L5.3: both were seen as pending before either was used"""
    ada, bob = factories.ada(), factories.bob()
    for number in range(rounds):
        server = f"server-{number}"
        first = link_factories.server_token(server).token
        LinkToken.objects.filter(digest=tokens.hash_token(first)).update(
            kind="user"
        )  # out of the second one's way
        second = link_factories.server_token(server).token
        LinkToken.objects.filter(digest=tokens.hash_token(second)).update(superseded_at=timezone.now())
        LinkToken.objects.filter(digest=tokens.hash_token(first)).update(kind="server")

        def as_if_pending(user=bob, token=second):
            row = selectors.find_token(tokens.hash_token(token))
            with confirmation._atomic_confirmation():
                PlatformLink.objects.create(
                    platform=row.platform,
                    bot_account=row.bot_account,
                    server_id=row.subject_id,
                    owner=user,
                )

        outcomes = together(lambda token=first: confirmation.confirm_server_link(ada, token), as_if_pending)
        lost = [one for one in outcomes if isinstance(one, Exception)]
        assert len(lost) == 1, outcomes
        assert isinstance(lost[0], LinkAlreadyExists | LinkTokenExpired)
        owner = PlatformLink.objects.get(server_id=server).owner_id
        used = LinkToken.objects.get(digest=tokens.hash_token(first)).used_at is not None
        assert used == (owner == ada.pk)


def test_a_token_of_the_other_kind_stays_usable_where_it_belongs():
    """A-L5.4"""
    ada, token = factories.ada(), link_factories.server_token().token
    with pytest.raises(LinkFlowMismatch):
        confirmation.confirm_user_link(ada, token)
    assert confirmation.confirm_server_link(ada, token).owner == ada


def test_an_insert_that_fails_leaves_the_token_unused(monkeypatch):
    """A-L5.5"""
    ada, token = factories.ada(), link_factories.user_token().token

    def fail(**fields: object) -> None:
        raise IntegrityError("injected")

    with monkeypatch.context() as patched:
        patched.setattr(PlatformUserLink.objects, "create", fail)
        with pytest.raises(IntegrityError):
            confirmation.confirm_user_link(ada, token)
    assert LinkToken.objects.get().used_at is None
    confirmation.confirm_user_link(ada, token)


def test_a_link_only_reveals_whether_it_is_yours_or_another_users():
    """L5: to me, or to somebody; the token stays as it was"""
    ada, token = factories.ada(), link_factories.server_token().token
    mine = link_factories.server_link(ada)
    with pytest.raises(LinkAlreadyExists) as yours:
        confirmation.confirm_server_link(ada, token)
    with pytest.raises(LinkAlreadyExists) as others:
        confirmation.confirm_server_link(factories.bob(), token)
    assert (yours.value.code, others.value.code) == ("already_yours", "already_linked")
    assert "ada" not in others.value.message
    mine.delete()
    assert confirmation.confirm_server_link(factories.bob(), token).owner == factories.bob()


def test_unknown_tokens_are_not_found():
    """L5"""
    with pytest.raises(LinkNotFound):
        confirmation.confirm_user_link(factories.ada(), "A" * 43)


def test_the_owner_gets_a_mail_that_says_what_was_connected_and_how_to_undo_it(
    django_capture_on_commit_callbacks, monkeypatch, caplog
):
    """L5: and an audit line names our ids alone"""
    monkeypatch.setattr(tasks.tell_of_link, "apply_async", lambda *, args, retry: tasks.tell_of_link(*args))
    caplog.set_level("INFO", "linking.audit")
    with django_capture_on_commit_callbacks(execute=True):
        link = confirmation.confirm_server_link(factories.ada(), link_factories.server_token().token)
    [letter] = mail.outbox
    assert letter.to == ["ada@example.com"]
    assert "The Quay" in letter.body
    assert "/settings/chats/" in letter.body
    assert str(link.pk) in caplog.text
    assert link_factories.SERVER not in caplog.text


def test_first_caps_are_set_with_the_confirmation():
    """L6, L8"""
    token = link_factories.server_token().token
    with pytest.raises(InvalidRequest):
        confirmation.confirm_server_link(factories.ada(), token, {"daily_cap_microdollars": -1})
    link = confirmation.confirm_server_link(
        factories.ada(), token, {"daily_cap_microdollars": 0, "require_mention": False}
    )
    assert (link.daily_cap_microdollars, link.monthly_cap_microdollars, link.require_mention) == (
        0,
        None,
        False,
    )


# --- letting go --------------------------------------------------------------------------------------


def test_unlinking_closes_its_conversations_and_stops_what_runs_there(rig, model):
    """L8: sessions stay with the former owner"""
    model.will(cue(1))
    link = link_factories.server_link()
    place = link_factories.conversation(link)
    other = link_factories.conversation(link_factories.user_link(), container="dm-1")
    running = start(place.session)
    model.reaches(1)
    links.revoke_server_link(link.owner_id, link.pk)
    assert ended(running).cancel_reason == "user"
    place.refresh_from_db()
    assert place.closed_at is not None
    assert place.link_id is None
    assert place.session.owner_id == factories.ada().pk
    other.refresh_from_db()
    assert other.closed_at is None


def test_only_the_owner_changes_or_removes_a_link():
    """L8, L7"""
    server, person = link_factories.server_link(), link_factories.user_link()
    bob = factories.bob()
    with pytest.raises(NotAuthorised):
        links.revoke_server_link(bob.pk, server.pk)
    with pytest.raises(NotAuthorised):
        links.update_server_link(bob.pk, server.pk, {"state": "paused"})
    with pytest.raises(NotAuthorised):
        links.revoke_user_link(bob.pk, person.pk)
    links.revoke_user_link(factories.ada().pk, person.pk)
    with pytest.raises(LinkNotFound):
        links.revoke_user_link(factories.ada().pk, person.pk)


def test_a_server_and_a_chat_account_are_never_found_by_the_other():
    """L9: owning a server grants nothing in direct messages, and the other way round"""
    link_factories.server_link(server_id="same-id", platform="telegram")
    assert selectors.find_user_link("telegram", link_factories.BOT, "same-id") is None
    link_factories.user_link(person="other-id")
    assert selectors.find_server_link("telegram", link_factories.BOT, "other-id") is None


def test_a_shut_account_has_no_links_and_holds_no_place():
    """A-L9.3: between two messages; and somebody else may claim the server"""
    link, person = link_factories.server_link(), link_factories.user_link()
    place = link_factories.conversation(link)
    ada = factories.ada()
    ada.is_active = False
    ada.save()
    assert selectors.find_server_link("discord", link_factories.BOT, link_factories.SERVER) is None
    assert selectors.find_user_link("telegram", link_factories.BOT, person.platform_user_id) is None
    confirmation.confirm_server_link(factories.bob(), link_factories.server_token().token)
    assert PlatformLink.objects.get().owner == factories.bob()
    place.refresh_from_db()
    assert place.closed_at is not None


def test_the_mail_about_a_link_is_sent_although_the_broker_is_down(monkeypatch):
    """L5: an owner who did not connect it finds out, at the latest from the mail"""

    def away(**how: object) -> None:
        raise OperationalError

    monkeypatch.setattr(tasks.tell_of_link, "apply_async", away)
    link_factories.user_token()
    LinkToken.objects.update(used_at=timezone.now(), used_by=factories.ada())
    tasks.enqueue_link_notification(LinkToken.objects.get().pk)
    assert [one.subject for one in mail.outbox] == ["A chat account was connected"]


def test_a_removed_bot_leaves_a_link_that_says_so():
    """L23"""
    link = link_factories.server_link()
    place = link_factories.conversation(link)
    assert links.mark_bot_removed(OURS, link_factories.SERVER) == link
    link.refresh_from_db()
    place.refresh_from_db()
    assert (link.state, place.closed_at is None) == ("bot_removed", False)
    with pytest.raises(InvalidRequest):
        links.update_server_link(link.owner_id, link.pk, {"state": "active"})
    assert links.mark_bot_removed(OURS, "unknown") is None


def test_a_bot_that_was_removed_leaves_anothers_link_alone():
    """L1, L23: two bots are linked in one server; one is thrown out"""
    link, other = (
        link_factories.server_link(),
        link_factories.server_link(factories.bob(), bot_account="other-bot"),
    )
    place, theirs = (
        link_factories.conversation(link),
        link_factories.conversation(other, container="channel-2"),
    )
    removed = links.mark_bot_removed(
        BotAccount(platform="discord", bot_account="other-bot"), link_factories.SERVER
    )
    assert removed == other
    for row in (link, other, place, theirs):
        row.refresh_from_db()
    assert (link.state, other.state) == ("active", "bot_removed")
    assert (place.closed_at is None, theirs.closed_at is None) == (True, False)


def test_a_server_that_the_bot_was_removed_from_can_be_linked_again():
    """L23, L8: as its members are told; until somebody confirms, nothing changes"""
    link = link_factories.server_link()
    links.mark_bot_removed(OURS, link_factories.SERVER)
    token = link_factories.server_token().token
    assert PlatformLink.objects.get() == link
    confirmation.confirm_server_link(factories.bob(), token)
    fresh = PlatformLink.objects.get()
    assert (fresh.owner, fresh.state) == (factories.bob(), "active")
    with pytest.raises(LinkAlreadyExists):
        link_factories.server_token()


# --- accounts ----------------------------------------------------------------------------------------


def test_an_account_that_goes_leaves_nothing_of_itself():
    """L25: links, tokens, the map of places, and what came in from there"""
    ada = factories.ada()
    link_factories.server_token()  # superseded, and used by nobody
    token = link_factories.server_token().token
    link = confirmation.confirm_server_link(ada, token)
    link_factories.conversation(link)
    link_factories.user_token()
    link_factories.conversation(link_factories.user_link(), container="dm-1")
    others = link_factories.conversation(
        link_factories.user_link(factories.bob(), person="bob"), container="dm-2"
    )
    link_factories.bot_key(created_by=ada)
    for number, container in enumerate(("channel-1", "dm-1", "dm-2")):
        PlatformUpdate.objects.create(
            platform="discord" if container == "channel-1" else "telegram",
            bot_account=link_factories.BOT,
            update_key=str(number),
            container_id=container,
        )
    links.revoke_account_links(ada.pk)
    links.erase_account_data(ada.pk)
    assert not PlatformLink.objects.exists()
    assert not LinkToken.objects.exists()
    assert list(PlatformConversation.objects.all()) == [others]
    assert [row.container_id for row in PlatformUpdate.objects.all()] == ["dm-2"]
    assert links.revoke_account_links(ada.pk) == 0
    assert links.erase_account_data(ada.pk) == 0


def test_an_account_that_goes_takes_nothing_that_others_say_where_it_once_spoke():
    """L25, L18: the place is somebody else's by now, and what came in there waits to be answered"""
    ada, bob = factories.ada(), factories.bob()
    links.revoke_server_link(ada.pk, link_factories.conversation(link_factories.server_link(ada)).link_id)
    confirmation.confirm_server_link(bob, link_factories.server_token().token)
    link_factories.conversation(PlatformLink.objects.get(owner=bob))
    for key, outcome in (("handled", "started"), ("waiting", "")):
        PlatformUpdate.objects.create(
            platform="discord",
            bot_account=link_factories.BOT,
            update_key=key,
            container_id="channel-1",
            outcome=outcome,
            done_at=timezone.now() if outcome else None,
        )
    links.revoke_account_links(ada.pk)
    assert [row.update_key for row in PlatformUpdate.objects.all()] == ["waiting"]


def test_nothing_is_linked_to_an_account_under_erasure(django_capture_on_commit_callbacks):
    """L25, S17"""
    ada, token = factories.ada(), link_factories.user_token().token
    link_factories.server_link()
    with django_capture_on_commit_callbacks(execute=True):
        deletion.request_deletion(ada, password=factories.PASSWORD)
    assert not PlatformLink.objects.exists()
    with pytest.raises(IntegrityError):
        confirmation.confirm_user_link(ada, token)


def test_old_tokens_are_purged():
    """L3"""
    link_factories.server_token()
    assert links.purge_link_tokens() == 0
    aged(days=31)
    assert links.purge_link_tokens() == 1


# --- the rules of the tables -------------------------------------------------------------------------


def refused(act, constraint: str) -> None:
    with pytest.raises(IntegrityError) as problem, transaction.atomic():
        act()
    assert constraint in str(problem.value)


def test_the_database_keeps_the_rules_of_links_and_tokens():
    """L3"""
    token = link_factories.server_token()
    row = LinkToken.objects.get()
    now = timezone.now()
    mine = LinkToken.objects.filter(pk=row.pk)
    refused(lambda: mine.update(used_at=now), "a_used_token_and_only_a_used_token_has_a_user")
    refused(
        lambda: mine.update(used_at=now, used_by=factories.ada(), superseded_at=now),
        "a_used_token_is_not_superseded",
    )
    row.pk, row.digest = None, "0" * 64
    refused(lambda: row.save(force_insert=True), "one_pending_token_per_subject")
    link = confirmation.confirm_server_link(factories.ada(), token.token)
    refused(lambda: link_factories.server_link(factories.bob()), "a_server_has_one_owner")
    place = link_factories.conversation(link)
    refused(lambda: link_factories.conversation(link), "one_open_conversation_per_place")
    here = PlatformConversation.objects.filter(pk=place.pk)
    refused(lambda: here.update(scope="dm"), "an_open_conversation_has_the_link_of_its_scope")
    refused(lambda: link.delete(), "an_open_conversation_has_the_link_of_its_scope")
    conversations.close_link_conversations(link.pk)
    link_factories.conversation(link)
    assert connection.is_usable()


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("<b>", "<b>"),
        ("a\u202eb\u2066c", "abc"),
        ("line\nsystem:\x00\x07", "line system:"),
        ("  many   words ", "many words"),
        ("x" * 500, "x" * 79 + "…"),
        ("👩‍🚀 crew", "👩‍🚀 crew"),
    ],
)
def test_untrusted_names_are_one_inert_line(given, shown):
    """L6, L12"""
    assert clean_name(given) == shown
