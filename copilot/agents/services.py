"""Create, edit, read and run agents. The only writer of Agent and AgentVersion."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TypedDict
from uuid import UUID

from django.db import transaction
from django.db.models.functions import Now

from config.core.errors import Conflict, InvalidRequest, NotFound
from config.core.json_values import JSON
from copilot.chat.commands import clean_text
from copilot.chat.prompt_tags import build_server_block, escape_text
from copilot.models import Agent, AgentVersion
from copilot.tools import json_schema

MAX_NAME_CHARACTERS = 100
MAX_DESCRIPTION_CHARACTERS = 1_000
MAX_INSTRUCTIONS_CHARACTERS = 32_000
MAX_TOOLS = 200
TIERS = ("", "standard", "advanced", "small")
MAX_SHOWN_ENTRIES = 100
MAX_SHOWN_INSTRUCTIONS = 4_000
AGENTS_PER_PAGE = 50


@dataclass(frozen=True, kw_only=True)
class AgentDraft:
    """The content of a version before it is checked."""

    name: str = ""
    description: str = ""
    instructions: str = ""
    tier: str = ""
    tools: list[str] | None = None
    inputs_schema: dict[str, JSON] | None = None


class AgentVersionChanges(TypedDict, total=False):
    """The changed fields; absent ones stay as in the previous version."""

    name: str
    description: str
    instructions: str
    tier: str
    tools: list[str] | None
    inputs_schema: dict[str, JSON] | None


# --- Write -------------------------------------------------------------------------------------------


def create_agent(owner_id: int, draft: AgentDraft) -> AgentVersion:
    draft = _check_draft(draft)
    with transaction.atomic():
        agent = Agent.objects.create(owner_id=owner_id, name=draft.name, description=draft.description)
        return _add_version(agent.pk, 1, draft)


def edit_agent(
    owner_id: int, agent_id: UUID, expected_version: int, changes: AgentVersionChanges
) -> AgentVersion:
    """Create the next version. Of several concurrent edits of the same version only one succeeds."""
    before = get_version(owner_id, agent_id)
    draft = _check_draft(replace(_draft_from_version(before), **changes))
    with transaction.atomic():
        updated = (
            Agent.objects.visible_to(owner_id)
            .filter(pk=agent_id, version=expected_version)
            .update(
                version=expected_version + 1, name=draft.name, description=draft.description, changed_at=Now()
            )
        )
        if not updated:
            raise Conflict(
                f"The agent has changed since version {expected_version}. Review it and edit it again.",
                code="version_conflict",
                version=Agent.objects.values_list("version", flat=True).get(pk=agent_id),
            )
        return _add_version(agent_id, expected_version + 1, draft)


def delete_agent(owner_id: int, agent_id: UUID) -> None:
    """Delete an agent; its runs and versions stay readable."""
    rows = Agent.objects.visible_to(owner_id).filter(pk=agent_id)
    if not rows.update(deleted_at=Now()):
        raise NotFound


def _add_version(agent_id: UUID, number: int, draft: AgentDraft) -> AgentVersion:
    return AgentVersion.objects.create(
        agent_id=agent_id,
        number=number,
        name=draft.name,
        description=draft.description,
        instructions=draft.instructions,
        tier=draft.tier,
        tools=draft.tools,
        inputs_schema=draft.inputs_schema or {},
    )


def _draft_from_version(before: AgentVersion) -> AgentDraft:
    return AgentDraft(
        name=before.name,
        description=before.description,
        instructions=before.instructions,
        tier=before.tier,
        tools=before.tools,
        inputs_schema=before.inputs_schema,
    )


def _check_draft(draft: AgentDraft) -> AgentDraft:
    """Validate a draft, and report all problems at once."""
    draft = replace(
        draft,
        name=" ".join(clean_text(draft.name).split()),
        description=clean_text(draft.description).strip(),
        instructions=clean_text(draft.instructions).strip(),
        tools=None if draft.tools is None else sorted(set(draft.tools)),
    )
    problems = [*_find_problems(draft), *json_schema.find_schema_problems(draft.inputs_schema or {})]
    if problems:
        count = f"{len(problems)} problem{'s' if len(problems) > 1 else ''}"
        raise InvalidRequest(
            f"The agent is not valid: {count}.", code="validation_failed", details={"errors": problems}
        )
    return draft


def _find_problems(draft: AgentDraft) -> list[str]:
    found = []
    for name, text, least, most in (
        ("name", draft.name, 1, MAX_NAME_CHARACTERS),
        ("description", draft.description, 0, MAX_DESCRIPTION_CHARACTERS),
        ("instructions", draft.instructions, 1, MAX_INSTRUCTIONS_CHARACTERS),
    ):
        if not least <= len(text) <= most:
            found.append(f"{name}: must have {least} to {most:,} characters (has {len(text):,}).")
    if draft.tier not in TIERS:
        found.append(f"tier: must be one of {', '.join(TIERS[1:])}.")
    if draft.tools is not None and len(draft.tools) > MAX_TOOLS:
        found.append(f"tools: at most {MAX_TOOLS} names.")
    found += [
        f"tools: {name[:80]!r} is not a tool name." for name in draft.tools or () if not _is_tool_name(name)
    ]
    return found


def _is_tool_name(name: str) -> bool:
    return 1 <= len(name) <= 64 and name.isascii() and name.replace("_", "a").replace("-", "a").isalnum()


# --- Read --------------------------------------------------------------------------------------------


def get_agent(owner_id: int, agent_id: UUID) -> Agent:
    """Return an agent of the owner. Foreign, deleted and unknown ones are reported as not found."""
    agent = Agent.objects.visible_to(owner_id).filter(pk=agent_id).first()
    if agent is None:
        raise NotFound
    return agent


def get_version(owner_id: int, agent_id: UUID, number: int | None = None) -> AgentVersion:
    agent = get_agent(owner_id, agent_id)
    found = AgentVersion.objects.filter(agent=agent, number=number or agent.version).first()
    if found is None:
        raise NotFound
    return found


def list_versions(owner_id: int, agent_id: UUID) -> list[AgentVersion]:
    return list(get_agent(owner_id, agent_id).versions.order_by("-number")[:AGENTS_PER_PAGE])


def list_agents(owner_id: int, *, after: UUID | None = None, limit: int = AGENTS_PER_PAGE) -> list[Agent]:
    """Return a page of agents by name; `after` is the last one of the previous page."""
    rows = Agent.objects.visible_to(owner_id).order_by("name", "pk")
    if after is not None:
        last = Agent.objects.filter(pk=after, owner=owner_id).first()
        if last is None:
            raise InvalidRequest("That cursor is not valid for this list.", code="invalid_cursor")
        rows = rows.filter(name__gte=last.name).exclude(name=last.name, pk__lte=last.pk)
    return list(rows[:limit])


# --- Run ---------------------------------------------------------------------------------------------


def build_run_prompt(version: AgentVersion, inputs: Mapping[str, JSON]) -> str:
    """Build the prompt of a run from its inputs, which must match the agent's schema."""
    if problems := json_schema.find_input_problems(version.inputs_schema, inputs):
        raise InvalidRequest(
            f"The inputs don't match the agent's schema: {problems[0]}",
            code="inputs_invalid",
            field="inputs",
            details={"errors": problems},
        )
    if not inputs:
        return "Do your work. There are no inputs."
    return clean_text(f"Do your work with these inputs:\n\n{json_schema.format_json(inputs)}")


# --- Builder sessions --------------------------------------------------------------------------------


def build_builder_context(owner_id: int, agent_id: UUID) -> str:
    """Describe the agent's current version in front of a message of its builder session."""
    try:
        version = get_version(owner_id, agent_id)
    except NotFound:
        return build_server_block("builder_context", "status: fetch_failed")
    cut = version.instructions[:MAX_SHOWN_INSTRUCTIONS]
    left_out = len(version.instructions) - len(cut)
    lines = [
        f"id: {agent_id}",
        f"name: {escape_text(version.name)}",
        f"version: {version.number}",
        f"tier: {escape_text(version.tier or 'standard')}",
        f"description: {escape_text(version.description)}",
        f"tools: {_format_entries(version.tools) if version.tools is not None else 'all that the caller has'}",
        f"inputs: {_format_entries(json_schema.list_property_names(version.inputs_schema))}",
        f"instructions{f' (the first {MAX_SHOWN_INSTRUCTIONS:,} characters)' if left_out else ''}:",
        escape_text(cut),
    ]
    return build_server_block("builder_context", "\n".join(lines))


def _format_entries(names: list[str]) -> str:
    shown = ", ".join(escape_text(name) for name in names[:MAX_SHOWN_ENTRIES])
    more = len(names) - MAX_SHOWN_ENTRIES
    return (shown or "none") + (f" and {more} more" if more > 0 else "")


def erase_agents(owner_id: int) -> int:
    removed, _ = Agent.objects.filter(owner=owner_id).delete()
    return removed
