"""Configure logging: one record per line, with the ids of its request and turn and without secrets."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, MutableMapping

import structlog
from django.core.exceptions import ImproperlyConfigured
from structlog.typing import EventDict, Processor, WrappedLogger

from config.core import redaction, trace_context
from copilot.chat import turn_context

UNLOGGED_PATHS = frozenset({"/healthz", "/readyz", "/metrics"})
_SECRET_NAMES = re.compile(r"authori[sz]ation|cookie|password|secret|token|api_?key", re.IGNORECASE)
_HARMLESS_NAMES = re.compile(r"_tokens$")  # counts of a model's tokens
# Tokens of shares and links grant access, and the path of a webhook is secret.
_TOKEN_IN_PATH = re.compile(
    r"((?:^|/|%2F)(?:share|public/shares|link|linking/tokens|bot/v1/tokens|hooks/[a-z]+)(?:/|%2F))[^/?#&%\s\"'<>]+"
)
# Ids of other systems in paths; in our own paths only words and our UUIDs follow these prefixes.
_LINKING_PATH = re.compile(r"(?<=/bot/v1/)[^?#\s\"'<>]+|(?<=/v1/linking/)[^?#\s\"'<>]+")
_OWN_PATH_SEGMENT = re.compile(r"[a-z-]*|[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)
# Details of a Postgres error besides its name: rows and values, which may hold other people's ids.
_DATABASE_DETAILS = re.compile(r"(DETAIL:|CONTEXT:)(?:(?!\\n)[^\n])*")
_CONTROL_CHARACTERS = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_MULTILINE_FIELDS = frozenset({"exception", "stack"})  # written by us, for people


def build_logging_config(*, production: bool, level: str) -> dict[str, object]:
    """Build Django's LOGGING and configure structlog to the same output."""
    if production and level == "DEBUG":
        raise ImproperlyConfigured("LOG_LEVEL may not be DEBUG in production: it shows what people write")
    shared = _build_processors("iso" if production else "%H:%M:%S")
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    formatter = {
        "()": structlog.stdlib.ProcessorFormatter,
        "foreign_pre_chain": shared,
        "processors": [
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            *_build_renderers(production),
        ],
    }
    quiet = {"level": "WARNING"}
    mute = {
        "level": "CRITICAL"
    }  # it quotes what servers sent; their errors are logged where they are handled
    probes = {"()": _ProbeFilter}
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"line": formatter},
        "filters": {"probes": probes},
        "handlers": {
            "stdout": {"class": "logging.StreamHandler", "stream": "ext://sys.stdout", "formatter": "line"}
        },
        "root": {"handlers": ["stdout"], "level": level},
        "loggers": {
            "django": {"handlers": [], "level": "INFO", "propagate": True},
            "django.request": {"filters": ["probes"]},
            "django.server": {"handlers": [], "propagate": True},
            "axes": quiet,
            "uvicorn.error": quiet,
            "httpx": quiet,
            "httpx2": quiet,
            "httpcore2": quiet,
            "mcp": mute,
            "client": mute,  # the MCP SDK's sessions
            # Clients of chat platforms log tokens in URLs, ids and bodies.
            **dict.fromkeys(("telegram", "discord", "slack_sdk", "aiohttp"), mute),
            "openai": quiet,
            "anthropic": quiet,
            "opentelemetry": mute,  # config.otel reports an unreachable collector once a minute
            "celery.worker.strategy": quiet,  # one line per received task; our own log says more
            "celery.app.trace": quiet,
            "celery.beat": quiet,
        },
    }


class _ProbeFilter(logging.Filter):
    """Drop records of health probes, which repeat every second while a process is not ready."""

    def filter(self, record: logging.LogRecord) -> bool:
        return getattr(getattr(record, "request", None), "path", "") not in UNLOGGED_PATHS


def _build_processors(clock: str) -> list[Processor]:
    return [
        structlog.contextvars.merge_contextvars,
        _add_turn_fields,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.stdlib.PositionalArgumentsFormatter(),
        structlog.processors.TimeStamper(fmt=clock, utc=True, key="ts"),
        _add_error_kind,
        structlog.processors.StackInfoRenderer(),
        structlog.processors.format_exc_info,
        redact_log_event,
    ]


def _build_renderers(production: bool) -> list[Processor]:
    if not production:
        return [
            _escape_control_characters,
            structlog.dev.ConsoleRenderer(colors=False, pad_event_to=0, timestamp_key="ts"),
        ]
    return [
        structlog.processors.EventRenamer("msg"),
        structlog.processors.JSONRenderer(ensure_ascii=False, default=str),
    ]


def _add_turn_fields(logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
    """Name the turn in every record logged inside one, also in threads and child tasks."""
    turn = turn_context.peek_turn_context()
    if turn is not None:
        event.setdefault("session_id", turn.session_id)
        event.setdefault("turn_id", turn.turn_id)
        event.setdefault("fence", turn.fence)
        event.setdefault("user_ref", str(turn.user_id)[-8:])
        if turn.inbound_context.request_id:
            event.setdefault("request_id", turn.inbound_context.request_id)
    if _ProcessState.worker:
        event.setdefault("worker", _ProcessState.worker)
    if place := trace_context.get_traceparent():
        event.setdefault("trace_id", place.split("-")[1])
    return event


class _ProcessState:
    worker = ""


def set_worker_name(worker: str) -> None:
    """Add the worker's name to every record of this process."""
    _ProcessState.worker = worker


def _add_error_kind(logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
    problem = event.get("exc_info")
    if isinstance(problem, tuple) and problem[0] is not None:
        event["error_kind"] = problem[0].__name__
    elif isinstance(problem, BaseException):
        event["error_kind"] = type(problem).__name__
    return event


def redact_log_event(logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
    for name, value in event.items():
        event[name] = _redact_value(name, value)
    return event


def _redact_value(name: str, value: object) -> object:
    if _SECRET_NAMES.search(name) and not _HARMLESS_NAMES.search(name):
        return redaction.MASK
    if isinstance(value, str):
        return _mask_ids(_TOKEN_IN_PATH.sub(rf"\1{redaction.MASK}", redaction.redact(value)))
    if isinstance(value, Mapping):
        return {key: _redact_value(str(key), inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_redact_value(name, inner) for inner in value]
    return value


def _mask_ids(text: str) -> str:
    if "DETAIL:" in text or "CONTEXT:" in text:
        text = _DATABASE_DETAILS.sub(rf"\1 {redaction.MASK}", text)
    if "/v1/" in text:
        text = _LINKING_PATH.sub(lambda path: "/".join(map(_mask_segment, path[0].split("/"))), text)
    return text


def _mask_segment(name: str) -> str:
    return name if _OWN_PATH_SEGMENT.fullmatch(name) else redaction.MASK


def _escape_control_characters(
    logger: WrappedLogger, method: str, event: MutableMapping[str, object]
) -> MutableMapping[str, object]:
    """Keep values from starting a line of their own; JSON does this by itself."""
    for name, value in event.items():
        if isinstance(value, str) and name not in _MULTILINE_FIELDS:
            event[name] = _CONTROL_CHARACTERS.sub(lambda found: repr(found[0])[1:-1], value)
    return event
