"""Errors that all apps share. A `RequestRefused` carries the HTTP status and code for the client."""

from __future__ import annotations

from typing import ClassVar

ErrorDetailValue = str | int | float | bool | None | list[str] | dict[str, list[str]]


class PilothouseError(Exception):
    """Root of the tree; never raised itself."""

    retryable: ClassVar[bool] = False


class RequestRefused(PilothouseError):
    """Raised for a request that was understood and cannot be served as it is."""

    status: int = 400
    default_code: ClassVar[str] = "invalid_request"

    def __init__(
        self,
        message: str,
        *,
        code: str = "",
        hint: str = "",
        retry_after_seconds: int | None = None,
        **details: ErrorDetailValue,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code or self.default_code
        self.hint = hint
        self.retry_after_seconds = retry_after_seconds
        self.details = details

    def to_body(self) -> dict[str, ErrorDetailValue]:
        """Return the fields of the error object in responses."""
        fields: dict[str, ErrorDetailValue] = {"code": self.code, "message": self.message}
        if self.hint:
            fields["hint"] = self.hint
        if self.retry_after_seconds is not None:
            fields["retry_after_seconds"] = self.retry_after_seconds
        return fields | self.details


class InvalidRequest(RequestRefused):
    status = 400


class Forbidden(RequestRefused):
    status = 403
    default_code = "forbidden"


class NotFound(RequestRefused):
    status = 404
    default_code = "not_found"

    def __init__(self, message: str = "Not found.") -> None:
        super().__init__(message)


class Conflict(RequestRefused):
    status = 409
    default_code = "conflict"


class PayloadTooLarge(RequestRefused):
    status = 413
    default_code = "too_large"


class TooManyRequests(RequestRefused):
    status = 429
    default_code = "too_many_requests"


class ServiceUnavailable(RequestRefused):
    """Raised when Redis or Postgres did not answer; the same request may be sent again."""

    status = 503
    default_code = "unavailable"
    retryable = True

    def __init__(self, message: str = "The service is unavailable for a moment. Please try again.") -> None:
        super().__init__(message, retry_after_seconds=2)


class StorageUnavailable(ServiceUnavailable):
    """Raised when the content of a file could not be stored or read."""

    default_code = "storage_unavailable"

    def __init__(self) -> None:
        super().__init__("The file store is unavailable for a moment. Please try again.")
        self.retry_after_seconds = 5


class OutcomeUnknown(ServiceUnavailable):
    """Raised when the database went away before it confirmed a message; with a run_id, sending it again is safe."""

    status = 504
    default_code = "outcome_unknown"

    def __init__(self) -> None:
        super().__init__("It is not known whether this was accepted. Please look before you send it again.")


class ScanFailed(PilothouseError):
    """Raised when a scan hook gave no verdict."""

    retryable = True


class TurnConflict(PilothouseError):
    """Raised for a transition that a turn cannot make from its current status."""


class FenceLost(TurnConflict):
    """Raised when another worker owns the turn; nothing this worker still writes counts."""
