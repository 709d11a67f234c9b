"""REST view that lists the tools, and why some are not available."""

from __future__ import annotations

from dataclasses import dataclass

from django.http import HttpResponse
from rest_framework.request import Request

from config.core.api.views import document_operation, respond_json
from copilot.api.base import AuthenticatedApiView
from copilot.tools import availability


@dataclass(frozen=True, kw_only=True)
class Tools:
    items: list[availability.ToolShown]


class ToolsView(AuthenticatedApiView):
    @document_operation(
        "List all tools, including those of your MCP servers, and why some are unavailable",
        answers={200: Tools},
    )
    def get(self, request: Request) -> HttpResponse:
        return respond_json(Tools(items=availability.list_user_tools(self.caller_id)))
