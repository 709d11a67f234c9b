"""REST views for tools and MCP servers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated
from uuid import UUID

from django.http import HttpResponse
from pydantic import Field
from rest_framework.request import Request

from config.core.api.parsing import RequestBody, parse_body
from config.core.api.views import document_operation, respond_json, respond_no_content
from copilot.api.base import AsyncApiView, AuthenticatedApiView, CleanText, format_instant_or_none
from copilot.models import McpServer
from copilot.tools import availability
from copilot.tools.mcp import connection_trials
from copilot.tools.mcp import services as mcp


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


SecretHeaders = Annotated[
    dict[Annotated[str, Field(max_length=100)], Annotated[str, Field(max_length=mcp.MAX_SECRET_CHARACTERS)]],
    Field(max_length=mcp.MAX_SECRETS, description="Secret headers; never shown again."),
]


class NewServer(RequestBody):
    name: Annotated[CleanText, Field(max_length=40)]
    url: Annotated[CleanText, Field(max_length=mcp.MAX_URL_CHARACTERS)]
    secrets: SecretHeaders = {}
    enabled: bool = True


class ServerChanges(RequestBody):
    """Absent fields stay as they are. Secrets are replaced as a whole, and dropped when the URL's origin changes."""

    name: Annotated[CleanText, Field(max_length=40)] | None = None
    url: Annotated[CleanText, Field(max_length=mcp.MAX_URL_CHARACTERS)] | None = None
    secrets: SecretHeaders | None = None
    enabled: bool | None = None


@dataclass(frozen=True, kw_only=True)
class ServerTool:
    name: str
    description: str
    read_only: bool
    left_out: str


@dataclass(frozen=True, kw_only=True)
class ServerShown:
    """`own` is false for servers that an administrator added for everybody; their URL is not shown."""

    id: str
    name: str
    own: bool
    url: str | None
    secret_names: list[str]
    enabled: bool
    last_error: str
    retry_at: str | None
    listed_at: str | None
    tools: list[ServerTool]


@dataclass(frozen=True, kw_only=True)
class Servers:
    items: list[ServerShown]


@dataclass(frozen=True, kw_only=True)
class ServerTried:
    ok: bool
    error: str
    tools: list[ServerTool]


class ManagedApiView(AuthenticatedApiView):
    write_scopes = ("manage",)


class McpServersView(ManagedApiView):
    @document_operation("List MCP servers, your own and those shared with everybody", answers={200: Servers})
    def get(self, request: Request) -> HttpResponse:
        return respond_json(
            Servers(
                items=[
                    _serialize_server(row, self.caller_id) for row in mcp.list_visible_servers(self.caller_id)
                ]
            )
        )

    @document_operation("Add an MCP server", answers={201: ServerShown}, body=NewServer)
    def post(self, request: Request) -> HttpResponse:
        body = parse_body(request, NewServer)
        draft = mcp.McpServerDraft(name=body.name, url=body.url, secrets=body.secrets, enabled=body.enabled)
        return respond_json(_serialize_server(mcp.create_server(self.caller_id, draft), self.caller_id), 201)


class McpServerView(ManagedApiView):
    @document_operation("Change one of your MCP servers", answers={200: ServerShown}, body=ServerChanges)
    def patch(self, request: Request, server_id: UUID) -> HttpResponse:
        body = parse_body(request, ServerChanges)
        current = mcp.draft_from_server(mcp.get_own_server(self.caller_id, server_id))
        draft = replace(
            current,
            name=current.name if body.name is None else body.name,
            url=current.url if body.url is None else body.url,
            secrets=body.secrets,
            enabled=current.enabled if body.enabled is None else body.enabled,
        )
        return respond_json(
            _serialize_server(mcp.update_server(self.caller_id, server_id, draft), self.caller_id)
        )

    @document_operation("Remove one of your MCP servers", answers={204: None})
    def delete(self, request: Request, server_id: UUID) -> HttpResponse:
        mcp.delete_server(self.caller_id, server_id)
        return respond_no_content()


class McpServerTestView(AsyncApiView):
    http_method_names = ["post"]
    write_scopes = ("manage",)

    @document_operation(
        "Test the connection to one of your MCP servers and list its tools", answers={200: ServerTried}
    )
    async def post(self, request: Request, server_id: UUID) -> HttpResponse:
        trial = await connection_trials.try_server(self.caller_id, self.caller_id, server_id)
        tools = [_serialize_server_tool(tool) for tool in trial.tools]
        return respond_json(ServerTried(ok=not trial.error, error=trial.error, tools=tools))


def _serialize_server(row: McpServer, caller_id: int) -> ServerShown:
    own = row.owner_id == caller_id
    return ServerShown(
        id=str(row.pk),
        name=row.name,
        own=own,
        url=row.url if own else None,
        secret_names=mcp.list_secret_names(row) if own else [],
        enabled=row.enabled,
        last_error=row.last_error,
        retry_at=format_instant_or_none(row.retry_at),
        listed_at=format_instant_or_none(row.listed_at),
        tools=[_serialize_server_tool(tool) for tool in row.tools],
    )


def _serialize_server_tool(tool: mcp.ListedTool) -> ServerTool:
    return ServerTool(
        name=tool["name"],
        description=tool["description"],
        read_only=tool["read_only"],
        left_out=tool["left_out"],
    )
