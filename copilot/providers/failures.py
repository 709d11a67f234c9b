"""Classify every provider failure: by status and structured code first, then by documented wording."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

import msgspec

from config.core.json_values import JSON
from config.core.redaction import MASK, redact
from config.core.text import make_storable
from copilot.providers.base import FailureCode, ProviderFailure

MAX_DETAILS_CHARACTERS = 1200  # including the ellipsis
# Of an error body: some servers echo the request, and parsing megabytes would block the event loop.
MAX_BODY_CHARACTERS = 16_000

_VENDOR_CODES: dict[FailureCode, str] = {
    "quota_exhausted": "insufficient_quota billing_hard_limit_reached billing_not_active billing_error"
    " credit_balance_too_low usage_limit_reached",
    "rate_limited": "rate_limit_exceeded rate_limit_error throttling_exception",
    "auth_failed": "invalid_api_key authentication_error permission_error permission_denied account_deactivated",
    "model_not_found": "model_not_found model_not_available not_found_error",
    "context_overflow": "context_length_exceeded request_too_large string_above_max_length",
    "overloaded": "overloaded_error api_error server_error timeout_error service_unavailable engine_overloaded"
    " server_is_overloaded slow_down",
    "refused": "content_filter content_policy_violation invalid_prompt bio_policy misalignment_policy_violation"
    " image_content_policy_violation",
    "media_unsupported": "image_parse_error invalid_image invalid_image_format invalid_image_mode"
    " invalid_base64_image invalid_image_url image_too_large image_too_small image_file_too_large"
    " unsupported_image_media_type empty_image_file failed_to_download_image image_file_not_found",
    "thinking_signature_invalid": "invalid_encrypted_content",
}
FAILURE_BY_VENDOR_CODE = {code: failure for failure, codes in _VENDOR_CODES.items() for code in codes.split()}

# The request field that a refusal is about, if the vendor names it: the message may not.
PARAMETERS: tuple[tuple[re.Pattern[str], FailureCode], ...] = (
    (re.compile(r"reasoning[._]effort$|output_config\.effort$"), "effort_invalid"),
    (re.compile(r"(?:reasoning|thinking)(?:\.|$)|include(?:\[|$)"), "thinking_unsupported"),
    (re.compile(r".*\bimage_url\b"), "media_unsupported"),
)

# Families of wording in order of precedence: quota before rate limit, both before auth. Words only match
# when they are close together in one sentence; a dot inside a field name does not end one.
QUOTA = re.compile(
    r"credit balance|insufficient (?:quota|credit|balance|funds)|can only afford|fewer max[_ ]tokens"
    r"|(?:plan|usage|spend(?:ing)?|monthly|weekly|daily) limit (?:has been )?(?:reached|exceeded)|exceeded your current quota"
    r"|reached your (?:\w+ ){0,2}(?:usage|spend(?:ing)?|credit) limits?|key limit exceeded"
    r"|billing (?:hard )?limit|payment required|out of credits|quota (?:has been )?(?:exceeded|exhausted)",
    re.I,
)
RATE = re.compile(
    r"rate[ _-]?limit|too many requests|throttl|tokens per (?:min|day)|requests per (?:min|day)", re.I
)
AUTH = re.compile(
    r"(?:invalid|incorrect|missing|expired|revoked|no) (?:api[ _-]?key|x-api-key|credentials|auth)"
    r"|api key (?:not valid|is invalid|not found)|unauthori[sz]ed|authentication (?:failed|required)",
    re.I,
)
MODEL = re.compile(
    r"model(?:[^.\n]|\.(?=\w)){0,120}?(?:not found|does not exist|doesn't exist|not (?:a )?valid|is not (?:served|available|supported)"
    r"|not exist|no longer available|has been (?:deprecated|retired))"
    r"|(?:unknown|invalid|unsupported|no such) model|not a valid model|no endpoints found",
    re.I,
)
OVERFLOW = re.compile(
    r"(?:maximum )?context (?:length|window|size)(?:[^.\n]|\.(?=\w)){0,80}?(?:exceed|reached|is|of|too)|exceeds? (?:the |this )?(?:model'?s? )?"
    r"(?:maximum |available )?context|(?:prompt|input|request|conversation|messages?)(?:[^.\n]|\.(?=\w)){0,40}? (?:is |are )?too (?:long|large|many tokens)"
    r"|maximum prompt length|too large for model|tokens`? \+ `?max_(?:new_)?tokens"
    r"|too many (?:input |prompt )?tokens|input (?:token count|length)(?:[^.\n]|\.(?=\w)){0,60}?exceed|reduce the length of the (?:messages|prompt)",
    re.I,
)
SIGNATURE = re.compile(
    r"(?:invalid|missing|bad|verif)(?:[^.\n]|\.(?=\w)){0,60}?signature|signature(?:[^.\n]|\.(?=\w)){0,60}?(?:invalid|thinking|required)|"
    r"thinking(?:[^.\n]|\.(?=\w)){0,80}?(?:cannot be modified|must (?:remain|be passed)|start with a thinking)"
    r"|encrypted content(?:[^.\n]|\.(?=\w)){0,80}?could not be|\brs_\w+'(?: not found| of type 'reasoning' was provided without)",
    re.I,
)
EFFORT = re.compile(
    r"reasoning[_. ]?effort|output_config\.effort|effort (?:level|value|parameter)|effort(?:[^.\n]|\.(?=\w)){0,40}?(?:not supported|invalid|must be|one of)",
    re.I,
)
THINKING = re.compile(
    r"(?:thinking|reasoning|enable_thinking|budget_tokens)(?:[^.\n]|\.(?=\w)){0,80}?(?:not support|unsupported|unrecogni[sz]ed|not (?:allowed|permitted|available)|unknown|unexpected|extra inputs)"
    r"|(?:not support|unsupported|unrecogni[sz]ed|unknown|unexpected)(?:[^.\n]|\.(?=\w)){0,60}?(?:thinking|reasoning|budget_tokens)",
    re.I,
)
MEDIA = re.compile(
    r"(?:image|media|vision|picture|multimodal|image_url)(?:[^.\n]|\.(?=\w)){0,100}?(?:not support|unsupported|invalid|exceed|too (?:large|big|many)|could not|cannot|not (?:allowed|accepted|enabled))"
    r"|(?:not support|unsupported|no endpoints found that support|does not accept|cannot (?:process|read))(?:[^.\n]|\.(?=\w)){0,60}?(?:image|media|vision|multimodal)"
    r"|unknown variant `?image_url|at most 0 image|not a (?:multimodal|vision) model|image_url is only supported",
    re.I,
)
NO_PICTURES = re.compile(r"image input is not supported|required for image input", re.I)  # with status 500
REFUSED = re.compile(
    r"content (?:filter|management policy|policy)|safety (?:system|policy|filter)|flagged (?:by|as|for)|usage polic(?:y|ies)",
    re.I,
)
BUSY = re.compile(
    r"overloaded|temporarily unavailable|service unavailable|internal (?:server )?error|bad gateway|gateway time-?out|timed? ?out"
    r"|connection (?:reset|refused|closed|error|aborted)|try again later|no healthy upstream|capacity",
    re.I,
)
FAMILIES_4XX: tuple[tuple[re.Pattern[str], FailureCode], ...] = (
    (QUOTA, "quota_exhausted"),
    (RATE, "rate_limited"),
    (AUTH, "auth_failed"),
    (SIGNATURE, "thinking_signature_invalid"),
    (EFFORT, "effort_invalid"),
    (THINKING, "thinking_unsupported"),
    (MEDIA, "media_unsupported"),
    (OVERFLOW, "context_overflow"),
    (MODEL, "model_not_found"),
    (REFUSED, "refused"),
)
FAMILIES_ANY = (*FAMILIES_4XX, (BUSY, "overloaded"))


@dataclass(frozen=True, kw_only=True)
class ErrorBody:
    """A provider's error, whatever its format."""

    codes: tuple[str, ...]
    message: str
    status: int | None = None  # some gateways put the upstream's status into the body
    parameter: str = ""
    request_id: str = ""


def classify_response(status: int, body: str, headers: Mapping[str, str]) -> ProviderFailure:
    """Classify an HTTP error response. Nothing was generated, so nothing is billed."""
    error_body = parse_error_body(body)
    return ProviderFailure(
        choose_failure_code(status, error_body),
        details=clean_details(error_body.message),
        status=status,
        retry_after_seconds=parse_retry_after(headers),
        request_id=headers.get("x-request-id") or headers.get("request-id") or error_body.request_id,
        refused_before_work=True,
    )


def classify_stream_error(payload: str, *, request_id: str = "") -> ProviderFailure:
    error_body = parse_error_body(payload)
    return ProviderFailure(
        choose_failure_code(error_body.status, error_body),
        details=clean_details(error_body.message),
        status=error_body.status,
        request_id=error_body.request_id or request_id,
    )


def classify_connection_error(error: BaseException, *, before_work: bool) -> ProviderFailure:
    message = str(error) or type(error).__name__
    return ProviderFailure("overloaded", details=clean_details(message), refused_before_work=before_work)


def choose_failure_code(status: int | None, error_body: ErrorBody) -> FailureCode:
    coded = next(
        (FAILURE_BY_VENDOR_CODE[code] for code in error_body.codes if code in FAILURE_BY_VENDOR_CODE), None
    )
    text = error_body.message
    if (
        status == 402
        or coded == "quota_exhausted"
        or (status in {None, 400, 403, 429} and QUOTA.search(text))
    ):
        return "quota_exhausted"
    if status is None:
        coded = coded or _code_from_parameter(error_body.parameter)
        return coded or _code_from_words(text, FAMILIES_ANY) or "unknown"
    if status == 429 or coded == "rate_limited":
        return "rate_limited"
    if status >= 500 and NO_PICTURES.search(text):
        return "media_unsupported"
    if status >= 500:
        return coded if coded in {"context_overflow", "refused"} else "overloaded"
    return _classify_client_error(status, coded or _code_from_parameter(error_body.parameter), text)


def _code_from_parameter(name: str) -> FailureCode | None:
    return next((code for pattern, code in PARAMETERS if pattern.match(name)), None)


def _classify_client_error(status: int, coded: FailureCode | None, text: str) -> FailureCode:
    if status == 401:
        return "auth_failed"
    if status == 403:
        worded = _code_from_words(
            text, ((REFUSED, "refused"), (MODEL, "model_not_found"), (OVERFLOW, "context_overflow"))
        )
        return worded or coded or "auth_failed"
    if status == 408:
        return "overloaded"
    if status == 413:
        return "media_unsupported" if MEDIA.search(text) else "context_overflow"
    if status == 404:
        return "media_unsupported" if MEDIA.search(text) else "model_not_found"
    if coded is not None and coded != "overloaded":
        return coded
    return _code_from_words(text, FAMILIES_4XX) or ("bad_request" if 400 <= status < 500 else "unknown")


def _code_from_words(
    text: str, families: tuple[tuple[re.Pattern[str], FailureCode], ...]
) -> FailureCode | None:
    return next((code for pattern, code in families if pattern.search(text)), None)


# --- Error bodies ---


def parse_error_body(body: str) -> ErrorBody:
    """Parse error objects of OpenAI, Anthropic and gateways; anything else is text."""
    error_body = _parse_body(body)
    return replace(error_body, message=error_body.message[:MAX_BODY_CHARACTERS])


def _parse_body(body: str) -> ErrorBody:
    try:
        value: JSON = msgspec.json.decode(body)
    except msgspec.DecodeError:
        return ErrorBody(codes=(), message=body)
    if isinstance(value, list) and value:
        value = value[0]
    if not isinstance(value, dict):
        return ErrorBody(codes=(), message=body)
    error = value.get("error", value)
    request_id = value.get("request_id")
    if isinstance(error, str):
        return ErrorBody(codes=_error_codes(value), message=error, request_id=_string_or_empty(request_id))
    if not isinstance(error, dict):
        return ErrorBody(codes=(), message=body)
    return ErrorBody(
        codes=_error_codes(error),
        message=_error_message(error) or body,
        status=_parse_status(error.get("code")) or _parse_status(error.get("status_code")),
        parameter=_string_or_empty(error.get("param")),
        request_id=_string_or_empty(request_id),
    )


def _error_codes(error: dict[str, JSON]) -> tuple[str, ...]:
    details = error.get("details")
    inner = details.get("error_code") if isinstance(details, dict) else None
    found = (inner, error.get("code"), error.get("type"), error.get("status"))
    return tuple(code.lower() for code in found if isinstance(code, str))


def _error_message(error: dict[str, JSON]) -> str:
    message = (
        _string_or_empty(error.get("message"))
        or _detail_text(error.get("detail"))
        or _string_or_empty(error.get("msg"))
    )
    metadata = error.get("metadata")
    raw = metadata.get("raw") if isinstance(metadata, dict) else None
    return f"{message}: {raw}" if isinstance(raw, str) and raw else message


def _detail_text(detail: JSON) -> str:
    """Join the messages of a validation error list, without the input that each item repeats."""
    if not isinstance(detail, list):
        return _string_or_empty(detail)
    return "; ".join(_string_or_empty(item.get("msg")) for item in detail if isinstance(item, dict))


def _string_or_empty(value: JSON) -> str:
    return value if isinstance(value, str) else ""


def _parse_status(value: JSON) -> int | None:
    """Accept a status only if the body has it as a number of its own, never from text."""
    if isinstance(value, str) and value.isdigit():
        value = int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and 400 <= value <= 599 else None


# --- Details and headers ---

_INVISIBLE = re.compile(r"<(script|style|head)\b.*?(?:</\1\s*>|\Z)|<!--.*?(?:-->|\Z)", re.I | re.S)
_TAG = re.compile(r"</?[a-z!][^<>]*(?:>|\Z)", re.I)
_SECRET = re.compile(  # keys as vendors print them, half of it starred out, besides whole ones
    r"\b(?:sk|pk|rk|gsk|xai|key)[-_][A-Za-z0-9*_\-]{8,}"
    r"|(?i:api[_-]?key|access[_-]?token|secret|password|authorization)[\"']?\s*[:=]\s*[\"']?[^\s\"',;}\[]{6,}"
)


def clean_details(text: str) -> str:
    """Clean text for a page: no markup, no secrets, at most MAX_DETAILS_CHARACTERS characters."""
    text = _INVISIBLE.sub(" ", text[:MAX_BODY_CHARACTERS])
    text = _TAG.sub(" ", text)
    text = " ".join(redact(make_storable(text)).split())
    text = _SECRET.sub(MASK, text)
    return text if len(text) <= MAX_DETAILS_CHARACTERS else text[: MAX_DETAILS_CHARACTERS - 1] + "…"


def parse_retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the seconds to wait: `retry-after-ms`, or `Retry-After` in seconds or as a date."""
    milliseconds = _parse_number(headers.get("retry-after-ms", ""))
    if milliseconds is not None:
        return milliseconds / 1000
    header = headers.get("retry-after", "")
    seconds = _parse_number(header)
    if seconds is not None or not header:
        return seconds
    try:
        time = parsedate_to_datetime(header)
    except ValueError:
        return None
    if time.tzinfo is None:
        time = time.replace(tzinfo=UTC)
    return max(0.0, (time - datetime.now(UTC)).total_seconds())


def _parse_number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0 <= value < 1e9 else None
