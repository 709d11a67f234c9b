"""Whatever staff do has a reason: a form asks for it before the act, and the row's history keeps it (B18)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.db.models import Model, QuerySet
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from billing.errors import Conflict, Refused

if TYPE_CHECKING:  # Django's own classes take no parameter when they run
    RowAdmin = admin.ModelAdmin[Any]
    AnyForm = forms.ModelForm[Any]
else:
    RowAdmin, AnyForm = admin.ModelAdmin, forms.ModelForm

LONGEST = 500
Act = Callable[[Any, dict[str, Any]], str]  # does it to one row; answers what the row's history will say


class Reasoned(forms.Form):
    reason = forms.CharField(max_length=LONGEST, widget=forms.TextInput(attrs={"size": 60}))


class Asking(RowAdmin):
    """Actions that ask before they act."""

    def asked(
        self, request: HttpRequest, chosen: QuerySet[Any], act: Act, form_class: type[Reasoned] = Reasoned
    ) -> HttpResponse | None:
        """First the form, then the act on every chosen row; one that is refused is told, and the others go on."""
        form = form_class(request.POST if "apply" in request.POST else None)
        if not form.is_valid():
            return self._form(request, chosen, form)
        rows = list(chosen)
        done = sum(self._done(request, row, act, form.cleaned_data) for row in rows)
        if done:
            self.message_user(request, f"Done for {done} of {len(rows)}.", messages.SUCCESS)
        return None

    def _done(self, request: HttpRequest, row: Model, act: Act, given: dict[str, Any]) -> bool:
        try:
            said = act(row, given)
        except (Refused, Conflict) as problem:
            self.message_user(request, f"{getattr(row, 'user', row)}: {problem}", messages.ERROR)
            return False
        self.log_change(request, row, f"{said} {given['reason']}")
        return True

    def _form(self, request: HttpRequest, chosen: QuerySet[Any], form: Reasoned) -> HttpResponse:
        name = request.POST["action"]
        context = {
            **self.admin_site.each_context(request),
            "title": getattr(self, name).short_description.rstrip("…"),
            "opts": self.opts,
            "form": form,
            "chosen": chosen,
            "action": name,
            "checkbox": ACTION_CHECKBOX_NAME,
        }
        return render(request, "admin/billing/act.html", context)


class ReasonedForm(AnyForm):
    """A row that is not saved without a reason."""

    reason = forms.CharField(max_length=LONGEST, widget=forms.TextInput(attrs={"size": 60}))


class ReasonedChange(RowAdmin):
    """Django's own history keeps who, when and why."""

    form = ReasonedForm

    def construct_change_message(
        self, request: HttpRequest, form: Any, formsets: Any, add: bool = False
    ) -> Any:
        changed = ", ".join(name for name in form.changed_data if name != "reason") or "nothing"
        return f"{'Added' if add else f'Changed {changed}'}. {form.cleaned_data['reason']}"
