"""Read how many tasks wait in the broker's queues."""

from __future__ import annotations

from dataclasses import dataclass

from celery import current_app
from kombu import Connection, Queue
from kombu.exceptions import KombuError
from kombu.transport.redis import Channel as RedisChannel

QUEUES = ("turns", "default", "chats", "maintenance")
STEADY_QUEUES = ("default", "maintenance")  # the scheduler sends to each of them every five seconds
CONNECT_TIMEOUT_SECONDS = 1
ANSWER_TIMEOUT_SECONDS = 1.0
UNREACHABLE_ERRORS = (OSError, KombuError)


@dataclass(frozen=True)
class QueueDepths:
    by_queue: dict[str, int]
    unacked: int | None  # None if the broker does not report it


def read_queue_depths() -> QueueDepths:
    """Read the depths; raise one of UNREACHABLE_ERRORS, also for a broker that accepts connections but never answers."""
    options = {"socket_timeout": ANSWER_TIMEOUT_SECONDS}
    with current_app.connection_for_read(
        connect_timeout=CONNECT_TIMEOUT_SECONDS, transport_options=options
    ) as link:
        try:
            link.ensure_connection(max_retries=1, timeout=CONNECT_TIMEOUT_SECONDS)
            return QueueDepths(
                {queue: count_waiting_tasks(link, queue) for queue in QUEUES}, _count_unacked(link)
            )
        except link.connection_errors as problem:
            raise OSError(type(problem).__name__) from problem


def count_waiting_tasks(link: Connection, queue: str) -> int:
    """Count the waiting tasks without creating a queue that nobody has used yet.

    On Redis the lists are asked directly, one per priority: kombu's passive declaration ignores REDIS_KEY_PREFIX, so it
    would not see our queues and could see those of another installation.
    """
    with link.channel() as channel:
        if isinstance(channel, RedisChannel):
            return int(channel._size(queue))
        try:
            declared = Queue(queue, channel=channel).queue_declare(passive=True)
        except link.channel_errors:
            return 0
        return int(getattr(declared, "message_count", 0))  # a named tuple, unlike its stub


def _count_unacked(link: Connection) -> int | None:
    """Count tasks that workers took and have not finished; only Redis reports them, in a hash."""
    with link.channel() as channel:
        client, key = getattr(channel, "client", None), getattr(channel, "unacked_key", None)
        return int(client.hlen(key)) if client is not None and key else None
