"""What providers say when they refuse, and the class each saying belongs to (A6)."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import get_args

import pytest

from copilot.chat.notices import NOTICES
from copilot.providers import failures
from copilot.providers.base import FailureCode


def openai(
    message: str, *, type_: str = "invalid_request_error", code: str | None = None, param: str | None = None
) -> str:
    return json.dumps({"error": {"message": message, "type": type_, "param": param, "code": code}})


def anthropic(message: str, type_: str = "invalid_request_error") -> str:
    error = {"type": type_, "message": message}
    return json.dumps({"type": "error", "error": error, "request_id": "req_011"})


def gateway(message: str, code: int, raw: str = "") -> str:
    metadata = {"provider_name": "Upstream", "raw": raw} if raw else {}
    return json.dumps({"error": {"message": message, "code": code, "metadata": metadata}, "user_id": "u"})


HTML_404 = "<!DOCTYPE html><html><head><style>p{x:1}</style><title>404</title></head><body><h1>Not Found</h1><script>var a=500;</script><p>nginx</p></body></html>"

BODIES: list[tuple[int | None, str, str]] = [
    # quota, before rate limit and auth
    (429, openai("You exceeded your current quota, please check your plan and billing details.", type_="insufficient_quota", code="insufficient_quota"), "quota_exhausted"),
    (429, openai("Billing hard limit has been reached", code="billing_hard_limit_reached"), "quota_exhausted"),
    (402, gateway("Insufficient credits", 402), "quota_exhausted"),
    (402, "Payment Required", "quota_exhausted"),
    (402, gateway("This request requires more credits, or fewer max_tokens. You requested up to 8192 tokens, but can only afford 1204.", 402), "quota_exhausted"),
    (400, anthropic("Your credit balance is too low to access the Anthropic API. Please go to Plans & Billing."), "quota_exhausted"),
    (400, anthropic("billing", "billing_error"), "quota_exhausted"),
    (429, anthropic("Your plan limit has been reached; it resets at 5pm.", "rate_limit_error"), "quota_exhausted"),
    (403, openai("Your account has insufficient balance"), "quota_exhausted"),
    (429, openai("Monthly limit reached for this key"), "quota_exhausted"),
    (429, json.dumps({"error": "quota exceeded for today"}), "quota_exhausted"),
    (429, openai("Usage limit reached. Upgrade your plan."), "quota_exhausted"),
    # rate limit
    (429, openai("Rate limit reached for gpt in organization org-1 on tokens per min (TPM): Limit 30000, Used 29500, Requested 1500.", type_="tokens", code="rate_limit_exceeded"), "rate_limited"),
    (429, anthropic("This request would exceed your organization's rate limit of 50 requests per minute.", "rate_limit_error"), "rate_limited"),
    (429, "", "rate_limited"),
    (429, "<html><body>Too Many Requests</body></html>", "rate_limited"),
    (429, gateway("Provider returned error", 429, "upstream is temporarily rate-limited"), "rate_limited"),
    (429, json.dumps({"message": "Requests rate limit exceeded"}), "rate_limited"),
    (400, json.dumps({"error": {"code": "throttling_exception", "message": "Too many tokens, please wait"}}), "rate_limited"),
    # credentials
    (401, openai("Incorrect API key provided: sk-abcd****************wxyz.", code="invalid_api_key"), "auth_failed"),
    (401, anthropic("invalid x-api-key", "authentication_error"), "auth_failed"),
    (401, "Unauthorized", "auth_failed"),
    (403, anthropic("Your API key does not have permission to use the specified resource.", "permission_error"), "auth_failed"),
    (403, "Forbidden", "auth_failed"),
    (400, json.dumps([{"error": {"code": 400, "message": "API key not valid. Please pass a valid API key.", "status": "INVALID_ARGUMENT"}}]), "auth_failed"),
    (401, json.dumps({"detail": "Authentication required"}), "auth_failed"),
    # the model
    (404, openai("The model `gpt-9` does not exist or you do not have access to it.", code="model_not_found"), "model_not_found"),
    (404, anthropic("model: claude-9", "not_found_error"), "model_not_found"),
    (404, HTML_404, "model_not_found"),
    (404, json.dumps({"error": {"message": "model 'llama9' not found, try pulling it first", "type": "api_error"}}), "model_not_found"),
    (400, gateway("foo/bar is not a valid model ID", 400), "model_not_found"),
    (400, json.dumps({"object": "error", "message": "The model `x` is not served here", "type": "BadRequestError", "code": 400}), "model_not_found"),
    (404, gateway("No endpoints found for foo/bar.", 404), "model_not_found"),
    (400, openai("Unknown model: gpt-x"), "model_not_found"),
    (403, openai("Project `p` does not have access to model `gpt-9`; the model is not available"), "model_not_found"),
    # too long
    (400, openai("This model's maximum context length is 128000 tokens. However, your messages resulted in 130500 tokens.", code="context_length_exceeded"), "context_overflow"),
    (400, anthropic("prompt is too long: 210500 tokens > 200000 maximum"), "context_overflow"),
    (413, anthropic("Request exceeds the maximum allowed number of bytes.", "request_too_large"), "context_overflow"),
    (413, "<html><body>413 Request Entity Too Large</body></html>", "context_overflow"),
    (400, json.dumps({"object": "error", "message": "This model's maximum context length is 4096 tokens. Please reduce the length of the messages.", "code": 400}), "context_overflow"),
    (400, anthropic("input length and `max_tokens` exceed context limit: 190000 + 20000 > 200000"), "context_overflow"),
    (400, gateway("This endpoint's maximum context length is 32768 tokens", 400), "context_overflow"),
    (400, json.dumps({"error": "the request exceeds the available context size. try increasing it"}), "context_overflow"),
    (400, openai("Input token count (140500) exceeds the maximum number of tokens allowed"), "context_overflow"),
    # unavailable
    (500, openai("The server had an error while processing your request.", type_="server_error"), "overloaded"),
    (500, anthropic("Internal server error", "api_error"), "overloaded"),
    (502, "<html><head><title>502 Bad Gateway</title></head></html>", "overloaded"),
    (503, "upstream connect error or disconnect/reset before headers", "overloaded"),
    (504, "", "overloaded"),
    (529, anthropic("Overloaded", "overloaded_error"), "overloaded"),
    (524, "<html>A timeout occurred</html>", "overloaded"),
    (408, "Request Timeout", "overloaded"),
    (500, "unknown model exception in worker", "overloaded"),
    # in the middle of a stream, without a status
    (None, anthropic("Overloaded", "overloaded_error"), "overloaded"),
    (None, anthropic("Number of request tokens has exceeded your rate limit", "rate_limit_error"), "rate_limited"),
    (None, openai("The server had an error", type_="server_error"), "overloaded"),
    (None, json.dumps({"error": {"message": "something odd"}}), "unknown"),
    (None, json.dumps({"type": "error", "code": "rate_limit_exceeded", "message": "Slow down.", "param": None}), "rate_limited"),
    (None, json.dumps({"error": {"code": "server_is_overloaded", "message": "Our servers are busy."}}), "overloaded"),
    (None, json.dumps({"error": {"code": "image_content_policy_violation", "message": "No."}}), "refused"),
    # reasoning
    (400, openai("Unsupported value: 'reasoning_effort' does not support 'xhigh' with this model.", code="unsupported_value"), "effort_invalid"),
    (400, anthropic("output_config.effort: Input should be 'low', 'medium' or 'high'"), "effort_invalid"),
    (400, openai("Unrecognized request argument supplied: reasoning"), "thinking_unsupported"),
    (400, anthropic("adaptive thinking is not supported on this model"), "thinking_unsupported"),
    (400, anthropic('"thinking.type.enabled" is not supported for this model. Use "thinking.type.adaptive".'), "thinking_unsupported"),
    (400, json.dumps({"error": {"message": "model does not support thinking", "type": "invalid_request_error"}}), "thinking_unsupported"),
    (400, anthropic("messages.1.content.0: Invalid `signature` in `thinking` block"), "thinking_signature_invalid"),
    (400, anthropic("messages.3.content.0.thinking.signature: Field required"), "thinking_signature_invalid"),
    (400, anthropic("`thinking` or `redacted_thinking` blocks in the latest assistant message cannot be modified."), "thinking_signature_invalid"),
    (400, openai("The encrypted content gAAA... could not be verified.", code="invalid_encrypted_content"), "thinking_signature_invalid"),
    (400, openai("The encrypted content for item rs_1 could not be verified."), "thinking_signature_invalid"),
    (400, openai("Item with id 'rs_0a1' not found. Items are not persisted when `store` is set to false."), "thinking_signature_invalid"),
    (400, openai("Item 'rs_0a1' of type 'reasoning' was provided without its required following item."), "thinking_signature_invalid"),
    (400, openai("Unsupported parameter: 'reasoning.effort' is not supported with this model.", code="unsupported_parameter"), "effort_invalid"),
    (400, openai("Unsupported parameter: 'reasoning.summary' is not supported with this model.", code="unsupported_parameter"), "thinking_unsupported"),
    # images
    (400, openai("Invalid content type. image_url is only supported by certain models; this one does not support images"), "media_unsupported"),
    (400, anthropic("messages.0.content.1.image.source.base64: image exceeds 5 MB maximum: 6500000 bytes"), "media_unsupported"),
    (404, gateway("No endpoints found that support image input", 404), "media_unsupported"),
    (400, anthropic("Could not process image: unsupported format"), "media_unsupported"),
    (413, anthropic("image is too large", "request_too_large"), "media_unsupported"),
    (400, openai("The image data you provided does not represent a valid image.", code="invalid_base64_image"), "media_unsupported"),
    # declined
    (400, openai("Invalid prompt: please try again with a different prompt.", code="invalid_prompt"), "refused"),
    (400, openai("The response was filtered due to the prompt triggering Azure's content management policy.", code="content_filter"), "refused"),
    (403, gateway("Your input was flagged by the moderation of the provider", 403), "refused"),
    (400, openai("Your request was rejected as a result of our safety system.", code="content_policy_violation"), "refused"),
    # servers of other makers
    (400, json.dumps({"code": "Client specified an invalid argument", "error": "This model's maximum prompt length is 131072 but the request contains 140000 tokens."}), "context_overflow"),
    (400, json.dumps({"object": "error", "message": "Prompt contains 40000 tokens, too large for model with 32768 maximum context length", "code": "3051"}), "context_overflow"),
    (422, openai("`inputs` tokens + `max_new_tokens` must be <= 8193. Given: 9000 `inputs` tokens and 512 `max_new_tokens`"), "context_overflow"),
    (403, gateway("Key limit exceeded (total limit).", 403), "quota_exhausted"),
    (429, openai("You've reached your usage limit for this billing cycle."), "quota_exhausted"),
    (400, anthropic("You have reached your specified API usage limits. You will regain access on 2026-12-01 at 00:00 UTC."), "quota_exhausted"),
    (500, openai("image input is not supported - hint: if this is unexpected, you may need to provide the mmproj", type_="server_error"), "media_unsupported"),
    (400, openai("Failed to deserialize the JSON body: messages[0]: unknown variant `image_url`, expected `text`"), "media_unsupported"),
    (400, openai("At most 0 image(s) may be provided in one prompt."), "media_unsupported"),
    (400, openai("m is not a multimodal model"), "media_unsupported"),
    (400, openai("Invalid content type. image_url is only supported by certain models."), "media_unsupported"),
    (500, openai("The service that draws an image could not be reached"), "overloaded"),
    (429, openai("You have reached your rate limit of 50 requests per minute."), "rate_limited"),
    # only the parameter says what it is about
    (400, openai("Unsupported value: 'xhigh' is not supported with the 'gpt-5' model. Supported values are: 'low', 'medium', and 'high'.", code="unsupported_value", param="reasoning.effort"), "effort_invalid"),
    (400, openai("Invalid value: 'max'. Supported values are: 'none', 'minimal', 'low', 'medium', 'high', and 'xhigh'.", code="invalid_value", param="reasoning_effort"), "effort_invalid"),
    (400, openai("Your organization must be verified to generate reasoning summaries.", code="unsupported_value", param="reasoning.summary"), "thinking_unsupported"),
    (400, openai("Encrypted content is not supported with this model.", code="invalid_value", param="include"), "thinking_unsupported"),
    (400, openai("Expected a valid URL, but got a value with an invalid format.", code="invalid_value", param="input[2].content[1].image_url"), "media_unsupported"),
    (400, openai("Unsupported parameter: 'temperature' is not supported with this model.", code="unsupported_parameter", param="temperature"), "bad_request"),
    # in the middle of a stream
    (None, openai("You exceeded your current quota, please check your plan.", code="rate_limit_exceeded"), "quota_exhausted"),
    (None, anthropic("Your credit balance is too low", "api_error"), "quota_exhausted"),
    # ordinary mistakes; numbers in free text mean nothing
    (400, openai("max_tokens is too large: the model supports at most maximum 1500 tokens of completion"), "bad_request"),
    (400, openai("Invalid value at line 429: expected 500 items"), "bad_request"),
    (422, json.dumps({"detail": [{"loc": ["body"], "msg": "field required"}]}), "bad_request"),
    (400, "", "bad_request"),
    (409, openai("Conflict"), "bad_request"),
]  # fmt: skip


def test_the_table_is_long_enough_a6_c1() -> None:
    assert len(BODIES) >= 60


@pytest.mark.parametrize(("status", "body", "code"), BODIES)
def test_every_recorded_body_has_its_class_a6_c1(status: int | None, body: str, code: str) -> None:
    failure = (
        failures.classify_stream_error(body)
        if status is None
        else failures.classify_response(status, body, {})
    )
    assert failure.code == code


def test_a_server_that_echoes_the_request_is_not_judged_by_it() -> None:
    """A6.1, A1.1: what people wrote is no complaint, and megabytes of it are not looked through on the loop."""
    said = "Our rate limit is too low: the credit balance is used up."
    echo = json.dumps(
        {"detail": [{"loc": ["body", "tools"], "msg": "Field required", "input": {"text": said}}]}
    )
    failure = failures.classify_response(422, echo, {})
    assert (failure.code, failure.details) == ("bad_request", "Field required")
    assert failures.classify_response(400, openai("No. " + "x" * 20_000 + said), {}).code == "bad_request"
    assert failures.classify_response(400, "No. " + "x" * 20_000 + said, {}).code == "bad_request"


def test_a_html_page_leaves_words_alone_a6_2() -> None:
    failure = failures.classify_response(404, HTML_404, {})
    assert failure.details == "Not Found nginx"


def test_details_are_short_and_hold_no_key_a6_c2() -> None:
    key = "sk-proj-" + "a1B2" * 10
    body = openai(f"Bad key {key} in Authorization: Bearer {key}, api_key={key}. " + "x" * 5000)
    details = failures.classify_response(401, body, {}).details
    assert key not in details
    assert "a1B2a1B2" not in details
    assert len(details) == failures.MAX_DETAILS_CHARACTERS
    assert details.endswith("…")


def test_a_gateway_status_in_the_body_counts_in_a_stream() -> None:
    failure = failures.classify_stream_error(gateway("Provider returned error", 429))
    assert (failure.code, failure.status) == ("rate_limited", 429)


def test_the_providers_request_id_is_kept_a6_2() -> None:
    assert failures.classify_response(500, "", {"x-request-id": "req_1"}).request_id == "req_1"
    assert (
        failures.classify_response(529, anthropic("Overloaded", "overloaded_error"), {}).request_id
        == "req_011"
    )


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "20"}, 20.0),
        ({"retry-after": "1.5"}, 1.5),
        ({"retry-after-ms": "250", "retry-after": "1"}, 0.25),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "-5"}, None),
        ({"retry-after": "nan"}, None),
    ],
)
def test_retry_after_is_read_a7_1(headers: dict[str, str], seconds: float | None) -> None:
    assert failures.parse_retry_after(headers) == seconds


def test_retry_after_may_be_a_date_a7_1() -> None:
    moment = datetime.now(UTC) + timedelta(seconds=40)
    waited = failures.parse_retry_after({"retry-after": format_datetime(moment, usegmt=True)})
    assert waited is not None
    assert 35 < waited <= 40


CLOSED_LIST = (
    "cancelled stopped interrupted idle_timeout worker_lost round_limit loop_detected tool_calls_broken budget_reached "
    "limit_reached time_limit output_truncated context_full compaction_failed server_unavailable never_started "
    "goal_paused schedule_disabled file_quarantined invalid_output"
)


def test_notices_are_the_closed_list_a6_5() -> None:
    assert set(NOTICES) == {*get_args(FailureCode), *CLOSED_LIST.split()}
    assert all(notice.label and notice.hint for notice in NOTICES.values())
