"""Agents over REST: list, make, read, edit, delete, run, and the session that builds one (A27)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal
from uuid import UUID

from django.http import HttpResponse
from pydantic import Field, JsonValue
from rest_framework.request import Request

from billing.rest import answer, nothing, operation
from copilot import dispatch, presets, queries, sessions
from copilot.api.doors import Door
from copilot.api.parsing import Body, Clean, Query, body_of, query_of
from copilot.api.sessions import OpenSession, opened
from copilot.commands import SendMessage
from copilot.models import Agent, AgentVersion

Tier = Literal["", "standard", "advanced", "small"]
Name = Annotated[Clean, Field(max_length=presets.MAX_NAME)]
Description = Annotated[Clean, Field(max_length=presets.MAX_DESCRIPTION)]
Instructions = Annotated[Clean, Field(max_length=presets.MAX_INSTRUCTIONS)]
Tools = Annotated[list[str], Field(max_length=presets.MAX_TOOLS)]


class NewAgent(Body):
    name: Name
    description: Description = ""
    instructions: Instructions
    tier: Tier = ""
    tools: Tools | None = None
    inputs_schema: dict[str, JsonValue] = {}


class AgentChanges(Body):
    """Absent fields stay as they are; `expected_version` is the one the change starts from."""

    expected_version: Annotated[int, Field(ge=1, le=2**31 - 2)]
    name: Name = ""
    description: Description = ""
    instructions: Instructions = ""
    tier: Tier = ""
    tools: Tools | None = None
    inputs_schema: dict[str, JsonValue] = {}

    def given(self) -> presets.Changes:
        changes: presets.Changes = {}
        changes.update(self.model_dump(include=self.model_fields_set - {"expected_version"}))  # type: ignore[typeddict-item]
        return changes


class NewRun(Body):
    inputs: dict[str, JsonValue] = {}
    dry_run: bool = False


class AgentsQuery(Query):
    cursor: UUID | None = None
    limit: Annotated[int, Field(ge=1, le=presets.PAGE_AGENTS)] = presets.PAGE_AGENTS


@dataclass(frozen=True, kw_only=True)
class AgentListed:
    id: str
    name: str
    description: str
    version: int
    created_at: str
    changed_at: str


@dataclass(frozen=True, kw_only=True)
class AgentsPage:
    items: list[AgentListed]
    next_cursor: str | None


@dataclass(frozen=True, kw_only=True)
class AgentShown:
    """One version of an agent."""

    id: str
    version: int
    name: str
    description: str
    instructions: str
    tier: str
    tools: list[str] | None
    inputs_schema: dict[str, Any]  # a JSON Schema is whatever its author wrote
    created_at: str


@dataclass(frozen=True, kw_only=True)
class AgentVersions:
    items: list[AgentShown]


@dataclass(frozen=True, kw_only=True)
class Run:
    """A run is a session of its own; a dry one has none."""

    session_id: str | None
    turn_id: str | None
    version: int
    message: str


class AgentsView(Door):
    write_scopes = ("manage",)

    @operation("List your agents", answers={200: AgentsPage}, query=AgentsQuery)
    def get(self, request: Request) -> HttpResponse:
        asked = query_of(request, AgentsQuery)
        found = presets.listed(self.caller_id, after=asked.cursor, limit=asked.limit + 1)
        more = len(found) > asked.limit
        items = [_listed(agent) for agent in found[: asked.limit]]
        return answer(AgentsPage(items=items, next_cursor=items[-1].id if more else None))

    @operation("Make an agent", answers={201: AgentShown}, body=NewAgent)
    def post(self, request: Request) -> HttpResponse:
        asked = body_of(request, NewAgent)
        made = presets.create(self.caller_id, presets.Draft(**asked.model_dump()))
        return answer(_shown(made), 201)


class AgentView(Door):
    write_scopes = ("manage",)

    @operation("Read an agent in its newest version", answers={200: AgentShown})
    def get(self, request: Request, agent_id: UUID) -> HttpResponse:
        return answer(_shown(presets.version(self.caller_id, agent_id)))

    @operation("Edit an agent: a new version", answers={200: AgentShown}, body=AgentChanges)
    def patch(self, request: Request, agent_id: UUID) -> HttpResponse:
        asked = body_of(request, AgentChanges)
        edited = presets.edit(self.caller_id, agent_id, asked.expected_version, asked.given())
        return answer(_shown(edited))

    @operation("Delete an agent", answers={204: None})
    def delete(self, request: Request, agent_id: UUID) -> HttpResponse:
        presets.delete(self.caller_id, agent_id)
        return nothing()


class AgentVersionsView(Door):
    @operation("List an agent's versions, newest first", answers={200: AgentVersions})
    def get(self, request: Request, agent_id: UUID) -> HttpResponse:
        found = presets.versions(self.caller_id, agent_id)
        return answer(AgentVersions(items=[_shown(one) for one in found]))


class AgentRunsView(Door):
    @operation("Run an agent, or check what a run would be told", answers={200: Run, 201: Run}, body=NewRun)
    def post(self, request: Request, agent_id: UUID) -> HttpResponse:
        asked = body_of(request, NewRun)
        version = presets.version(self.caller_id, agent_id)
        message = presets.request(version, asked.inputs)
        if asked.dry_run:
            return answer(Run(session_id=None, turn_id=None, version=version.number, message=message))
        with sessions.begun(self.caller_id, version.name, agent_version=version) as session:
            started = dispatch.submit(
                SendMessage(
                    session_id=session.pk,
                    user_id=self.caller_id,
                    text=message,
                    tier=version.tier,
                    origin="api",
                    permissions=self.turn_permissions,
                )
            )
        return answer(
            Run(
                session_id=str(session.pk),
                turn_id=str(started.turn_id),
                version=version.number,
                message=message,
            ),
            201,
        )


class AgentBuilderView(Door):
    @operation("The session in which this agent is built", answers={200: OpenSession})
    def post(self, request: Request, agent_id: UUID) -> HttpResponse:
        agent = presets.get(self.caller_id, agent_id)
        return answer(opened(sessions.builder(self.caller_id, agent)))


def _listed(agent: Agent) -> AgentListed:
    return AgentListed(
        id=str(agent.pk),
        name=agent.name,
        description=agent.description,
        version=agent.version,
        created_at=queries.instant(agent.created_at),
        changed_at=queries.instant(agent.changed_at),
    )


def _shown(version: AgentVersion) -> AgentShown:
    version.refresh_from_db(fields=["created_at"])
    return AgentShown(
        id=str(version.agent_id),
        version=version.number,
        name=version.name,
        description=version.description,
        instructions=version.instructions,
        tier=version.tier,
        tools=version.tools,
        inputs_schema=version.inputs_schema,
        created_at=queries.instant(version.created_at),
    )
