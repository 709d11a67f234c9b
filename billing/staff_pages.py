"""What the staff pages of every app share: rows with one writer each are looked at, in lists that never count a whole table.

It stands in the app that all others may import.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING
from uuid import UUID

from django.contrib import admin
from django.core.paginator import Paginator
from django.db.models import Model, Q, QuerySet
from django.http import HttpRequest
from django.utils.functional import cached_property

if TYPE_CHECKING:  # Django's own class takes no parameter when it runs
    AnyAdmin = admin.ModelAdmin[Model]
else:
    AnyAdmin = admin.ModelAdmin


class Capped(Paginator):  # type: ignore[type-arg]  # Django's own class takes no parameter when it runs
    """Counts only as far as anybody leafs: counting a large table costs more than it tells."""

    most = 10_000  # who wants to see more of a list filters it

    @cached_property
    def count(self) -> int:
        rows = self.object_list
        return rows.order_by()[: self.most].count() if isinstance(rows, QuerySet) else len(rows[: self.most])


def one_of(column: str, values: Iterable[str]) -> type[admin.SimpleListFilter]:
    """A filter by a closed set: looking for the distinct values of a large table would take longer than the list."""

    known = list(values)

    class OneOf(admin.SimpleListFilter):
        title = column.replace("_", " ")
        parameter_name = column

        def lookups(self, request: HttpRequest, model_admin: AnyAdmin) -> list[tuple[str, str]]:
            return [(value, value) for value in known]

        def queryset(self, request: HttpRequest, queryset: QuerySet[Model]) -> QuerySet[Model]:
            return queryset.filter(**{column: self.value()}) if self.value() in known else queryset

    return OneOf


class ViewOnly(AnyAdmin):
    """What code alone writes is looked at here, even by superusers."""

    paginator = Capped
    list_per_page = 50
    show_full_result_count = False  # it would count what the paginator does not
    found_by_id: tuple[str, ...] = ()  # columns that a whole id is looked up in, by their indexes

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Model], search_term: str
    ) -> tuple[QuerySet[Model], bool]:
        key = as_id(search_term)
        if key is None or not self.found_by_id:
            return super().get_search_results(request, queryset, search_term)
        found = Q()
        for column in self.found_by_id:
            found |= Q(**{column: key})
        return queryset.filter(found), False

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False


def as_id(text: str) -> UUID | None:
    try:
        return UUID(text.strip())
    except ValueError:
        return None
