"""The jobs Celery beat sends, and when. A job that was not taken in time is dropped: the next one does the same.

The reaper and the sampler are not here: they are loops of long-lived processes (`diagnostics.loops`).
"""

from __future__ import annotations

from celery.schedules import crontab

Job = dict[str, object]
MINUTE, HOUR = 60.0, 3600.0


RETIRED = ("diagnostics.tasks.reap", "diagnostics.tasks.sample")  # sent by older releases


def jobs() -> dict[str, Job]:
    return {
        # figures
        "purge diagnostics": _daily("diagnostics.tasks.purge", 4, 40, expires=HOUR),
        "deliver audit events": _job("diagnostics.tasks.deliver_audit", 10.0, expires=10),
        # conversations and files
        "tick": _job("copilot.tasks.tick", crontab(), expires=55),
        "index messages": _job("copilot.tasks.index_messages", 5.0, expires=5),
        "send lost scans": _job("copilot.tasks.send_lost_scans", 600.0, expires=600),
        "tend storage": _daily("copilot.tasks.tend_storage", 4, 20, expires=HOUR),
        "jobs": _job("copilot.tasks.look_after_jobs", MINUTE, expires=55),
        "settle calls": _job("copilot.tasks.settle_calls", HOUR, expires=HOUR),
        "purge sessions": _job("copilot.tasks.purge_sessions", HOUR, expires=HOUR),
        "purge files": _job("copilot.tasks.purge_files", HOUR, expires=HOUR),
        "purge shares": _job("copilot.tasks.purge_shares", HOUR, expires=HOUR),
        "purge accounts": _daily("copilot.tasks.purge_accounts", 4, 50, expires=HOUR),
        # money
        "publish windows": _job("billing.tasks.publish_windows", MINUTE, expires=55),
        "expire credits": _job("billing.tasks.expire_credits", HOUR, expires=HOUR),
        "lapse overdue plans": _job("billing.tasks.lapse_overdue", HOUR, expires=HOUR),
        "mail waiting notices": _job("billing.tasks.mail_waiting", HOUR, expires=HOUR),
        "sweep events of Stripe": _job("billing.tasks.sweep_events", MINUTE, expires=55),
        "reconcile top-ups": _daily("billing.tasks.reconcile_top_ups", 2, 11),
        "reconcile plans": _daily("billing.tasks.reconcile", 2, 41),
        "verify windows": _daily("billing.tasks.verify_windows", 3, 17),
        "fold old usage": _daily("billing.tasks.fold_usage", 3, 47),
        # chat platforms
        "deliver": _job("linking.tasks.deliver", 5.0, expires=5),
        "sweep chats": _job("linking.tasks.sweep", 10.0, expires=10),
        "announce what waits": _job("linking.tasks.announce_waiting", MINUTE, expires=55),
        "tend links": _job("linking.tasks.tend", MINUTE, expires=55),
    }


def _daily(task: str, hour: int, minute: int, *, expires: float | None = None) -> Job:
    return _job(task, crontab(hour=hour, minute=minute), expires=expires)


def _job(task: str, schedule: float | crontab, *, expires: float | None = None) -> Job:
    job: Job = {"task": task, "schedule": schedule}
    # The database scheduler knows no `expires`: it drops the word silently.
    return job if expires is None else job | {"options": {"expire_seconds": int(expires)}}
