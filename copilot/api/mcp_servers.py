"""MCP servers over REST: one's own are made, changed, tried and removed; everybody's are only seen (A28)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated
from uuid import UUID

from django.http import HttpResponse
from pydantic import Field
from rest_framework.request import Request

from billing.rest import answer, nothing, operation
from copilot import mcp, mcp_trials
from copilot.api.doors import AsyncDoor, Door, instant_if
from copilot.api.parsing import Body, Clean, body_of
from copilot.models import McpServer

Secrets = Annotated[
    dict[Annotated[str, Field(max_length=100)], Annotated[str, Field(max_length=mcp.MAX_SECRET)]],
    Field(max_length=mcp.MAX_SECRETS, description="Headers; never shown again."),
]


class NewServer(Body):
    name: Annotated[Clean, Field(max_length=40)]
    url: Annotated[Clean, Field(max_length=mcp.MAX_URL)]
    secrets: Secrets = {}
    enabled: bool = True


class ServerChanges(Body):
    """Absent fields stay as they are; secrets are replaced all together, and forgotten when the URL's origin changes."""

    name: Annotated[Clean, Field(max_length=40)] | None = None
    url: Annotated[Clean, Field(max_length=mcp.MAX_URL)] | None = None
    secrets: Secrets | None = None
    enabled: bool | None = None


@dataclass(frozen=True, kw_only=True)
class ServerTool:
    name: str
    description: str
    read_only: bool
    left_out: str


@dataclass(frozen=True, kw_only=True)
class ServerShown:
    """`own` is false for those an administrator added for everybody: their address stays theirs."""

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


class ManagedDoor(Door):
    write_scopes = ("manage",)


class McpServersView(ManagedDoor):
    @operation("List MCP servers, your own and everybody's", answers={200: Servers})
    def get(self, request: Request) -> HttpResponse:
        return answer(Servers(items=[_shown(row, self.caller_id) for row in mcp.seen_by(self.caller_id)]))

    @operation("Add an MCP server of your own", answers={201: ServerShown}, body=NewServer)
    def post(self, request: Request) -> HttpResponse:
        asked = body_of(request, NewServer)
        draft = mcp.Draft(name=asked.name, url=asked.url, secrets=asked.secrets, enabled=asked.enabled)
        return answer(_shown(mcp.add(self.caller_id, draft), self.caller_id), 201)


class McpServerView(ManagedDoor):
    @operation("Change an MCP server of your own", answers={200: ServerShown}, body=ServerChanges)
    def patch(self, request: Request, server_id: UUID) -> HttpResponse:
        asked = body_of(request, ServerChanges)
        now = mcp.drafted(mcp.own(self.caller_id, server_id))
        wanted = replace(
            now,
            name=now.name if asked.name is None else asked.name,
            url=now.url if asked.url is None else asked.url,
            secrets=asked.secrets,
            enabled=now.enabled if asked.enabled is None else asked.enabled,
        )
        return answer(_shown(mcp.change(self.caller_id, server_id, wanted), self.caller_id))

    @operation("Remove an MCP server of your own", answers={204: None})
    def delete(self, request: Request, server_id: UUID) -> HttpResponse:
        mcp.remove(self.caller_id, server_id)
        return nothing()


class McpServerTestView(AsyncDoor):
    http_method_names = ["post"]
    write_scopes = ("manage",)

    @operation("Connect to an MCP server of your own now, and list its tools", answers={200: ServerTried})
    async def post(self, request: Request, server_id: UUID) -> HttpResponse:
        tried = await mcp_trials.try_server(self.caller_id, self.caller_id, server_id)
        tools = [_tool(tool) for tool in tried.tools]
        return answer(ServerTried(ok=not tried.error, error=tried.error, tools=tools))


def _shown(row: McpServer, caller_id: int) -> ServerShown:
    own = row.owner_id == caller_id
    return ServerShown(
        id=str(row.pk),
        name=row.name,
        own=own,
        url=row.url if own else None,
        secret_names=mcp.secret_names(row) if own else [],
        enabled=row.enabled,
        last_error=row.last_error,
        retry_at=instant_if(row.retry_at),
        listed_at=instant_if(row.listed_at),
        tools=[_tool(tool) for tool in row.tools],
    )


def _tool(tool: mcp.Listed) -> ServerTool:
    return ServerTool(
        name=tool["name"],
        description=tool["description"],
        read_only=tool["read_only"],
        left_out=tool["left_out"],
    )
