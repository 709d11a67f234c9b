"""What each finding means, for somebody who was asleep a minute ago: why it comes about, and who feels it (D12, D13)."""

from __future__ import annotations

from collections.abc import Mapping

MEANINGS: Mapping[str, str] = {
    "dependency_down:postgres": "Every row is there. Nobody can send, and turns that run keep what they have until it is back.",
    "dependency_down:redis": "Leases, queues and live text are there. Chats stand still; nothing accepted is lost, for the rows are in Postgres.",
    "dependency_down:broker": "Tasks travel through it: new turns are accepted and start once it is back.",
    "database_read_only": "A standby, or a server switched to reading: pages can be read, but nothing can be sent, saved or repaired.",
    "orphans": "Their worker died, or their task was lost for a day; their owners see an answer that does not move.",
    "stuck_queue": "No worker took them within the hour: there are too few, none at all, or their tasks were lost.",
    "no_workers": "No process of the queue `turns` shows a sign of life, so nobody gets an answer.",
    "deaf_workers": "Their processes run and their beat is fresh, but no message reaches them: turns wait for other workers, or for nobody.",
    "queue_silent": "The scheduler sends to it every few seconds, and nothing has been done for a while: its worker is stopped, stuck or deaf.",
    "task_backlog": "They are sent faster than they are done. Scheduled jobs expire; what people wait for comes late.",
    "queue_growing": "More turns arrive than workers finish, for five minutes in a row.",
    "failure_spike": "Usually a provider in trouble, a key that was revoked, or a release that broke something.",
    "slow_start": "People wait that long before the first word, because all workers are busy.",
    "cancel_backlog": "Their workers hang or are frozen, and nobody has overridden them yet.",
    "long_running": "The limit of a turn should have ended them; they still beat, so they are not dead.",
    "invalid_state": "A defect or a hand in the database; no rule says what would be right, so nothing repairs them.",
    "lease_without_turn": "A process died between ending a turn and letting its session go; new messages there wait.",
    "stranded_pending": "Somebody died between ending a turn and starting the next; people wait for an answer to them.",
    "stream_bloat": "They fill the memory of Redis.",
    "reaper_blind": "It reads signs of life in Postgres and Redis, and one of them does not answer.",
    "reaper_silent": "While it is silent, turns of dead workers stay where they are and stops are not enforced. Every worker of `maintenance` and `turns` can do it.",
    "scheduler_silent": "It sends schedules, deliveries, mails and clean-ups; all of them stand still.",
    "redis_eviction": "When its memory is full, leases and queues would vanish, and turns with them.",
    "clock_skew": "Ages and expiries that are told by different clocks contradict each other.",
    "orphaned_schedules": "Their agent, owner or credential is gone, or their time is no longer valid: they would fail at every run.",
    "update_backlog": "What people wrote on chat platforms has not been read yet.",
    "delivery_backlog": "Answers are there and have not reached the chats they belong to.",
    "mixed_versions": "A deploy that is not finished, or a worker that was forgotten.",
}  # fmt: skip


def meaning(code: str) -> str:
    """Of the very code, or of its kind."""
    return MEANINGS.get(code) or MEANINGS.get(code.partition(":")[0], "")
