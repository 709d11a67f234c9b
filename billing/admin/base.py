"""Whatever staff do has a reason: a form asks for it before the act, and the row's history keeps it (B18)."""

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

if TYPE_CHECKING:  # Django's own classes take no parameter when they run
    TypedRowAdmin = admin.ModelAdmin[Any]
    TypedModelForm = forms.ModelForm[Any]
else:
    TypedRowAdmin, TypedModelForm = admin.ModelAdmin, forms.ModelForm

REASON_MAX_LENGTH = 500
RowAction = Callable[
    [Any, dict[str, Any]], str
]  # does it to one row; answers what the row's history will say


class ReasonForm(forms.Form):
    reason = forms.CharField(max_length=REASON_MAX_LENGTH, widget=forms.TextInput(attrs={"size": 60}))


class ReasonedActionAdmin(TypedRowAdmin):
    """Actions that ask before they act."""

    def run_with_reason(
        self,
        request: HttpRequest,
        chosen: QuerySet[Any],
        act: RowAction,
        form_class: type[ReasonForm] = ReasonForm,
    ) -> HttpResponse | None:
        """First the form, then the act on every chosen row; one that is refused is told, and the others go on."""
        form = form_class(request.POST if "apply" in request.POST else None)
        if not form.is_valid():
            return self._render_reason_form(request, chosen, form)
        rows = list(chosen)
        done = sum(self._apply_to_row(request, row, act, form.cleaned_data) for row in rows)
        if done:
            self.message_user(request, f"Done for {done} of {len(rows)}.", messages.SUCCESS)
        return None

    def _apply_to_row(self, request: HttpRequest, row: Model, act: RowAction, given: dict[str, Any]) -> bool:
        try:
            said = act(row, given)
        except (BillingRequestRefused, IdempotencyConflict) as problem:
            self.message_user(request, f"{getattr(row, 'user', row)}: {problem}", messages.ERROR)
            return False
        self.log_change(request, row, f"{said} {given['reason']}")
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
    """A row that is not saved without a reason."""

    reason = forms.CharField(max_length=REASON_MAX_LENGTH, widget=forms.TextInput(attrs={"size": 60}))


class ReasonedChangeAdmin(TypedRowAdmin):
    """Django's own history keeps who, when and why."""

    form = ReasonModelForm

    def construct_change_message(
        self, request: HttpRequest, form: Any, formsets: Any, add: bool = False
    ) -> Any:
        changed = ", ".join(name for name in form.changed_data if name != "reason") or "nothing"
        return f"{'Added' if add else f'Changed {changed}'}. {form.cleaned_data['reason']}"


# MERGED showing: How staff pages show money, and what nobody changes there.

MAX_LISTED_ROWS = 1_000  # rows of a list; whoever looks for older ones searches
ROWS_PER_PAGE = 15  # drawing a cell costs Django more than finding its row
MAX_MATCHED_ACCOUNTS = 20  # accounts that one name or address finds
USER_SEARCH_FIELDS = ["=account__user__username", "=account__user__email"]


def format_microdollars(microdollars: int | None) -> str:
    """`$1.234567 (1,234,567)`: for people first, the stored number beside it."""
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
    """A list that takes as long for a million rows as for a page of them (B19.6)."""

    paginator = BillingPaginator
    list_per_page = ROWS_PER_PAGE
    list_max_show_all = ROWS_PER_PAGE
    show_full_result_count = False  # counting a large table costs more than it tells
    show_facets = admin.ShowFacets.NEVER  # so would counting it once for each filter


class BillingReadOnlyAdmin(FastListAdmin, core_admin.ReadOnlyAdmin):
    """In the order of the list (B18.4)."""

    sortable_by = ()  # any other order than the list's own would read the whole table


class AccountRowsAdmin(BillingReadOnlyAdmin):
    """Rows of accounts: a user is looked up first, then his rows by their own index, not all rows by their user."""

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Model], search_term: str
    ) -> tuple[QuerySet[Model], bool]:
        term = search_term.strip()
        own = [name for name in self.search_fields if name not in USER_SEARCH_FIELDS]
        if not term:
            return queryset, False
        named = _find_account_ids(term)
        if named or not own:
            return queryset.filter(account__in=named), False
        found = Q()
        for name in own:
            found |= Q(**{f"{name.removeprefix('=')}__iexact": term})
        return queryset.filter(found), False


def _find_account_ids(term: str) -> list[int]:
    """By user name or e-mail, in full."""
    named = Account.objects.filter(Q(user__username__iexact=term) | Q(user__email__iexact=term))
    return list(named.values_list("pk", flat=True)[:MAX_MATCHED_ACCOUNTS])
