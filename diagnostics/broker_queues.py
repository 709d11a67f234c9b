"""How much waits in the broker's queues (D4)."""

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
    unacked: int | None  # None where the broker does not tell


def read_queue_depths() -> QueueDepths:
    """Raises one of UNREACHABLE; one that takes the connection and says nothing is unreachable too."""
    how = {"socket_timeout": ANSWER_TIMEOUT_SECONDS}
    with current_app.connection_for_read(
        connect_timeout=CONNECT_TIMEOUT_SECONDS, transport_options=how
    ) as link:
        try:
            link.ensure_connection(max_retries=1, timeout=CONNECT_TIMEOUT_SECONDS)
            return QueueDepths(
                {queue: count_waiting_tasks(link, queue) for queue in QUEUES}, _count_unacked(link)
            )
        except link.connection_errors as problem:
            raise OSError(type(problem).__name__) from problem


def count_waiting_tasks(link: Connection, queue: str) -> int:
    """Count the tasks that wait; a queue that nobody has used yet does not exist, and a look must not make it.

    On Redis the lists are asked themselves, one of each priority: kombu's passive declaration forgets REDIS_KEY_PREFIX,
    so it saw no queue of ours and could see another installation's.
    """
    with link.channel() as channel:
        if isinstance(channel, RedisChannel):
            return int(channel._size(queue))
        try:
            declared = Queue(queue, channel=channel).queue_declare(passive=True)
        except link.channel_errors:
            return 0
        return int(getattr(declared, "message_count", 0))  # a named tuple, whatever the stubs say


def _count_unacked(link: Connection) -> int | None:
    """Taken by a worker and not yet done with; Redis keeps them in a hash, others do not tell."""
    with link.channel() as channel:
        client, key = getattr(channel, "client", None), getattr(channel, "unacked_key", None)
        return int(client.hlen(key)) if client is not None and key else None
