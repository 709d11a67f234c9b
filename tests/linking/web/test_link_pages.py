"""L6, L10: the page that confirms a link, its QR code, the page of connected chats, and the pages of staff."""

from __future__ import annotations

import re
import uuid
from functools import partial
from html import unescape
from io import StringIO

import pytest
from django.contrib import admin
from django.contrib.admin.models import LogEntry
from django.core.management import CommandError, call_command
from django.test import Client
from django.urls import reverse

from config.logging_config import redact_log_event
from linking.conversations import services as conversations
from linking.links import bot_keys, confirmation, tokens
from linking.models import BotKey, DeliveryEndpoint, LinkToken, PlatformLink, PlatformUserLink
from tests.support import factories, link_factories
from tests.support.html_forms import check_error
from tests.support.rest_clients import person
from tests.support.turn_engine import together

pytestmark = pytest.mark.django_db


@pytest.fixture
def ada():
    return person(factories.ada())


def text_of(response) -> str:
    return unescape(response.content.decode())


# --- the link page -----------------------------------------------------------------------------------


def test_looking_uses_nothing_however_often(ada):
    """A-L6.1: previews are fetched by machines, with a login or without"""
    token = link_factories.server_token().token
    stranger = Client()
    for _ in range(50):
        seen = stranger.get(f"/link/{token}")
        assert seen.status_code == 302
        assert seen["Location"] == f"/accounts/login/?next=/link/{token}"
        assert "Quay" not in text_of(seen)
    assert "The Quay" in text_of(ada.get(f"/link/{token}"))
    assert tokens.get_token_status("discord", link_factories.BOT, token).status == "pending"


def test_the_page_says_what_confirming_means_and_is_not_cached(ada):
    """L6"""
    server = ada.get(f"/link/{link_factories.server_token().token}")
    person_page = text_of(ada.get(f"/link/{link_factories.user_token().token}"))
    assert "you pay for it" in text_of(server)
    assert "Requested by Eve" in text_of(server)
    assert 'name="daily_cap"' in text_of(server)
    assert "act as you" in person_page
    assert "Confirm only if the account is yours and you trust the bot" in person_page
    assert server["Cache-Control"] == "no-store"
    assert server["Referrer-Policy"] == "no-referrer"
    assert server["X-Robots-Tag"] == "noindex"
    assert "frame-ancestors 'none'" in server["Content-Security-Policy"]


def test_a_hostile_name_is_inert_text(ada):
    """A-L6.2"""
    token = link_factories.server_token(
        subject_name="<script>\u202e" + "x" * 500, requester_name="a\nb"
    ).token
    page = ada.get(f"/link/{token}").content.decode()
    assert "&lt;script&gt;" + "x" * 71 + "…" in page
    assert "<script>x" not in page
    assert "\u202e" not in page
    assert "a b" in page


def test_a_forged_post_confirms_nothing():
    """A-L6.3"""
    token = link_factories.user_token().token
    forger = person(factories.ada(), csrf=True)
    assert forger.post(f"/link/{token}/confirm-user").status_code == 403
    assert forger.post(f"/link/{token}/cancel").status_code == 403
    assert tokens.get_token_status("telegram", link_factories.BOT, token).status == "pending"


@pytest.mark.parametrize("odd", ["..%2F..", "a$b", "a" * 65, "%00", "a/b/c", ""])
def test_what_cannot_be_a_token_is_looked_for_nowhere(odd, django_assert_num_queries):
    """A-L6.4"""
    for path in (f"/link/{odd}", f"/link/{odd}/confirm-user"):
        with django_assert_num_queries(0):
            assert Client().get(path).status_code == 404


def test_confirming_connects_and_the_page_says_so(ada):
    """L6, L5: caps are chosen on the same form"""
    token = link_factories.server_token().token
    done = ada.post(f"/link/{token}/confirm-server", {"daily_cap": "2.50", "monthly_cap": ""}, follow=True)
    assert "is connected to your account" in text_of(done)
    link = PlatformLink.objects.get()
    assert (link.owner, link.daily_cap_microdollars, link.monthly_cap_microdollars) == (
        factories.ada(),
        2_500_000,
        None,
    )
    stranger = person(factories.bob()).get(f"/link/{token}")
    assert stranger.status_code == 410
    assert "/link" in text_of(stranger)


@pytest.mark.parametrize("rounds", [5, pytest.param(50, marks=[pytest.mark.slow, pytest.mark.timeout(1200)])])
@pytest.mark.django_db(transaction=True)
def test_a_double_click_is_a_success(rounds):
    """A-L5.2"""
    for number in range(rounds):
        token = link_factories.user_token(f"person-{number}").token
        clicks = [
            partial(person(factories.ada()).post, f"/link/{token}/confirm-user", follow=True)
            for _ in range(2)
        ]
        for answer in together(*clicks):
            assert answer.status_code == 200, answer
            assert "is connected to your account" in text_of(answer)
    assert PlatformUserLink.objects.count() == rounds


def test_every_way_a_link_can_have_ended_has_a_page_that_says_what_to_do(ada):
    """L6: unknown, superseded, expired, somebody else's, the wrong kind, a bad cap, cancelled"""
    assert ada.get(f"/link/{'A' * 43}").status_code == 404
    assert ada.post(f"/link/{'A' * 43}/confirm-user").status_code == 404
    old, new = link_factories.server_token().token, link_factories.server_token().token
    gone = ada.post(f"/link/{old}/confirm-server")
    assert gone.status_code == 410
    assert "Ask the bot for a new one" in text_of(gone)
    wrong = ada.post(f"/link/{new}/confirm-user")
    assert wrong.status_code == 400
    assert "Connect the server" in text_of(wrong)
    bad = ada.post(f"/link/{new}/confirm-server", {"daily_cap": "a lot"})
    assert bad.status_code == 400
    check_error(bad, "daily_cap", "Enter an amount in dollars")
    assert not PlatformLink.objects.exists()
    link_factories.server_link(factories.bob())
    for taken in (ada.get(f"/link/{new}"), ada.post(f"/link/{new}/confirm-server")):
        assert taken.status_code == 409
        assert "already connected to an account" in text_of(taken)
        assert "bob" not in text_of(taken)
    cancelled = link_factories.user_token().token
    assert ada.post(f"/link/{cancelled}/cancel").status_code == 200
    assert tokens.get_token_status("telegram", link_factories.BOT, cancelled).status == "superseded"


def test_the_qr_code_reveals_nothing_and_needs_no_query(django_assert_num_queries):
    """L6: the same for unknown tokens; without a login"""
    with django_assert_num_queries(0):
        drawn = Client().get(f"/link/{'A' * 43}/qr.svg")
    assert drawn["Content-Type"] == "image/svg+xml"
    assert drawn.content.startswith(b"<?xml") or b"<svg" in drawn.content
    assert drawn["Cache-Control"] == "no-store"


@pytest.mark.parametrize(
    "path",
    [
        "Gone: /link/{}",
        "/link/{}/confirm-user",
        "?next=/link/{}",
        "?next=%2Flink%2F{}",
        "/api/v1/linking/tokens/{}/confirm-server",
        "/api/bot/v1/tokens/{}/status",
    ],
)
def test_no_log_line_holds_a_link_token(path):
    """L25"""
    token = "Ab-" + "x_9" * 13 + "z"
    said = redact_log_event(None, "info", {"event": path.format(token)})
    assert token not in str(said)
    assert "9x_9" not in str(said)


# --- connected chats ---------------------------------------------------------------------------------


def test_the_page_lists_what_is_connected_and_changes_it(ada):
    """L6, L8"""
    link, person_link = (
        link_factories.server_link(daily_cap_microdollars=1_500_000),
        link_factories.user_link(),
    )
    link_factories.server_link(factories.bob(), server_id="others", server_name="Elsewhere")
    page = text_of(ada.get("/settings/chats/"))
    assert "The Quay" in page
    assert "Ada L." in page
    assert 'value="1.50"' in page
    assert "Elsewhere" not in page
    saved = ada.post(
        f"/settings/chats/servers/{link.pk}/",
        {
            "daily_cap": "0",
            "monthly_cap": "10",
            "member_turns": "7",
            "channels": "a\nb, a",
            "roles": "",
            "tools": ["web_fetch"],
        },
        follow=True,
    )
    assert "Saved" in text_of(saved)
    link.refresh_from_db()
    assert (link.daily_cap_microdollars, link.monthly_cap_microdollars) == (0, 10_000_000)
    assert (link.member_turns_per_hour, link.allowed_channels, link.require_mention) == (7, ["a", "b"], False)
    assert link.tools == ["web_fetch"]
    shown = text_of(ada.get("/settings/chats/"))
    assert ">\na\nb</textarea>" in shown
    assert "{{" not in shown
    ada.post(f"/settings/chats/servers/{link.pk}/pause/", {"pause": "1"})
    assert "Paused" in text_of(ada.get("/settings/chats/"))
    ada.post(f"/settings/chats/servers/{link.pk}/unlink/")
    ada.post(f"/settings/chats/people/{person_link.pk}/unlink/")
    assert "None yet" in text_of(ada.get("/settings/chats/"))


def test_settings_that_cannot_be_saved_are_reported_and_only_the_owner_may_save(ada):
    """L8"""
    link = link_factories.server_link()
    for wrong, name, message in (
        ({"member_turns": "x"}, "member_turns", "Enter a whole number."),
        ({"member_turns": "10001"}, "member_turns", "less than or equal to 10000"),
        ({"member_turns": "1", "channels": "a$"}, "channels", "not a valid id or name"),
        ({"member_turns": "1", "daily_cap": "-1"}, "daily_cap", "Enter an amount in dollars"),
        ({"member_turns": "1", "monthly_cap": "1e99999"}, "monthly_cap", "Enter an amount in dollars"),
        ({"member_turns": "1", "tools": "format_disk"}, "tools", "Select a valid choice."),
    ):
        answer = ada.post(f"/settings/chats/servers/{link.pk}/", wrong)
        assert answer.status_code == 400
        check_error(answer, name, message, kept=wrong[name] if name != "tools" else None)
        assert '<details class="chat-change" open>' in text_of(answer)
    unchanged = PlatformLink.objects.get(pk=link.pk)
    assert (unchanged.allowed_channels, unchanged.daily_cap_microdollars) == ([], link.daily_cap_microdollars)
    assert ada.post(f"/settings/chats/servers/{uuid.uuid4()}/", {}).status_code == 404
    bob = person(factories.bob())
    assert bob.post(f"/settings/chats/servers/{link.pk}/", {"member_turns": "1"}).status_code == 404
    answer = bob.post(f"/settings/chats/servers/{link.pk}/unlink/", follow=True)
    assert "belongs to another account" in text_of(answer)
    assert PlatformLink.objects.filter(pk=link.pk).exists()
    assert ada.post(f"/settings/chats/people/{link.pk}/unlink/").status_code == 404


def test_bots_that_are_set_up_are_shown_with_their_codes(ada, settings):
    """L6, L26: a platform without credentials is off"""
    assert "No bots are set up here yet" in text_of(ada.get("/settings/chats/"))
    assert ada.get("/settings/chats/telegram/qr.svg").status_code == 404
    settings.TELEGRAM_BOT_TOKEN, settings.TELEGRAM_BOT_NAME = "123:abc", "quay_bot"
    settings.DISCORD_BOT_TOKEN, settings.DISCORD_APP_ID = "t", "42"
    settings.SLACK_BOT_TOKEN, settings.SLACK_APP_URL = "t", "https://slack.com/app"
    page = text_of(ada.get("/settings/chats/"))
    assert "https://t.me/quay_bot" in page
    assert "client_id=42" in page
    assert ada.get("/settings/chats/telegram/qr.svg")["Content-Type"] == "image/svg+xml"


def test_long_lists_of_links_come_in_pages(ada):
    """W3: each list keeps its place while the other is turned, and every link is shown once"""
    for number in range(30):
        link_factories.server_link(server_id=f"s{number}")
        link_factories.user_link(person=f"p{number}")
    servers, people = r"chats/servers/([0-9a-f-]+)/unlink/", r"chats/people/([0-9a-f-]+)/unlink/"
    first = text_of(ada.get("/settings/chats/"))
    turned = text_of(ada.get(f"/settings/chats/{_older(first, 'people')}"))
    assert re.findall(servers, turned) == re.findall(servers, first)
    last = text_of(ada.get(f"/settings/chats/{_older(turned, 'servers')}"))
    assert re.findall(people, last) == re.findall(people, turned)
    for kind in (servers, people):
        shown = re.findall(kind, first), re.findall(kind, last)
        assert [len(one) for one in shown] == [25, 5]
        assert len({*shown[0], *shown[1]}) == 30
    assert ada.get("/settings/chats/?servers=nonsense").status_code == 404


def _older(page: str, name: str) -> str:
    return re.findall(rf'href="(\?[^"]*{name}=[^"]*)#{name}">Older<', page)[0]


# --- staff -------------------------------------------------------------------------------------------


def test_staff_make_a_key_see_it_once_and_revoke_it():
    """L10: who did it is on record, and a second time is no error"""
    staff = person(factories.grace())
    made = staff.post(
        reverse("admin:linking_botkey_add"),
        {
            "name": "A bot",
            "platform": "slack",
            "bot_account": "B1",
            "scopes": ["links:read"],
            "rate_per_minute": "60",
            "allowed_cidrs": "203.0.113.0/24",
        },
    )
    row = BotKey.objects.get()
    assert "no-store" in made["Cache-Control"]
    key = text_of(made).partition('id="key">')[2].partition("<")[0]
    assert bot_keys.verify_bot_key(key, "203.0.113.9") == row
    assert row.created_by == factories.grace()
    for page in ("changelist", "change"):
        arguments = [row.pk] if page == "change" else []
        shown = text_of(staff.get(reverse(f"admin:linking_botkey_{page}", args=arguments)))
        assert row.prefix in shown
        assert row.secret_hash not in shown
        assert key not in shown
    chosen = {"action": "revoke", "_selected_action": [str(row.pk)]}
    staff.post(reverse("admin:linking_botkey_changelist"), chosen)
    assert bot_keys.verify_bot_key(key, "203.0.113.9") is None
    staff.post(reverse("admin:linking_botkey_changelist"), chosen)
    [made_it, revoked] = LogEntry.objects.filter(object_id=str(row.pk)).order_by("pk")
    assert (made_it.user, revoked.user, revoked.change_message) == (
        factories.grace(),
        factories.grace(),
        "Revoked.",
    )


def test_a_key_of_the_form_has_the_rate_of_the_settings_unless_told_otherwise(settings):
    """L26"""
    settings.BOT_KEY_RATE_PER_MINUTE = 77
    assert 'value="77"' in text_of(person(factories.grace()).get(reverse("admin:linking_botkey_add")))


def test_a_senseless_key_is_refused_on_the_form():
    """L10"""
    form = {
        "name": "A",
        "platform": "slack",
        "bot_account": "a b",
        "scopes": ["links:read"],
        "rate_per_minute": "1",
    }
    answer = person(factories.grace()).post(reverse("admin:linking_botkey_add"), form)
    assert "not a valid platform id" in text_of(answer)
    assert not BotKey.objects.exists()


def test_every_table_has_a_staff_page_and_none_shows_a_secret():
    """L10, L25"""
    staff = person(factories.grace())
    token = link_factories.server_token()
    link = confirmation.confirm_server_link(factories.ada(), token.token)
    place = link_factories.conversation(link)
    endpoint = DeliveryEndpoint.objects.create(
        platform="discord",
        bot_account=link_factories.BOT,
        url="https://example.com/hook?token=the-receivers-own",
        secret="sealed-secret",
    )
    code = next(iter(conversations.create_buttons(place.pk, "question", uuid.uuid4(), ["Yes"]).values()))
    for model in (one for one in admin.site._registry if one._meta.app_label == "linking"):
        named = f"admin:linking_{model._meta.model_name}"
        listed = text_of(staff.get(reverse(f"{named}_changelist")))
        assert code not in listed
        for row in model.objects.all():
            page = text_of(staff.get(reverse(f"{named}_change", args=[row.pk]))) + listed
            assert endpoint.secret not in page
            assert "the-receivers-own" not in page
            assert LinkToken.objects.get().digest not in page
    assert len([one for one in admin.site._registry if one._meta.app_label == "linking"]) == 14


def test_a_key_is_made_from_the_command_line():
    """L10"""
    out = StringIO()
    said = ["--platform", "slack", "--name", "A", "--bot-account", "B1", "--scopes", "turns:start"]
    call_command("create_bot_key", *said, "--days", "1", "--rate", "5", stdout=out)
    row = bot_keys.verify_bot_key(out.getvalue().strip(), "127.0.0.1")
    assert row is not None
    assert (row.platform, row.rate_per_minute, row.scopes) == ("slack", 5, ["turns:start"])
    with pytest.raises(CommandError):
        call_command("create_bot_key", *said, "--networks", "everywhere", stdout=out)
