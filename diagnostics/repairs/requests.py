"""What became of a repair (D8)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Annotated
from uuid import UUID

from django.conf import settings
from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from config.core.errors import Conflict, InvalidRequest, RequestRefused
from diagnostics.audit import TargetState


@dataclass(frozen=True, kw_only=True)
class Skip:
    id: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class Result:
    """`requested` is always `changed` and the skipped ones together."""

    action: str
    requested: int
    changed: int
    skipped: list[Skip] = field(default_factory=list)
    remaining: int = 0
    dry_run: bool = False
    audit_id: str = ""
    preview_id: str | None = None

    def to_dict(self) -> dict[str, object]:
        return {name: value for name, value in asdict(self).items() if name != "audit_id"}


@dataclass(frozen=True, kw_only=True)
class PreviewGone:
    """How a spent preview is refused (E3)."""

    error: dict[str, object]


@dataclass(frozen=True, kw_only=True)
class RepairBatch:
    """What a repair is to be done to, and until when."""

    ids: Sequence[UUID]
    previewed: bool
    deadline: float  # by the process's own clock
    now: datetime
    reason: str


SkipReasons = Mapping[UUID, str]  # why an id is left alone; one that is missing here is, or was, changed
TargetStates = Mapping[UUID, TargetState]


# MERGED repairs.asking: A repair as somebody asks for it: parsed and bounded before anything is looked at (D8).

RepairReason = Annotated[
    str, StringConstraints(strip_whitespace=True, min_length=3, max_length=500, pattern=r"^[^\x00]*$")
]
MAX_IDS_PARSED = 100_000  # characters are cheap; a body is at most two megabytes anyhow


class RepairBody(BaseModel):
    """Ids, or a preview's; why; and that it is meant."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    ids: Annotated[list[UUID], Field(max_length=MAX_IDS_PARSED)] | None = None
    preview_id: UUID | None = None
    reason: RepairReason
    confirm: bool = False
    dry_run: bool = False


@dataclass(frozen=True, kw_only=True)
class RepairRequest:
    action: str
    reason: str
    ids: tuple[UUID, ...] = ()
    preview_id: UUID | None = None
    confirm: bool = False
    dry_run: bool = False
    all_of_them: bool = field(default=False)  # neither ids nor a preview: what matches is to be shown


class PreviewRefused(RequestRefused):
    """A preview that is spent, too old, or somebody else's."""

    status = 410
    default_code = "preview_gone"

    def __init__(self) -> None:
        super().__init__("This preview is spent, too old, or not yours. Make a new one.")


def parse_repair_request(action: str, fields: object, *, takes_ids: bool, takes_all: bool) -> RepairRequest:
    """Raises InvalidRequest, which names what is wrong, or Conflict for what was not confirmed."""
    try:
        body = RepairBody.model_validate(fields)
    except ValidationError as problem:
        raise InvalidRequest(_describe_error(problem)) from problem
    ids = tuple(dict.fromkeys(body.ids or ()))
    if body.ids is not None and not takes_ids:
        raise InvalidRequest("ids: this repair takes a preview, made by a dry run.")
    if body.preview_id is not None and (not takes_all or body.ids is not None):
        raise InvalidRequest("preview_id: not with ids, and not for this repair.")
    if body.ids is None and body.preview_id is None and not takes_all:
        raise InvalidRequest("ids: name at least one.")
    if len(ids) > settings.DIAG_BULK_MAX:
        raise InvalidRequest(f"ids: at most {settings.DIAG_BULK_MAX} at once.", code="too_many_ids")
    asked = RepairRequest(
        action=action,
        reason=body.reason,
        ids=ids,
        preview_id=body.preview_id,
        confirm=body.confirm,
        dry_run=body.dry_run,
        all_of_them=body.ids is None and body.preview_id is None,
    )
    _check_confirmed(asked)
    return asked


def _check_confirmed(asked: RepairRequest) -> None:
    if not asked.confirm and not asked.dry_run:
        raise Conflict(
            "Say `confirm: true` once you have seen what this changes.", code="confirmation_required"
        )
    if asked.all_of_them and not asked.dry_run:
        raise InvalidRequest("preview_id: look first, by a dry run, and act on what it showed.")


def _describe_error(problem: ValidationError) -> str:
    first = problem.errors(include_url=False, include_input=False, include_context=False)[0]
    where = ".".join(str(part) for part in first["loc"])[:100] or "body"
    return f"{where}: {first['msg']}"
