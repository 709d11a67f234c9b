"""REST views for agents and the models they can use."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal
from uuid import UUID

from django.http import HttpResponse
from pydantic import Field, JsonValue
from rest_framework.request import Request

from billing.selectors import plan_status
from config.core.api.parsing import QueryParams, RequestBody, parse_body, parse_query
from config.core.api.views import document_operation, respond_json, respond_no_content
from copilot.agents import services as agents
from copilot.api.base import AuthenticatedApiView, CleanText
from copilot.api.sessions import OpenSession, serialize_session
from copilot.chat import admission, sessions
from copilot.chat.commands import SendMessage
from copilot.models import Agent, AgentVersion
from copilot.providers import catalogue
from copilot.providers.base import CatalogueEntry
from copilot.realtime import payloads

TierName = Literal["", "standard", "advanced", "small"]
AgentName = Annotated[CleanText, Field(max_length=agents.MAX_NAME_CHARACTERS)]
AgentDescription = Annotated[CleanText, Field(max_length=agents.MAX_DESCRIPTION_CHARACTERS)]
AgentInstructions = Annotated[CleanText, Field(max_length=agents.MAX_INSTRUCTIONS_CHARACTERS)]
AgentToolNames = Annotated[list[str], Field(max_length=agents.MAX_TOOLS)]


class NewAgent(RequestBody):
    name: AgentName
    description: AgentDescription = ""
    instructions: AgentInstructions
    tier: TierName = ""
    tools: AgentToolNames | None = None
    inputs_schema: dict[str, JsonValue] = {}


class AgentChanges(RequestBody):
    """Absent fields stay as they are. `expected_version` is the version that the change is based on."""

    expected_version: Annotated[int, Field(ge=1, le=2**31 - 2)]
    name: AgentName = ""
    description: AgentDescription = ""
    instructions: AgentInstructions = ""
    tier: TierName = ""
    tools: AgentToolNames | None = None
    inputs_schema: dict[str, JsonValue] = {}

    def to_changes(self) -> agents.AgentVersionChanges:
        changes: agents.AgentVersionChanges = {}
        changes.update(self.model_dump(include=self.model_fields_set - {"expected_version"}))  # type: ignore[typeddict-item]
        return changes


class NewRun(RequestBody):
    inputs: dict[str, JsonValue] = {}
    dry_run: bool = False


class AgentsQuery(QueryParams):
    cursor: UUID | None = None
    limit: Annotated[int, Field(ge=1, le=agents.AGENTS_PER_PAGE)] = agents.AGENTS_PER_PAGE


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
    inputs_schema: dict[str, Any]  # any JSON Schema
    created_at: str


@dataclass(frozen=True, kw_only=True)
class AgentVersions:
    items: list[AgentShown]


@dataclass(frozen=True, kw_only=True)
class Run:
    """A run is a session of its own; a dry run has none."""

    session_id: str | None
    turn_id: str | None
    version: int
    message: str


class AgentsView(AuthenticatedApiView):
    write_scopes = ("manage",)

    @document_operation("List your agents", answers={200: AgentsPage}, query=AgentsQuery)
    def get(self, request: Request) -> HttpResponse:
        query = parse_query(request, AgentsQuery)
        found = agents.list_agents(self.caller_id, after=query.cursor, limit=query.limit + 1)
        more = len(found) > query.limit
        items = [_serialize_agent_summary(agent) for agent in found[: query.limit]]
        return respond_json(AgentsPage(items=items, next_cursor=items[-1].id if more else None))

    @document_operation("Create an agent", answers={201: AgentShown}, body=NewAgent)
    def post(self, request: Request) -> HttpResponse:
        body = parse_body(request, NewAgent)
        version = agents.create_agent(self.caller_id, agents.AgentDraft(**body.model_dump()))
        return respond_json(_serialize_agent_version(version), 201)


class AgentView(AuthenticatedApiView):
    write_scopes = ("manage",)

    @document_operation("Read the newest version of an agent", answers={200: AgentShown})
    def get(self, request: Request, agent_id: UUID) -> HttpResponse:
        return respond_json(_serialize_agent_version(agents.get_version(self.caller_id, agent_id)))

    @document_operation(
        "Edit an agent, which creates a new version", answers={200: AgentShown}, body=AgentChanges
    )
    def patch(self, request: Request, agent_id: UUID) -> HttpResponse:
        body = parse_body(request, AgentChanges)
        edited = agents.edit_agent(self.caller_id, agent_id, body.expected_version, body.to_changes())
        return respond_json(_serialize_agent_version(edited))

    @document_operation("Delete an agent", answers={204: None})
    def delete(self, request: Request, agent_id: UUID) -> HttpResponse:
        agents.delete_agent(self.caller_id, agent_id)
        return respond_no_content()


class AgentVersionsView(AuthenticatedApiView):
    @document_operation("List an agent's versions, newest first", answers={200: AgentVersions})
    def get(self, request: Request, agent_id: UUID) -> HttpResponse:
        found = agents.list_versions(self.caller_id, agent_id)
        return respond_json(AgentVersions(items=[_serialize_agent_version(version) for version in found]))


class AgentRunsView(AuthenticatedApiView):
    @document_operation(
        "Run an agent, or preview the run with `dry_run`", answers={200: Run, 201: Run}, body=NewRun
    )
    def post(self, request: Request, agent_id: UUID) -> HttpResponse:
        body = parse_body(request, NewRun)
        version = agents.get_version(self.caller_id, agent_id)
        message = agents.build_run_prompt(version, body.inputs)
        if body.dry_run:
            return respond_json(Run(session_id=None, turn_id=None, version=version.number, message=message))
        with sessions.create_session_for_first_message(
            self.caller_id, version.name, agent_version=version
        ) as session:
            started = admission.submit_message(
                SendMessage(
                    session_id=session.pk,
                    user_id=self.caller_id,
                    text=message,
                    tier=version.tier,
                    origin="api",
                    permissions=self.turn_permissions,
                )
            )
        return respond_json(
            Run(
                session_id=str(session.pk),
                turn_id=str(started.turn_id),
                version=version.number,
                message=message,
            ),
            201,
        )


class AgentBuilderView(AuthenticatedApiView):
    @document_operation("Get the session in which this agent is built", answers={200: OpenSession})
    def post(self, request: Request, agent_id: UUID) -> HttpResponse:
        agent = agents.get_agent(self.caller_id, agent_id)
        return respond_json(serialize_session(sessions.get_or_create_builder_session(self.caller_id, agent)))


def _serialize_agent_summary(agent: Agent) -> AgentListed:
    return AgentListed(
        id=str(agent.pk),
        name=agent.name,
        description=agent.description,
        version=agent.version,
        created_at=payloads.format_timestamp(agent.created_at),
        changed_at=payloads.format_timestamp(agent.changed_at),
    )


def _serialize_agent_version(version: AgentVersion) -> AgentShown:
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
        created_at=payloads.format_timestamp(version.created_at),
    )


@dataclass(frozen=True, kw_only=True)
class Model:
    name: str
    model: str
    demo: bool
    label: str | None
    context_window: int | None
    supports_tools: bool
    supports_images: bool
    can_reason: bool


@dataclass(frozen=True, kw_only=True)
class Tier:
    tier: str
    name: str
    demo: bool
    label: str | None
    allowed: bool  # by the caller's plan


@dataclass(frozen=True, kw_only=True)
class Models:
    tiers: list[Tier]
    modes: list[str]
    models: list[Model]


class ModelsView(AuthenticatedApiView):
    @document_operation("List tiers, modes and models", answers={200: Models})
    def get(self, request: Request) -> HttpResponse:
        plan = plan_status.get_plan_terms(self.caller_id)
        tiers = [
            Tier(
                tier=tier,
                name=entry.name,
                demo=entry.demo,
                label=_get_demo_label(entry),
                allowed=not plan.model_tiers or tier in plan.model_tiers,
            )
            for tier, entry in catalogue.get_tier_entries().items()
        ]
        modes = [mode for mode in catalogue.MODES if not plan.modes or mode in plan.modes]
        models = [_serialize_model(entry) for entry in catalogue.list_entries()]
        return respond_json(Models(tiers=tiers, modes=modes, models=models))


def _serialize_model(entry: CatalogueEntry) -> Model:
    return Model(
        name=entry.name,
        model=entry.model,
        demo=entry.demo,
        label=_get_demo_label(entry),
        context_window=entry.context_window or None,
        supports_tools=entry.supports_tools,
        supports_images=entry.supports_images,
        can_reason=entry.can_reason,
    )


def _get_demo_label(entry: CatalogueEntry) -> str | None:
    return catalogue.DEMO_LABEL if entry.demo else None
