"""Time the product's own functions beside a running site: claims, the reaper's sweep and the scheduled jobs (P23).

Reads lines `name repetitions` and answers each with a line of JSON: the milliseconds of every call.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from copilot.models import Session

CLAIM = "claim"
JOBS = (  # by beat, except those that talk to Stripe or to a bucket
    "copilot.tasks.run_due_schedules", "copilot.tasks.index_messages", "copilot.tasks.resend_lost_scans",
    "copilot.tasks.sweep_data_jobs", "copilot.tasks.record_forgotten_calls", "copilot.tasks.purge_sessions",
    "copilot.tasks.purge_files", "copilot.tasks.purge_shares", "copilot.tasks.purge_accounts", "billing.tasks.publish_windows",
    "billing.tasks.expire_credits", "billing.tasks.lapse_overdue", "billing.tasks.mail_waiting", "billing.tasks.sweep_events",
    "billing.tasks.fold_usage", "linking.tasks.deliver", "linking.tasks.sweep", "linking.tasks.announce_waiting",
    "linking.tasks.tend", "diagnostics.tasks.purge", "diagnostics.tasks.deliver_audit",
)  # fmt: skip


def main() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
    import django

    django.setup()
    calls = _list_calls()
    for line in sys.stdin:
        name, repetitions = line.rsplit(maxsplit=1)
        print(json.dumps([calls[name]() for _ in range(int(repetitions))]), flush=True)


def _list_calls() -> dict[str, Callable[[], float]]:
    from celery import current_app
    from django.db import connection

    from copilot.chat import model_calls
    from diagnostics import aggregates, inventory, reaper, snapshot, turn_filters
    from diagnostics.queries import open_snapshot

    def compute_figures() -> None:
        with open_snapshot() as now:
            aggregates.compute_figures(turn_filters.judge_running_turns(now))

    def sweep_slowly() -> None:
        reaper._state.slow_sweep_at = 1e-9  # long ago, but not the first time
        reaper.run_sweep()

    def take_snapshot() -> None:
        inventory.clear_inventory_cache()
        snapshot.clear_caches()
        snapshot.take_snapshot()

    current_app.loader.import_default_modules()
    connection.ensure_connection()
    calls: dict[str, Callable[[], object]] = {
        "probe": reaper.run_probe,
        "sweep": reaper.run_sweep,
        "slow sweep": sweep_slowly,
        "calls of a day": lambda: model_calls.record_forgotten_calls(turns_of=timedelta(days=1)),
        "figures": compute_figures,
        "snapshot": take_snapshot,
        **{name: current_app.tasks[name].run for name in JOBS},
    }
    return {CLAIM: _time_claim, **{name: _timed(call) for name, call in calls.items()}}


def _timed(call: Callable[[], object]) -> Callable[[], float]:
    def act() -> float:
        began = time.perf_counter()
        call()
        return 1000 * (time.perf_counter() - began)

    return act


def _time_claim() -> float:
    """Claim a turn that nobody has woken a worker for, and remove it again."""
    from django.db import connection
    from django.db.models.functions import Now

    from copilot.chat import model_calls, turns
    from copilot.chat.permissions import UNRESTRICTED
    from copilot.models import Message, ModelCall, Session, Turn

    session = Session.objects.filter(owner__username="bench3", title="Claims").first() or _make_session()
    turn = Turn.objects.create(
        session=session,
        status=Turn.Status.QUEUED,
        origin="web",
        permissions=UNRESTRICTED.to_json(),
        accepted_through=0,
        fence=1,
        token=session.pk,
        payer_id=session.owner_id,
        queued_at=Now(),
    )
    models = {"standard": model_calls.TierModel(name="fake", provider="openai_chat", model="fake")}
    connection.ensure_connection()
    began = time.perf_counter()
    found = turns.claim_turns([turn.pk], "bench", models)
    took = 1000 * (time.perf_counter() - began)
    assert found.claimed
    Message.objects.filter(turn=turn).delete()
    ModelCall.objects.filter(turn=turn).delete()
    turn.delete()
    return took


def _make_session() -> Session:
    from django.contrib.auth.models import User

    from copilot.models import Session

    return Session.objects.create(owner=User.objects.get(username="bench3"), title="Claims")


if __name__ == "__main__":
    main()
