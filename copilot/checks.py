"""Check at start what the values of settings lead to."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from django.apps import AppConfig
from django.conf import settings
from django.core.checks import CheckMessage, Error, register
from django.core.checks import Warning as CheckWarning
from django.core.exceptions import ImproperlyConfigured
from django.core.files.storage import FileSystemStorage, InvalidStorageError, Storage, storages

from config.core import privileges
from copilot.files import virus_scan

_HTTPS_ORIGIN = re.compile(r"https://[a-z0-9]([a-z0-9.-]*[a-z0-9])?(:[0-9]{1,5})?")


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
