"""Ask staff for a reason before they read somebody's conversation, and record each access."""

from __future__ import annotations

import time
from typing import Any
from uuid import UUID

from django import forms
from django.contrib.admin.utils import unquote
from django.db.models import Model
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse

from config.core.admin import ReadOnlyAdmin
from config.core.audit import record_audit_event
from config.core.forms import PageForm, ReasonField
from copilot.models import Session

REASON_LIFETIME_SECONDS = 30 * 60  # how long a reason is valid for one conversation
MAX_REMEMBERED_REASONS = 50  # per login session
_SESSION_KEY = "conversation_reasons"


class AccessReasonForm(PageForm):
    reason = ReasonField(
        min_length=5,
        max_length=500,
        widget=forms.Textarea(
            attrs={
                "class": "vLargeTextField",
                "rows": 3,
                "autofocus": True,
                "placeholder": "For example: ticket 4711, the owner asked us to look",
            }
        ),
    )


class ConversationAdmin(ReadOnlyAdmin):
    """Ask for a reason before a row with people's words is opened, once per conversation and half an hour."""

    def get_conversation(self, row: Model) -> tuple[UUID, int]:
        """Return the ids of the conversation and of its owner."""
        session = row if isinstance(row, Session) else getattr(row, "session")  # noqa: B009 - every such row has one
        assert isinstance(session, Session)
        return session.pk, session.owner_id

    def changeform_view(
        self,
        request: HttpRequest,
        object_id: str | None = None,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> HttpResponse:
        row = self.get_object(request, unquote(object_id)) if object_id else None
        if row is None or not self.has_view_permission(request, row):
            return super().changeform_view(request, object_id, form_url, extra_context)
        conversation, owner_id = self.get_conversation(row)
        if request.method == "POST" and "reason" in request.POST:
            return self._store_reason(request, row, conversation)
        reason = get_valid_reason(request, conversation)
        if request.method != "POST" and not reason:
            return self._ask_for_reason(request, row, AccessReasonForm())
        record_audit_event(
            "conversation.read",
            request=request,
            target=("session", conversation),
            reason=reason,
            owner_id=owner_id,
            row=f"{self.model._meta.model_name} {row.pk}",
        )
        return super().changeform_view(request, object_id, form_url, extra_context)

    def history_view(
        self, request: HttpRequest, object_id: str, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        return HttpResponseRedirect("../change/")  # nobody changes these rows, so they have no history

    def _store_reason(self, request: HttpRequest, row: Model, conversation: UUID) -> HttpResponse:
        form = AccessReasonForm.from_request(request)
        if not form.is_valid():
            return self._ask_for_reason(request, row, form)
        reasons = _load_reasons(request)
        reasons[str(conversation)] = [form.cleaned_data["reason"], time.time() + REASON_LIFETIME_SECONDS]
        latest = sorted(reasons.items(), key=lambda item: item[1][1])[-MAX_REMEMBERED_REASONS:]
        request.session[_SESSION_KEY] = dict(latest)
        return HttpResponseRedirect(request.get_full_path())

    def _ask_for_reason(self, request: HttpRequest, row: Model, form: AccessReasonForm) -> HttpResponse:
        context = {
            **self.admin_site.each_context(request),
            "title": "Why do you need to read this?",
            "opts": self.model._meta,
            "form": form,
            "minutes": REASON_LIFETIME_SECONDS // 60,
        }
        return TemplateResponse(request, "admin/copilot/reason.html", context, status=form.status)


def get_valid_reason(request: HttpRequest, conversation: UUID) -> str:
    reason, until = _load_reasons(request).get(str(conversation), ["", 0])
    return str(reason) if time.time() < float(until) else ""


def _load_reasons(request: HttpRequest) -> dict[str, list[Any]]:
    return dict(request.session.get(_SESSION_KEY) or {})
