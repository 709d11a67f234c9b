"""Name every Redis key and channel of copilot. Keys of a session share a hash tag."""

from __future__ import annotations

from config.core.redis import KEY_PREFIX

LIVE_CHANNEL = f"{KEY_PREFIX}:live"  # events of all sessions, for the fan-out of each web process
LIVE_NUMBER_KEY = f"{KEY_PREFIX}:live:number"  # counts the channel's messages, so that readers notice gaps
REAPER_KEY = f"{KEY_PREFIX}:reaper"  # exists since the last sweep
STOP_CHANNEL = f"{KEY_PREFIX}:stops"
WAKEUPS_KEY = f"{KEY_PREFIX}:wakeups"  # ids of turns that need a worker
INSTALLATION_KEY = f"{KEY_PREFIX}:installation"  # a copy of the row that counts this installation's sweeps
EPOCH_KEY = f"{KEY_PREFIX}:epoch"  # exists since the last restore from the rows; missing after a flush
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
    """Name the mark that a batch was logged, for a publisher whose answer was lost."""
    return f"{KEY_PREFIX}:{{{session_id}}}:mark:{name}"


def side_question_key(session_id: str) -> str:
    return f"{KEY_PREFIX}:{{{session_id}}}:aside"


# Patterns for SCAN.
LEASE_PATTERN = f"{KEY_PREFIX}:*:lease"
SESSION_KEY_PATTERN = f"{KEY_PREFIX}:{{*}}:*"


def parse_session_id(key: str) -> str:
    return key[key.index("{") + 1 : key.index("}")]


def heartbeat_key(worker: str) -> str:
    return f"{KEY_PREFIX}:beat:{{{worker}}}"


def leader_key(role: str) -> str:
    return f"{KEY_PREFIX}:leader:{role}"


def last_work_key(name: str) -> str:
    return f"{KEY_PREFIX}:last:{name}"


def ticket_key(digest: str) -> str:
    return f"{KEY_PREFIX}:ticket:{{{digest}}}"


def connections_key(kind: str, who: str) -> str:
    return f"{KEY_PREFIX}:{{connections}}:{kind}:{who}"


def web_process_key(process: str) -> str:
    """Name the key that exists while a web process is alive."""
    return f"{KEY_PREFIX}:{{connections}}:process:{process}"
