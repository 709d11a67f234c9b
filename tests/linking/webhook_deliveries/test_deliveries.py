"""Deliveries: signed, in order, again until they are taken, and to public addresses alone (L16, L17)."""

from __future__ import annotations

import hashlib
import hmac
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from uuid import UUID

import aiohttp
import msgspec
import pytest
from aiohttp.abc import AbstractResolver
from django.core import mail
from django.db import connection, transaction
from django.utils import timezone

from copilot import signals as copilot_signals
from copilot.chat import turn_details
from copilot.models import Approval, Schedule, Session, Turn
from copilot.providers.scripted import ScriptedCall, ScriptedText
from copilot.realtime.payloads import ApprovalPayload
from linking import signals, tasks
from linking.models import Delivery, DeliveryEndpoint, PlatformConversation
from linking.webhook_deliveries import endpoints, outbox, sender
from linking.webhook_deliveries.http_client import DeliveryClient, DeliveryResponse
from tests.support import factories
from tests.support.bots import Caller, caller, link_ada
from tests.support.rest_clients import JSON, code_of
from tests.support.schedules import run_due_schedule
from tests.support.signal_receivers import receiving, receiving_only
from tests.support.turn_engine import Errand, add_tools, cue, ended, lease_of, told, until

URL = "https://bot.example.com/hook"


@dataclass
class Receiver(DeliveryClient):
    """Stands where the network is: remembers what came, answers as it was told."""

    answers: list[int | None] = field(default_factory=list)
    came: list[tuple[dict[str, str], bytes]] = field(default_factory=list)
    retry_after: str = ""

    async def post(self, url: str, body: bytes, headers: dict[str, str]) -> DeliveryResponse:  # type: ignore[override]
        self.came.append((dict(headers), body))
        return DeliveryResponse(
            status=self.answers.pop(0) if self.answers else 200, retry_after=self.retry_after
        )

    def kinds(self) -> list[str]:
        return [msgspec.json.decode(body)["kind"] for _, body in self.came]


@pytest.fixture
def bot(rig, settings, monkeypatch) -> Caller:
    """Nothing goes out by itself: the test sends what was written down."""
    monkeypatch.setattr(tasks.deliver, "apply_async", lambda **options: None)
    link_ada()
    return caller(created_by=factories.grace())


@pytest.fixture
def secret(bot) -> str:
    answer = bot.client.put("/api/bot/v1/delivery-endpoint", {"url": URL}, content_type=JSON)
    assert answer.status_code == 200, answer.content
    return answer.json()["secret"]


def answered(bot: Caller, key: str = "k1", **changes: object) -> dict[str, str]:
    answer = bot.say(key, **changes).json()
    ended(UUID(answer["turn_id"]))
    until(lambda: Delivery.objects.filter(turn_id=answer["turn_id"]).exists())
    return answer


def due_now() -> None:
    Delivery.objects.filter(state="waiting").update(next_try_at=timezone.now() - timedelta(seconds=1))


def fits(secret: str, headers: dict[str, str], body: bytes) -> bool:
    signed = headers["Pilothouse-Timestamp"].encode() + b"." + body
    expected = "v1=" + hmac.new(secret.encode(), signed, hashlib.sha256).hexdigest()
    return expected in headers["Pilothouse-Signature"].split(",")


# --- sending -----------------------------------------------------------------------------------------


def test_a_delivery_is_sent_until_it_is_taken_under_one_id(bot, secret, model):
    """A-L17.1: 500 twice, then 200: three attempts, the same id, valid signatures"""
    answer = answered(bot)
    receiver = Receiver(answers=[500, 500, 200])
    for _ in range(4):
        sender.send_due_deliveries(receiver)
        due_now()
    assert len(receiver.came) == 3
    assert len({headers["Pilothouse-Delivery"] for headers, _ in receiver.came}) == 1
    assert all(fits(secret, headers, body) for headers, body in receiver.came)
    row = Delivery.objects.get()
    assert (row.state, row.attempts, row.last_status) == ("delivered", 3, 200)
    body = msgspec.json.decode(receiver.came[0][1])
    assert body["kind"] == "turn.succeeded"
    assert (body["turn_id"], body["text"], body["truncated"]) == (answer["turn_id"], "Aye.", False)
    assert (body["container_id"], body["delivery_id"]) == ("dm-1", str(row.pk))


def test_both_secrets_sign_for_a_day_after_a_rotation(bot, secret, model):
    """A-L17.1: two signatures, comma separated, until the old one is forgotten"""
    fresh = bot.post("delivery-endpoint/rotate-secret", {}).json()["secret"]
    answered(bot)
    receiver = Receiver()
    sender.send_due_deliveries(receiver)
    [(headers, body)] = receiver.came
    assert fits(secret, headers, body)
    assert fits(fresh, headers, body)
    DeliveryEndpoint.objects.update(rotated_at=timezone.now() - timedelta(days=2))
    assert endpoints.get_signing_secrets(DeliveryEndpoint.objects.get()) == [fresh]
    assert secret not in str(DeliveryEndpoint.objects.values().get())


def test_a_worker_that_died_after_sending_sends_again_under_the_same_id(bot, secret, model, monkeypatch):
    """A-L17.3: killed between send and mark"""
    answered(bot)
    receiver = Receiver()
    monkeypatch.setattr(sender, "_record_outcome", _die)
    with pytest.raises(SystemExit):
        sender.send_due_deliveries(receiver)
    monkeypatch.undo()
    assert sender.send_due_deliveries(receiver) == 0  # its sender may still report the outcome
    due_now()
    assert sender.send_due_deliveries(receiver) == 1
    first, second = receiver.came
    assert first[0]["Pilothouse-Delivery"] == second[0]["Pilothouse-Delivery"]
    assert first[1] == second[1]


def _die(*_: object) -> None:
    raise SystemExit


def test_a_later_one_waits_for_an_earlier_one_in_its_first_tries(bot, secret, model):
    """A-L17.1: order is kept in a conversation, and another conversation does not wait"""
    answered(bot, "k1")
    answered(bot, "k2", text="Second")
    answered(bot, "k3", container_id="dm-2", text="Elsewhere")
    receiver = Receiver(answers=[500, 200, 500, 500])
    sender.send_due_deliveries(receiver)
    assert len(receiver.came) == 2
    assert Delivery.objects.filter(state="delivered").count() == 1
    due_now()
    sender.send_due_deliveries(receiver)
    due_now()
    sender.send_due_deliveries(receiver)  # the third try of the first: from here on nobody waits for it
    due_now()
    sender.send_due_deliveries(receiver)
    assert Delivery.objects.filter(state="delivered").count() == 3
    assert Delivery.objects.get(state="delivered", number=2).finished_at is not None


def test_a_later_one_waits_while_an_earlier_ones_third_try_is_on_its_way(bot, secret, model):
    """L17: nobody knows yet how it goes, so it is still in its first three"""
    answered(bot, "k1")
    answered(bot, "k2", text="Second")
    for _ in range(2):
        sender.send_due_deliveries(Receiver(answers=[500]))
        due_now()
    [third] = sender._claim_batch()
    assert third.attempts == 3
    assert sender._claim_batch() == []
    sender._record_outcome(third, DeliveryResponse(status=500))
    [second] = sender._claim_batch()
    assert second.delivery_id == Delivery.objects.get(number=2).pk


def test_a_refusal_is_final_and_gone_switches_the_endpoint_off(bot, secret, model):
    """A-L17.1: 404 is not tried again; 410 disables; `Retry-After` is honoured; its key's maker is told"""
    answered(bot)
    sender.send_due_deliveries(Receiver(answers=[404]))
    assert Delivery.objects.get().state == "failed"
    answered(bot, "k2")
    sender.send_due_deliveries(Receiver(answers=[503], retry_after="3600"))
    waiting = Delivery.objects.get(state="waiting")
    assert waiting.next_try_at > timezone.now() + timedelta(seconds=3500)
    due_now()
    sender.send_due_deliveries(Receiver(answers=[410]))
    assert bot.get("delivery-endpoint").json()["disabled_reason"] == "gone"
    assert mail.outbox[0].to == [factories.grace().email]
    assert not endpoints.has_enabled_endpoint(bot.bot)


def test_fifty_failures_in_a_row_disable_it_and_a_success_resets_the_count(bot, secret, model, settings):
    """A-L17.1: consecutive failures pause the endpoint and tell the key's creator, once"""
    settings.DELIVERY_MAX_FAILURES = 3
    answered(bot)
    receiver = Receiver(answers=[500, 500, 200])
    for _ in range(3):
        sender.send_due_deliveries(receiver)
        due_now()
    assert DeliveryEndpoint.objects.get().failures == 0
    answered(bot, "k2")
    for _ in range(5):
        sender.send_due_deliveries(Receiver(answers=[500]))
        due_now()
    assert Delivery.objects.get(state="waiting").attempts == 3
    assert bot.get("delivery-endpoint").json()["disabled_reason"] == "failing"
    assert len(mail.outbox) == 1


def test_what_waits_for_an_endpoint_that_was_switched_off_is_purged_like_the_rest(bot, secret, model):
    """L17: thirty days of what nobody will take; what waits for one that is on stays"""
    answered(bot)
    Delivery.objects.update(created_at=timezone.now() - timedelta(days=31))
    assert sender.purge_deliveries() == 0
    DeliveryEndpoint.objects.update(disabled_at=timezone.now(), disabled_reason="gone")
    assert sender.purge_deliveries() == 1


def test_a_bot_sees_its_deliveries_and_has_one_sent_again(bot, secret, model):
    """A-L17.1: the list has no bodies; redelivery keeps the id; another bot finds nothing"""
    answered(bot)
    sender.send_due_deliveries(Receiver(answers=[404]))
    [item] = bot.get("deliveries").json()["items"]
    assert (item["state"], item["last_status"], "body" in item) == ("failed", 404, False)
    assert caller("discord").post(f"deliveries/{item['id']}/redeliver", {}).status_code == 404
    assert bot.post(f"deliveries/{item['id']}/redeliver", {}).json()["state"] == "waiting"
    receiver = Receiver()
    sender.send_due_deliveries(receiver)
    assert receiver.came[0][0]["Pilothouse-Delivery"] == item["id"]


# --- what is told ------------------------------------------------------------------------------------


def test_approvals_questions_and_every_ending_are_delivered_once(bot, secret, model, monkeypatch):
    """A-L17.1: named as in E1; told twice by the hook, and by the sweep, still once"""
    add_tools(monkeypatch, Errand("pay", approval="ask"))
    model.will(ScriptedText("Let me."), ScriptedCall("pay"))
    answer = bot.say("k1").json()
    session = Session.objects.get(pk=answer["session_id"])
    until(lambda: told(session.pk, "turn.paused") and lease_of(session) == {})
    until(lambda: Delivery.objects.filter(event="approval.requested").exists())
    bot.post(f"turns/{answer['turn_id']}/stop", {"platform_user_id": "ada-1"})
    ended(UUID(answer["turn_id"]))
    model.will(ScriptedCall("ask_user", {"question": "Red?"}))
    model.will(ScriptedText("So be it."))
    second = bot.say("k2").json()
    until(lambda: Delivery.objects.filter(event="question.asked").exists())
    question = Delivery.objects.get(event="question.asked")
    asked = msgspec.json.decode(question.body)["question"]
    bot.post(f"questions/{asked['id']}/answer", {"platform_user_id": "ada-1", "text": "Yes"})
    ended(UUID(second["turn_id"]))
    until(lambda: Delivery.objects.count() == 4)
    assert outbox.record_deliveries(UUID(second["turn_id"])) == outbox.record_missed_deliveries() == 0
    receiver = Receiver()
    while sender.send_due_deliveries(receiver):
        due_now()
    assert receiver.kinds() == ["approval.requested", "turn.cancelled", "question.asked", "turn.succeeded"]


def test_an_ending_that_was_not_recorded_is_found_by_the_sweep(bot, secret, model):
    """A-L17.3: the process died before its signal; the sweep writes it down"""
    with receiving_only(copilot_signals.turn_ended):
        answer = bot.say("k1").json()
        ended(UUID(answer["turn_id"]))
        assert not Delivery.objects.exists()
        assert outbox.record_missed_deliveries() == 1
        assert Delivery.objects.get().event == "turn.succeeded"


def test_deliveries_are_sent_once_their_rows_are_committed(bot, secret, model):
    """L17: a worker that is woken earlier finds nothing to send"""
    sent: list[bool] = []

    def send(**_signal: object) -> None:
        sent.append(connection.in_atomic_block)

    with receiving_only(copilot_signals.turn_ended):
        answer = bot.say("k1").json()
        ended(UUID(answer["turn_id"]))
        with receiving(signals.deliveries_recorded, send):
            with transaction.atomic():
                assert outbox.record_deliveries(UUID(answer["turn_id"])) == 1
                assert sent == []
            assert sent == [False]


def test_a_long_answer_is_cut_and_says_so(bot, secret, model):
    """A-L17.1: a body has at most 64 KiB"""
    model.will(ScriptedText("\u20ac" * 40_000))
    answered(bot)
    row = Delivery.objects.get()
    assert len(row.body.encode()) <= 64 * 1024
    assert msgspec.json.decode(row.body)["truncated"] is True


def test_very_many_waiting_calls_fit_into_the_size_limit(bot, secret, model, monkeypatch):
    """L17: 64 KiB; what each is about is said, and that something was left out"""
    answer = answered(bot)
    turn = Turn.objects.get(pk=answer["turn_id"])
    asked = [
        ApprovalPayload(
            id=str(number),
            turn_id=str(turn.pk),
            call_id=f"c{number}",
            tool="pay",
            arguments={f"{letter * 100}": "\u20ac" * 500 for letter in "abcdef"},
            reason="Costs money.",
        )
        for number in range(40)
    ]
    event = outbox._TurnEvent(
        key="approval:0", event="approval.requested", fields={"approvals": msgspec.to_builtins(asked)}
    )
    body = outbox._build_body(Delivery.objects.get(), turn_details.get_turn_details(turn.pk), event)
    told_of = msgspec.json.decode(body)
    assert len(body.encode()) <= 64 * 1024
    assert (len(told_of["approvals"]), told_of["truncated"]) == (40, True)


# --- where it goes -----------------------------------------------------------------------------------

REFUSED = [
    "https://[::ffff:127.0.0.1]/",
    "https://127.0.0.1/",
    "https://10.0.0.5/hook",
    "https://169.254.169.254/latest",
    "https://localhost/",
    "https://metadata.internal/",
    "http://bot.example.com/",
    "https://user:pass@bot.example.com/",
    "https://bot.example.com:22/",
    "ftp://bot.example.com/",
    "https://",
    "not a url",
]


@pytest.mark.parametrize("url", REFUSED)
def test_an_address_that_must_not_be_reached_is_not_taken(bot, url):
    """A-L17.2: refused where it is set, with a reason"""
    refused = bot.client.put("/api/bot/v1/delivery-endpoint", {"url": url}, content_type=JSON)
    assert refused.status_code == 400
    assert code_of(refused) in ("invalid_request", "address_refused", "invalid_url")
    assert not DeliveryEndpoint.objects.exists()


class Flipping(AbstractResolver):
    """A name that leads inside by the time it is called."""

    async def resolve(self, host, port=0, family=0):
        return [{"hostname": host, "host": "10.0.0.5", "port": port, "family": 2, "proto": 6, "flags": 0}]

    async def close(self) -> None:
        return None


async def test_a_name_that_flips_inside_is_never_connected_to():
    """A-L17.2: the address is looked at where it is connected to"""
    posted = await DeliveryClient(resolver=Flipping).post(URL, b"{}", {})
    assert (posted.status, posted.error) == (None, "address_refused")


@pytest.fixture
def inside() -> Iterator[tuple[int, list[str]]]:
    """A server that redirects to another path of its own, which must not be called."""
    called: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            called.append(self.path)
            self.send_response(302)
            self.send_header("Location", "http://169.254.169.254/latest/meta-data/")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_address[1], called
    server.shutdown()
    server.server_close()


async def test_a_redirect_is_not_followed(inside, monkeypatch):
    """A-L17.2: what it leads to was not checked; the answer is final"""
    port, called = inside
    poster = DeliveryClient(ports={port}, unchecked={"127.0.0.1"})
    monkeypatch.setattr(poster, "check_url", lambda url: aiohttp.client.URL(url))
    posted = await poster.post(f"http://127.0.0.1:{port}/hook", b"{}", {})
    assert (posted.status, called) == (302, ["/hook"])
    assert not sender.is_retryable(302)


# --- what a channel can do later (L16) ---------------------------------------------------------------


@pytest.mark.parametrize("on", [True, False])
def test_a_rest_bot_can_be_told_later_only_with_an_endpoint(bot, model, request, on):
    """A-L16.1: the flag is on the turn's row, and follows the endpoint"""
    if on:
        request.getfixturevalue("secret")
    answer = bot.say("k1").json()
    ended(UUID(answer["turn_id"]))
    reply = Turn.objects.get(pk=answer["turn_id"]).inbound_context["reply"]
    assert reply["async_delivery"] is on
    assert reply["interactive"] is True
    assert reply["conversation_id"] == answer["conversation_id"]


def test_a_bot_without_the_right_to_answer_is_not_asked(bot, model):
    """A-L16.1: `interactive` is false without turns:control, and the tool that asks is not offered"""
    mute = caller(account="bot-2", scopes=["turns:start", "turns:read"])
    link_ada(bot_account="bot-2")
    answer = mute.say("k1").json()
    ended(UUID(answer["turn_id"]))
    assert Turn.objects.get(pk=answer["turn_id"]).inbound_context["reply"]["interactive"] is False
    assert "ask_user" not in {tool.name for tool in model.requests[-1].tools}
    ended(UUID(bot.say("k2").json()["turn_id"]))
    assert "ask_user" in {tool.name for tool in model.requests[-1].tools}


def test_two_chats_in_one_worker_get_each_their_own_news(bot, secret, model, monkeypatch):
    """A-L16.2: turns of different chats interleaved; each late message lands in its own chat"""
    model.will(ScriptedText("For one."), cue(1))
    one = bot.say("k1", text="One").json()
    model.reaches(1)
    model.will(ScriptedText("For two."), cue(2))
    two = bot.say("k2", container_id="dm-2", thread_id="t", text="Two").json()
    model.reaches(2)
    model.give(2)
    ended(UUID(two["turn_id"]))
    model.give(1)
    ended(UUID(one["turn_id"]))
    until(lambda: Delivery.objects.count() == 2)
    receiver = Receiver()
    sender.send_due_deliveries(receiver)
    bodies = {body["text"]: body for _, raw in receiver.came if (body := msgspec.json.decode(raw))}
    assert (bodies["For one."]["container_id"], bodies["For one."]["turn_id"]) == ("dm-1", one["turn_id"])
    assert (bodies["For two."]["container_id"], bodies["For two."]["thread_id"]) == ("dm-2", "t")


@pytest.mark.parametrize("on", [True, False])
def test_what_is_promised_for_later_comes_to_the_same_chat_or_is_not_promised(bot, model, request, on):
    """A-L16.1: without an endpoint no schedule is made, and the model is told why in the same turn"""
    if on:
        request.getfixturevalue("secret")
    asked = {"prompt": "Water?", "cron": "0 9 * * *", "timezone": "UTC", "session": "this"}
    model.will(ScriptedCall("schedule_task", asked))
    model.will(ScriptedText("Done."))
    answer = bot.say("k1", text="Remind me").json()
    until(lambda: Approval.objects.filter(turn=answer["turn_id"], state="requested").exists())
    approval = Approval.objects.get(turn=answer["turn_id"])
    until(lambda: lease_of(Session.objects.get(pk=answer["session_id"])) == {})
    bot.post(f"approvals/{approval.pk}/decide", {"platform_user_id": "ada-1", "decision": "approve"})
    ended(UUID(answer["turn_id"]))
    if not on:
        assert not Schedule.objects.exists()
        assert "delivery_unsupported" in model.said_to()
        return
    run = run_due_schedule(Schedule.objects.get())
    until(lambda: Delivery.objects.filter(turn_id=run).exists())
    body = msgspec.json.decode(Delivery.objects.get(turn_id=run).body)
    assert (body["container_id"], body["text"]) == ("dm-1", "Aye.")
    PlatformConversation.objects.update(closed_at=timezone.now())
    again = run_due_schedule(Schedule.objects.get())
    ended(again)
    assert not Delivery.objects.filter(turn_id=again).exists()  # the place was closed: it stays on the web
