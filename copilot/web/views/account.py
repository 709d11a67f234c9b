"""Pages of a user's settings: preferences, memories, API keys, devices, data and account deletion."""

from __future__ import annotations

from dataclasses import asdict
from uuid import UUID

from allauth.account.adapter import get_adapter
from django.conf import settings
from django.contrib import messages
from django.contrib.auth import logout
from django.contrib.auth.decorators import login_required
from django.contrib.auth.models import User
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext
from django.views.decorators.cache import never_cache
from django.views.decorators.debug import sensitive_post_parameters
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from config.core import rate_limits
from config.core.errors import InvalidRequest, RequestRefused, TooManyRequests
from copilot.accounts import api_keys, deletion, devices, invitations, preferences
from copilot.accounts.recent_login import is_login_recent, recent_login_required
from copilot.exports import imports
from copilot.exports import services as exports
from copilot.memories import services as memories
from copilot.web.forms import (
    AccountDeletionForm,
    ApiKeyForm,
    ImportForm,
    MemoryForm,
    MemorySwitchForm,
    PreferencesForm,
)
from copilot.web.views.base import (
    ROWS_PER_PAGE,
    build_action_view,
    build_page_links,
    get_request_user,
    not_found_as_404,
    parse_offset,
    redirect_to_list,
)

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


# --- Preferences -------------------------------------------------------------------------------------


@login_required
@never_cache
@require_http_methods(["GET", "POST"])
def edit_preferences(request: HttpRequest) -> HttpResponse:
    """Show and save preferences; a refused form keeps what was entered."""
    owner_id = get_request_user(request).pk
    form = PreferencesForm.from_request(request, initial=asdict(preferences.get_preferences(owner_id)))
    if form.is_valid():
        with form.refusals_as_errors():
            preferences.update_preferences(owner_id, form.build_changes())
            messages.success(request, _("Saved. It applies from your next message."))
            return redirect("settings")
    context = {"form": form, "zones": preferences.list_time_zones()}
    return render(request, "copilot/settings.html", context, status=form.status)


# --- Memories ----------------------------------------------------------------------------------------


@login_required
@never_cache
@require_GET
def list_memories(request: HttpRequest) -> HttpResponse:
    return _render_memories(request)


@login_required
@require_POST
def switch_memory(request: HttpRequest) -> HttpResponse:
    form = MemorySwitchForm.from_request(request)
    if form.is_valid():
        on = form.cleaned_data["on"]
        memories.set_memory_enabled(get_request_user(request).pk, on=on)
        messages.success(
            request, _("Memory is on.") if on else _("Memory is off. Existing memories are kept.")
        )
    return redirect("memories")


@login_required
@require_POST
def edit_memory(request: HttpRequest, memory_id: UUID) -> HttpResponse:
    form = MemoryForm.from_request(request, memory_id=memory_id)
    if form.is_valid():
        with not_found_as_404(), form.refusals_as_errors():
            memories.edit_memory(get_request_user(request).pk, memory_id, form.cleaned_data["text"])
            messages.success(request, _("Memory updated."))
            return redirect_to_list(request, "memories")
    return _render_memories(request, wrong=form)


forget_memory = build_action_view(memories.forget_memory, gettext_lazy("Memory deleted."), then="memories")


def _render_memories(request: HttpRequest, *, wrong: MemoryForm | None = None) -> HttpResponse:
    owner_id, offset = get_request_user(request).pk, parse_offset(request)
    found = memories.list_memories(owner_id)[offset : offset + ROWS_PER_PAGE + 1]
    items = [
        {
            "row": row,
            "form": wrong
            if wrong and wrong.memory_id == row.id
            else MemoryForm(memory_id=row.id, initial={"text": row.text}),
        }
        for row in found[:ROWS_PER_PAGE]
    ]
    context = {
        "items": items,
        **build_page_links(offset, has_more=len(found) > ROWS_PER_PAGE),
        "on": memories.is_memory_enabled(owner_id),
    }
    return render(request, "copilot/memories.html", context, status=wrong.status if wrong else 200)


# --- API keys ----------------------------------------------------------------------------------------


@login_required
@never_cache
@require_http_methods(["GET", "POST"])
@recent_login_required
def manage_api_keys(request: HttpRequest) -> HttpResponse:
    """List and create keys. The secret is shown on this page only."""
    user = get_request_user(request)
    form, secret = ApiKeyForm.from_request(request, user=user), ""
    if form.is_valid():
        with form.refusals_as_errors():
            created = api_keys.create_api_key(
                user, name=form.cleaned_data["name"], scopes=tuple(form.cleaned_data["scopes"])
            )
            form, secret = ApiKeyForm(user=user), created.token
    offset = parse_offset(request)
    found = api_keys.list_api_keys(user.pk)[offset : offset + ROWS_PER_PAGE + 1]
    context = {
        "form": form,
        "keys": found[:ROWS_PER_PAGE],
        **build_page_links(offset, has_more=len(found) > ROWS_PER_PAGE),
        "secret": secret,
    }
    return render(request, "copilot/api_keys.html", context, status=form.status)


@login_required
@require_POST
def revoke_all_api_keys(request: HttpRequest) -> HttpResponse:
    count = api_keys.revoke_all_api_keys(get_request_user(request).pk)
    message = ngettext("{count} key revoked.", "{count} keys revoked.", count)
    messages.success(request, message.format(count=count))
    return redirect("api_keys")


revoke_api_key = build_action_view(api_keys.revoke_api_key, gettext_lazy("Key revoked."), then="api_keys")


# --- Login sessions and devices ----------------------------------------------------------------------


@login_required
@never_cache
@require_GET
def list_login_sessions(request: HttpRequest) -> HttpResponse:
    user = get_request_user(request)
    login_sessions = devices.list_active_sessions(request, user)
    this_device = devices.find_known_device(request, user.pk)
    context = {
        "sessions": login_sessions,
        "others": len([login for login in login_sessions if not login.is_current]),
        "devices": devices.list_devices(user.pk),
        "this_device": this_device.pk if this_device is not None else None,
    }
    return render(request, "usersessions/usersession_list.html", context)


@login_required
@require_POST
def end_login_session(request: HttpRequest, session_id: int) -> HttpResponse:
    if devices.end_sessions(request, get_request_user(request), session_id):
        messages.success(request, _("Signed out on that device."))
    return redirect("usersessions_list")


@login_required
@require_POST
def end_other_login_sessions(request: HttpRequest) -> HttpResponse:
    count = devices.end_sessions(request, get_request_user(request))
    message = ngettext("Signed out of {count} other session.", "Signed out of {count} other sessions.", count)
    messages.success(request, message.format(count=count))
    return redirect("usersessions_list")


@login_required
@require_POST
def forget_device(request: HttpRequest, device_id: UUID) -> HttpResponse:
    if devices.forget_device(get_request_user(request).pk, device_id):
        messages.success(request, _("Device forgotten. The next sign-in from it sends you an email."))
    return redirect("usersessions_list")
