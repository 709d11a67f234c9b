"""The jobs Celery beat sends, and when. A job that was not taken in time is dropped, because the next one does the same.

The reaper and the sampler are not here: they are loops of long-lived processes (`diagnostics.loops`).
"""

from __future__ import annotations

from celery.schedules import crontab

BeatEntry = dict[str, object]
MINUTE, HOUR = 60.0, 3600.0


RETIRED_TASKS = ("diagnostics.tasks.reap", "diagnostics.tasks.sample")  # sent by older releases


def build_beat_schedule() -> dict[str, BeatEntry]:
    return {
        # figures
        "purge diagnostics": _build_daily_entry("diagnostics.tasks.purge", 4, 40, expires=HOUR),
        "deliver audit events": _build_entry("diagnostics.tasks.deliver_audit", 15.0, expires=15),
        # conversations and files
        "run due schedules": _build_entry("copilot.tasks.run_due_schedules", crontab(), expires=55),
        "index messages": _build_entry("copilot.tasks.index_messages", 10.0, expires=10),
        "resend lost scans": _build_entry("copilot.tasks.resend_lost_scans", 600.0, expires=600),
        "reconcile storage": _build_daily_entry("copilot.tasks.reconcile_storage", 4, 20, expires=HOUR),
        "sweep exports and deletions": _build_entry("copilot.tasks.sweep_data_jobs", MINUTE, expires=55),
        "record forgotten calls": _build_entry("copilot.tasks.record_forgotten_calls", HOUR, expires=HOUR),
        "purge sessions": _build_entry("copilot.tasks.purge_sessions", HOUR, expires=HOUR),
        "purge files": _build_entry("copilot.tasks.purge_files", HOUR, expires=HOUR),
        "purge shares": _build_entry("copilot.tasks.purge_shares", HOUR, expires=HOUR),
        "purge accounts": _build_daily_entry("copilot.tasks.purge_accounts", 4, 50, expires=HOUR),
        # money
        "publish windows": _build_entry("billing.tasks.publish_windows", MINUTE, expires=55),
        "expire credits": _build_entry("billing.tasks.expire_credits", HOUR, expires=HOUR),
        "lapse overdue plans": _build_entry("billing.tasks.lapse_overdue", HOUR, expires=HOUR),
        "mail waiting notices": _build_entry("billing.tasks.mail_waiting", HOUR, expires=HOUR),
        "sweep events of Stripe": _build_entry("billing.tasks.sweep_events", MINUTE, expires=55),
        "reconcile top-ups": _build_daily_entry("billing.tasks.reconcile_top_ups", 2, 11),
        "reconcile plans": _build_daily_entry("billing.tasks.reconcile", 2, 41),
        "verify windows": _build_daily_entry("billing.tasks.verify_windows", 3, 17),
        "fold old usage": _build_daily_entry("billing.tasks.fold_usage", 3, 47),
        # chat platforms
        "deliver": _build_entry("linking.tasks.deliver", 10.0, expires=10),
        "sweep chats": _build_entry("linking.tasks.sweep", 10.0, expires=10),
        "announce what waits": _build_entry("linking.tasks.announce_waiting", MINUTE, expires=55),
        "tend links": _build_entry("linking.tasks.tend", MINUTE, expires=55),
    }


def _build_daily_entry(task: str, hour: int, minute: int, *, expires: float | None = None) -> BeatEntry:
    return _build_entry(task, crontab(hour=hour, minute=minute), expires=expires)


def _build_entry(task: str, schedule: float | crontab, *, expires: float | None = None) -> BeatEntry:
    job: BeatEntry = {"task": task, "schedule": schedule}
    # The database scheduler does not support `expires` and would drop it silently.
    return job if expires is None else job | {"options": {"expire_seconds": int(expires)}}
