"""Recognise the browsers an account signs in from, mail its owner about new ones, and list and end its
sessions.

Each browser keeps one cookie per account. A sign-in without it, or with one the account does not know, is
from a new device. The cookie grants nothing: it saves a mail, and keeps other people's guesses from
locking the owner out.
"""

from __future__ import annotations

import re
import secrets
import time
from dataclasses import dataclass
from datetime import timedelta
from hashlib import sha256
from typing import Any
from uuid import UUID

import structlog
from allauth.account import signals as account_signals
from allauth.usersessions.models import UserSession
from asgiref.sync import iscoroutinefunction, sync_to_async
from django.conf import settings
from django.contrib.auth.models import User
from django.db import DatabaseError, transaction
from django.db.models.functions import Now
from django.http import HttpRequest, HttpResponseBase
from django.utils import timezone
from django.utils.crypto import salted_hmac
from django.utils.decorators import sync_and_async_middleware
from django.utils.translation import gettext as _
from kombu.exceptions import OperationalError

from config.core.audit import record_audit_event
from config.core.client_address import get_request_address
from config.core.emails import build_site_link, send_email
from copilot import tasks
from copilot.models import KnownDevice

log = structlog.get_logger(__name__)

COOKIE_SECONDS = 365 * 86_400
MAX_DEVICES_PER_USER = 50
SEEN_INTERVAL_SECONDS = 600  # a write per page would be wasteful
NEW_ACCOUNT_AGE = timedelta(days=1)
_SEEN_KEY = "seen_at"
_TOKEN_PATTERN = re.compile(r"[A-Za-z0-9_-]{43}", re.ASCII)
_BROWSERS = (
    (r"Edg(?:e|A|iOS)?/", "Edge"),
    (r"OPR/", "Opera"),
    (r"SamsungBrowser/", "Samsung Internet"),
    (r"Firefox/|FxiOS/", "Firefox"),
    (r"Chrome/|CriOS/|Chromium/", "Chrome"),
    (r"Safari/", "Safari"),
)
_SYSTEMS = (
    (r"iPhone", "iPhone"),
    (r"iPad", "iPad"),
    (r"Android", "Android"),
    (r"CrOS", "ChromeOS"),
    (r"Windows", "Windows"),
    (r"Mac OS X|Macintosh", "Mac"),
    (r"Linux|X11", "Linux"),
)


def connect_signals() -> None:
    account_signals.user_logged_in.connect(_on_signed_in, dispatch_uid="devices:signed_in")


def describe_device(user_agent: str) -> str:
    text = user_agent[:500]
    browser = next((name for pattern, name in _BROWSERS if re.search(pattern, text)), "")
    system = next((name for pattern, name in _SYSTEMS if re.search(pattern, text)), "")
    if browser and system:
        return _("{browser} on {system}").format(browser=browser, system=system)
    return browser or system or _("Unknown device")


# --- Known devices -----------------------------------------------------------------------------------


def get_cookie_name(user_id: int) -> str:
    """Return a name per account, so that people who share a browser keep their own cookies."""
    return "device_" + salted_hmac("copilot.accounts.devices", str(user_id)).hexdigest()[:12]


def find_known_device(request: HttpRequest, user_id: int) -> KnownDevice | None:
    token = request.COOKIES.get(get_cookie_name(user_id), "")
    if not _TOKEN_PATTERN.fullmatch(token):
        return None
    return KnownDevice.objects.filter(user=user_id, token_hash=_hash_token(token)).first()


def list_devices(user_id: int) -> list[KnownDevice]:
    return list(KnownDevice.objects.filter(user=user_id).order_by("-last_seen_at", "pk"))


def forget_device(user_id: int, device_id: UUID) -> bool:
    with transaction.atomic():
        removed, _each = KnownDevice.objects.filter(user=user_id, pk=device_id).delete()
        if removed:
            record_audit_event("device.forgotten", target=("user", user_id))
    return bool(removed)


def _on_signed_in(request: HttpRequest, user: User, **kwargs: object) -> None:
    known = find_known_device(request, user.pk)
    name = describe_device(request.META.get("HTTP_USER_AGENT", ""))
    if known is not None:
        KnownDevice.objects.filter(pk=known.pk).update(last_seen_at=Now(), name=name)
        return
    is_first = not KnownDevice.objects.filter(user=user).exists()
    token = secrets.token_urlsafe(32)
    with transaction.atomic():
        device = KnownDevice.objects.create(user=user, token_hash=_hash_token(token), name=name)
        _drop_oldest(user.pk)
        record_audit_event("device.added", request=request, actor=user, target=("user", user.pk), name=name)
    setattr(request, "_device_cookie", (get_cookie_name(user.pk), token))  # noqa: B010 - read by remember_device
    if is_first and timezone.now() - user.date_joined < NEW_ACCOUNT_AGE:
        return  # they have just signed up
    address = get_request_address(request) or ""
    transaction.on_commit(lambda: _enqueue_email(device.pk, address))


def _drop_oldest(user_id: int) -> None:
    kept = (
        KnownDevice.objects.filter(user=user_id)
        .order_by("-last_seen_at", "pk")
        .values("pk")[:MAX_DEVICES_PER_USER]
    )
    KnownDevice.objects.filter(user=user_id).exclude(pk__in=list(kept.values_list("pk", flat=True))).delete()


def _enqueue_email(device_id: UUID, address: str) -> None:
    """Send the mail from a worker, so that the sign-in does not wait for the mail server."""
    try:
        tasks.send_new_device_email.apply_async(args=(str(device_id), address), retry=False)
    except (OperationalError, OSError) as problem:
        log.warning("broker_unavailable", mail="new_device", error_kind=type(problem).__name__)
        send_new_device_email(device_id, address)


def send_new_device_email(device_id: UUID, address: str) -> None:
    device = KnownDevice.objects.select_related("user").filter(pk=device_id).first()
    if device is None:
        return
    body = _(
        "Someone just signed in to your Pilothouse account from a device we haven't seen before.\n\n"
        "Device: {name}\nIP address: {address}\nTime: {time} (UTC)\n\n"
        "If this was you, you don't need to do anything.\n\n"
        "If it wasn't, change your password now, then end the sessions you don't know:\n{password}\n{sessions}\n"
    ).format(
        name=device.name,
        address=address or _("unknown"),
        time=f"{device.first_seen_at:%Y-%m-%d %H:%M}",
        password=build_site_link("account_change_password"),
        sessions=build_site_link("usersessions_list"),
    )
    send_email([device.user.email], _("New sign-in to your Pilothouse account"), body)


def _hash_token(token: str) -> str:
    return sha256(token.encode()).hexdigest()


# --- Sessions ----------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class ActiveSession:
    id: int
    device: str
    address: str
    started_at: Any
    seen_at: Any
    is_current: bool


def list_active_sessions(request: HttpRequest, user: User) -> list[ActiveSession]:
    """Return the sessions that still work, the current one first. Ended ones are purged."""
    _record_seen(request)
    found = [
        ActiveSession(
            id=row.pk,
            device=describe_device(row.user_agent),
            address=row.ip,
            started_at=row.created_at,
            seen_at=row.last_seen_at,
            is_current=row.session_key == request.session.session_key,
        )
        for row in UserSession.objects.purge_and_list(user)
    ]
    return sorted(found, key=lambda session: (not session.is_current, -session.seen_at.timestamp()))


def end_sessions(request: HttpRequest, user: User, session_id: int | None = None) -> int:
    rows = UserSession.objects.filter(user=user).exclude(session_key=request.session.session_key)
    chosen = list(rows.filter(pk=session_id) if session_id is not None else rows)
    with transaction.atomic():
        for row in chosen:
            row.end()
        if chosen:
            record_audit_event("session.ended", request=request, target=("user", user.pk), count=len(chosen))
    return len(chosen)


def _record_seen(request: HttpRequest) -> None:
    """Record the session as seen, creating the row of a session that started before sessions were listed."""
    session = request.session
    row = UserSession.objects.filter(session_key=session.session_key)
    if not row.update(last_seen_at=timezone.now(), ip=get_request_address(request) or "0.0.0.0"):  # noqa: S104 - no address
        UserSession.objects.create_from_request(request)
    session[_SEEN_KEY] = int(time.time())


# --- Middleware --------------------------------------------------------------------------------------


@sync_and_async_middleware
def remember_device(get_response: Any) -> Any:
    """Set the cookie of a new device, and record occasionally that a session was seen."""
    if iscoroutinefunction(get_response):

        async def handle_async(request: HttpRequest) -> HttpResponseBase:
            response: HttpResponseBase = await get_response(request)
            if _is_seen_update_due(request, response):
                await sync_to_async(_try_record_seen)(request)
            return _set_device_cookie(request, response)

        return handle_async

    def handle(request: HttpRequest) -> HttpResponseBase:
        response: HttpResponseBase = get_response(request)
        if _is_seen_update_due(request, response):
            _try_record_seen(request)
        return _set_device_cookie(request, response)

    return handle


def _is_seen_update_due(request: HttpRequest, response: HttpResponseBase) -> bool:
    """Return True only for whole pages of signed-in people whose session was read anyway."""
    if request.headers.get("Sec-Fetch-Dest", "document") != "document":
        return False
    user = getattr(request, "_cached_user", None) or getattr(request, "_acached_user", None)
    if user is None or not user.is_authenticated or response.status_code != 200:
        return False
    if request.method != "GET" or not response.headers.get("Content-Type", "").startswith("text/html"):
        return False
    session = request.session
    if not session.accessed or not session.session_key:
        return False
    return time.time() - float(session.get(_SEEN_KEY) or 0) >= SEEN_INTERVAL_SECONDS


def _try_record_seen(request: HttpRequest) -> None:
    try:
        _record_seen(request)
    except DatabaseError as problem:
        log.warning("session_seen_not_recorded", error_kind=type(problem).__name__)


def _set_device_cookie(request: HttpRequest, response: HttpResponseBase) -> HttpResponseBase:
    cookie = getattr(request, "_device_cookie", None)
    if cookie is not None:
        response.set_cookie(
            cookie[0],
            cookie[1],
            max_age=COOKIE_SECONDS,
            secure=settings.SESSION_COOKIE_SECURE,
            httponly=True,
            samesite="Lax",
        )
    return response
