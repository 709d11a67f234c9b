"""What beat sends, and when; a job that was not taken in time is left out, for the next one does the same."""

from __future__ import annotations

from celery.schedules import crontab


def jobs(*, sweep_seconds: float) -> dict[str, dict[str, object]]:
    return {
        "reap": {
            "task": "diagnostics.tasks.reap",
            "schedule": sweep_seconds,
            "options": {"expires": 2 * sweep_seconds},
        },
        "tick": {"task": "copilot.tasks.tick", "schedule": crontab(), "options": {"expires": 55}},
        "index messages": {
            "task": "copilot.tasks.index_messages",
            "schedule": 5.0,
            "options": {"expires": 5},
        },
        "send lost scans": {
            "task": "copilot.tasks.send_lost_scans",
            "schedule": 600.0,
            "options": {"expires": 600},
        },
        "tend storage": {
            "task": "copilot.tasks.tend_storage",
            "schedule": crontab(hour=4, minute=20),
            "options": {"expires": 3600},
        },
        "jobs": {"task": "copilot.tasks.look_after_jobs", "schedule": 60.0, "options": {"expires": 55}},
        "purge sessions": {
            "task": "copilot.tasks.purge_sessions",
            "schedule": 3600.0,
            "options": {"expires": 3600},
        },
        "purge files": {
            "task": "copilot.tasks.purge_files",
            "schedule": 3600.0,
            "options": {"expires": 3600},
        },
        "sample": {"task": "diagnostics.tasks.sample", "schedule": 60.0, "options": {"expires": 55}},
        "purge diagnostics": {
            "task": "diagnostics.tasks.purge",
            "schedule": crontab(hour=4, minute=40),
            "options": {"expires": 3600},
        },
        "publish windows": {
            "task": "billing.tasks.publish_windows",
            "schedule": 60.0,
            "options": {"expires": 55},
        },
        "expire credits": {
            "task": "billing.tasks.expire_credits",
            "schedule": 3600.0,
            "options": {"expires": 3600},
        },
        "lapse overdue plans": {
            "task": "billing.tasks.lapse_overdue",
            "schedule": 3600.0,
            "options": {"expires": 3600},
        },
        "mail waiting notices": {
            "task": "billing.tasks.mail_waiting",
            "schedule": 3600.0,
            "options": {"expires": 3600},
        },
        "sweep events of Stripe": {
            "task": "billing.tasks.sweep_events",
            "schedule": 60.0,
            "options": {"expires": 55},
        },
        "reconcile top-ups": {
            "task": "billing.tasks.reconcile_top_ups",
            "schedule": crontab(hour=2, minute=11),
        },
        "fold old usage": {"task": "billing.tasks.fold_usage", "schedule": crontab(hour=3, minute=47)},
        "reconcile plans": {"task": "billing.tasks.reconcile", "schedule": crontab(hour=2, minute=41)},
        "verify windows": {"task": "billing.tasks.verify_windows", "schedule": crontab(hour=3, minute=17)},
        "deliver": {"task": "linking.tasks.deliver", "schedule": 5.0, "options": {"expires": 5}},
        "sweep chats": {"task": "linking.tasks.sweep", "schedule": 10.0, "options": {"expires": 10}},
        "tend links": {"task": "linking.tasks.tend", "schedule": 60.0, "options": {"expires": 55}},
        "purge shares": {
            "task": "copilot.tasks.purge_shares",
            "schedule": 3600.0,
            "options": {"expires": 3600},
        },
    }
