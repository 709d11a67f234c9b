"""Check the settings at start, and name both sides of a contradiction."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from django.apps import AppConfig
from django.conf import settings
from django.core.checks import CheckMessage, Error, register
from django.core.checks import Warning as CheckWarning
from django.core.exceptions import ImproperlyConfigured
from django.core.files.storage import FileSystemStorage, InvalidStorageError, Storage, storages

from config.core import privileges
from copilot.files import virus_scan
from copilot.providers import prompt_cache
from copilot.tools.base import MIN_RESULT_CHARACTERS

_HTTPS_ORIGIN = re.compile(r"https://[a-z0-9]([a-z0-9.-]*[a-z0-9])?(:[0-9]{1,5})?")


@dataclass(frozen=True, kw_only=True)
class SettingOrder:
    """A setting that must stay below another, and what happens otherwise."""

    id: str
    small: str
    large: str
    otherwise: str
    equal: bool = False  # both may be the same


SETTING_ORDERS = (
    SettingOrder(
        id="E001",
        small="TURN_MAX_SECONDS",
        large="BROKER_VISIBILITY_SECONDS",
        otherwise="long turns would be delivered twice",
    ),
    SettingOrder(
        id="E002",
        small="HEARTBEAT_SECONDS",
        large="STREAM_IDLE_SECONDS",
        otherwise="a silent turn would end before its first heartbeat",
    ),
    SettingOrder(
        id="E011",
        small="LOOP_REPEATS",
        large="LOOP_WINDOW_ROUNDS",
        otherwise="a turn that is stuck in a loop would never be ended",
    ),
    SettingOrder(
        id="E012",
        small="LOOP_WARN_AT",
        large="LOOP_REPEATS",
        otherwise="a turn would be ended before it is warned",
        equal=True,
    ),
    SettingOrder(
        id="E013",
        small="TOOL_OUTPUT_CHARACTERS",
        large="TOOL_GROUP_CHARACTERS",
        otherwise="no call could return that much to the model",
        equal=True,
    ),
    SettingOrder(
        id="E014",
        small="FOLLOW_UP_CHARACTERS",
        large="FOLLOW_UPS_CHARACTERS",
        otherwise="a single message could exceed the limit for all of them",
        equal=True,
    ),
    SettingOrder(
        id="E015",
        small="FORCED_COMPACTIONS_PER_TURN",
        large="COMPACTIONS_PER_TURN",
        otherwise="the limit could never be reached",
        equal=True,
    ),
    SettingOrder(
        id="E016",
        small="MODEL_CONNECT_SECONDS",
        large="MODEL_FIRST_TOKEN_SECONDS",
        otherwise="a model would be given up while the connection is still being made",
        equal=True,
    ),
    SettingOrder(
        id="E017",
        small="MODEL_FIRST_TOKEN_SECONDS",
        large="STREAM_IDLE_SECONDS",
        otherwise="the turn would end before the model is given up",
    ),
    SettingOrder(
        id="E018",
        small="QUESTION_SECONDS",
        large="MAX_TOOL_WAIT_SECONDS",
        otherwise="no question could wait that long",
        equal=True,
    ),
    SettingOrder(
        id="E019",
        small="SUB_SESSION_WAIT_SECONDS",
        large="SUB_SESSION_MAX_WAIT_SECONDS",
        otherwise="no call could wait that long",
        equal=True,
    ),
    SettingOrder(
        id="E021",
        small="SUB_SESSION_MAX_WAIT_SECONDS",
        large="MAX_TOOL_WAIT_SECONDS",
        otherwise="no call could wait that long",
        equal=True,
    ),
)
# Settings that are computed from one that an administrator can set.
_SETTING_EXPLANATIONS = {"STREAM_IDLE_SECONDS": "twice MAX_TOOL_WAIT_SECONDS"}


@register
def check_limits_agree(app_configs: Sequence[AppConfig] | None, **kwargs: object) -> list[CheckMessage]:
    return [*filter(None, map(_find_contradiction, SETTING_ORDERS)), *_check_result_characters()]


def _find_contradiction(order: SettingOrder) -> CheckMessage | None:
    small, large = getattr(settings, order.small), getattr(settings, order.large)
    if small < large or (order.equal and small == large):
        return None
    relation = "at most" if order.equal else "below"
    explained = _SETTING_EXPLANATIONS.get(order.large, order.large)
    return Error(
        f"{order.small} ({small:g}) must be {relation} {explained} ({large:g}), or {order.otherwise}.",
        id=f"copilot.{order.id}",
    )


def _check_result_characters() -> list[CheckMessage]:
    """Check that each tool call keeps a readable part of its output, however many calls a reply makes."""
    calls, characters = settings.TOOL_CALLS_PER_REPLY, settings.TOOL_GROUP_CHARACTERS
    if calls * MIN_RESULT_CHARACTERS <= characters:
        return []
    return [
        Error(
            f"TOOL_CALLS_PER_REPLY ({calls}) must leave each call {MIN_RESULT_CHARACTERS} "
            f"of TOOL_GROUP_CHARACTERS ({characters}), or results would be cut to nothing.",
            id="copilot.E022",
        )
    ]


@register
def check_prompt_cache_lifetimes(
    app_configs: Sequence[AppConfig] | None, **kwargs: object
) -> list[CheckMessage]:
    # Anthropic refuses a request in which a short-lived cache breakpoint comes before a long-lived one.
    prefix, messages = settings.PROMPT_CACHE_PREFIX_LIFE, settings.PROMPT_CACHE_MESSAGES_LIFE
    if prompt_cache.CACHE_LIFETIMES.index(prefix) >= prompt_cache.CACHE_LIFETIMES.index(messages):
        return []
    return [
        Error(
            f"PROMPT_CACHE_PREFIX_LIFE ({prefix}) must not be shorter than PROMPT_CACHE_MESSAGES_LIFE ({messages}).",
            id="copilot.E003",
        )
    ]


@register
def check_script_hosts(app_configs: Sequence[AppConfig] | None, **kwargs: object) -> list[CheckMessage]:
    # They are copied into a Content-Security-Policy as they are: anything else could loosen it.
    invalid = [host for host in settings.ARTIFACT_SCRIPT_HOSTS if not _HTTPS_ORIGIN.fullmatch(host)]
    return [
        Error(f"ARTIFACT_SCRIPT_HOSTS holds https://host[:port] origins, not {host!r}.", id="copilot.E010")
        for host in invalid
    ]


@register
def check_file_storage(app_configs: Sequence[AppConfig] | None, **kwargs: object) -> list[CheckMessage]:
    try:
        store = storages["workspace"]
    except (InvalidStorageError, ImproperlyConfigured, TypeError) as problem:
        return [Error(f"STORAGES['workspace'] cannot be used: {problem}", id="copilot.E004")]
    if isinstance(store, FileSystemStorage):
        return _check_not_served(Path(store.location).resolve())
    return _check_bucket_is_private(store)


def _check_not_served(location: Path) -> list[CheckMessage]:
    served = [Path(root).resolve() for root in (settings.STATIC_ROOT, *settings.STATICFILES_DIRS)]
    return [
        Error(
            f"WORKSPACE_ROOT ({location}) is inside {root}, which is served to everybody.", id="copilot.E005"
        )
        for root in served
        if location.is_relative_to(root)
    ]


def _check_bucket_is_private(store: Storage) -> list[CheckMessage]:
    acl = getattr(store, "default_acl", None)
    found: list[CheckMessage] = []
    if acl and acl not in {"private", "bucket-owner-full-control"}:
        found.append(
            Error(
                f"The bucket of STORAGES['workspace'] would be public: default_acl={acl!r}.",
                id="copilot.E006",
            )
        )
    if getattr(store, "querystring_auth", True) is False:
        found.append(
            Error(
                "STORAGES['workspace'] would give out URLs without a signature: querystring_auth=False.",
                id="copilot.E006",
            )
        )
    return found


@register
def check_scan_hook(app_configs: Sequence[AppConfig] | None, **kwargs: object) -> list[CheckMessage]:
    if not virus_scan.is_scan_enabled():
        return []
    try:
        virus_scan.load_hook()
    except ImportError as problem:
        return [Error(f"WORKSPACE_SCAN_HOOK cannot be imported: {problem}", id="copilot.E007")]
    return []


@register
def check_captcha(app_configs: Sequence[AppConfig] | None, **kwargs: object) -> list[CheckMessage]:
    if not settings.SIGNUP_CAPTCHA:
        return []
    from copilot.accounts import sign_up  # it loads allauth's forms, which workers do not need

    try:
        sign_up.make_captcha_field()
    except (ImportError, TypeError) as problem:
        return [Error(f"SIGNUP_CAPTCHA cannot be used: {problem}", id="copilot.E023")]
    return []


@register
def check_sandbox_account(app_configs: Sequence[AppConfig] | None, **kwargs: object) -> list[CheckMessage]:
    """Check the sandbox's account only, which costs nothing. `manage.py doctor` starts the sandbox itself."""
    problem = privileges.find_account_problem(settings.SANDBOX_UID) if settings.SANDBOX_PROGRAM else ""
    if not problem:
        return []
    return [CheckWarning(f"bash_exec and python_exec are off: {problem}", id="copilot.W001")]
