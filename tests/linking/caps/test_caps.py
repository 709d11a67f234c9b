"""L8, L9: what a server's members may do at its owner's cost."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from datetime import timedelta
from functools import partial

import pytest
from django.db import IntegrityError
from django.db.models import F
from django.utils import timezone

from billing import errors
from copilot.chat import turn_details
from copilot.chat.turn_context import InboundContext, ReplyAddress
from copilot.files import services as files
from copilot.models import Approval, ModelCall
from copilot.providers.scripted import ScriptedCall, ScriptedText
from copilot.tools import registry
from linking import selectors, tasks
from linking.caps import admission, reservations
from linking.caps.admission import ServerMessage
from linking.conversations import services as conversations
from linking.conversations.services import ConversationPlace
from linking.errors import REFUSAL_MESSAGES, MessageRefused, NotLinked
from linking.inbound import update_handler
from linking.links import confirmation
from linking.links import services as links
from linking.models import CapReservation, LinkUsage, PlatformConversation, PlatformLink
from tests.support import factories, link_factories
from tests.support.turn_engine import ended, start, status, together, until

pytestmark = pytest.mark.django_db
RESERVE = 50_000


def said(number: int = 1, **fields: object) -> ServerMessage:
    given = {"run_id": f"run-{number}", "container_id": "channel-1", "platform_user_id": "member-1"} | fields
    return ServerMessage(**given)


def refusal(link: PlatformLink, message: ServerMessage) -> MessageRefused:
    with pytest.raises(MessageRefused) as refused:
        admission.admit_message(link, message)
    return refused.value


def spend(link: PlatformLink, amount: int, *, days_ago: int = 0) -> None:
    day = timezone.now().date() - timedelta(days=days_ago)
    LinkUsage.objects.create(link=link, day=day, spent_microdollars=amount)


def usage(link: PlatformLink) -> tuple[int, int]:
    row = LinkUsage.objects.get(link=link)
    return row.spent_microdollars, row.reserved_microdollars


# --- the order of checks -----------------------------------------------------------------------------


def test_the_first_rule_that_fails_decides_in_the_order_of_the_spec(monkeypatch):
    """L8: everything is wrong at once, and is put right from the top; nothing is set aside before all is well"""
    link = link_factories.server_link(
        state="bot_removed",
        allowed_channels=["other"],
        allowed_roles=["crew"],
        member_turns_per_hour=0,
        daily_cap_microdollars=0,
    )
    over = errors.LimitReached(window="daily", resets_at=timezone.now())

    def broke(user_id: int) -> None:
        raise over

    monkeypatch.setattr("billing.usage.limit_checks.check_limits", broke)
    message = said(mentioned=False)
    right: list[tuple[str, dict[str, object]]] = [
        ("bot_removed", {"state": "paused"}),
        ("link_paused", {"state": "active"}),
        ("channel_not_allowed", {"allowed_channels": ["channel-1"]}),
        ("role_not_allowed", {"allowed_roles": []}),
        ("mention_required", {"require_mention": False}),
        ("member_rate_reached", {"member_turns_per_hour": 20}),
        ("cap_reached", {"daily_cap_microdollars": None}),
        ("limit_reached", {}),
    ]
    for reason, remedy in right:
        assert refusal(link, message).reason == reason
        assert not CapReservation.objects.exists()
        PlatformLink.objects.filter(pk=link.pk).update(**remedy)
        link.refresh_from_db()
    monkeypatch.undo()
    admission.admit_message(link, message)
    assert usage(link) == (0, RESERVE)


def test_a_channel_that_is_not_allowed_hears_nothing_unless_the_bot_was_spoken_to():
    """A-L8.4"""
    link = link_factories.server_link(allowed_channels=["quay"], require_mention=False)
    overheard = refusal(link, said(mentioned=False))
    assert not update_handler.may_announce_refusal(overheard, "discord", link_factories.BOT, "channel-1")
    asked = refusal(link, said(mentioned=True))
    assert update_handler.may_announce_refusal(asked, "discord", link_factories.BOT, "channel-1")
    assert not LinkUsage.objects.exists()
    assert not CapReservation.objects.exists()


def test_a_refusal_is_announced_once_an_hour_in_each_channel():
    """L8: it names the remedy, never an amount or whose it is"""
    paused, capped = MessageRefused("link_paused"), MessageRefused("cap_reached")
    tell = partial(update_handler.may_announce_refusal, platform="discord", bot_account=link_factories.BOT)
    assert [tell(paused, container_id=one) for one in ("a", "a", "b")] == [True, False, True]
    assert tell(capped, container_id="a")
    for status_code, sentence in REFUSAL_MESSAGES.values():
        assert status_code in (403, 429)
        assert not any(one.isdigit() or one in "$€@" for one in sentence)


def test_roles_are_any_of_those_named():
    """L8"""
    link = link_factories.server_link(allowed_roles=["crew", "mate"])
    assert refusal(link, said(role_ids=["guest"])).reason == "role_not_allowed"
    admission.admit_message(link, said(role_ids=["guest", "mate"]))


def test_a_member_asks_so_often_an_hour_and_the_others_are_not_kept_back():
    """L8"""
    link = link_factories.server_link(member_turns_per_hour=2)
    for number in range(2):
        admission.admit_message(link, said(number))
    assert refusal(link, said(3)).reason == "member_rate_reached"
    admission.admit_message(link, said(4, platform_user_id="member-2"))
    CapReservation.objects.update(created_at=F("created_at") - timedelta(hours=1))
    admission.admit_message(link, said(5))
    assert not CapReservation.objects.filter(member__contains="member").exists()


def test_a_channel_has_a_rate_of_its_own(settings):
    """L25"""
    settings.LINK_CHANNEL_MESSAGES = 2
    link = link_factories.server_link()
    for number in range(2):
        admission.admit_message(link, said(number))
    assert refusal(link, said(3)).reason == "channel_rate_reached"
    admission.admit_message(link, said(4, container_id="channel-2"))


# --- caps --------------------------------------------------------------------------------------------


def test_no_cap_never_refuses_and_a_cap_of_nothing_refuses_everything():
    """A-L8.5"""
    closed = link_factories.server_link(server_id="closed", daily_cap_microdollars=0)
    shut = link_factories.server_link(server_id="shut", monthly_cap_microdollars=0)
    free = link_factories.server_link(server_id="free")
    spend(free, 10**12)
    assert refusal(closed, said(1)).reason == "cap_reached"
    assert refusal(shut, said(2)).reason == "cap_reached"
    admission.admit_message(free, said(3))


def test_a_day_and_a_month_are_counted_apart():
    """L8: in UTC; yesterday counts for the month alone"""
    link = link_factories.server_link(daily_cap_microdollars=100_000, monthly_cap_microdollars=300_000)
    today = timezone.now().date()
    spend(link, 240_000, days_ago=today.day - 1 if today.day > 1 else 0)
    if today.day > 1:
        admission.admit_message(link, said(1))
        assert refusal(link, said(2)).retry_after_seconds > 0
        CapReservation.objects.all().delete()
    PlatformLink.objects.update(monthly_cap_microdollars=None, daily_cap_microdollars=40_000)
    LinkUsage.objects.all().delete()
    assert 0 < refusal(link, said(3)).retry_after_seconds <= 24 * 3600


@pytest.mark.parametrize("rounds", [5, pytest.param(50, marks=[pytest.mark.slow, pytest.mark.timeout(600)])])
@pytest.mark.django_db(transaction=True)
def test_of_ten_messages_at_once_a_cap_lets_through_what_there_is_room_for(rounds):
    """A-L8.1: and each channel is told once"""
    for number in range(rounds):
        link = link_factories.server_link(
            server_id=f"server-{number}", daily_cap_microdollars=RESERVE + 10_000
        )
        messages = [said(10 * number + one, container_id=f"channel-{number}-{one}") for one in range(10)]
        outcomes = together(*(partial(admission.admit_message, link, one) for one in messages))
        refused = [one for one in outcomes if isinstance(one, MessageRefused)]
        assert [one.reason for one in refused] == ["cap_reached"] * 9, outcomes
        assert usage(link) == (0, RESERVE)
        for message, outcome in zip(messages, outcomes, strict=True):
            if isinstance(outcome, MessageRefused):
                told = [
                    update_handler.may_announce_refusal(
                        outcome, "discord", link_factories.BOT, message.container_id
                    )
                    for _ in range(2)
                ]
                assert told == [True, False]


def test_a_repeated_message_takes_its_share_once():
    """L8, L12"""
    link = link_factories.server_link(daily_cap_microdollars=RESERVE)
    admission.admit_message(link, said())
    admission.admit_message(link, said())
    assert usage(link) == (0, RESERVE)
    reservations.release_reservation("run-1")
    reservations.release_reservation("run-1")
    assert usage(link) == (0, 0)
    admission.admit_message(link, said(2))


def test_a_link_that_went_meanwhile_lets_nothing_in():
    """L8"""
    link = link_factories.server_link()
    links.revoke_server_link(link.owner_id, link.pk)
    with pytest.raises(NotLinked):
        admission.admit_message(link, said())


def test_the_database_keeps_the_accounts():
    """L3"""
    link = link_factories.server_link()
    spend(link, 1)
    with pytest.raises(IntegrityError):
        LinkUsage.objects.update(reserved_microdollars=-1)


# --- settling ----------------------------------------------------------------------------------------


def ended_turn(link: PlatformLink, *run_ids: str, cost: int) -> turn_details.TurnDetails:
    place = PlatformLink.objects.get(pk=link.pk).conversations.first() or link_factories.conversation(link)
    turn = factories.turn(place.session, "succeeded", origin="discord", run_ids=list(run_ids))
    for run_id in run_ids:
        factories.message(place.session, turn=turn, run_id=run_id, content="hello")
        reservations.set_reservation_session(run_id, place.session_id)
    ModelCall.objects.create(turn=turn, number=1, provider="p", model="m", cost_microdollars=cost)
    standing = turn_details.get_turn_details(turn.pk)
    assert standing is not None
    return standing


def test_the_cost_of_a_turn_replaces_its_reservation():
    """L8: once, however often it is reported; of several messages in one turn the first bears the cost"""
    link = link_factories.server_link()
    admission.admit_message(link, said(1))
    admission.admit_message(link, said(2))
    turn = ended_turn(link, "run-1", "run-2", cost=777)
    for _ in range(2):
        reservations.settle_turn(turn.turn_id)
    assert usage(link) == (777, 0)
    assert Counter(CapReservation.objects.values_list("spent_microdollars", flat=True)) == {0: 1, 777: 1}
    links.revoke_server_link(link.owner_id, link.pk)
    assert LinkUsage.objects.get().spent_microdollars == 777


def test_the_sweep_settles_what_a_crash_left_open():
    """L8: an ended turn costs what it cost, a message that is gone nothing, and one that waits stays"""
    link = link_factories.server_link()
    for number in range(5):
        admission.admit_message(link, said(number))
    ended_turn(link, "run-0", cost=500)
    place = link.conversations.get()
    factories.pending(place.session, "later", run_id="run-1")
    reservations.set_reservation_session("run-1", place.session_id)
    reservations.set_reservation_session("run-2", place.session_id)  # no such message: it was taken back
    CapReservation.objects.exclude(run_id="run-4").update(created_at=F("created_at") - timedelta(minutes=11))
    tasks.tend()
    open_ones = CapReservation.objects.filter(settled_at=None).order_by("run_id")
    assert [row.run_id for row in open_ones] == ["run-1", "run-4"]  # run-3 was never said
    assert usage(link) == (500, 2 * RESERVE)


def test_the_signal_of_its_ending_settles_a_real_turn(rig, model):
    """L8: `turn_ended` is sent once the cost is known"""
    model.will(ScriptedText("Aye."))
    link = link_factories.server_link()
    place = link_factories.conversation(link)
    admission.admit_message(link, said(1))
    reservations.set_reservation_session("run-1", place.session_id)
    turn_id = start(place.session, **in_a_server(link, place))
    ended(turn_id)
    until(lambda: CapReservation.objects.get().settled_at is not None)
    assert usage(link) == (turn_details.get_cost_microdollars(turn_id), 0)


def test_old_reservations_go_and_open_ones_stay():
    link = link_factories.server_link()
    admission.admit_message(link, said(1))
    CapReservation.objects.update(created_at=F("created_at") - timedelta(days=63))
    assert reservations.purge_reservations() == 0
    CapReservation.objects.update(settled_at=timezone.now(), spent_microdollars=0)
    assert reservations.purge_reservations() == 1


# --- guests ------------------------------------------------------------------------------------------


def in_a_server(link, place, *, of_payer: bool = False) -> dict[str, object]:
    """How a member's message is said: as a guest, from the place it came from."""
    reply = ReplyAddress(
        platform="discord",
        conversation_id=str(place.pk),
        container="channel-1",
        of_payer=of_payer,
        async_delivery=True,
        interactive=True,
    )
    return {
        "origin": "discord",
        "run_id": "run-1",
        "permissions": admission.build_guest_permissions(link.tools),
        "inbound_context": InboundContext(reply=reply),
        "author": "Eve",
    }


def test_a_guest_sees_no_file_of_the_owner(rig, model):
    """A-L8.3: the guest profile is stored on the turn, and its tools see this conversation alone"""
    link = link_factories.server_link()
    place = link_factories.conversation(link)
    files.store_file(link.owner_id, name="diary.txt", content=b"secret", source="upload")
    model.will(ScriptedCall("list_files", {}))
    model.will(ScriptedText("Nothing here."))
    turn = ended(start(place.session, "list my files", **in_a_server(link, place)))
    assert turn.permissions == admission.build_guest_permissions([]).to_json()
    assert "diary.txt" not in model.said_to()
    offered = {one.name for one in model.requests[0].tools}
    assert offered == set(admission.GUEST_TOOLS)


def test_the_guest_profile_opens_nothing_of_the_account():
    """L8: whatever the owner names; and each name is a tool there is"""
    shipped = {tool.name for tool in registry.BUILTIN_TOOLS}
    assert shipped >= admission.GUEST_TOOLS | admission.OPTIONAL_TOOLS
    widest = admission.build_guest_permissions(shipped)
    assert widest.tools == admission.GUEST_TOOLS | admission.OPTIONAL_TOOLS
    assert not any((widest.memory, widest.own_credentials, widest.schedules, widest.sub_sessions))
    assert widest.mcp_servers == widest.agents == frozenset()
    assert widest.files == "session"
    assert not admission.build_guest_permissions(["bash_exec"]).network
    assert admission.build_guest_permissions(["web_fetch"]).network


def test_a_guests_deletion_needs_the_owners_approval_even_if_calls_run_without_asking(rig, model):
    """L8: auto-approval is for the owner's own words"""
    link = link_factories.server_link(tools=["delete_file"])
    place = link_factories.conversation(link)
    place.session.auto_approve = True
    place.session.save()
    model.will(ScriptedCall("write_file", {"name": "a.txt", "content": "a"}))
    model.will(ScriptedCall("delete_file", {"file": "a.txt"}))
    turn_id = start(place.session, "tidy up", **in_a_server(link, place))
    until(lambda: status(turn_id) == "waiting")
    assert Approval.objects.get(turn=turn_id).tool == "delete_file"


def test_a_search_that_costs_is_asked_of_the_owner(rig, model, settings):
    """L8: what settings price is the owner's money, too"""
    settings.WEB_SEARCH, settings.WEB_SEARCH_URL = "searxng", "http://127.0.0.1:9"
    settings.WEB_SEARCH_PRICE_MICRODOLLARS = 5_000
    link = link_factories.server_link(tools=["web_search"])
    place = link_factories.conversation(link)
    model.will(ScriptedCall("web_search", {"query": "boats"}))
    turn_id = start(place.session, "search", **in_a_server(link, place))
    until(lambda: status(turn_id) == "waiting")
    assert Approval.objects.get(turn=turn_id).tool == "web_search"


def test_a_server_with_a_new_owner_starts_a_new_conversation():
    """A-L8.2: a new session, owned by the new owner"""
    ada, bob = factories.ada(), factories.bob()
    where = ConversationPlace(
        platform="discord",
        bot_account=link_factories.BOT,
        scope="server",
        container_id="channel-1",
        server_id=link_factories.SERVER,
    )
    confirmation.confirm_server_link(ada, link_factories.server_token().token)
    old = conversations.get_or_open_conversation(where, conversations.find_payer(where, "member-1"))
    links.revoke_server_link(
        ada.pk, selectors.find_server_link("discord", link_factories.BOT, link_factories.SERVER).pk
    )
    with pytest.raises(NotLinked):
        conversations.find_payer(where, "member-1")
    confirmation.confirm_server_link(bob, link_factories.server_token().token)
    new = conversations.get_or_open_conversation(where, conversations.find_payer(where, "member-1"))
    assert new.session_id != old.session_id
    assert conversations.find_payer(where, "member-1").owner_id == bob.pk


@pytest.mark.django_db(transaction=True)
def test_a_first_message_that_meets_an_unlinking_opens_nothing_that_stays():
    """L8, L15: either order is well; nobody meets a broken row"""
    for number in range(20):
        link = link_factories.server_link(server_id=f"server-{number}")
        where = ConversationPlace(
            platform="discord",
            bot_account=link_factories.BOT,
            scope="server",
            container_id=f"channel-{number}",
            server_id=link.server_id,
        )
        payer = conversations.find_payer(where, "member-1")
        opened, unlinked = together(
            partial(conversations.get_or_open_conversation, where, payer),
            partial(links.revoke_server_link, link.owner_id, link.pk),
        )
        assert isinstance(opened, conversations.OpenConversation | NotLinked), opened
        assert unlinked is None, unlinked
        assert not PlatformConversation.objects.filter(
            container_id=where.container_id, closed_at=None
        ).exists()


def test_servers_and_direct_messages_know_nothing_of_each_other():
    """A-L9.1, A-L9.2"""
    link_factories.server_link(factories.ada())
    link_factories.user_link(factories.bob(), person="bob", platform="discord")
    dm = ConversationPlace(
        platform="discord", bot_account=link_factories.BOT, scope="dm", container_id="dm-1"
    )
    with pytest.raises(NotLinked):  # the owner of a linked server, without a link of their own
        conversations.find_payer(dm, "ada")
    elsewhere = replace(dm, scope="server", server_id="unlinked")
    with pytest.raises(NotLinked):  # somebody who is linked for direct messages, in an unlinked server
        conversations.find_payer(elsewhere, "bob")
    assert update_handler.may_send_greeting("discord", link_factories.BOT, "ada")
    assert not update_handler.may_send_greeting("discord", link_factories.BOT, "ada")
    assert not CapReservation.objects.exists()


def test_an_unlinked_server_gets_a_limited_number_of_notices_a_day(settings):
    """L25"""
    settings.LINK_PROMPTS_PER_SERVER_DAY = 2
    assert [update_handler.may_prompt_unlinked_server("discord", "s") for _ in range(3)] == [
        True,
        True,
        False,
    ]
