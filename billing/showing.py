"""How staff pages show money, and what nobody changes there."""

from __future__ import annotations

from django.contrib import admin
from django.db.models import Model, Q, QuerySet
from django.http import HttpRequest

from billing import staff_pages
from billing.models import Account

MOST_LISTED = 1_000  # rows of a list; whoever looks for older ones searches
PER_PAGE = 15  # drawing a cell costs Django more than finding its row
MOST_NAMED = 20  # accounts that one name or address finds
USER_SEARCH = ["=account__user__username", "=account__user__email"]


def dollars(microdollars: int | None) -> str:
    """`$1.234567 (1,234,567)`: for people first, the stored number beside it."""
    if microdollars is None:
        return "-"
    whole, rest = divmod(microdollars, 1_000_000)
    return f"${whole:,}.{rest:06d} ({microdollars:,})"


def dollars_of_cents(cents: int | None) -> str:
    if cents is None:
        return "-"
    whole, rest = divmod(abs(cents), 100)
    return f"{'-' if cents < 0 else ''}${whole:,}.{rest:02d}"


class Bounded(staff_pages.Capped):
    most = MOST_LISTED


class Quick(staff_pages.AnyAdmin):
    """A list that takes as long for a million rows as for a page of them (B19.6)."""

    paginator = Bounded
    list_per_page = PER_PAGE
    list_max_show_all = PER_PAGE
    show_full_result_count = False  # counting a large table costs more than it tells
    show_facets = admin.ShowFacets.NEVER  # so would counting it once for each filter


class ViewOnly(Quick, staff_pages.ViewOnly):
    """In the order of the list (B18.4)."""

    sortable_by = ()  # any other order than the list's own would read the whole table


class OfUsers(ViewOnly):
    """Rows of accounts: a user is looked up first, then his rows by their own index, not all rows by their user."""

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Model], search_term: str
    ) -> tuple[QuerySet[Model], bool]:
        term = search_term.strip()
        own = [name for name in self.search_fields if name not in USER_SEARCH]
        if not term:
            return queryset, False
        named = _accounts_of(term)
        if named or not own:
            return queryset.filter(account__in=named), False
        found = Q()
        for name in own:
            found |= Q(**{f"{name.removeprefix('=')}__iexact": term})
        return queryset.filter(found), False


def _accounts_of(term: str) -> list[int]:
    """By user name or e-mail, in full."""
    named = Account.objects.filter(Q(user__username__iexact=term) | Q(user__email__iexact=term))
    return list(named.values_list("pk", flat=True)[:MOST_NAMED])
