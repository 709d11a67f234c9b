"""A person's data: what was exported, what comes in, and the way out (S15–S17, W3)."""

from __future__ import annotations

from allauth.account.adapter import get_adapter
from django.conf import settings
from django.contrib import messages
from django.contrib.auth import logout
from django.contrib.auth.decorators import login_required
from django.contrib.auth.models import User
from django.core.files.uploadedfile import UploadedFile
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.debug import sensitive_post_parameters
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from copilot import words
from copilot.accounts import invitations
from copilot.accounts.recent_login import is_recent, recent_login_required
from copilot.errors import Conflict, InvalidRequest, Refused, TooMany
from copilot.live import counters
from copilot.views.acting import user_of
from copilot.workspace import erasure, exports, imports
from copilot.workspace.incoming import InvalidDocument

TRIES, TRIES_SECONDS = 5, 15 * 60


# --- the way in --------------------------------------------------------------------------------------


@never_cache
@require_GET
def open_invitation(request: HttpRequest, token: str) -> HttpResponse:
    """Lead an invited person to the sign-up form; opening the link uses nothing up, so mail scanners may."""
    if request.user.is_authenticated:
        messages.info(request, _("You're already signed in."))
        return redirect("account_data")
    wait = counters.hit("invitations", request.META.get("REMOTE_ADDR", ""), limit=TRIES * 6, seconds=60)
    if wait is not None:
        return HttpResponse(_("Too many attempts. Please wait a while."), status=429)
    invitation = invitations.find_invitation(token)
    if invitation is None:
        return render(request, "account/invitation_invalid.html", status=404)
    invitations.accept_in_session(request, invitation)
    if invitation.email:
        get_adapter().stash_verified_email(request, invitation.email)
    return redirect("account_signup")


# --- data --------------------------------------------------------------------------------------------


@login_required
@never_cache
@require_GET
def data(request: HttpRequest) -> HttpResponse:
    return _shown(request)


def _shown(request: HttpRequest, *, status: int = 200, **context: object) -> HttpResponse:
    jobs = exports.listed(user_of(request).pk)
    going = any(job.state in ("queued", "running") for job in jobs)
    shown = {"exports": jobs, "going": going, "import_megabytes": settings.IMPORT_ZIP_MAX // 2**20}
    return render(request, "copilot/account.html", shown | context, status=status)


@login_required
@require_POST
@recent_login_required
def export_everything(request: HttpRequest) -> HttpResponse:
    exports.request_everything(user_of(request).pk)
    return redirect("account_data")


@login_required
@require_POST
def import_document(request: HttpRequest) -> HttpResponse:
    """Straight to the conversation, or back with what is wrong with the document."""
    document = request.FILES.get("document")
    try:
        if not isinstance(document, UploadedFile) or document.file is None:
            raise InvalidRequest(_("Choose a file first."))
        force = request.POST.get("force") == "on"
        session = imports.bring_in(user_of(request).pk, document.file, force=force)
    except InvalidDocument as refusal:
        return _shown(
            request,
            status=400,
            import_error=words.of_refusal(refusal),
            problems=refusal.details.get("problems"),
        )
    except Conflict as refusal:
        known = refusal.details.get("session_id")
        return _shown(request, status=409, import_error=words.of_refusal(refusal), known_session=known)
    except Refused as refusal:
        return _shown(request, status=refusal.status, import_error=words.of_refusal(refusal))
    return redirect("chat_session", session.pk)


# --- the way out -------------------------------------------------------------------------------------


@sensitive_post_parameters("password")
@login_required
@never_cache
@require_http_methods(["GET", "POST"])
def delete_account(request: HttpRequest) -> HttpResponse:
    user = user_of(request)
    if request.method == "POST":
        try:
            return _deleted(request, user)
        except Refused as refusal:
            messages.error(request, words.of_refusal(refusal))
            return _asked(request, user, status=refusal.status)
    return _asked(request, user)


def _asked(request: HttpRequest, user: User, *, status: int = 200) -> HttpResponse:
    context = {
        "phrase": _phrase(user),
        "has_password": user.has_usable_password(),
        "is_fresh": is_recent(request),
        "days": settings.ERASURE_GRACE_DAYS,
    }
    return render(request, "copilot/account_delete.html", context, status=status)


def _deleted(request: HttpRequest, user: User) -> HttpResponse:
    """Typed, proved, done: from here on only a login brings the account back."""
    if request.POST.get("phrase", "").strip() != _phrase(user):
        raise InvalidRequest(_("Type the name of the account exactly as it is shown."))
    password = request.POST.get("password", "")
    _prove(request, user, password)
    job = erasure.request(user, password=password if user.has_usable_password() else "")
    logout(request)
    context = {"due_at": job.due_at, "days": settings.ERASURE_GRACE_DAYS}
    return render(request, "copilot/account_closed.html", context)


def _phrase(user: User) -> str:
    return user.email or user.get_username()


def _prove(request: HttpRequest, user: User, password: str) -> None:
    """The password, or where there is none, a recent login of this session; guessing is braked."""
    wait = counters.hit("erasure", str(user.pk), limit=TRIES, seconds=TRIES_SECONDS)
    if wait is not None:
        raise TooMany(_("Too many attempts. Please wait a while."), retry_after_seconds=wait)
    if user.has_usable_password():
        if not user.check_password(password):
            raise InvalidRequest(_("That is not your password."))
    elif not is_recent(request):
        raise InvalidRequest(_("Sign out and in again first, to show that it is you."))
