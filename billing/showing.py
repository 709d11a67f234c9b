"""How staff pages show money, and what nobody changes there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.contrib import admin
from django.core.paginator import Paginator
from django.db.models import Model, QuerySet
from django.http import HttpRequest
from django.utils.functional import cached_property

if TYPE_CHECKING:  # Django's own class takes no parameter when it runs
    AnyAdmin = admin.ModelAdmin[Model]
else:
    AnyAdmin = admin.ModelAdmin

MOST_LISTED = 10_000  # rows of a list; whoever looks for older ones searches


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


class Bounded(Paginator):  # type: ignore[type-arg]  # Django's own class takes no parameter when it runs
    """Counts as far as anybody pages: counting a million rows takes longer than showing a hundred of them."""

    @cached_property
    def count(self) -> int:
        rows = self.object_list
        assert isinstance(rows, QuerySet)
        return int(rows.order_by()[:MOST_LISTED].count())


class ViewOnly(AnyAdmin):
    """What code alone writes is looked at here, even by superusers (B18.4)."""

    paginator = Bounded
    show_full_result_count = False  # counting a large table costs more than it tells

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False
