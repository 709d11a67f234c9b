"""Requests for repairs, parsed and bounded before anything is read, and their results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Annotated
from uuid import UUID

from django.conf import settings
from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from config.core.errors import Conflict, InvalidRequest, RequestRefused
from config.core.json_values import list_field_errors
from diagnostics.audit import TargetState


@dataclass(frozen=True, kw_only=True)
class Skip:
    id: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class Result:
    """`requested` is always the sum of `changed` and the skipped ones."""

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
    """The error of a preview that can no longer be used."""

    error: dict[str, object]


@dataclass(frozen=True, kw_only=True)
class RepairBatch:
    """The targets of a repair, and its deadline."""

    ids: Sequence[UUID]
    previewed: bool
    deadline: float  # by the monotonic clock of this process
    now: datetime
    reason: str


SkipReasons = Mapping[UUID, str]  # why an id is skipped; ids without a reason are changed
TargetStates = Mapping[UUID, TargetState]


# --- Requests ---

RepairReason = Annotated[
    str, StringConstraints(strip_whitespace=True, min_length=3, max_length=500, pattern=r"^[^\x00]*$")
]
MAX_IDS_PARSED = 100_000  # a body is at most two megabytes anyway


class RepairBody(BaseModel):
    """Ids or the id of a preview, a reason, and the confirmation."""

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
    all_of_them: bool = field(default=False)  # neither ids nor a preview: show what matches


class PreviewRefused(RequestRefused):
    """A preview that is used up, too old, or somebody else's."""

    status = 410
    default_code = "preview_gone"

    def __init__(self) -> None:
        super().__init__("This preview was already used, is too old, or is not yours. Create a new one.")


def parse_repair_request(action: str, fields: object, *, takes_ids: bool, takes_all: bool) -> RepairRequest:
    """Parse a request; raise InvalidRequest with what is wrong, or Conflict if it was not confirmed."""
    try:
        body = RepairBody.model_validate(fields)
    except ValidationError as problem:
        raise InvalidRequest(_describe_error(problem)) from problem
    ids = tuple(dict.fromkeys(body.ids or ()))
    if body.ids is not None and not takes_ids:
        raise InvalidRequest("ids: this repair takes the preview of a dry run instead.")
    if body.preview_id is not None and (not takes_all or body.ids is not None):
        raise InvalidRequest("preview_id: not allowed with ids or for this repair.")
    if body.ids is None and body.preview_id is None and not takes_all:
        raise InvalidRequest("ids: send at least one.")
    if len(ids) > settings.DIAG_BULK_MAX:
        raise InvalidRequest(f"ids: send at most {settings.DIAG_BULK_MAX} at once.", code="too_many_ids")
    request = RepairRequest(
        action=action,
        reason=body.reason,
        ids=ids,
        preview_id=body.preview_id,
        confirm=body.confirm,
        dry_run=body.dry_run,
        all_of_them=body.ids is None and body.preview_id is None,
    )
    _check_confirmed(request)
    return request


def _check_confirmed(request: RepairRequest) -> None:
    if not request.confirm and not request.dry_run:
        raise Conflict(
            "Send `confirm: true` once you have checked what this changes.", code="confirmation_required"
        )
    if request.all_of_them and not request.dry_run:
        raise InvalidRequest("preview_id: make a dry run first, and send its preview.")


def _describe_error(problem: ValidationError) -> str:
    first = list_field_errors(problem)[0]
    return f"{first.field or 'body'}: {first.message}"
