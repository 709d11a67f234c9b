"""The dashboard: what staff see first, what they may do, and that nothing changes without confirmation (D13, D20)."""

from __future__ import annotations

import gc
import re
import uuid
from datetime import timedelta
from types import SimpleNamespace

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone

from billing import accounts, plans, pricing, redis_counters
from billing.models import UsageWindow
from billing.usage import usage_records, windows
from config.dev.servers import find_free_port
from copilot.models import Agent, AgentVersion, Message, Turn
from copilot.worker import heartbeat
from diagnostics import inventory, queries, schedules, snapshot, turn_filters
from diagnostics.api.views import DiagnosticsAPIView
from diagnostics.dashboard import views
from diagnostics.dashboard.tabs import TAB_BY_CONDITION, TABS
from diagnostics.findings.figures import Summary
from diagnostics.findings.rules import Finding
from diagnostics.models import MetricSample, RepairAudit
from linking.models import BotRunner, PlatformUpdate
from tests.support import factories
from tests.support.dashboard import DASHBOARD_URL, get_page_text, make_stuck_turn, sign_in_staff

pytestmark = pytest.mark.django_db(transaction=True)
FRAGMENT = {"X-Fragment": "1"}
NAUGHTY = '<img src=x onerror="alert(1)">'


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch):
    """Nobody is asked over Celery, and nothing is remembered from another test."""
    monkeypatch.setattr(inventory, "inspect_celery", list)
    snapshot.clear_caches()
    inventory.clear_inventory_cache()
    schedules.clear_schedule_cache()


@pytest.fixture
def grace() -> Client:
    return sign_in_staff("view", "repair", "reset_usage", "see_email")


# --- who may -----------------------------------------------------------------------------------------


def test_visitors_log_in_other_users_are_refused_and_viewers_see_no_buttons():
    """A-D14.3, D13"""
    make_stuck_turn()
    assert Client().get(DASHBOARD_URL)["Location"].startswith("/admin/login/")
    assert sign_in_staff().get(DASHBOARD_URL).status_code == 403
    viewer = sign_in_staff("view")
    page = get_page_text(viewer, f"{DASHBOARD_URL}stuck-queued/")
    assert 'name="ids"' not in page
    assert "Requeue" not in page
    assert (
        viewer.post(f"{DASHBOARD_URL}confirm/", {"tab": "stuck-queued", "action": "requeue"}).status_code
        == 403
    )
    assert viewer.post(f"{DASHBOARD_URL}limits/apply/", {"user": "1", "reason": "because"}).status_code == 403


def test_every_tab_opens_as_a_page_and_as_a_fragment(grace: Client):
    """D13: with a policy that lets no script or style in from elsewhere"""
    make_stuck_turn()
    for tab in TABS:
        path = f"{DASHBOARD_URL}{tab.slug}/" if tab.slug else DASHBOARD_URL
        page = grace.get(path)
        assert page.status_code == 200, tab.slug
        assert page["Cache-Control"].startswith("max-age=0")
        assert "'unsafe-inline'" not in page["Content-Security-Policy"]
        whole = page.content.decode()
        assert not re.search(r"<script(?![^>]*\bsrc=)[^>]*>|\sstyle=|\son\w+=", whole), tab.slug
        part = get_page_text(grace, path, **FRAGMENT)
        assert "<html" not in part
        assert tab.empty in part or tab.kind in ("overview", "limits") or "<table" in part
    assert grace.get(f"{DASHBOARD_URL}nonsense/").status_code == 404
    assert grace.get(f"{DASHBOARD_URL}running/", {"page": "0"}).status_code == 400
    assert grace.get(f"{DASHBOARD_URL}running/", {"order": "password"}).status_code == 400


# --- seeing ------------------------------------------------------------------------------------------


def test_the_first_line_says_what_is_wrong_and_what_may_be_done(grace: Client):
    """D13: in ten seconds, at three in the morning"""
    turn = make_stuck_turn()
    page = get_page_text(grace, DASHBOARD_URL)
    assert "Act now: No worker takes turns" in page
    assert "Executions stuck in the queue" in page
    assert str(turn.pk)[:8] in page
    assert f"{DASHBOARD_URL}stuck-queued/" in page
    assert "No worker took them within the hour" in page  # why
    assert views.judge_health([], Summary(taken_at=timezone.now())).words == "All is well"


def test_what_people_name_their_agents_is_text(grace: Client):
    """A-D13.3"""
    turn = make_stuck_turn()
    agent = Agent.objects.create(owner=turn.session.owner, name=NAUGHTY)
    version = AgentVersion.objects.create(agent=agent, number=1, name=NAUGHTY, instructions="x")
    turn.session.agent_version = version
    turn.session.save()
    page = get_page_text(grace, f"{DASHBOARD_URL}queued/")
    assert NAUGHTY not in page
    assert "&lt;img src=x onerror=" in page


def test_filters_stand_in_the_address_and_pages_keep_them(grace: Client):
    """D13, D5"""
    mine, other = make_stuck_turn(), make_stuck_turn()
    page = get_page_text(grace, f"{DASHBOARD_URL}queued/?user={mine.session.owner_id}&page=1")
    assert str(mine.pk) in page
    assert str(other.pk) not in page
    refused = grace.get(f"{DASHBOARD_URL}queued/", {"created_from": "yesterday"})
    assert refused.status_code == 400
    assert "created_from" in refused.content.decode()


def test_every_filter_of_the_lists_has_its_field(grace: Client):
    """D13, D5: when it started on every list, when it ended on the failed ones, and which status where several are"""
    old, new = make_stuck_turn(), make_stuck_turn()
    Turn.objects.filter(pk=old.pk).update(status="running", attempts=1, started_at="2026-01-02T03:04:00Z")
    Turn.objects.filter(pk=new.pk).update(status="running", attempts=1, started_at=timezone.now())
    page = get_page_text(grace, f"{DASHBOARD_URL}running/?started_to=2026-01-02T03:05")
    assert (str(old.pk) in page, str(new.pk) in page) == (True, False)
    assert 'name="started_to" value="2026-01-02T03:05" type="datetime-local"' in page
    Turn.objects.filter(pk=old.pk).update(status="failed", ended_at=timezone.now(), failure_code="unknown")
    for asked, found in (("ended_from=2026-01-02T03:05", True), ("ended_to=2026-01-02T03:05", False)):
        page = get_page_text(grace, f"{DASHBOARD_URL}failed/?{asked}")
        assert ('name="ended_to"' in page, str(old.pk) in page) == (True, found), asked
    stale = make_stuck_turn(hours=30)
    for status, found in (("queued", True), ("running", False)):
        assert (str(stale.pk) in get_page_text(grace, f"{DASHBOARD_URL}orphaned/?status={status}")) is found


def test_pages_and_programs_count_together(grace: Client, monkeypatch: pytest.MonkeyPatch):
    """D14: 120 reads and 20 changes a minute for one administrator, over all entry points; one change too many does nothing"""
    turn = make_stuck_turn()
    monkeypatch.setattr(DiagnosticsAPIView, "reads_per_minute", 4)
    monkeypatch.setattr(DiagnosticsAPIView, "writes_per_minute", 1)
    grace.get("/api/v1/admin/diagnostics/audit")
    assert [grace.get(f"{DASHBOARD_URL}audit/").status_code for _ in range(4)] == [200, 200, 200, 429]
    asked = {"tab": "queued", "action": "stop", "ids": [str(turn.pk)], "reason": "to try it"}
    assert grace.post(f"{DASHBOARD_URL}confirm/", asked).status_code == 200
    refused = grace.post(f"{DASHBOARD_URL}apply/", asked)
    assert (refused.status_code, int(refused["Retry-After"]) > 0) == (429, True)
    assert "Nothing was changed" in refused.content.decode()
    turn.refresh_from_db()
    assert turn.status == "queued"


def test_a_list_has_its_narrower_parts_and_a_file(grace: Client):
    """D13, D3: every condition has its place, with what it means; and the file has the same rows (D5)"""
    turn, other = make_stuck_turn(), factories.turn(factories.session(), "running", attempts=1)
    Turn.objects.filter(pk=other.pk).update(stop_requested_at=timezone.now() - timedelta(seconds=9))
    assert set(TAB_BY_CONDITION) | {tab.condition for tab in TABS} >= set(turn_filters.TURN_FILTERS)
    page = get_page_text(grace, f"{DASHBOARD_URL}running/?only=cancel_backlog")
    assert "more than 5 seconds ago" in page
    assert str(other.pk) in page
    assert str(turn.pk) not in page
    link = re.search(r'href="(/api/v1/admin/diagnostics/executions.csv[^"]*)"', page)
    assert link is not None
    rows = get_page_text(grace, link[1].replace("&amp;", "&")).splitlines()
    assert [row.split(",")[0] for row in rows] == ["id", str(other.pk)]
    assert grace.get(f"{DASHBOARD_URL}running/?only=waiting_old").status_code == 400


def test_every_required_process_is_listed_with_its_last_heartbeat(grace: Client):
    """D6, D13: the reaper, the scheduler, the bots with their last update and errors, and what waits for them"""
    heartbeat.write_sweep()
    BotRunner.objects.create(
        platform="telegram", bot_account="pilot", holder="host-1", until=timezone.now() - timedelta(minutes=1)
    )
    for number, outcome in enumerate(("queued", "queued", "queued", "failed")):
        PlatformUpdate.objects.create(
            platform="telegram",
            bot_account="pilot",
            update_key=str(number),
            done_at=timezone.now(),
            outcome=outcome,
        )
    PlatformUpdate.objects.filter(outcome="failed").update(received_at=timezone.now() - timedelta(minutes=59))
    PlatformUpdate.objects.create(platform="slack", bot_account="pilot", update_key="x")
    quiet = {"failed_1h": 0, "handled_1h": 0, "error_rate_1h": None, "given_up": 0}
    told = grace.get("/api/v1/admin/diagnostics/workers").json()["doors"]
    assert [one["name"] for one in told] == ["slack", "telegram"]
    assert told[0].items() >= quiet.items()
    assert told[1].items() >= {"failed_1h": 1, "handled_1h": 4, "error_rate_1h": 0.25, "given_up": 1}.items()
    page = get_page_text(grace, f"{DASHBOARD_URL}workers/")
    assert "25.0 %" in page
    assert re.search(r'Reaper</td><td><span class="dx-pill dx-alive">', page)
    assert "Scheduler (Celery beat)" in page
    assert re.search(r'Bot of telegram \(pilot\)</td><td><span class="dx-pill dx-lost">', page)
    assert "Answers that could not be delivered" in page


def test_stranded_messages_are_listed_with_their_session_and_started_by_hand(grace: Client):
    """D13, D3: by the session's id, as the dialog shows it; filters hold or are refused"""
    session = factories.session()
    message = factories.pending(session, "Hello", run_id="r-1")
    Message.objects.filter(pk=message.pk).update(created_at=timezone.now() - timedelta(seconds=20))
    page = get_page_text(grace, f"{DASHBOARD_URL}queued/?only=stranded_pending")
    assert f"/admin/copilot/session/{session.pk}/change/" in page
    assert f'name="ids" value="{session.pk}"' in page
    assert "Requeue" not in page
    assert "Hello" not in page
    assert "created_from" not in page  # a session has none of those
    asked = {"tab": "queued", "action": "start_stranded", "ids": [str(session.pk)]}
    dialog = grace.post(f"{DASHBOARD_URL}confirm/", asked).content.decode()
    assert "<b>1</b> session will be changed" in dialog
    assert str(session.pk)[:8] in dialog
    assert "This concerns 1 owner" in dialog
    path = f"{DASHBOARD_URL}queued/?only=stranded_pending&"
    for filters, found in (
        (f"user={session.owner.email}", True),
        ("user=999999", False),
        (f"q={session.pk}", True),
        (f"session={uuid.uuid4()}", False),
    ):
        assert (str(session.pk) in get_page_text(grace, path + filters)) is found, filters
    assert grace.get(f"{path}origin=web").status_code == 400
    assert f"/admin/copilot/session/{session.pk}/change/" in get_page_text(grace, DASHBOARD_URL)


def test_a_source_that_does_not_answer_leaves_its_figures_out(grace: Client, monkeypatch):
    """D13, D4: unknown is not zero"""
    monkeypatch.setattr(
        snapshot, "get_summary", lambda: Summary(taken_at=timezone.now(), degraded=("postgres",))
    )
    page = get_page_text(grace, DASHBOARD_URL)
    assert "did not answer" in page
    assert "Act now" in page
    assert '<b class="dx-card-value">?</b>' in page


def test_the_record_of_repairs_names_who_what_and_why(grace: Client):
    """D8, D13"""
    turn = make_stuck_turn()
    grace.post(
        f"{DASHBOARD_URL}apply/",
        {
            "tab": "stuck-queued",
            "action": "requeue",
            "ids": [str(turn.pk)],
            "reason": "lost its task",
            "confirm": "yes",
        },
    )
    page = get_page_text(grace, f"{DASHBOARD_URL}audit/?action=requeue")
    assert "lost its task" in page
    assert "grace" in page
    for outcome, status in (("done", 200), ("refused", 200), ("dry_run", 200), ("odd", 400)):
        assert grace.get(f"{DASHBOARD_URL}audit/?only={outcome}").status_code == status


@pytest.mark.parametrize(
    "asked", ["audit/?actor=%00", "audit/?action=a%00", "limits/?email=a%00@example.com"]
)
def test_what_no_row_can_hold_is_refused_in_words(grace: Client, asked: str):
    """D13: Postgres knows no NUL; a page that says it cannot be reached would mislead"""
    assert grace.get(f"{DASHBOARD_URL}{asked}").status_code == 400


def test_one_execution_tells_its_story(grace: Client):
    """D8, D14: with the repairs that were tried"""
    turn = make_stuck_turn()
    assert "Nobody has tried to repair it" in get_page_text(grace, f"{DASHBOARD_URL}execution/{turn.pk}/")
    grace.post(f"{DASHBOARD_URL}confirm/", {"tab": "queued", "one": f"requeue:{turn.pk}"})
    page = get_page_text(grace, f"{DASHBOARD_URL}execution/{turn.pk}/")
    assert "preview before acting" in page
    assert f"/admin/copilot/turn/{turn.pk}/change/" in page
    assert grace.get(f"{DASHBOARD_URL}execution/{uuid.uuid4()}/").status_code == 404


# --- acting ------------------------------------------------------------------------------------------


def test_a_turn_is_stopped_without_javascript(grace: Client):
    """A-D13.4: list, confirm page, result page"""
    turn = make_stuck_turn()
    page = get_page_text(grace, f"{DASHBOARD_URL}stuck-queued/")
    assert f'value="stop:{turn.pk}"' in page
    asked = grace.post(
        f"{DASHBOARD_URL}confirm/",
        {"tab": "stuck-queued", "one": f"stop:{turn.pk}", "back": f"{DASHBOARD_URL}stuck-queued/"},
    )
    shown = asked.content.decode()
    assert "<html" in shown
    assert "<b>1</b> execution will be changed" in shown
    assert 'name="reason" required' in shown
    turn.refresh_from_db()
    assert turn.status == "queued"
    done = grace.post(
        f"{DASHBOARD_URL}apply/",
        {
            "tab": "stuck-queued",
            "action": "stop",
            "ids": [str(turn.pk)],
            "reason": "asked for by its owner",
            "back": f"{DASHBOARD_URL}stuck-queued/",
        },
    )
    assert "Stop: 1 changed" in done.content.decode()
    turn.refresh_from_db()
    assert turn.status == "cancelled"
    assert RepairAudit.objects.filter(action="stop", outcome="done", actor="grace").count() == 1


def test_nothing_happens_without_a_reason_and_many_need_their_number(grace: Client):
    """D13: above twenty the count is typed"""
    turns = [make_stuck_turn() for _ in range(21)]
    look = grace.post(
        f"{DASHBOARD_URL}confirm/", {"tab": "stuck-queued", "action": "requeue_all_stuck"}, headers=FRAGMENT
    )
    shown = look.content.decode()
    assert "<b>21</b> executions will be changed" in shown
    assert "This concerns 21 owners" in shown
    assert shown.count("<tr>") == 5
    preview = re.search(r'name="preview_id" value="([0-9a-f-]{36})"', shown)
    assert preview is not None
    fields = {
        "tab": "stuck-queued",
        "action": "requeue_all_stuck",
        "preview_id": preview[1],
        "reason": "after the outage",
    }
    refused = grace.post(f"{DASHBOARD_URL}apply/", fields, headers=FRAGMENT).content.decode()
    assert re.search(r'<ul class="errorlist" id="id_count_error"><li>Type 21 to confirm', refused)
    assert 'value="after the outage"' in refused
    nameless = {**fields, "reason": "", "count": "21"}
    refused = grace.post(f"{DASHBOARD_URL}apply/", nameless, headers=FRAGMENT).content.decode()
    assert '<ul class="errorlist" id="id_reason_error">' in refused
    assert 'aria-describedby="id_reason_helptext id_reason_error"' in refused
    assert RepairAudit.objects.filter(outcome="refused").exists()
    assert not RepairAudit.objects.filter(outcome="done").exists()
    done = grace.post(f"{DASHBOARD_URL}apply/", {**fields, "count": "21"}, headers=FRAGMENT).content.decode()
    assert "21 changed" in done
    assert Turn.objects.filter(pk__in=[turn.pk for turn in turns], dispatch_count__gt=0).count() == 21


def test_what_is_left_alone_says_why(grace: Client):
    """D8, D13"""
    ended = factories.turn(factories.session(factories.ada()), status="succeeded")
    asked = grace.post(
        f"{DASHBOARD_URL}confirm/", {"tab": "orphaned", "action": "cleanup_orphaned", "ids": [str(ended.pk)]}
    )
    shown = asked.content.decode()
    assert "Nothing here can be changed now" in shown
    assert "is succeeded" in shown
    assert 'name="reason"' not in shown


@pytest.mark.parametrize(
    "fields",
    [
        {"tab": "invalid", "action": "stop"},
        {"tab": "running", "action": "requeue"},
        {"tab": "x", "action": "stop"},
    ],
)
def test_an_action_is_offered_in_its_tabs_alone(grace: Client, fields):
    """A-D5.2: nothing repairs what contradicts itself"""
    assert grace.post(f"{DASHBOARD_URL}confirm/", fields).status_code == 404


def test_back_leads_nowhere_else(grace: Client):
    turn = make_stuck_turn()
    asked = grace.post(
        f"{DASHBOARD_URL}confirm/",
        {"tab": "queued", "one": f"stop:{turn.pk}", "back": "https://evil.example/"},
    )
    assert "evil.example" not in asked.content.decode()


# --- limits ------------------------------------------------------------------------------------------


def cost(user: User) -> usage_records.UsageCall:
    return usage_records.UsageCall(
        call_id=uuid.uuid4(), user_id=user.pk, occurred_at=timezone.now(), provider="acme", model="glow-1",
        tokens=pricing.TokenCounts(input=5), reported="0.5",
    )  # fmt: skip


@pytest.fixture
def ada() -> User:
    ada = factories.ada()
    accounts.get_or_create_account(ada.pk)
    usage_records.record_usage(cost(ada))
    UsageWindow.objects.filter(account__user=ada, kind="WEEK").update(used_microdollars=3_000_000)
    return ada


def used(user: User) -> dict[str, int]:
    rows = UsageWindow.objects.filter(account__user=user)
    return dict(rows.values_list("kind", "used_microdollars"))


def reset(client: Client, user: User, *, weekly: bool) -> str:
    fields = {"user": str(user.pk), "weekly": "yes" if weekly else "no", "reason": "our outage"}
    answer = client.post(f"{DASHBOARD_URL}limits/apply/", fields, headers=FRAGMENT)
    assert answer.status_code == 200
    return answer.content.decode()


def test_a_reset_of_the_day_leaves_the_week(grace: Client, ada: User):
    """A-D20.1"""
    assert used(ada) == {"DAY": 500_000, "WEEK": 3_000_000}
    assert "$0.000000 (0) today and $3.000000 (3,000,000) this week" in reset(grace, ada, weekly=False)
    assert used(ada) == {"DAY": 0, "WEEK": 3_000_000}
    assert "$0.000000 (0) today and $0.000000 (0) this week" in reset(grace, ada, weekly=True)
    assert used(ada) == {"DAY": 0, "WEEK": 0}
    first = RepairAudit.objects.filter(action="reset_usage").earliest("at")
    assert first.result["before"] == {
        "daily_used_microdollars": 500_000,
        "weekly_used_microdollars": 3_000_000,
    }
    assert first.result["after"]["daily_used_microdollars"] == 0


def test_a_reset_holds_while_redis_is_down_and_is_applied_when_it_is_back(grace: Client, ada: User, settings):
    """A-D20.2"""
    there = settings.REDIS_URL
    settings.REDIS_URL = f"redis://127.0.0.1:{find_free_port()}/0"
    assert "The change is saved" in reset(grace, ada, weekly=False)
    assert used(ada) == {"DAY": 0, "WEEK": 3_000_000}
    settings.REDIS_URL = there
    windows.publish_recent_windows()
    now = timezone.now()
    seen = redis_counters.read_cached_usage(ada.pk, plans.get_day_window(now), plans.get_week_window(now))
    assert seen.daily is None or seen.daily.used_microdollars == 0


def test_what_a_running_turn_costs_after_the_reset_counts_once(grace: Client, ada: User):
    """A-D20.3"""
    reset(grace, ada, weekly=True)
    late = cost(ada)
    usage_records.record_usage(late)
    usage_records.record_usage(late)  # its worker was not sure
    assert used(ada) == {"DAY": 500_000, "WEEK": 500_000}


def test_limits_are_looked_up_by_one_of_two_names(grace: Client, ada: User):
    """D20: by id or e-mail, whatever its case"""
    page = get_page_text(grace, f"{DASHBOARD_URL}limits/?email={ada.email.upper()}")
    assert "$0.500000 (500,000)" in page
    assert "acme glow-1" in page
    assert "The limit comes from the tier." in page
    for asked, status, place, problem in (
        ({"user": ada.pk, "email": ada.email}, 400, 'role="alert">', "Enter either a user id or an email"),
        ({"user": "", "email": ""}, 400, 'role="alert">', "Enter either a user id or an email"),
        ({"user": "ada"}, 400, 'id="id_user_error"><li>', "Enter a number."),
        ({"email": "nobody@example.com"}, 404, 'id="id_email_error"><li>', "This user doesn&#x27;t exist."),
    ):
        refused = grace.get(f"{DASHBOARD_URL}limits/", asked)
        assert (refused.status_code, place + problem in refused.content.decode()) == (status, True), asked


@pytest.mark.parametrize("reason", ["", "  x ", "a" * 501, "nul\x00"])
def test_a_reset_without_a_proper_reason_shows_the_error_at_its_field(grace: Client, ada: User, reason: str):
    fields = {"user": str(ada.pk), "weekly": "yes", "reason": reason}
    refused = grace.post(f"{DASHBOARD_URL}limits/apply/", fields, headers=FRAGMENT).content.decode()
    assert 'id="id_reason_error"><li>' in refused
    assert "Enter a reason of 3 to 500 characters." in refused or "\x00" in reason
    assert 'name="weekly" value="yes"' in refused
    assert set(used(ada).values()) != {0}


def test_a_number_without_end_is_refused_like_any_other(grace: Client):
    """D5, D20: thousands of digits, which Python does not even read"""
    endless = "9" * 5000
    assert grace.get(f"{DASHBOARD_URL}limits/", {"user": endless}).status_code == 400
    assert (
        grace.post(f"{DASHBOARD_URL}limits/apply/", {"user": endless, "reason": "because"}).status_code == 404
    )
    assert grace.get(f"{DASHBOARD_URL}failed/", {"page": endless}).status_code == 400
    assert grace.get(f"{DASHBOARD_URL}failed/", {"user": endless}).status_code == 400
    assert grace.get(f"{DASHBOARD_URL}failed/", {"user": "9" * 12}).status_code == 200


def test_who_may_look_may_not_reset(ada: User):
    """A-D20.4"""
    viewer = sign_in_staff("view")
    page = get_page_text(viewer, f"{DASHBOARD_URL}limits/?user={ada.pk}")
    assert "$0.500000 (500,000)" in page
    assert "Reset the day" not in page
    assert (
        viewer.post(f"{DASHBOARD_URL}limits/apply/", {"user": ada.pk, "reason": "because"}).status_code == 403
    )


# --- pictures ----------------------------------------------------------------------------------------


def test_charts_are_drawn_from_samples_with_gaps_where_nobody_measured(grace: Client):
    """D13"""
    now = timezone.now()
    MetricSample.objects.bulk_create(
        MetricSample(taken_at=now - timedelta(minutes=minute), name="failed_1h", value=minute)
        for minute in (*range(1, 20), *range(40, 55))
    )
    page = get_page_text(grace, DASHBOARD_URL)
    path = re.search(r'<path class="dx-line dx-line-1" d="(M[^"]+M[^"]+)">', page)
    assert path is not None, "two pieces, for there is a gap"
    assert "Failed in the hour before: now turns 1" in page
    assert grace.get(DASHBOARD_URL, {"range": "1y"}).status_code == 404


@pytest.mark.parametrize(("most", "top"), [(0, 1), (0.3, 0.5), (7, 10), (11, 20), (240, 250), (9000, 10000)])
def test_a_scale_ends_at_a_number_people_like(most: float, top: float):
    assert views._round_up(most) == pytest.approx(top)


def test_the_gravest_finding_is_the_verdict():
    quiet = Summary(taken_at=timezone.now())
    warning = Finding(code="w", severity="warning", title="Slow")
    critical = Finding(code="c", severity="critical", title="Dead")
    assert views.judge_health([critical, warning], quiet).words == "Act now: Dead"
    assert views.judge_health([warning, warning], quiet).words == "Check: Slow, and 1 more"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_an_hour_on_five_browsers_costs_few_looks_and_no_memory(grace: Client, monkeypatch):
    """A-D22.2: each renews itself every 30 seconds; at most five computations in that time, and nothing piles up"""
    clock = [1_000.0]
    monkeypatch.setattr(DiagnosticsAPIView, "reads_per_minute", 10_000)  # an hour of them in a minute
    monkeypatch.setattr(queries, "time", SimpleNamespace(monotonic=lambda: clock[0]))  # there alone
    make_stuck_turn()
    gc.unfreeze()  # all there is counts, what was read before the first test too
    looks, sizes = [], []
    for half_minute in range(120):
        before = snapshot._cached_summary.computations
        for _ in range(5):
            get_page_text(grace, DASHBOARD_URL, **FRAGMENT)
            clock[0] += 6
        looks.append(snapshot._cached_summary.computations - before)
        if half_minute % 30 == 29:
            gc.collect()
            sizes.append(len(gc.get_objects()))
    assert max(looks) <= 5
    assert sizes[-1] < sizes[0] * 1.02, sizes
