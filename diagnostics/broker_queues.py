"""Read how many tasks wait in the broker's queues."""

from __future__ import annotations

from dataclasses import dataclass

from celery import current_app
from kombu import Connection, Queue
from kombu.exceptions import KombuError
from kombu.transport.redis import Channel as RedisChannel

QUEUES = ("turns", "default", "chats", "maintenance")
STEADY_QUEUES = ("default", "maintenance")  # the scheduler sends to each of them every ten seconds
CONNECT_TIMEOUT_SECONDS = 1
ANSWER_TIMEOUT_SECONDS = 1.0
UNREACHABLE_ERRORS = (OSError, KombuError)


@dataclass(frozen=True)
class QueueDepths:
    by_queue: dict[str, int]
    unacked: int | None  # taken by workers and not finished; only Redis reports it


def read_queue_depths() -> QueueDepths:
    """Read the depths; raise one of UNREACHABLE_ERRORS, also for a broker that accepts connections but never answers."""
    options = {"socket_timeout": ANSWER_TIMEOUT_SECONDS}
    with current_app.connection_for_read(
        connect_timeout=CONNECT_TIMEOUT_SECONDS, transport_options=options
    ) as link:
        try:
            link.ensure_connection(max_retries=1, timeout=CONNECT_TIMEOUT_SECONDS)
            with link.channel() as channel:
                if isinstance(channel, RedisChannel):
                    return _read_redis_depths(channel)
            return QueueDepths({queue: _count_waiting_tasks(link, queue) for queue in QUEUES}, None)
        except link.connection_errors as problem:
            raise OSError(type(problem).__name__) from problem


def _read_redis_depths(channel: RedisChannel) -> QueueDepths:
    """Ask for the lists directly: kombu's passive declaration ignores REDIS_KEY_PREFIX, so it would not see our queues
    and could see those of another installation.
    """
    with channel.client.pipeline(transaction=False) as pipe:
        for queue in QUEUES:
            pipe.llen(queue)  # settings allow one priority, so a queue is one list
        pipe.hlen(channel.unacked_key)
        *depths, unacked = pipe.execute()
    return QueueDepths(dict(zip(QUEUES, depths, strict=True)), unacked)


def _count_waiting_tasks(link: Connection, queue: str) -> int:
    """Count the waiting tasks without creating a queue that nobody has used yet."""
    with link.channel() as channel:
        try:
            declared = Queue(queue, channel=channel).queue_declare(passive=True)
        except link.channel_errors:
            return 0
        return int(getattr(declared, "message_count", 0))  # a named tuple, unlike its stub
