"""Who does not answer keeps nobody waiting, and who is kept by a limit is not taken for lost (D3, D4, D6, D8, D21)."""

from __future__ import annotations

import socket
import threading
import uuid
from collections.abc import Iterator
from datetime import timedelta

import pytest
from django.test import Client
from django.utils import timezone
from kombu import Connection

from billing.policies import clear_policy_cache
from config.celery import app
from config.core.staff_permissions import mask_email
from copilot.chat import turn_selectors
from copilot.models import Message, Session, Turn
from diagnostics import aggregates, broker_queues, checks, execution_list, inventory, snapshot, turn_filters
from diagnostics.probes import runner, servers
from diagnostics.repairs import runner as repairs_runner
from tests.support import factories
from tests.support.dashboard import DASHBOARD_URL, get_page_text, sign_in_staff
from tests.support.repairs import list_skip_reasons, make_old_turn, perform_repair
from tests.support.turn_engine import until
from tests.support.usage import record_usage

pytestmark = pytest.mark.django_db


@pytest.fixture
def silent_broker(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """It takes connections and never says a word."""
    for name in ("CONNECT_TIMEOUT_SECONDS", "ANSWER_TIMEOUT_SECONDS"):
        monkeypatch.setattr(broker_queues, name, 0.2)
    snapshot.clear_caches()
    with socket.create_server(("127.0.0.1", 0)) as hole:
        address = f"redis://127.0.0.1:{hole.getsockname()[1]}/0"
        for name in ("connection_for_read", "connection_for_write"):
            monkeypatch.setattr(app, name, lambda *_, **how: Connection(address, **how))
        monkeypatch.setattr(app, "_pool", None)
        yield
    snapshot.clear_caches()


def askers() -> list[str]:
    names = [thread.name for thread in threading.enumerate()]
    return sorted(name for name in names if name.startswith(("celery ", "broker ", "probe ")))


def test_a_broker_that_says_nothing_keeps_no_page_waiting(silent_broker: None) -> None:
    """D6, A-D4.3: the question has a second; however often it is asked, one of each waits for an answer."""
    for _ in range(3):
        snapshot.clear_caches()
        assert snapshot.take_snapshot().summary.degraded == ("broker",)
        assert inventory.find_workers() == ()
        [probed] = runner.run_probes({"broker": servers.probe_broker})
        assert not probed.ok
    until(lambda: askers() == ["celery active_queues", "celery reserved", "celery stats"])


def test_a_stop_that_has_no_time_left_is_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """D8: the whole call has thirty seconds; the rest is skipped as error:timeout, and nothing was done to it."""
    turns = [make_old_turn("queued"), make_old_turn("queued")]
    monkeypatch.setattr(repairs_runner, "CALL_TIMEOUT_SECONDS", -1.0)
    assert set(list_skip_reasons(perform_repair("stop", turns)).values()) == {"error:timeout"}
    for turn in turns:
        turn.refresh_from_db()
        assert (turn.status, turn.stop_requested_at) == ("queued", None)


def test_however_many_are_kept_by_a_limit_none_of_them_is_stranded() -> None:
    """D3, B7.3: sixty people at the end of their day, and one whose message waits for nothing."""
    for number in range(60):
        owner = factories.user(f"busy{number}")
        record_usage(owner, 1_000_000)
        waits(Session.objects.create(owner=owner))
    clear_policy_cache()
    lost = waits(factories.session())
    assert aggregates.find_stranded_sessions() == [lost.pk]


def waits(session: Session) -> Session:
    message = factories.pending(session, "Hello?", run_id=str(uuid.uuid4()))
    Message.objects.filter(pk=message.pk).update(created_at=timezone.now() - timedelta(minutes=1))
    return session


def test_evidence_is_what_makes_an_execution_an_orphan() -> None:
    """D3, D5, A-D3.3: nobody knows of one that runs for two hours; that alone proves nothing."""
    ages = {"fresh": 10, "dead": 60, "unknown": 2 * 3600, "old": 25 * 3600}
    turns = {name: make_old_turn(age=timedelta(seconds=seconds)) for name, seconds in ages.items()}
    moment = turn_filters.FilterContext(
        now=timezone.now(),
        dead=frozenset([turns["fresh"].pk, turns["dead"].pk]),
        unknown=frozenset([turns["unknown"].pk, turns["old"].pk]),
    )
    shown, _ = execution_list.build_executions(
        turn_selectors.describe_turns(turn_selectors.turns_by_id(one.pk for one in turns.values())),
        moment,
        see_email=False,
    )
    found = {one.id: one.evidence for one in shown}
    assert [found[str(one.pk)] for one in turns.values()] == [None, "beat", None, "age"]
    orphans = Turn.objects.filter(turn_filters.filter_orphaned_running(moment)).values_list("pk", flat=True)
    assert {str(one) for one in orphans} == {one for one, evidence in found.items() if evidence}


@pytest.mark.parametrize("network", ["10.0.0.0/33", "everybody", "10.0.0.0/8/8"])
def test_a_network_nobody_can_be_in_stops_the_boot(settings: pytest.FixtureRequest, network: str) -> None:
    """D21, D16: it would be a fault of every scrape."""
    settings.METRICS_ALLOWED_CIDRS = ["10.0.0.0/8", "fd00::/8", network]
    [problem] = checks.check_metrics_networks(None)
    assert (problem.id, "METRICS_ALLOWED_CIDRS" in problem.msg, network in problem.msg) == (
        "diagnostics.E005", True, True,
    )  # fmt: skip
    settings.METRICS_ALLOWED_CIDRS = ["10.0.0.0/8", "fd00::/8", "192.168.1.7"]
    assert checks.check_metrics_networks(None) == []
    assert Client().get("/metrics", REMOTE_ADDR="192.168.1.7").status_code == 200


def test_the_limits_of_a_user_show_their_email_only_with_the_permission() -> None:
    """D14: the e-mail is masked in every tab; links to the user are shown to staff who may see users."""
    ada = factories.ada()
    where = f"{DASHBOARD_URL}limits/?user={ada.pk}"
    assert ada.email in get_page_text(sign_in_staff("view", "see_email"), where)
    seen = get_page_text(sign_in_staff("view", "reset_usage"), where)
    assert ada.email not in seen
    assert mask_email(ada.email) in seen
    assert f"/auth/user/{ada.pk}/" not in seen
    asked = {"user": str(ada.pk)}
    confirmed = sign_in_staff("view", "reset_usage").post(f"{DASHBOARD_URL}limits/confirm/", asked)
    assert ada.email not in confirmed.content.decode()
