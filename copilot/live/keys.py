"""Every Redis key and channel of copilot; one hash tag per session or user, so that a cluster can hold them."""

from __future__ import annotations

from django.conf import settings

_PREFIX = settings.REDIS_KEY_PREFIX

LIVE_CHANNEL = f"{_PREFIX}:live"  # news of every session's log, for the tail reader of each web process
LIVE_NUMBER = f"{_PREFIX}:live:number"  # counts the news, so that a reader sees when it missed some
REAPER = f"{_PREFIX}:reaper"  # when it looked last
STOP_CHANNEL = f"{_PREFIX}:stops"
WAKEUPS = f"{_PREFIX}:wakeups"  # turn ids that want a worker
INSTALLATION = (
    f"{_PREFIX}:installation"  # a copy of the row that names this installation and counts its sweeps
)
EPOCH = f"{_PREFIX}:epoch"  # there since the last rebuild; missing after a flush
BREAKERS = f"{_PREFIX}:{{breakers}}:open"  # models that keep failing


def failures(model: str) -> str:
    return f"{_PREFIX}:{{breakers}}:failures:{model}"


def lease(session_id: str) -> str:
    return f"{_PREFIX}:{{{session_id}}}:lease"


def queue(session_id: str) -> str:
    return f"{_PREFIX}:{{{session_id}}}:queue"


def fence(session_id: str) -> str:
    return f"{_PREFIX}:{{{session_id}}}:fence"


def stop(session_id: str) -> str:
    return f"{_PREFIX}:{{{session_id}}}:stop"


def stopped_through(session_id: str) -> str:
    return f"{_PREFIX}:{{{session_id}}}:stopped"


def log(session_id: str) -> str:
    return f"{_PREFIX}:{{{session_id}}}:log"


def mark(session_id: str, name: str) -> str:
    """That a batch of events came through, for whoever did not hear the answer."""
    return f"{_PREFIX}:{{{session_id}}}:mark:{name}"


def aside(session_id: str) -> str:
    return f"{_PREFIX}:{{{session_id}}}:aside"


LEASES = f"{_PREFIX}:*:lease"  # for inventory by SCAN
OF_SESSIONS = f"{_PREFIX}:{{*}}:*"


def session_of_key(key: str) -> str:
    """The session inside a key's hash tag."""
    return key[key.index("{") + 1 : key.index("}")]


def beat(worker: str) -> str:
    return f"{_PREFIX}:beat:{{{worker}}}"


def leader(role: str) -> str:
    return f"{_PREFIX}:leader:{role}"


def last_work(name: str) -> str:
    """When some kind of work was done last."""
    return f"{_PREFIX}:last:{name}"


def ticket(digest: str) -> str:
    return f"{_PREFIX}:ticket:{{{digest}}}"


def counter(name: str, who: str) -> str:
    return f"{_PREFIX}:count:{name}:{{{who}}}"


def connections(kind: str, who: str) -> str:
    """Open connections of an account or an address: one field per web process."""
    return f"{_PREFIX}:{{connections}}:{kind}:{who}"


def web_process(process: str) -> str:
    """There while a web process lives."""
    return f"{_PREFIX}:{{connections}}:process:{process}"
