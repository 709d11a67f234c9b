"""Agents, which are saved ways of working: the only writer of Agent and AgentVersion (A27)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TypedDict
from uuid import UUID

from django.db import transaction
from django.db.models.functions import Now

from copilot import schemas
from copilot.commands import clean_text
from copilot.errors import Conflict, InvalidRequest, NotFound
from copilot.events import JSON
from copilot.models import Agent, AgentVersion
from copilot.tags import block, escape

MAX_NAME = 100
MAX_DESCRIPTION = 1_000
MAX_INSTRUCTIONS = 32_000
MAX_TOOLS = 200
TIERS = ("", "standard", "advanced", "small")
SHOWN_ENTRIES = 100
SHOWN_INSTRUCTIONS = 4_000
PAGE_AGENTS = 50


@dataclass(frozen=True, kw_only=True)
class Draft:
    """What a version says, before it is checked."""

    name: str = ""
    description: str = ""
    instructions: str = ""
    tier: str = ""
    tools: list[str] | None = None
    inputs_schema: dict[str, JSON] | None = None


class Changes(TypedDict, total=False):
    """What is absent stays as it was in the version before."""

    name: str
    description: str
    instructions: str
    tier: str
    tools: list[str] | None
    inputs_schema: dict[str, JSON] | None


# --- writing -----------------------------------------------------------------------------------------


def create(owner_id: int, draft: Draft) -> AgentVersion:
    draft = _checked(draft)
    with transaction.atomic():
        agent = Agent.objects.create(owner_id=owner_id, name=draft.name, description=draft.description)
        return _add_version(agent.pk, 1, draft)


def edit(owner_id: int, agent_id: UUID, expected_version: int, changes: Changes) -> AgentVersion:
    """The next version, of those who edit the same one at once for one alone (A27.4)."""
    before = version(owner_id, agent_id)
    draft = _checked(replace(_draft_of(before), **changes))
    with transaction.atomic():
        moved = Agent.objects.filter(
            pk=agent_id, owner=owner_id, deleted_at=None, version=expected_version
        ).update(
            version=expected_version + 1, name=draft.name, description=draft.description, changed_at=Now()
        )
        if not moved:
            raise Conflict(
                f"The agent is no longer at version {expected_version}. Look at it before you edit it.",
                code="version_conflict",
                version=Agent.objects.values_list("version", flat=True).get(pk=agent_id),
            )
        return _add_version(agent_id, expected_version + 1, draft)


def delete(owner_id: int, agent_id: UUID) -> None:
    """Gone from lists; runs and versions stay readable where they were."""
    mine = Agent.objects.filter(pk=agent_id, owner=owner_id, deleted_at=None)
    if not mine.update(deleted_at=Now()):
        raise NotFound


def _add_version(agent_id: UUID, number: int, draft: Draft) -> AgentVersion:
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


def _draft_of(before: AgentVersion) -> Draft:
    return Draft(
        name=before.name,
        description=before.description,
        instructions=before.instructions,
        tier=before.tier,
        tools=before.tools,
        inputs_schema=before.inputs_schema,
    )


def _checked(draft: Draft) -> Draft:
    """Everything that is wrong is said at once (A27.4)."""
    draft = replace(
        draft,
        name=" ".join(clean_text(draft.name).split()),
        description=clean_text(draft.description).strip(),
        instructions=clean_text(draft.instructions).strip(),
        tools=None if draft.tools is None else sorted(set(draft.tools)),
    )
    problems = [*_problems(draft), *schemas.problems(draft.inputs_schema or {})]
    if problems:
        count = f"{len(problems)} problem{'s' if len(problems) > 1 else ''}"
        raise InvalidRequest(
            f"The agent is not valid: {count}.", code="validation_failed", details={"errors": problems}
        )
    return draft


def _problems(draft: Draft) -> list[str]:
    found = []
    for name, text, least, most in (
        ("name", draft.name, 1, MAX_NAME),
        ("description", draft.description, 0, MAX_DESCRIPTION),
        ("instructions", draft.instructions, 1, MAX_INSTRUCTIONS),
    ):
        if not least <= len(text) <= most:
            found.append(f"{name}: needs {least} to {most:,} characters and has {len(text):,}.")
    if draft.tier not in TIERS:
        found.append(f"tier: is one of {', '.join(TIERS[1:])}.")
    if draft.tools is not None and len(draft.tools) > MAX_TOOLS:
        found.append(f"tools: at most {MAX_TOOLS} names.")
    found += [f"tools: {name[:80]!r} is not a name." for name in draft.tools or () if not _is_name(name)]
    return found


def _is_name(name: str) -> bool:
    return 1 <= len(name) <= 64 and name.isascii() and name.replace("_", "a").replace("-", "a").isalnum()


# --- reading -----------------------------------------------------------------------------------------


def get(owner_id: int, agent_id: UUID) -> Agent:
    """Foreign, deleted and unknown ones look the same."""
    agent = Agent.objects.filter(pk=agent_id, owner=owner_id, deleted_at=None).first()
    if agent is None:
        raise NotFound
    return agent


def version(owner_id: int, agent_id: UUID, number: int | None = None) -> AgentVersion:
    """The newest, or the one of this number."""
    agent = get(owner_id, agent_id)
    found = AgentVersion.objects.filter(agent=agent, number=number or agent.version).first()
    if found is None:
        raise NotFound
    return found


def versions(owner_id: int, agent_id: UUID) -> list[AgentVersion]:
    """Newest first."""
    return list(get(owner_id, agent_id).versions.order_by("-number")[:PAGE_AGENTS])


def listed(owner_id: int, *, after: UUID | None = None, limit: int = PAGE_AGENTS) -> list[Agent]:
    """A page, by name; `after` is the last of the page before."""
    mine = Agent.objects.filter(owner=owner_id, deleted_at=None).order_by("name", "pk")
    if after is not None:
        last = Agent.objects.filter(pk=after, owner=owner_id).first()
        if last is None:
            raise InvalidRequest("That is not a cursor of this list.", code="invalid_cursor")
        mine = mine.filter(name__gte=last.name).exclude(name=last.name, pk__lte=last.pk)
    return list(mine[:limit])


# --- running -----------------------------------------------------------------------------------------


def request(found: AgentVersion, inputs: Mapping[str, JSON]) -> str:
    """What a run is told: the inputs, which must be what the agent asks for (A27.5)."""
    if problems := schemas.misfits(found.inputs_schema, inputs):
        raise InvalidRequest(
            f"The inputs are not what the agent asks for: {problems[0]}",
            code="inputs_invalid",
            details={"errors": problems},
        )
    if not inputs:
        return "Do your work. There are no inputs."
    return clean_text(f"Do your work with these inputs:\n\n{schemas.written(inputs)}")


# --- building ----------------------------------------------------------------------------------------


def builder_context(owner_id: int, agent_id: UUID) -> str:
    """The agent as it stands, in front of a message of its builder session (A27.7)."""
    try:
        shown = version(owner_id, agent_id)
    except NotFound:
        return block("builder_context", "status: fetch_failed")
    cut = shown.instructions[:SHOWN_INSTRUCTIONS]
    left_out = len(shown.instructions) - len(cut)
    lines = [
        f"id: {agent_id}",
        f"name: {escape(shown.name)}",
        f"version: {shown.number}",
        f"tier: {escape(shown.tier or 'standard')}",
        f"description: {escape(shown.description)}",
        f"tools: {_entries(shown.tools) if shown.tools is not None else 'all that the caller has'}",
        f"inputs: {_entries(schemas.named(shown.inputs_schema))}",
        f"instructions{f' (the first {SHOWN_INSTRUCTIONS:,} characters)' if left_out else ''}:",
        escape(cut),
    ]
    return block("builder_context", "\n".join(lines))


def _entries(names: list[str]) -> str:
    shown = ", ".join(escape(name) for name in names[:SHOWN_ENTRIES])
    more = len(names) - SHOWN_ENTRIES
    return (shown or "none") + (f" and {more} more" if more > 0 else "")


def erase(owner_id: int) -> int:
    """Of an account that goes, whose sessions are gone already (S17)."""
    removed, _ = Agent.objects.filter(owner=owner_id).delete()
    return removed
