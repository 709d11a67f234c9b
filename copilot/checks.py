"""What must hold of the settings before anything starts; a contradiction names both of its sides (A0.7)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from django.apps import AppConfig
from django.conf import settings
from django.core.checks import CheckMessage, Error, register
from django.core.exceptions import ImproperlyConfigured
from django.core.files.storage import FileSystemStorage, InvalidStorageError, Storage, storages
from django.utils.module_loading import import_string

from copilot.providers import caching
from copilot.workspace import scanning

_ORIGIN = re.compile(r"https://[a-z0-9]([a-z0-9.-]*[a-z0-9])?(:[0-9]{1,5})?")


@register
def limits_agree(app_configs: Sequence[AppConfig] | None, **kwargs: object) -> list[CheckMessage]:
    found: list[CheckMessage] = []
    visibility = settings.BROKER_VISIBILITY_SECONDS
    if visibility <= settings.TURN_MAX_SECONDS:
        found.append(
            Error(
                f"TURN_MAX_SECONDS ({settings.TURN_MAX_SECONDS:g}) must be below the broker's visibility timeout "
                f"({visibility}), or long turns would be delivered twice.",
                id="copilot.E001",
            )
        )
    if settings.HEARTBEAT_SECONDS >= settings.STREAM_IDLE_SECONDS:
        found.append(
            Error(
                f"HEARTBEAT_SECONDS ({settings.HEARTBEAT_SECONDS:g}) must be below twice MAX_TOOL_WAIT_SECONDS "
                f"({settings.STREAM_IDLE_SECONDS:g}), after which a silent turn ends.",
                id="copilot.E002",
            )
        )
    return found


@register
def cached_prefixes_outlive_messages(
    app_configs: Sequence[AppConfig] | None, **kwargs: object
) -> list[CheckMessage]:
    """Anthropic refuses a request in which a short mark stands before a long one (A15.8)."""
    prefix, messages = settings.PROMPT_CACHE_PREFIX_LIFE, settings.PROMPT_CACHE_MESSAGES_LIFE
    if caching.LIVES.index(prefix) >= caching.LIVES.index(messages):
        return []
    return [
        Error(
            f"PROMPT_CACHE_PREFIX_LIFE ({prefix}) must not be shorter than PROMPT_CACHE_MESSAGES_LIFE ({messages}).",
            id="copilot.E003",
        )
    ]


@register
def script_hosts_are_origins(app_configs: Sequence[AppConfig] | None, **kwargs: object) -> list[CheckMessage]:
    """They go into a policy word by word: anything else could loosen it (S14)."""
    odd = [host for host in settings.ARTIFACT_SCRIPT_HOSTS if not _ORIGIN.fullmatch(host)]
    return [
        Error(f"ARTIFACT_SCRIPT_HOSTS holds https://host[:port] origins, not {host!r}.", id="copilot.E010")
        for host in odd
    ]


@register
def files_can_be_kept(app_configs: Sequence[AppConfig] | None, **kwargs: object) -> list[CheckMessage]:
    """A storage that exists, outside what the web serves, and open to nobody (S5, S20)."""
    try:
        store = storages["workspace"]
    except (InvalidStorageError, ImproperlyConfigured, TypeError) as problem:
        return [Error(f"STORAGES['workspace'] cannot be used: {problem}", id="copilot.E004")]
    if isinstance(store, FileSystemStorage):
        return _outside_the_web(Path(store.location).resolve())
    return _private(store)


def _outside_the_web(kept: Path) -> list[CheckMessage]:
    served = [Path(root).resolve() for root in (settings.STATIC_ROOT, *settings.STATICFILES_DIRS)]
    return [
        Error(f"WORKSPACE_ROOT ({kept}) lies within {root}, which is served to everybody.", id="copilot.E005")
        for root in served
        if kept.is_relative_to(root)
    ]


def _private(store: Storage) -> list[CheckMessage]:
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
                "STORAGES['workspace'] would give out addresses without a signature: querystring_auth=False.",
                id="copilot.E006",
            )
        )
    return found


@register
def the_scan_hook_can_be_called(
    app_configs: Sequence[AppConfig] | None, **kwargs: object
) -> list[CheckMessage]:
    """Found out at boot, not with the first file (S20)."""
    if not scanning.is_on():
        return []
    try:
        scanning.hook()
    except ImportError as problem:
        return [Error(f"WORKSPACE_SCAN_HOOK names nothing that can be called: {problem}", id="copilot.E007")]
    return []


@register
def erasures_reach_every_app(app_configs: Sequence[AppConfig] | None, **kwargs: object) -> list[CheckMessage]:
    """A step that cannot be called would be found out when somebody's data has to go (S17)."""
    found: list[CheckMessage] = []
    for setting in ("ERASURE_CLOSINGS", "ERASURE_STEPS"):
        for name in getattr(settings, setting):
            try:
                import_string(name)
            except ImportError as problem:
                found.append(Error(f"{setting} names {name}: {problem}", id="copilot.E020"))
    return found
