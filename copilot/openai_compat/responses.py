"""`/v1/responses`: a response is a message of a session with its answer, and the next one may continue it."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from typing import Annotated, Literal, assert_never
from uuid import UUID

import msgspec
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from pydantic import Field

from config.core.db import run_in_thread
from config.core.errors import InvalidRequest, NotFound
from copilot.chat import stop, turn_results
from copilot.chat.commands import clean_text
from copilot.chat.turn_context import ApiRequest, InboundContext
from copilot.chat.turn_results import TurnResult
from copilot.models import Message, Turn
from copilot.openai_compat import requests
from copilot.openai_compat.base import (
    ApiCaller,
    LenientModel,
    build_view,
    encode_frame,
    parse_body,
    render_event_stream,
    render_json,
    resolve_tier,
)
from copilot.openai_compat.chat_completions import (
    CONVERSATION_ID_PREFIX,
    KEEP_ALIVE_FRAME,
    OUTCOME_TIMEOUT_SECONDS,
    find_conversation,
    find_refusal,
    format_waiting_note,
    get_answer_text,
)
from copilot.openai_compat.errors import TurnTimedOut
from copilot.openai_compat.requests import (
    ConversationParam,
    FunctionDefinition,
    JsonSchemaFormat,
    RequestMessage,
    RequestToolCall,
    ResponseInputItem,
    SharedParameters,
    TurnRequest,
    parse_tool_arguments,
)
from copilot.openai_compat.serializers import (
    CALL_ITEM_PREFIX,
    MESSAGE_ITEM_PREFIX,
    RESPONSE_ID_PREFIX,
    ResponseAnswer,
    ResponseEventWriter,
    ResponseSerializer,
)
from copilot.openai_compat.turns import (
    AcceptedTurn,
    AnswerDelta,
    KeepAlive,
    TurnOrder,
    TurnOver,
    find_run_message,
    find_session_to_continue,
    follow_answer,
    run_turn,
)
from copilot.providers.base import RequestParameters

_UNSUPPORTED_PARAMETERS = {
    "prompt": "there are no stored prompts.",
    "top_logprobs": "the models do not report them.",
    "max_tool_calls": "tools of ours have limits of their own.",
}


class ReasoningOptions(LenientModel):
    effort: str | None = None


class ResponseTextFormat(JsonSchemaFormat):
    type: str


class ResponseTextOptions(LenientModel):
    format: ResponseTextFormat | None = None


class ResponseTool(LenientModel):
    type: str
    name: str | None = None
    description: str | None = None
    parameters: dict[str, object] | None = None


class ResponseToolChoice(LenientModel):
    type: str
    name: str | None = None


class CreateResponseBody(SharedParameters):
    model: str
    input: str | list[ResponseInputItem]
    instructions: str | None = None
    previous_response_id: str | None = None
    conversation: ConversationParam = None
    store: bool | None = None
    stream: bool | None = None
    background: bool | None = None
    reasoning: ReasoningOptions | None = None
    text: ResponseTextOptions | None = None
    max_output_tokens: Annotated[int, Field(ge=1)] | None = None
    tools: list[ResponseTool] | None = None
    tool_choice: Literal["auto", "none", "required"] | ResponseToolChoice | None = None
    truncation: Literal["auto", "disabled"] | None = None
    prompt: object = None
    max_tool_calls: object = None


async def create_response(request: HttpRequest, caller: ApiCaller) -> HttpResponseBase:
    body, order = await run_in_thread(_read_order, request, caller)
    if body.stream:
        return await render_event_stream(_stream_frames(caller, order, body))
    async with run_turn(caller, order) as run:
        outcome = await run.wait_for_outcome(0 if body.background else OUTCOME_TIMEOUT_SECONDS)
    if outcome.status in ("running", "queued") and not run.kept:
        raise TurnTimedOut("The answer took too long.", hint="Use stream: true to wait longer.")
    return render_json(
        _build_serializer(run, body, order).serialize_outcome(outcome, build_answer(outcome, order))
    )


async def retrieve_response(request: HttpRequest, caller: ApiCaller, response_id: str) -> HttpResponseBase:
    """Return a response as stored now, for clients that did not wait for it."""
    return render_json(await run_in_thread(_serialize_stored_response, caller, response_id))


async def cancel_response(request: HttpRequest, caller: ApiCaller, response_id: str) -> HttpResponseBase:
    """Stop the response's turn and return the response once it has ended."""
    message = await run_in_thread(_stop_response, caller, response_id)
    if message.turn_id is not None:
        await turn_results.wait_for_turn(
            caller.user_id, message.turn_id, run_id=response_id, timeout_seconds=CANCEL_TIMEOUT_SECONDS
        )
    return render_json(await run_in_thread(_serialize_stored_response, caller, response_id))


async def delete_response(request: HttpRequest, caller: ApiCaller, response_id: str) -> HttpResponseBase:
    """Delete the conversation of a response, if it is the only response in it."""
    await run_in_thread(_delete_response, caller, response_id)
    return render_json({"id": response_id, "object": "response", "deleted": True})


async def list_input_items(request: HttpRequest, caller: ApiCaller, response_id: str) -> HttpResponseBase:
    items = await run_in_thread(_serialize_input_items, caller, response_id)
    return render_json(
        {
            "object": "list",
            "data": items,
            "first_id": items[0]["id"] if items else None,
            "last_id": items[-1]["id"] if items else None,
            "has_more": False,
        }
    )


CANCEL_TIMEOUT_SECONDS = 10.0
responses_view = build_view(POST=create_response, is_stream=True)
response_view = build_view(GET=retrieve_response, DELETE=delete_response)
response_cancel_view = build_view(POST=cancel_response)
response_input_items_view = build_view(GET=list_input_items)


# --- Requests ----------------------------------------------------------------------------------------


def _read_order(request: HttpRequest, caller: ApiCaller) -> tuple[CreateResponseBody, TurnOrder]:
    body = parse_body(request, CreateResponseBody)
    requests.refuse_unsupported_parameters(
        body.model_dump(include=set(_UNSUPPORTED_PARAMETERS)), _UNSUPPORTED_PARAMETERS
    )
    requests.check_service_tier(body.service_tier)
    if body.background and body.store is False:
        raise InvalidRequest("background needs store: true.", param="background")
    tier = resolve_tier(body.model)
    turn_request = requests.parse_response_input(
        body.input, body.instructions, lambda item_id: _load_item(caller, item_id)
    )
    api_request = _build_api_request(body, turn_request)
    requests.check_parameters(api_request.parameters, tier, [tool.name for tool in api_request.tools])
    order = TurnOrder(
        request=turn_request,
        tier=tier,
        mode=requests.map_effort_to_mode(body.reasoning.effort if body.reasoning else None),
        prefix=RESPONSE_ID_PREFIX,
        kept=body.store is not False,
        session_id=_find_session(caller, body),
        api_request=api_request,
        client_only=body.pilothouse is not None and body.pilothouse.tools == "client_only",
    )
    return body, order


def _build_api_request(body: CreateResponseBody, turn_request: TurnRequest) -> ApiRequest:
    functions = []
    for tool in body.tools or ():
        if tool.type != "function" or tool.name is None:
            raise requests.refuse_parameter("tools", f"tools of type {tool.type[:50]!r} are unknown.")
        functions.append(
            FunctionDefinition(name=tool.name, description=tool.description, parameters=tool.parameters)
        )
    choice = _parse_tool_choice(body.tool_choice)
    wanted = body.text.format if body.text is not None else None
    return ApiRequest(
        instructions=clean_text(turn_request.instructions),
        tools=requests.build_client_tools(functions),
        parameters=RequestParameters(
            temperature=body.temperature,
            top_p=body.top_p,
            max_tokens=body.max_output_tokens,
            tool_choice=choice.choice,
            forced_tool=choice.name,
            parallel_tool_calls=body.parallel_tool_calls if functions else None,
            output_format=requests.build_output_format(wanted.type, wanted, param="text.format")
            if wanted is not None
            else None,
        ),
        metadata=dict(body.metadata or {}),
        user=body.user or body.safety_identifier or "",
    )


def _parse_tool_choice(value: str | ResponseToolChoice | None) -> requests.ToolChoice:
    match value:
        case None:
            return requests.ToolChoice()
        case "auto" | "none" | "required":
            return requests.ToolChoice(choice=value)
        case ResponseToolChoice(type="function", name=str() as name):
            return requests.ToolChoice(choice="tool", name=name)
        case _:
            raise requests.refuse_parameter("tool_choice", "use auto, none, required or a function.")


def _find_session(caller: ApiCaller, body: CreateResponseBody) -> UUID | None:
    if body.previous_response_id is None:
        return find_conversation(caller, body.conversation)
    if body.conversation is not None:
        raise InvalidRequest("Send conversation or previous_response_id, not both.", param="conversation")
    return find_session_to_continue(caller.user_id, body.previous_response_id, prefix=RESPONSE_ID_PREFIX)


def _load_item(caller: ApiCaller, item_id: str) -> RequestMessage:
    """Find an item of an earlier response, which clients name instead of sending it again."""
    not_found = InvalidRequest(f"There is no item {item_id[:100]!r}.", code="item_not_found", param="input")
    if item_id.startswith(MESSAGE_ITEM_PREFIX):
        name, number = item_id.removeprefix(MESSAGE_ITEM_PREFIX), ""
    elif item_id.startswith(CALL_ITEM_PREFIX):
        name, _, number = item_id.removeprefix(CALL_ITEM_PREFIX).partition("_")
    else:
        raise not_found
    try:
        outcome = _get_stored_outcome(caller, f"{RESPONSE_ID_PREFIX}{name}")
    except NotFound:
        raise not_found from None
    if not number:
        return RequestMessage(role="assistant", text=outcome.text)
    if not number.isdigit() or int(number) >= len(outcome.client_calls):
        raise not_found
    call = outcome.client_calls[int(number)]
    arguments = parse_tool_arguments(call.arguments_json)
    return RequestMessage(
        role="assistant",
        text="",
        calls=[RequestToolCall(call_id=call.call_id, tool=call.tool, arguments=arguments)],
    )


# --- Answers -----------------------------------------------------------------------------------------


def build_answer(outcome: TurnResult, order: TurnOrder) -> ResponseAnswer:
    if (refusal := find_refusal(outcome)) is not None:
        return ResponseAnswer(refusal=refusal)
    text = get_answer_text(outcome, order)
    return ResponseAnswer(text=text + format_waiting_note(outcome), calls=outcome.client_calls)


def _build_serializer(run: AcceptedTurn, body: CreateResponseBody, order: TurnOrder) -> ResponseSerializer:
    return ResponseSerializer(
        id=run.run_id,
        model=body.model,
        created_at=int(time.time()),
        conversation_id=f"{CONVERSATION_ID_PREFIX}{run.session_id.hex}",
        kept=run.kept,
        background=bool(body.background),
        previous_response_id=body.previous_response_id,
        request=order.api_request or ApiRequest(),
    )


async def _stream_frames(
    caller: ApiCaller, order: TurnOrder, body: CreateResponseBody
) -> AsyncGenerator[bytes, None]:
    async with run_turn(caller, order) as run:
        writer = ResponseEventWriter(_build_serializer(run, body, order))
        for event in writer.begin():
            yield _encode_event(event)
        async for update in follow_answer(run, order):
            match update:
                case AnswerDelta(delta):
                    for event in writer.extend(delta):
                        yield _encode_event(event)
                case KeepAlive():
                    yield KEEP_ALIVE_FRAME
                case TurnOver(outcome):
                    if note := format_waiting_note(outcome):
                        for event in writer.extend(note):
                            yield _encode_event(event)
                    answer = build_answer(outcome, order)
                    streamed = ResponseAnswer(text=writer.text, refusal=answer.refusal, calls=answer.calls)
                    for event in writer.end(outcome, streamed):
                        yield _encode_event(event)
                case unreachable:
                    assert_never(unreachable)


def _encode_event(event: dict[str, object]) -> bytes:
    return encode_frame(event, event=str(event["type"]))


# --- Stored responses --------------------------------------------------------------------------------


def _serialize_stored_response(caller: ApiCaller, response_id: str) -> dict[str, object]:
    message = find_run_message(caller.user_id, response_id, prefix=RESPONSE_ID_PREFIX)
    outcome = _get_stored_outcome(caller, response_id, message)
    request = _load_api_request(message)
    order = TurnOrder(
        request=TurnRequest(text=""), tier="", mode="", prefix=RESPONSE_ID_PREFIX, api_request=request
    )
    serializer = ResponseSerializer(
        id=response_id,
        model=_get_tier(message),
        created_at=int(message.created_at.timestamp()),
        conversation_id=f"{CONVERSATION_ID_PREFIX}{message.session_id.hex}",
        request=request,
    )
    return serializer.serialize_outcome(outcome, build_answer(outcome, order))


def _get_stored_outcome(caller: ApiCaller, response_id: str, message: Message | None = None) -> TurnResult:
    message = message or find_run_message(caller.user_id, response_id, prefix=RESPONSE_ID_PREFIX)
    if message.turn_id is None:
        return TurnResult(turn_id="", status="cancelled" if message.dropped_at else "queued")
    return turn_results.get_turn_result(caller.user_id, message.turn_id, run_id=response_id)


def _load_api_request(message: Message) -> ApiRequest:
    """Return the request of a response: stored with its message, or with the turn that its results continued."""
    stored = message.data.get("inbound_context")
    if stored is None and message.turn_id is not None:
        stored = Turn.objects.values_list("inbound_context", flat=True).get(pk=message.turn_id)
    return msgspec.convert(stored or {}, InboundContext).api_request or ApiRequest()


def _get_tier(message: Message) -> str:
    tier = message.tier
    if not tier and message.turn_id is not None:
        tier = Turn.objects.values_list("tier", flat=True).get(pk=message.turn_id)
    return tier or "standard"


def _stop_response(caller: ApiCaller, response_id: str) -> Message:
    message = find_run_message(caller.user_id, response_id, prefix=RESPONSE_ID_PREFIX)
    if message.turn_id is None:
        stop.drop_queued_messages(message.session_id, None, message.pk)
    else:
        stop.stop_session(caller.user_id, message.session_id, turn_id=message.turn_id)
    message.refresh_from_db()
    return message


def _delete_response(caller: ApiCaller, response_id: str) -> None:
    message = find_run_message(caller.user_id, response_id, prefix=RESPONSE_ID_PREFIX)
    others = Message.objects.filter(session=message.session_id, run_id__isnull=False).exclude(pk=message.pk)
    if others.exclude(turn=message.turn_id).exists():
        raise InvalidRequest(
            "Other responses of the same conversation continue this one. Delete the conversation instead.",
            code="response_in_use",
        )
    stop.delete_session_and_stop(caller.user_id, message.session_id)


def _serialize_input_items(caller: ApiCaller, response_id: str) -> list[dict[str, object]]:
    message = find_run_message(caller.user_id, response_id, prefix=RESPONSE_ID_PREFIX)
    if message.kind == Message.Kind.USER:
        content = [{"type": "input_text", "text": message.content}]
        return [
            {
                "id": f"{MESSAGE_ITEM_PREFIX}{message.pk.hex}",
                "type": "message",
                "role": "user",
                "status": "completed",
                "content": content,
            }
        ]
    rows = Message.objects.filter(
        turn=message.turn_id, kind=Message.Kind.TOOL_RESULT, created_at=message.created_at
    )
    return [
        {
            "id": f"fco_{row.pk.hex}",
            "type": "function_call_output",
            "status": "completed",
            "call_id": row.call_id,
            "output": row.content,
        }
        for row in rows.order_by("sequence")
    ]
