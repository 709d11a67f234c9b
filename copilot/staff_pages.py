"""What copilot's staff pages share: rows lead to each other, and the latest of them are shown where they belong."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.db.models import Model, QuerySet
from django.http import HttpRequest
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString

if TYPE_CHECKING:  # Django's own classes take no parameters when they run
    AnyRows = admin.TabularInline[Any, Any]
else:
    AnyRows = admin.TabularInline


class Looked(AnyRows):
    """Rows that are looked at beside the one they belong to, the latest of them."""

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


def linked(row: Model, column: str = "pk", *, to: str = "") -> SafeString:
    """A row's name, or the short id in one of its columns, as a way to that page."""
    key = getattr(row, column)
    if key is None:
        return SafeString("-")
    page = to or f"{row._meta.app_label}_{row._meta.model_name}"
    text = str(row) if column == "pk" else str(key)[:8]
    return format_html('<a href="{}">{}</a>', reverse(f"admin:{page}_change", args=[key]), text)
