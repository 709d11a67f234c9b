"""The bot REST endpoints: what a key may do, and how bad input is refused (L2, L10, L11, L27)."""

from __future__ import annotations

from functools import partial
from uuid import UUID

import pytest
import schemathesis
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client
from hypothesis import given
from schemathesis import Case, GenerationMode
from schemathesis.core.result import Ok

from copilot.files import services as files
from copilot.models import Message, Session, Turn
from copilot.providers.scripted import ScriptedText
from linking.bot_api.files import MAX_FILE_BYTES
from linking.models import CapReservation, DeliveryEndpoint, IdempotencyKey, PlatformConversation
from tests.support import factories
from tests.support.bots import V1, Caller, caller, channel, dm, link_ada, link_guild
from tests.support.openapi_checks import CHECKS, make_bounded_settings, serve_whole_response
from tests.support.rest_clients import JSON, NOBODYS, NOT_FOUND, code_of, person, program
from tests.support.turn_engine import ended, endings, quiet, together, until

KEYED = {"Idempotency-Key": "k1"}
few = make_bounded_settings(2)


@pytest.fixture
def unhurried(monkeypatch) -> None:
    """How often somebody may write is not what is tried."""
    monkeypatch.setattr("copilot.chat.admission.rate_limits.count_request", lambda *who, **often: None)


@pytest.fixture
def bot(transactional_db) -> Caller:
    link_ada()
    return caller()


@pytest.fixture
def running(rig, bot) -> Caller:
    return bot


# --- who -----------------------------------------------------------------------------------------------


def test_a_key_says_what_it_is(bot):
    """L11: never more than that"""
    shown = bot.get("me").json()
    assert (shown["platform"], shown["bot_account"], shown["limits"]["body_bytes"]) == (
        "telegram",
        "bot-1",
        262_144,
    )
    assert "turns:start" in shown["scopes"]
    assert set(shown) == {"name", "platform", "bot_account", "scopes", "limits"}


@pytest.mark.parametrize("path", ["me", "turns", f"turns/{NOBODYS}", "deliveries", "nothing/here"])
def test_a_login_or_a_persons_key_is_refused_by_every_bot_endpoint(bot, path):
    """A-L2.2: 401 with one body; both credentials together are refused as such"""
    for client in (Client(), person(factories.ada()), program(factories.ada())):
        assert client.get(f"{V1}/{path}").status_code == 401
    both = person(factories.ada())
    refused = both.get(f"{V1}/{path}", headers={"authorization": f"Bearer {bot.token}"})
    assert (refused.status_code, code_of(refused)) == (400, "ambiguous_credentials")


DOORS = {
    "links:read": ("servers/resolve", {"server_id": "guild"}),
    "links:write": ("user-tokens", {"platform_user_id": "x"}),
    "turns:start": ("turns", dm()),
    "turns:control": (f"turns/{NOBODYS}/stop", {"platform_user_id": "x"}),
    "deliveries:manage": ("delivery-endpoint/rotate-secret", {}),
}


@pytest.mark.parametrize("scope", DOORS)
def test_each_endpoint_requires_its_scope(bot, scope):
    """L11: 403 `insufficient_scope`, naming it"""
    path, body = DOORS[scope]
    others = caller(account="bot-2", scopes=[one for one in (*DOORS, "turns:read") if one != scope])
    refused = others.post(path, body, **KEYED)
    assert (refused.status_code, code_of(refused), refused.json()["error"]["scope"]) == (
        403,
        "insufficient_scope",
        scope,
    )


def test_a_key_speaks_for_its_platform_alone(bot):
    """A-L10.3: another platform in a body is 403, and nothing is written"""
    for path, body in [*DOORS.values(), ("conversations/new", dm())][:3]:
        refused = bot.post(path, {**body, "platform": "discord"}, **KEYED)
        assert (refused.status_code, code_of(refused)) == (403, "platform_mismatch"), path
    assert not IdempotencyKey.objects.exists()
    assert not PlatformConversation.objects.exists()


def test_links_are_resolved_without_a_word_of_their_owners(bot):
    """L11: linked or not, how, and never whose"""
    link = link_guild(allowed_channels=["general"])
    found = bot.post("servers/resolve", {"server_id": "guild"})
    assert found.json() == {
        "linked": True,
        "link_id": str(link.pk),
        "state": "active",
        "require_mention": True,
        "allowed_channels": ["general"],
        "allowed_roles": [],
    }
    assert "ada" not in found.content.decode()
    assert bot.post("servers/resolve", {"server_id": "other"}).json()["linked"] is False
    assert bot.post("users/resolve", {"platform_user_id": "ada-1"}).json()["linked"] is True
    assert bot.post("users/resolve", {"platform_user_id": "eve-1"}).json()["linked"] is False


def test_a_bot_asks_for_links_and_how_its_tokens_stand(bot):
    """L11: token, address and QR once; the status by the token alone, and a strange one is 404"""
    asked = {"server_id": "guild", "server_name": "Crew", "requester_is_admin": True}
    made = bot.post("server-tokens", asked)
    assert made.status_code == 201
    token = made.json()["token"]
    assert made.json()["link_url"].endswith(token)
    assert bot.get(f"tokens/{token}/status").json()["status"] == "pending"
    assert bot.get(f"tokens/{'x' * 43}/status").content == NOT_FOUND
    assert caller("discord").get(f"tokens/{token}/status").content == NOT_FOUND
    assert code_of(bot.post("server-tokens", {**asked, "requester_is_admin": False})) == "not_server_admin"
    assert code_of(bot.post("user-tokens", {"platform_user_id": "ada-1"})) == "already_linked"


# --- bad input -----------------------------------------------------------------------------------------

BAD = {
    "an unknown key": ({**dm(), "txt": "Hello"}, 400, "txt"),
    "a missing field": ({"scope": "dm", "text": "x", "platform_user_id": "x"}, 400, "container_id"),
    "an id with a blank": (dm(container_id="a b"), 400, "container_id"),
    "an id that is too long": (dm(container_id="a" * 65), 400, "container_id"),
    "a number for an id": (dm(container_id=9007199254740993), 400, "container_id"),
    "traversal": (dm(platform_user_id="../../etc"), 400, "platform_user_id"),
    "a line break in an id": (dm(container_id="a\n"), 400, "container_id"),
    "NUL in an id": (dm(thread_id="\x00"), 400, "thread_id"),
    "an unknown scope": (dm(scope="group"), 400, "scope"),
    "a server without its id": (dm(scope="server"), 400, "server_id"),
    "a server in a direct message": (dm(server_id="guild"), 400, "server_id"),
    "too many roles": (channel(role_ids=["r"] * 101), 400, "role_ids"),
    "too many files": (dm(attachments=[NOBODYS] * 21), 400, "files"),
    "an empty text": (dm(text="  "), 400, "empty"),
    "a long text": (dm(text="x" * 64_001), 400, "64,000"),
    "half a character": (dm(text="\ud800"), 400, ""),
    "a list": ([1], 400, "object"),
}


@pytest.mark.parametrize("what", BAD)
def test_a_malformed_message_is_refused_and_named(bot, what):
    """L11, L27: 400 with the field's name, and nothing is written"""
    body, status, named = BAD[what]
    refused = bot.post("turns", body, **KEYED)
    assert refused.status_code == status, refused.content
    assert named in refused.content.decode()
    assert not IdempotencyKey.objects.exists()
    assert not Session.objects.exists()


def test_a_body_may_be_too_long_no_json_or_of_another_kind(bot):
    """L11: 413, 400 and 415; a key is needed, and must look like one"""
    post = partial(bot.client.post, f"{V1}/turns", headers=KEYED)
    assert code_of(post(b'{"text":"' + b"x" * 262_144 + b'"}', content_type=JSON)) == "too_large"
    assert post(b"{", content_type=JSON).status_code == 400
    assert post(b"[" * 100_000, content_type=JSON).status_code == 400
    assert post("scope=dm", content_type="application/x-www-form-urlencoded").status_code == 415
    assert bot.post("turns", dm()).status_code == 400
    assert bot.post("turns", dm(), **{"Idempotency-Key": "a b"}).status_code == 400
    assert bot.post("turns", dm(), **{"Idempotency-Key": "x" * 129}).status_code == 400
    assert bot.client.delete(f"{V1}/turns").status_code == 405
    assert bot.client.get(f"{V1}/me?key={bot.token}").status_code == 400


WRITING = [
    *(
        ("post", path)
        for path in ("servers/resolve", "users/resolve", "server-tokens", "user-tokens", "turns")
    ),
    *(("post", f"{what}/{NOBODYS}/{act}") for what, act in (("turns", "stop"), ("approvals", "decide"))),
    *(
        ("post", f"{what}/{NOBODYS}/{act}")
        for what, act in (("questions", "answer"), ("deliveries", "redeliver"))
    ),
    *(("post", path) for path in ("conversations/new", "delivery-endpoint/rotate-secret")),
    ("put", "delivery-endpoint"),
]
ODD = [
    (b"{", JSON, 400),
    (b"[" * 100_000, JSON, 400),
    (b"null", JSON, 400),
    (b'"\\ud800"', JSON, 400),
    (b"\xff", JSON, 400),
    (b"{}", "text/plain", 415),
    (b"a=b", "application/x-www-form-urlencoded", 415),
    (b" " * 262_145, JSON, 413),
]


@pytest.mark.parametrize(("method", "path"), WRITING)
def test_every_bot_endpoint_refuses_forged_odd_and_oversized_requests(bot, method, path):
    """L11, L27: 401, 400, 415 and 413 in the common envelope, and nothing is written"""
    knock = partial(getattr(bot.client, method), f"{V1}/{path}", headers=KEYED)
    forged = {"authorization": f"Bearer {bot.token[:-1]}{'a' if bot.token[-1] != 'a' else 'b'}"}
    assert (
        getattr(Client(headers=forged), method)(f"{V1}/{path}", b"{}", content_type=JSON).status_code == 401
    )
    for body, content_type, status in ODD:
        refused = knock(body, content_type=content_type)
        assert refused.status_code == status, (body[:20], refused.content)
        assert set(refused.json()) == {"error"}
    assert not IdempotencyKey.objects.exists()
    assert not DeliveryEndpoint.objects.exists()


@pytest.mark.parametrize(
    "path",
    ["turns/1", "turns/'; DROP TABLE x;--", "turns/../../etc/passwd", "tokens/a$b/status", "files/x", "moon"],
)
def test_what_is_no_id_names_nothing(bot, path):
    """L11: the same 404 as for an unknown one"""
    assert bot.get(path).content == NOT_FOUND


def test_an_unlinked_person_gets_not_linked(bot):
    """L11: 404 `not_linked`, and the key stays free for when it is"""
    refused = bot.say("k1", platform_user_id="eve-1")
    assert (refused.status_code, code_of(refused)) == (404, "not_linked")
    assert not IdempotencyKey.objects.exists()


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE])
def test_every_response_of_a_bot_endpoint_is_documented(bot, mode):
    """L11: whatever is sent, no 500, and nothing that the OpenAPI document does not say"""
    fast = caller(account="bot-3", rate_per_minute=10**6)
    document = schemathesis.openapi.from_wsgi("/api/schema", serve_whole_response)
    found = document.include(path_regex=rf"^{V1}/").exclude(path_regex="/events$")
    operations = [result.ok() for result in found.get_all_operations() if isinstance(result, Ok)]
    assert len(operations) >= 19
    for operation in operations:

        @few
        @given(case=operation.as_strategy(generation_mode=mode))
        def call(case: Case) -> None:
            case.call_and_validate(headers={"Authorization": f"Bearer {fast.token}"}, checks=CHECKS)

        call()


# --- files ---------------------------------------------------------------------------------------------


def upload(bot: Caller, conversation_id: str, content: bytes = b"Ahoy", **more: object):
    form = {"file": SimpleUploadedFile("log.txt", content), "conversation_id": conversation_id, **more}
    return bot.client.post(f"{V1}/files", form)


def test_a_file_goes_into_the_conversation_and_with_the_message(running, model):
    """L11: uploaded first, then named; of the account's other files a bot can neither send nor read any"""
    first = running.say("k1").json()
    ended(UUID(first["turn_id"]))
    stored = upload(running, first["conversation_id"])
    assert stored.status_code == 201, stored.content
    private = files.store_file(factories.ada().pk, name="diary.txt", content=b"Dear diary", source="upload")
    said = running.say("k2", attachments=[stored.json()["id"], str(private.pk)]).json()
    assert said["ignored_attachments"] == [str(private.pk)]
    ended(UUID(said["turn_id"]))
    message = Message.objects.get(pk=said["message_id"])
    assert [one["name"] for one in message.attachments] == ["log.txt"]
    fetched = running.get(f"files/{stored.json()['id']}")
    assert b"".join(fetched.streaming_content) == b"Ahoy"
    assert fetched["Content-Disposition"].startswith("attachment")
    for stranger, file_id in [
        (running, private.pk),
        (caller("discord"), stored.json()["id"]),
        (running, NOBODYS),
    ]:
        assert stranger.get(f"files/{file_id}").content == NOT_FOUND


def test_a_file_that_cannot_be_taken_is_refused(running, model):
    """L11: too large, no file, two, an unknown field, a strange or closed conversation"""
    place = running.say("k1").json()
    ended(UUID(place["turn_id"]))
    conversation = place["conversation_id"]
    assert code_of(upload(running, conversation, b"x" * (MAX_FILE_BYTES + 1))) == "file_too_large"
    assert upload(running, conversation, note="x").status_code == 400
    assert upload(running, NOBODYS).content == NOT_FOUND
    assert upload(caller("discord"), conversation).content == NOT_FOUND
    assert running.client.post(f"{V1}/files", {"conversation_id": conversation}).status_code == 400
    assert running.post("files", {"conversation_id": conversation}).status_code == 415
    running.post("conversations/new", dm() | {"text": "x"})
    PlatformConversation.objects.update(closed_at=factories.timezone.now())
    assert upload(running, conversation).content == NOT_FOUND


# --- servers -------------------------------------------------------------------------------------------


def test_a_member_talks_as_a_guest_at_the_owners_cost(running, model):
    """A-L8.3: the owner's session, a guest's permissions, and a share set aside until the turn has ended"""
    link_guild()
    said = running.post("turns", channel(), **KEYED).json()
    turn = ended(UUID(said["turn_id"]))
    assert turn.session.owner == factories.ada()
    assert turn.permissions["files"] == "session"
    assert (turn.permissions["memory"], turn.permissions["own_credentials"]) == (False, False)
    assert turn.inbound_context["reply"]["of_payer"] is False
    until(lambda: CapReservation.objects.filter(settled_at__isnull=False).count() == 1)


@pytest.mark.parametrize(
    ("settings_of_link", "changes", "code"),
    [
        ({"daily_cap_microdollars": 0}, {}, "cap_reached"),
        ({"state": "paused"}, {}, "link_paused"),
        ({"allowed_channels": ["random"]}, {}, "channel_not_allowed"),
        ({"allowed_roles": ["crew"]}, {"role_ids": ["guest"]}, "role_not_allowed"),
        ({}, {"mentioned": False}, "mention_required"),
    ],
)
def test_what_the_owner_does_not_allow_starts_nothing(running, settings_of_link, changes, code):
    """A-L8.5, A-L8.4: no turn, no session, no share kept, and the key stays free"""
    link_guild(**settings_of_link)
    refused = running.post("turns", channel(**changes), **KEYED)
    assert code_of(refused) == code
    assert not Turn.objects.exists()
    assert not CapReservation.objects.exists()
    assert not IdempotencyKey.objects.exists()


@pytest.mark.parametrize("rounds", [1, pytest.param(50, marks=[pytest.mark.slow, pytest.mark.timeout(600)])])
def test_ten_first_messages_in_a_channel_are_one_session_in_order(running, model, rounds, unhurried):
    """A-L15.1: one session, ten messages, each accepted and answered once"""
    link_guild(member_turns_per_hour=1000)
    model.always(ScriptedText("Aye."))
    for number in range(rounds):
        place = f"channel-{number}"
        answers = together(
            *[
                partial(
                    running.post,
                    "turns",
                    channel(text=f"number {one}", container_id=place),
                    **{"Idempotency-Key": f"k{number}.{one}"},
                )
                for one in range(10)
            ]
        )
        assert {one.status_code for one in answers} <= {201, 202}
        assert len({one.json()["session_id"] for one in answers}) == 1
        session = Session.objects.get(pk=answers[0].json()["session_id"])
        until(lambda session=session: len(endings(session.pk)) == 10)
        quiet(session)
        rows = Message.objects.filter(session=session, kind="user").order_by("sequence")
        numbers = list(rows.values_list("accept_number", flat=True))
        assert numbers == sorted(numbers, key=lambda number: number or 0)
        assert len(numbers) == 10
    assert Session.objects.count() == rounds
