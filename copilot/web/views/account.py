"""Pages for invitations, exports, imports and account deletion."""

from __future__ import annotations

from allauth.account.adapter import get_adapter
from django.conf import settings
from django.contrib import messages
from django.contrib.auth import logout
from django.contrib.auth.decorators import login_required
from django.contrib.auth.models import User
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.debug import sensitive_post_parameters
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from config.core import rate_limits
from config.core.errors import InvalidRequest, RequestRefused, TooManyRequests
from copilot.accounts import deletion, invitations
from copilot.accounts.recent_login import is_login_recent, recent_login_required
from copilot.exports import imports
from copilot.exports import services as exports
from copilot.web.forms import AccountDeletionForm, ImportForm
from copilot.web.views.base import get_request_user

MAX_ATTEMPTS, ATTEMPT_WINDOW_SECONDS = 5, 15 * 60


# --- Invitations ---


@never_cache
@require_GET
def open_invitation(request: HttpRequest, token: str) -> HttpResponse:
    """Send an invited person to the sign-up form. Opening the link uses nothing up, so mail scanners may."""
    if request.user.is_authenticated:
        messages.info(request, _("You're already signed in."))
        return redirect("account_data")
    retry_after_seconds = rate_limits.count_request(
        "invitations", request.META.get("REMOTE_ADDR", ""), limit=MAX_ATTEMPTS * 6, seconds=60
    )
    if retry_after_seconds is not None:
        return HttpResponse(_("Too many attempts. Please try again later."), status=429)
    invitation = invitations.find_invitation(token)
    if invitation is None:
        return render(request, "account/invitation_invalid.html", status=404)
    invitations.remember_invitation(request, invitation)
    if invitation.email:
        get_adapter().stash_verified_email(request, invitation.email)
    return redirect("account_signup")


# --- Exports and imports ---


@login_required
@never_cache
@require_GET
def show_account_data(request: HttpRequest) -> HttpResponse:
    return _render_account_data(request, ImportForm())


def _render_account_data(request: HttpRequest, form: ImportForm, **context: object) -> HttpResponse:
    jobs = exports.list_exports(get_request_user(request).pk)
    is_running = any(job.state in ("queued", "running") for job in jobs)
    defaults = {
        "exports": jobs,
        "going": is_running,
        "import_megabytes": settings.IMPORT_ZIP_MAX // 2**20,
        "form": form,
    }
    return render(request, "copilot/account.html", defaults | context, status=form.status)


@login_required
@require_POST
@recent_login_required
def request_account_export(request: HttpRequest) -> HttpResponse:
    exports.request_account_export(get_request_user(request).pk)
    return redirect("account_data")


@login_required
@require_POST
def import_conversation(request: HttpRequest) -> HttpResponse:
    """Redirect to the imported conversation, or show what is wrong with the document."""
    form, context = ImportForm.from_request(request), {}
    if form.is_valid():
        document, force = form.cleaned_data["document"].file, form.cleaned_data["force"]
        try:
            session = imports.import_document(get_request_user(request).pk, document, force=force)
            return redirect("chat_session", session.pk)
        except RequestRefused as refusal:
            form.add_problems([form.describe_refusal(refusal)], field="document", status=refusal.status)
            context = {
                "problems": refusal.details.get("problems"),
                "known_session": refusal.details.get("session_id"),
            }
    return _render_account_data(request, form, **context)


# --- Account deletion ---


@sensitive_post_parameters("password")
@login_required
@never_cache
@require_http_methods(["GET", "POST"])
def delete_account(request: HttpRequest) -> HttpResponse:
    """Schedule the deletion; after this, only signing in again brings the account back."""
    user = get_request_user(request)
    form = AccountDeletionForm.from_request(request, user=user)
    if form.is_valid():
        with form.refusals_as_errors():
            password = form.cleaned_data.get("password", "")
            _verify_identity(request, user, password)
            job = deletion.request_deletion(user, password=password)
            logout(request)
            closed = {"due_at": job.due_at, "days": settings.ACCOUNT_DELETION_GRACE_DAYS}
            return render(request, "copilot/account_closed.html", closed)
    context = {
        "form": form,
        "has_password": user.has_usable_password(),
        "is_fresh": is_login_recent(request),
        "days": settings.ACCOUNT_DELETION_GRACE_DAYS,
    }
    return render(request, "copilot/account_delete.html", context, status=form.status)


def _verify_identity(request: HttpRequest, user: User, password: str) -> None:
    """Check the password, or a recent login for accounts without one; attempts are limited."""
    retry_after_seconds = rate_limits.count_request(
        "account_deletion", str(user.pk), limit=MAX_ATTEMPTS, seconds=ATTEMPT_WINDOW_SECONDS
    )
    if retry_after_seconds is not None:
        raise TooManyRequests(
            _("Too many attempts. Please try again later."), retry_after_seconds=retry_after_seconds
        )
    if user.has_usable_password():
        if not user.check_password(password):
            raise InvalidRequest(_("Wrong password."), field="password")
    elif not is_login_recent(request):
        raise InvalidRequest(_("Sign out and sign in again first, to confirm that it's you."))
