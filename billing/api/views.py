"""REST views for usage, plans, credits, top-ups, notices and staff limits."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import AsyncIterator, Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import date, datetime
from typing import Annotated, Any, ClassVar, Literal, TypeVar
from uuid import UUID

import msgspec
from asgiref.sync import sync_to_async
from django.core.handlers.asgi import ASGIRequest
from django.http import Http404, HttpResponse, StreamingHttpResponse
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter
from pydantic import BaseModel, Field, StringConstraints, ValidationError
from rest_framework.exceptions import PermissionDenied, UnsupportedMediaType
from rest_framework.permissions import SAFE_METHODS
from rest_framework.renderers import BaseRenderer
from rest_framework.request import Request

from billing import notices, redirects
from billing.errors import InvalidRequest
from billing.models import TopUp
from billing.notices import Notice
from billing.selectors import credit_statements, plan_status, usage_status
from billing.selectors.credit_statements import Credits, Entry, Statement, StatementFilters
from billing.selectors.plan_status import PlanOffer, Status
from billing.selectors.usage_status import StaffLimits, UsageView
from billing.subscriptions import plan_changes, plan_checkouts, plan_previews
from billing.subscriptions.plan_changes import PlanChangeRequest
from billing.subscriptions.plan_checkouts import CheckoutUrls
from billing.subscriptions.plan_previews import Price
from billing.top_ups import auto_top_ups, purchases
from billing.top_ups.auto_top_ups import AutoTopUpRequest, AutoTopUpView
from billing.top_ups.purchases import TopUpPurchase
from billing.usage import resets
from billing.usage.resets import Reset
from config.core.api.parsing import QueryParams, RequestBody, RequestParser
from config.core.api.views import UserApiView, document_operation, respond_json, respond_no_content
from config.core.audit import record_audit_event
from config.core.json_values import JSON, list_field_errors
from config.core.staff_permissions import (
    SEE_EMAIL,
    StaffAct,
    can_perform_staff_act,
    explain_second_factor_problem,
    find_second_factor_problem,
    is_login_recent,
    mask_email,
)

IDEMPOTENCY_KEY = OpenApiParameter(
    "Idempotency-Key",
    OpenApiTypes.STR,
    OpenApiParameter.HEADER,
    description="Sending again returns the first outcome.",
    pattern="^[A-Za-z0-9_.:-]{1,128}$",
)
_KEY_PATTERN = re.compile(r"[A-Za-z0-9_.:-]{1,128}")
M = TypeVar("M", bound=BaseModel)


class EmptyBody(RequestBody):
    """For operations that take no body."""


class BillingRequestParser(RequestParser):
    """List the errors of each field, because pages show them beside it."""

    syntax_message = RequestParser.not_an_object_message

    def validate(self, model: type[M], data: dict[str, JSON]) -> M:
        try:
            return model.model_validate(data)
        except ValidationError as problem:
            errors: dict[str, list[str]] = {}
            for error in list_field_errors(problem):
                errors.setdefault(error.field or "body", []).append(error.message)
            raise InvalidRequest(errors) from problem

    def refuse_body(self, message: str) -> Exception:
        return InvalidRequest({"body": [message]})

    def refuse_repeated(self, name: str) -> Exception:
        return InvalidRequest({name: ["Use this parameter only once."]})

    def refuse_media_type(self, content_type: str) -> Exception:
        return UnsupportedMediaType(content_type)


_parser = BillingRequestParser()
parse_body = _parser.parse_body
parse_query = _parser.parse_query


def get_idempotency_key(request: Request) -> str | None:
    key = request.headers.get("Idempotency-Key")
    if key is not None and not _KEY_PATTERN.fullmatch(key):
        raise InvalidRequest({"Idempotency-Key": ["Use 1 to 128 letters, digits or the characters _ . : -"]})
    return key


# --- Views ---


class BillingApiView(UserApiView):
    http_method_names = ["get", "head", "post", "put"]
    write_scopes = ("billing",)
    throttles = "billing_throttles"
    reads_per_minute: ClassVar[int] = 60  # per user, over all billing views together
    writes_per_minute: ClassVar[int] = 10


class BillingStaffApiView(BillingApiView):
    """Require the staff permission `act` and a second factor. API keys need the staff scope and may only read;
    changes need a recent login.
    """

    act: ClassVar[StaffAct]
    write_scopes = ("staff",)
    keys_may_write = False

    def scopes_for(self, method: str) -> tuple[str, ...]:
        return self.write_scopes

    def initial(self, request: Request, *args: object, **kwargs: object) -> None:
        super().initial(request, *args, **kwargs)
        if not can_perform_staff_act(self.caller, self.act):
            raise PermissionDenied("You don't have permission to do this.")
        by_cookie = request._request if request.auth is None else None
        if problem := find_second_factor_problem(self.caller, by_cookie):
            raise PermissionDenied(explain_second_factor_problem(problem), code="second_factor_required")
        if request.method not in SAFE_METHODS and not is_login_recent(self.caller, request._request.session):
            raise PermissionDenied(
                "Your sign-in is too old for this. Sign in again and retry.", code="login_too_old"
            )


def build_array_schema(shape: type) -> dict[str, Any]:
    """Describe a list of one of our dataclasses inline."""
    _, parts = msgspec.json.schema_components([shape])
    return {"type": "array", "items": parts[shape.__name__]}


class BillingUsageView(BillingApiView):
    @document_operation("Get usage", answers={200: UsageView})
    def get(self, request: Request) -> HttpResponse:
        return respond_json(usage_status.get_usage(self.caller.pk))


class BillingUsageResetView(BillingApiView):
    @document_operation("Buy a reset of the daily limit", answers={200: Reset}, parameters=(IDEMPOTENCY_KEY,))
    def post(self, request: Request) -> HttpResponse:
        parse_body(request, EmptyBody)
        return respond_json(resets.buy_usage_reset(self.caller.pk, key=get_idempotency_key(request)))


class BillingPlansView(BillingApiView):
    @document_operation("List plans", answers={200: build_array_schema(PlanOffer)})
    def get(self, request: Request) -> HttpResponse:
        return respond_json(plan_status.list_plan_offers())


# --- Subscription ---

RequestableTier = Literal["FREE", "PRO", "BUSINESS"]
RedirectUrl = Annotated[str, Field(max_length=redirects.MAX_URL_LENGTH)]


class WantedPlan(RequestBody):
    tier: RequestableTier
    success_url: RedirectUrl = ""
    cancel_url: RedirectUrl = ""


class PreviewedPlan(RequestBody):
    tier: RequestableTier


class PortalWanted(RequestBody):
    return_url: RedirectUrl = ""


@dataclass(frozen=True, kw_only=True)
class Portal:
    url: str


class BillingSubscriptionView(BillingApiView):
    @document_operation("Get the plan and its pending change", answers={200: Status})
    def get(self, request: Request) -> HttpResponse:
        return respond_json(plan_status.get_subscription_status(self.caller.pk))

    @document_operation("Change the plan", answers={200: Status}, body=WantedPlan)
    def post(self, request: Request) -> HttpResponse:
        wanted = parse_body(request, WantedPlan)
        page = redirects.get_plan_page_url()
        urls = CheckoutUrls(
            success_url=redirects.check_redirect_url("success_url", wanted.success_url) or f"{page}?paid",
            cancel_url=redirects.check_redirect_url("cancel_url", wanted.cancel_url) or page,
        )
        return respond_json(
            plan_changes.change_plan(self.caller.pk, PlanChangeRequest(tier=wanted.tier, urls=urls))
        )


class BillingPreviewView(BillingApiView):
    @document_operation("Preview what a plan costs now", answers={200: Price}, body=PreviewedPlan)
    def post(self, request: Request) -> HttpResponse:
        wanted = parse_body(request, PreviewedPlan)
        return respond_json(plan_previews.preview_plan_change(self.caller.pk, wanted.tier))


class BillingPortalView(BillingApiView):
    @document_operation(
        "Open Stripe's portal for cards and invoices", answers={200: Portal}, body=PortalWanted
    )
    def post(self, request: Request) -> HttpResponse:
        wanted = parse_body(request, PortalWanted)
        return_url = (
            redirects.check_redirect_url("return_url", wanted.return_url) or redirects.get_plan_page_url()
        )
        return respond_json(Portal(url=plan_checkouts.open_portal(self.caller.pk, return_url=return_url)))


# --- Credits ---

CSV_COLUMNS = ("date_utc", "kind", "reason", "reference", "amount_cents", "balance_after_cents", "entry_id")
FORMULA_PREFIXES = ("=", "+", "-", "@", "\t", "\r")  # spreadsheets would run these as formulas
ENTRY_KIND_PATTERN = "^(GRANT|TOP_UP|SPEND|REFUND|EXPIRY|REVERSAL|REINSTATEMENT)$"


class StatementQuery(QueryParams):
    kind: Annotated[str, Field(pattern=ENTRY_KIND_PATTERN)] | None = None
    since: date | None = None
    until: date | None = None

    def build_filters(self) -> StatementFilters:
        return StatementFilters(kind=self.kind or "", since=self.since, until=self.until)


class StatementPageQuery(StatementQuery):
    cursor: Annotated[str, Field(max_length=100)] = ""
    limit: Annotated[int, Field(ge=1, le=credit_statements.MAX_STATEMENT_PAGE_SIZE)] = (
        credit_statements.STATEMENT_PAGE_SIZE
    )


class CsvRenderer(BaseRenderer):
    media_type = "text/csv"
    format = "csv"


class BillingCreditsView(BillingApiView):
    @document_operation("Get balance, debt and credits that expire soon", answers={200: Credits})
    def get(self, request: Request) -> HttpResponse:
        return respond_json(credit_statements.get_credits(self.caller.pk))


class BillingStatementView(BillingApiView):
    @document_operation(
        "List credit movements, newest first", answers={200: Statement}, query=StatementPageQuery
    )
    def get(self, request: Request) -> HttpResponse:
        wanted = parse_query(request, StatementPageQuery)
        page = credit_statements.get_statement(
            self.caller.pk, filters=wanted.build_filters(), cursor=wanted.cursor, limit=wanted.limit
        )
        return respond_json(page)


class BillingStatementFileView(BillingApiView):
    renderer_classes = [CsvRenderer]

    @document_operation(
        "Download the statement as CSV", answers={(200, "text/csv"): OpenApiTypes.STR}, query=StatementQuery
    )
    def get(self, request: Request) -> StreamingHttpResponse:
        chunks = credit_statements.iterate_statement(
            self.caller.pk, parse_query(request, StatementQuery).build_filters()
        )
        lines = _iterate_csv(chunks)
        served_async = isinstance(request._request, ASGIRequest)
        response = StreamingHttpResponse(
            _iterate_async(lines) if served_async else lines, content_type="text/csv; charset=utf-8"
        )
        response["Content-Disposition"] = 'attachment; filename="statement.csv"'
        return response


async def _iterate_async(texts: Iterator[str]) -> AsyncIterator[str]:
    """Read each chunk on demand, on the thread that may wait for the database."""
    read = sync_to_async(lambda: next(texts, None))
    while (text := await read()) is not None:
        yield text


def _iterate_csv(chunks: Iterable[list[Entry]]) -> Iterator[str]:
    yield _format_csv([CSV_COLUMNS])
    for chunk in chunks:
        yield _format_csv([_build_csv_row(entry) for entry in chunk])


def _build_csv_row(entry: Entry) -> tuple[str | int, ...]:
    return (
        f"{entry.created_at:%Y-%m-%dT%H:%M:%SZ}",
        entry.kind,
        _escape_formula(entry.reason),
        _escape_formula(entry.reference),
        entry.amount_cents,
        entry.balance_after_cents,
        entry.id,
    )


def _escape_formula(text: str) -> str:
    return f"'{text}" if text.startswith(FORMULA_PREFIXES) else text


def _format_csv(lines: Iterable[tuple[str | int, ...]]) -> str:
    text = io.StringIO()
    csv.writer(text).writerows(lines)
    return text.getvalue()


# --- Top-ups ---

MAX_CENTS = 2**62  # an outer bound; the policy allows less
Cents = Annotated[int, Field(ge=0, le=MAX_CENTS)]
TopUpRedirectUrl = Annotated[str, Field(max_length=redirects.MAX_URL_LENGTH)]


class WantedTopUp(RequestBody):
    amount_cents: Cents
    success_url: TopUpRedirectUrl = ""
    cancel_url: TopUpRedirectUrl = ""
    save_card: bool = False


class WantedAutoTopUp(RequestBody):
    enabled: bool
    threshold_cents: Cents = 0
    amount_cents: Cents = 0
    consent: bool = False


@dataclass(frozen=True, kw_only=True)
class BillingTopUp:
    """`url` is the payment page while the top-up is open, otherwise ""."""

    id: UUID
    amount_cents: int
    state: str
    created_at: datetime
    url: str


def _build_top_up(top_up: TopUp) -> BillingTopUp:
    is_open = top_up.state == TopUp.State.OPEN
    return BillingTopUp(
        id=top_up.pk,
        amount_cents=top_up.amount_cents,
        state=top_up.state,
        created_at=top_up.created_at,
        url=top_up.checkout_url if is_open else "",
    )


class BillingTopUpsView(BillingApiView):
    @document_operation(
        "Buy credits through Stripe Checkout",
        answers={201: BillingTopUp},
        body=WantedTopUp,
        parameters=(IDEMPOTENCY_KEY,),
    )
    def post(self, request: Request) -> HttpResponse:
        wanted = parse_body(request, WantedTopUp)
        page = redirects.get_plan_page_url()
        purchase = TopUpPurchase(
            amount_cents=wanted.amount_cents,
            success_url=redirects.check_redirect_url("success_url", wanted.success_url)
            or f"{page}?top_up={{top_up}}",
            cancel_url=redirects.check_redirect_url("cancel_url", wanted.cancel_url) or page,
            save_card=wanted.save_card,
        )
        return respond_json(
            _build_top_up(purchases.start_top_up(self.caller.pk, purchase, key=get_idempotency_key(request))),
            status=201,
        )


class BillingTopUpView(BillingApiView):
    @document_operation("Get a top-up", answers={200: BillingTopUp})
    def get(self, request: Request, top_up_id: UUID) -> HttpResponse:
        found = credit_statements.get_top_up(self.caller.pk, top_up_id)
        if found is None:
            raise Http404
        return respond_json(_build_top_up(found))


class BillingAutoTopUpView(BillingApiView):
    @document_operation("Get automatic top-up settings", answers={200: AutoTopUpView})
    def get(self, request: Request) -> HttpResponse:
        return respond_json(auto_top_ups.get_auto_top_up(self.caller.pk))

    @document_operation(
        "Change automatic top-up settings", answers={200: AutoTopUpView}, body=WantedAutoTopUp
    )
    def put(self, request: Request) -> HttpResponse:
        wanted = parse_body(request, WantedAutoTopUp)
        auto_top_up = AutoTopUpRequest(
            enabled=wanted.enabled,
            threshold_cents=wanted.threshold_cents,
            amount_cents=wanted.amount_cents,
            consent=wanted.consent,
        )
        return respond_json(auto_top_ups.configure_auto_top_up(self.caller.pk, auto_top_up))


# --- Notices ---


@dataclass(frozen=True, kw_only=True)
class Notices:
    results: list[Notice]


class BillingNoticesView(BillingApiView):
    @document_operation("List open notices", answers={200: Notices})
    def get(self, request: Request) -> HttpResponse:
        return respond_json(Notices(results=notices.list_open_notices(self.caller.pk)))


class BillingNoticeDismissView(BillingApiView):
    @document_operation("Dismiss a notice", answers={204: None})
    def post(self, request: Request, notice_id: int) -> HttpResponse:
        parse_body(request, EmptyBody)
        if not notices.dismiss_notice(self.caller.pk, notice_id):
            raise Http404
        return respond_no_content()


# --- Staff ---

UserId = Annotated[int, Field(ge=1, le=2**31 - 1)]
StaffReason = Annotated[
    str, StringConstraints(strip_whitespace=True, min_length=1, max_length=500, pattern=r"^[^\x00]*$")
]


class StaffLimitsQuery(QueryParams):
    user: UserId | None = None
    email: Annotated[str, Field(max_length=254, pattern=r"^[^\x00]*$")] | None = None


class StaffReset(RequestBody):
    user: UserId
    reason: StaffReason
    weekly: bool = False


class BillingStaffLimitsView(BillingStaffApiView):
    act = "limits.read"

    @document_operation("Get a user's limits", answers={200: StaffLimits}, query=StaffLimitsQuery)
    def get(self, request: Request) -> HttpResponse:
        query = parse_query(request, StaffLimitsQuery)
        if (query.user is None) == (query.email is None):
            raise InvalidRequest({"user": ["Give either a user ID or an email address."]})
        user_id = (
            query.user if query.user is not None else usage_status.find_user_id_by_email(query.email or "")
        )
        return respond_json(_build_staff_limits(self, user_id))


class BillingStaffResetView(BillingStaffApiView):
    act = "limits.reset"

    @document_operation("Reset a user's usage", answers={200: StaffLimits}, body=StaffReset)
    def post(self, request: Request) -> HttpResponse:
        wanted = parse_body(request, StaffReset)
        usage_status.get_staff_limits(wanted.user)  # raises if the user does not exist
        resets.reset_usage_as_staff(
            wanted.user, weekly=wanted.weekly, actor_id=self.caller.pk, reason=wanted.reason
        )
        record_audit_event(
            "usage.reset",
            request=request._request,
            actor=self.caller,
            target=("user", wanted.user),
            reason=wanted.reason,
            weekly=wanted.weekly,
        )
        return respond_json(_build_staff_limits(self, wanted.user))


def _build_staff_limits(view: BillingStaffApiView, user_id: int) -> StaffLimits:
    """Mask the email address unless the caller may see addresses."""
    limits = usage_status.get_staff_limits(user_id)
    return limits if view.caller.has_perm(SEE_EMAIL) else replace(limits, email=mask_email(limits.email))
