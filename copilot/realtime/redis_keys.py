"""Every Redis key and channel of copilot; one hash tag per session or user, so that a cluster can hold them."""

from __future__ import annotations

from config.core.redis import KEY_PREFIX

LIVE_CHANNEL = f"{KEY_PREFIX}:live"  # news of every session's log, for the tail reader of each web process
LIVE_NUMBER_KEY = f"{KEY_PREFIX}:live:number"  # counts the news, so that a reader sees when it missed some
REAPER_KEY = f"{KEY_PREFIX}:reaper"  # when it looked last
STOP_CHANNEL = f"{KEY_PREFIX}:stops"
WAKEUPS_KEY = f"{KEY_PREFIX}:wakeups"  # turn ids that want a worker
INSTALLATION_KEY = (
    f"{KEY_PREFIX}:installation"  # a copy of the row that names this installation and counts its sweeps
)
EPOCH_KEY = f"{KEY_PREFIX}:epoch"  # there since the last rebuild; missing after a flush
OPEN_BREAKERS_KEY = f"{KEY_PREFIX}:{{breakers}}:open"  # models that keep failing


def model_failures_key(model: str) -> str:
    return f"{KEY_PREFIX}:{{breakers}}:failures:{model}"


def lease_key(session_id: str) -> str:
    return f"{KEY_PREFIX}:{{{session_id}}}:lease"


def queue_key(session_id: str) -> str:
    return f"{KEY_PREFIX}:{{{session_id}}}:queue"


def fence_key(session_id: str) -> str:
    return f"{KEY_PREFIX}:{{{session_id}}}:fence"


def stop_key(session_id: str) -> str:
    return f"{KEY_PREFIX}:{{{session_id}}}:stop"


def stopped_through_key(session_id: str) -> str:
    return f"{KEY_PREFIX}:{{{session_id}}}:stopped"


def event_log_key(session_id: str) -> str:
    return f"{KEY_PREFIX}:{{{session_id}}}:log"


def publish_mark_key(session_id: str, name: str) -> str:
    """That a batch of events came through, for whoever did not hear the answer."""
    return f"{KEY_PREFIX}:{{{session_id}}}:mark:{name}"


def side_question_key(session_id: str) -> str:
    return f"{KEY_PREFIX}:{{{session_id}}}:aside"


LEASE_PATTERN = f"{KEY_PREFIX}:*:lease"  # for inventory by SCAN
SESSION_KEY_PATTERN = f"{KEY_PREFIX}:{{*}}:*"


def parse_session_id(key: str) -> str:
    """The session inside a key's hash tag."""
    return key[key.index("{") + 1 : key.index("}")]


def heartbeat_key(worker: str) -> str:
    return f"{KEY_PREFIX}:beat:{{{worker}}}"


def leader_key(role: str) -> str:
    return f"{KEY_PREFIX}:leader:{role}"


def last_work_key(name: str) -> str:
    """When some kind of work was done last."""
    return f"{KEY_PREFIX}:last:{name}"


def ticket_key(digest: str) -> str:
    return f"{KEY_PREFIX}:ticket:{{{digest}}}"


def connections_key(kind: str, who: str) -> str:
    """Open connections of an account or an address: one field per web process."""
    return f"{KEY_PREFIX}:{{connections}}:{kind}:{who}"


def web_process_key(process: str) -> str:
    """There while a web process lives."""
    return f"{KEY_PREFIX}:{{connections}}:process:{process}"
