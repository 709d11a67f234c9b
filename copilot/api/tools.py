"""The list of tools over REST: what there is, what is missing, and why (A32.2)."""

from __future__ import annotations

from dataclasses import dataclass

from django.http import HttpResponse
from rest_framework.request import Request

from billing.rest import answer, operation
from copilot import toolset
from copilot.api.doors import Door


@dataclass(frozen=True, kw_only=True)
class Tools:
    items: list[toolset.ToolShown]


class ToolsView(Door):
    @operation(
        "List tools, those of your MCP servers too, and why some are not available", answers={200: Tools}
    )
    def get(self, request: Request) -> HttpResponse:
        return answer(Tools(items=toolset.of_user(self.caller_id)))
