"""Objects as the SDK says they are: nothing it does not know, nothing missing, no wrong kind. So the fake cannot drift."""

from __future__ import annotations

from decimal import Decimal
from functools import cache
from typing import Any, ForwardRef, Literal, Union, get_args, get_origin

import stripe
from stripe import StripeObject
from stripe._stripe_object import UntypedStripeObject

Obj = dict[str, Any]

KINDS: dict[str, type[StripeObject]] = {
    "billing_portal.session": stripe.billing_portal.Session,
    "charge": stripe.Charge,
    "checkout.session": stripe.checkout.Session,
    "customer": stripe.Customer,
    "dispute": stripe.Dispute,
    "event": stripe.Event,
    "invoice": stripe.Invoice,
    "line_item": stripe.InvoiceLineItem,
    "payment_intent": stripe.PaymentIntent,
    "payment_method": stripe.PaymentMethod,
    "price": stripe.Price,
    "product": stripe.Product,
    "refund": stripe.Refund,
    "subscription": stripe.Subscription,
    "subscription_item": stripe.SubscriptionItem,
    "subscription_schedule": stripe.SubscriptionSchedule,
}
SIMPLE: dict[type, tuple[type, ...]] = {
    int: (int,),
    str: (str,),
    bool: (bool,),
    float: (int, float),
    Decimal: (str,),
}
LEFT_OUT = ("deleted", "line_items")  # Stripe sends them only where they say something


class Drift(AssertionError):
    """The fake says what Stripe would not."""


def complete(kind: str, **fields: Any) -> Obj:
    """With nulls for what may be null and was not said, checked."""
    made: Obj = {"object": kind} | _nullable(KINDS[kind])  # type: ignore[arg-type]  # a class is hashable, though its dicts are not
    for name in LEFT_OUT:
        made.pop(name, None)
    return made | fields


def check(obj: Obj) -> None:
    _check_object(obj, KINDS[obj["object"]], obj["object"])


def _check_object(obj: Obj, kind: type[StripeObject], where: str) -> None:
    known, nullable = _fields(kind), _nullable(kind)  # type: ignore[arg-type]  # a class is hashable, though its dicts are not
    for name in obj:
        if name not in known:
            raise Drift(f"{where}.{name} is unknown to the SDK")
    for name, annotation in known.items():
        if obj.get(name) is None and name in nullable:
            continue
        if name not in obj:
            raise Drift(f"{where}.{name} is missing")
        if not _fits(obj[name], annotation, f"{where}.{name}"):
            raise Drift(f"{where}.{name} = {obj[name]!r} is no {annotation}")


def _fits(value: Any, annotation: Any, where: str) -> bool:
    annotation = _resolved(annotation)
    origin, args = get_origin(annotation), get_args(annotation)
    if annotation is Any:
        return True
    if annotation is type(None):
        return value is None
    if origin is Union:
        if any(get_origin(one) is Literal for one in args):  # "or any other text" is for the future
            args = tuple(one for one in args if one is not str)
        return any(_fits(value, one, where) for one in args)
    if origin is Literal:
        return value in args
    if origin is list:
        return isinstance(value, list) and all(_fits(one, args[0], where) for one in value)
    if origin is dict or origin is UntypedStripeObject:
        return isinstance(value, dict)
    if origin is stripe.ListObject:
        return isinstance(value, dict) and all(_fits(one, args[0], where) for one in value.get("data", [0]))
    if annotation in SIMPLE:
        return isinstance(value, SIMPLE[annotation]) and (annotation is bool or not isinstance(value, bool))
    if isinstance(annotation, type) and issubclass(annotation, UntypedStripeObject):
        return isinstance(value, dict)
    if isinstance(annotation, type) and issubclass(annotation, StripeObject):
        if not isinstance(value, dict):
            return False
        _check_object(value, annotation, where)
        return True
    raise Drift(f"{where}: {annotation} is not understood")


@cache
def _fields(kind: type[StripeObject]) -> dict[str, Any]:
    return {
        name: annotation
        for name, annotation in kind.__annotations__.items()
        if not str(annotation).startswith("typing.ClassVar")
    }


@cache
def _nullable(kind: type[StripeObject]) -> dict[str, None]:
    """Most of what there is: looked up once, for a fake says thousands of objects."""
    return {
        name: None
        for name, annotation in _fields(kind).items()  # type: ignore[arg-type]  # a class is hashable, though its dicts are not
        if type(None) in get_args(_resolved(annotation))
    }


@cache
def _resolved(annotation: Any) -> Any:
    """Names in quotes are classes of the package, or unions of them."""
    if isinstance(annotation, ForwardRef):
        annotation = annotation.__forward_arg__
    if isinstance(annotation, str):
        return eval(annotation, {}, Names(Union=Union, Literal=Literal, CardResource=stripe.Card))
    return annotation


class Names(dict[str, Any]):
    """The package finds its classes when they are asked for."""

    def __missing__(self, name: str) -> Any:
        for place in (stripe, stripe.checkout, stripe.billing_portal, stripe.test_helpers, stripe.tax):
            if hasattr(place, name):
                return getattr(place, name)
        raise KeyError(name)
