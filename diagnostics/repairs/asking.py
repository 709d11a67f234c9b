"""A repair as somebody asks for it: parsed and bounded before anything is looked at (D8)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated
from uuid import UUID

from django.conf import settings
from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from copilot.errors import Conflict, InvalidRequest, Refused

Reason = Annotated[
    str, StringConstraints(strip_whitespace=True, min_length=3, max_length=500, pattern=r"^[^\x00]*$")
]
MOST_IDS_READ = 100_000  # characters are cheap; a body is at most two megabytes anyhow


class RepairBody(BaseModel):
    """Ids, or a preview's; why; and that it is meant."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    ids: Annotated[list[UUID], Field(max_length=MOST_IDS_READ)] | None = None
    preview_id: UUID | None = None
    reason: Reason
    confirm: bool = False
    dry_run: bool = False


@dataclass(frozen=True, kw_only=True)
class Asked:
    action: str
    reason: str
    ids: tuple[UUID, ...] = ()
    preview_id: UUID | None = None
    confirm: bool = False
    dry_run: bool = False
    all_of_them: bool = field(default=False)  # neither ids nor a preview: what matches is to be shown


class PreviewRefused(Refused):
    """A preview that is spent, too old, or somebody else's."""

    status = 410
    default_code = "preview_gone"

    def __init__(self) -> None:
        super().__init__("This preview is spent, too old, or not yours. Make a new one.")


def read(action: str, fields: object, *, takes_ids: bool, takes_all: bool) -> Asked:
    """Raises InvalidRequest, which names what is wrong, or Conflict for what was not confirmed."""
    try:
        body = RepairBody.model_validate(fields)
    except ValidationError as problem:
        raise InvalidRequest(_said(problem)) from problem
    ids = tuple(dict.fromkeys(body.ids or ()))
    if body.ids is not None and not takes_ids:
        raise InvalidRequest("ids: this repair takes a preview, made by a dry run.")
    if body.preview_id is not None and (not takes_all or body.ids is not None):
        raise InvalidRequest("preview_id: not with ids, and not for this repair.")
    if body.ids is None and body.preview_id is None and not takes_all:
        raise InvalidRequest("ids: name at least one.")
    if len(ids) > settings.DIAG_BULK_MAX:
        raise InvalidRequest(f"ids: at most {settings.DIAG_BULK_MAX} at once.", code="too_many_ids")
    asked = Asked(
        action=action,
        reason=body.reason,
        ids=ids,
        preview_id=body.preview_id,
        confirm=body.confirm,
        dry_run=body.dry_run,
        all_of_them=body.ids is None and body.preview_id is None,
    )
    _confirmed(asked)
    return asked


def _confirmed(asked: Asked) -> None:
    if not asked.confirm and not asked.dry_run:
        raise Conflict(
            "Say `confirm: true` once you have seen what this changes.", code="confirmation_required"
        )
    if asked.all_of_them and not asked.dry_run:
        raise InvalidRequest("preview_id: look first, by a dry run, and act on what it showed.")


def _said(problem: ValidationError) -> str:
    first = problem.errors(include_url=False, include_input=False, include_context=False)[0]
    where = ".".join(str(part) for part in first["loc"])[:100] or "body"
    return f"{where}: {first['msg']}"
