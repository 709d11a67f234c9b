"""Base classes for every app's admin: read-only lists that never count a whole table, and links between rows."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any
from uuid import UUID

from django.contrib import admin
from django.core.paginator import Paginator
from django.db.models import Model, Q, QuerySet
from django.http import HttpRequest
from django.urls import reverse
from django.utils.functional import cached_property
from django.utils.html import format_html
from django.utils.safestring import SafeString

if TYPE_CHECKING:  # Django's own class takes no type parameter at run time
    TypedModelAdmin = admin.ModelAdmin[Model]
else:
    TypedModelAdmin = admin.ModelAdmin


class CappedPaginator(Paginator):  # type: ignore[type-arg]  # Django's own class takes no parameter when it runs
    """Count only as far as people page, because counting a large table is slow."""

    max_count = 10_000  # filter a list to see more of it

    @cached_property
    def count(self) -> int:
        rows = self.object_list
        return (
            rows.order_by()[: self.max_count].count()
            if isinstance(rows, QuerySet)
            else len(rows[: self.max_count])
        )


def build_choice_filter(column: str, values: Iterable[str]) -> type[admin.SimpleListFilter]:
    """Filter by a closed set instead of querying the distinct values of a large table."""

    known = list(values)

    class OneOf(admin.SimpleListFilter):
        title = column.replace("_", " ")
        parameter_name = column

        def lookups(self, request: HttpRequest, model_admin: TypedModelAdmin) -> list[tuple[str, str]]:
            return [(value, value) for value in known]

        def queryset(self, request: HttpRequest, queryset: QuerySet[Model]) -> QuerySet[Model]:
            return queryset.filter(**{column: self.value()}) if self.value() in known else queryset

    return OneOf


class ReadOnlyAdmin(TypedModelAdmin):
    """Show rows that only code writes; not even superusers can change them."""

    paginator = CappedPaginator
    list_per_page = 50
    show_full_result_count = False  # it would count what the paginator does not
    found_by_id: tuple[str, ...] = ()  # columns in which a whole id is looked up by index

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Model], search_term: str
    ) -> tuple[QuerySet[Model], bool]:
        key = parse_uuid(search_term)
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


def parse_uuid(text: str) -> UUID | None:
    try:
        return UUID(text.strip())
    except ValueError:
        return None


if TYPE_CHECKING:  # Django's own classes take no type parameters at run time
    AnyRows = admin.TabularInline[Any, Any]
else:
    AnyRows = admin.TabularInline


class LatestRowsInline(AnyRows):
    """Show the latest related rows."""

    extra = 0
    can_delete = False
    max_rows = 20

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        rows = super().get_queryset(request)
        match = request.resolver_match
        owner = match.kwargs.get("object_id") if match else None
        column = self.fk_name or str(self.parent_model._meta.model_name)
        latest = rows.filter(**{column: owner}).order_by("-pk").values("pk")[: self.max_rows]
        return rows.filter(pk__in=latest)

    def has_add_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False


def render_admin_link(row: Model, column: str = "pk", *, to: str = "") -> SafeString:
    """Link to a row's page by its name or by a short id."""
    key = getattr(row, column)
    if key is None:
        return SafeString("-")
    page = to or f"{row._meta.app_label}_{row._meta.model_name}"
    text = str(row) if column == "pk" else str(key)[:8]
    return format_html('<a href="{}">{}</a>', reverse(f"admin:{page}_change", args=[key]), text)
