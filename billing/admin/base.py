"""Base classes for billing's admin: actions and changes that require a reason, and fast read-only lists."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.db.models import Model, Q, QuerySet
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from billing.errors import BillingRequestRefused, IdempotencyConflict
from billing.models import Account
from config.core import admin as core_admin

if TYPE_CHECKING:  # these classes are not generic at runtime
    TypedRowAdmin = admin.ModelAdmin[Any]
    TypedModelForm = forms.ModelForm[Any]
else:
    TypedRowAdmin, TypedModelForm = admin.ModelAdmin, forms.ModelForm

REASON_MAX_LENGTH = 500
RowAction = Callable[[Any, dict[str, Any]], str]  # acts on one row and returns the text for its history


class ReasonForm(forms.Form):
    reason = forms.CharField(max_length=REASON_MAX_LENGTH, widget=forms.TextInput(attrs={"size": 60}))


class ReasonedActionAdmin(TypedRowAdmin):
    """Admin actions that ask for a reason first and log it in the row's history."""

    def run_with_reason(
        self,
        request: HttpRequest,
        chosen: QuerySet[Any],
        act: RowAction,
        form_class: type[ReasonForm] = ReasonForm,
    ) -> HttpResponse | None:
        """Show the form, then run `act` on every chosen row. A refused row is reported and does not stop the others."""
        form = form_class(request.POST if "apply" in request.POST else None)
        if not form.is_valid():
            return self._render_reason_form(request, chosen, form)
        rows = list(chosen)
        done = sum(self._apply_to_row(request, row, act, form.cleaned_data) for row in rows)
        if done:
            self.message_user(request, f"Done for {done} of {len(rows)}.", messages.SUCCESS)
        return None

    def _apply_to_row(
        self, request: HttpRequest, row: Model, act: RowAction, form_data: dict[str, Any]
    ) -> bool:
        try:
            message = act(row, form_data)
        except (BillingRequestRefused, IdempotencyConflict) as problem:
            self.message_user(request, f"{getattr(row, 'user', row)}: {problem}", messages.ERROR)
            return False
        self.log_change(request, row, f"{message} {form_data['reason']}")
        return True

    def _render_reason_form(
        self, request: HttpRequest, chosen: QuerySet[Any], form: ReasonForm
    ) -> HttpResponse:
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


class ReasonModelForm(TypedModelForm):
    reason = forms.CharField(max_length=REASON_MAX_LENGTH, widget=forms.TextInput(attrs={"size": 60}))


class ReasonedChangeAdmin(TypedRowAdmin):
    """Require a reason for every change and keep it in Django's own history."""

    form = ReasonModelForm

    def construct_change_message(
        self, request: HttpRequest, form: Any, formsets: Any, add: bool = False
    ) -> Any:
        changed = ", ".join(name for name in form.changed_data if name != "reason") or "nothing"
        return f"{'Added' if add else f'Changed {changed}'}. {form.cleaned_data['reason']}"


# --- Lists and money ---

MAX_LISTED_ROWS = 1_000  # older rows are found by searching
ROWS_PER_PAGE = 15  # rendering cells costs Django more than fetching rows
MAX_MATCHED_ACCOUNTS = 20
USER_SEARCH_FIELDS = ["=account__user__username", "=account__user__email"]


def format_microdollars(microdollars: int | None) -> str:
    """Format as `$1.234567 (1,234,567)`, with the stored number in brackets."""
    if microdollars is None:
        return "-"
    whole, rest = divmod(microdollars, 1_000_000)
    return f"${whole:,}.{rest:06d} ({microdollars:,})"


def format_cents(cents: int | None) -> str:
    if cents is None:
        return "-"
    whole, rest = divmod(abs(cents), 100)
    return f"{'-' if cents < 0 else ''}${whole:,}.{rest:02d}"


class BillingPaginator(core_admin.CappedPaginator):
    max_count = MAX_LISTED_ROWS


class FastListAdmin(core_admin.TypedModelAdmin):
    """A list that loads equally fast for a million rows, because it never counts the table."""

    paginator = BillingPaginator
    list_per_page = ROWS_PER_PAGE
    list_max_show_all = ROWS_PER_PAGE
    show_full_result_count = False  # counting a large table is slow
    show_facets = admin.ShowFacets.NEVER  # facets would count it once per filter


class BillingReadOnlyAdmin(FastListAdmin, core_admin.ReadOnlyAdmin):
    """A read-only list in its own order only."""

    sortable_by = ()  # any other order would read the whole table


class AccountRowsAdmin(BillingReadOnlyAdmin):
    """Search the user first, then the rows by account, so that both use an index."""

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Model], search_term: str
    ) -> tuple[QuerySet[Model], bool]:
        term = search_term.strip()
        own_fields = [name for name in self.search_fields if name not in USER_SEARCH_FIELDS]
        if not term:
            return queryset, False
        account_ids = _find_account_ids(term)
        if account_ids or not own_fields:
            return queryset.filter(account__in=account_ids), False
        found = Q()
        for name in own_fields:
            found |= Q(**{f"{name.removeprefix('=')}__iexact": term})
        return queryset.filter(found), False


def _find_account_ids(term: str) -> list[int]:
    account_ids = Account.objects.filter(Q(user__username__iexact=term) | Q(user__email__iexact=term))
    return list(account_ids.values_list("pk", flat=True)[:MAX_MATCHED_ACCOUNTS])
