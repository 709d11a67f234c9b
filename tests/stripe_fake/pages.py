"""What a customer of the fake sees in his browser: a checkout, an invoice, the portal."""

from __future__ import annotations

import time
from collections.abc import Callable
from html import escape
from typing import TYPE_CHECKING

from tests.stripe_fake import checkouts, clock, invoices, subscriptions
from tests.stripe_fake.shapes import Obj
from tests.stripe_fake.subscriptions import item
from tests.stripe_fake.world import DAY, MONTH, Problem, World

if TYPE_CHECKING:
    from tests.stripe_fake.server import Handler

STYLE = """
:root { color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif; }
body { max-width: 26rem; margin: 12vh auto; padding: 0 1rem; }
h1 { font-size: 1.25rem; } .sum { font-size: 2.25rem; margin: 0.5rem 0 1.5rem; font-variant-numeric: tabular-nums; }
form { margin: 0.5rem 0; } button, a.button { width: 100%; box-sizing: border-box; display: block; padding: 0.7rem;
  font: inherit; border-radius: 0.5rem; border: 1px solid #8886; background: none; color: inherit; text-align: center;
  text-decoration: none; cursor: pointer; } a.button { margin: 0.5rem 0; } button.main { background: #4338ca; color: #fff; border-color: #4338ca; }
.note { opacity: 0.75; font-size: 0.875rem; } [role=alert] { color: #c2410c; } hr { border: 0; border-top: 1px solid #8884; }
"""
Act = tuple[str, str]  # what the button says, and the last part of where it posts


def serve(handler: Handler, method: str, path: str, form: Obj) -> None:
    """`/c/pay/<session>`, `/i/<invoice>`, `/p/<portal session>`; a button posts to `<page>/<act>`."""
    world = handler.server.world
    parts = path.strip("/").split("/")
    place = next((one for one in PLACES if parts[: len(one)] == list(one)), None)
    rest = parts[len(place) :] if place else []
    try:
        with world.lock:
            if place is None or not rest:
                raise Problem("There is no such page.", status=404)
            shown, act = PLACES[place]
            if method == "GET":
                _show(handler, shown(world, rest[0], ""))
            else:
                _go(handler, act(world, rest[0], rest[1]))
    except checkouts.Declined:
        with world.lock:
            _show(handler, PLACES[place][0](world, rest[0], "Your card was declined."), 402)  # type: ignore[index]
    except Problem as problem:
        _show(handler, _page("Not possible", f"<p role=alert>{escape(str(problem))}</p>"), problem.status)


def _show(handler: Handler, text: str, status: int = 200) -> None:
    handler.reply(status, text.encode(), "text/html; charset=utf-8")


def _go(handler: Handler, where: str) -> None:
    handler.reply(303, b"", "text/html", {"Location": where})


def _page(title: str, body: str, problem: str = "") -> str:
    alert = f"<p role=alert>{escape(problem)}</p>" if problem else ""
    return (
        f"<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'><link rel=icon href='data:,'>"
        f"<title>{escape(title)}</title><style>{STYLE}</style><h1>{escape(title)}</h1>{alert}{body}"
        f"<hr><p class=note>This is a stand-in for Stripe. No money moves.</p></html>"
    )


def _buttons(base: str, acts: list[Act]) -> str:
    return "".join(
        f"<form method=post action='{base}/{act}'><button{' class=main' if number == 0 else ''}>{escape(text)}</button></form>"
        for number, (text, act) in enumerate(acts)
    )


def _sum(cents: int, currency: str) -> str:
    return f"<p class=sum>{cents // 100}.{cents % 100:02d} {escape(currency.upper())}</p>"


# --- checkout -------------------------------------------------------------------------------------------


def _checkout(world: World, session_id: str, problem: str) -> str:
    session = world.get(session_id, "checkout.session")
    if session["status"] != "open":
        return _page("Checkout", f"<p>This page is {session['status']}.</p>")
    acts = [("Pay", "pay"), ("Decline", "decline"), ("Cancel", "cancel")]
    trial = world.plans[session_id].get("subscription_data", {}).get("trial_period_days")
    if trial:
        acts.insert(1, (f"Try {trial} days without a card", "try"))
    body = _sum(session["amount_total"], session["currency"]) + _buttons(f"/c/pay/{session_id}", acts)
    return _page("Checkout", body, problem)


def _at_checkout(world: World, session_id: str, act: str) -> str:
    session = world.get(session_id, "checkout.session")
    if act == "cancel":
        return str(session["cancel_url"])
    if act == "decline":
        raise checkouts.Declined
    checkouts.complete(world, session, with_card=act != "try")
    return str(session["success_url"]).replace("{CHECKOUT_SESSION_ID}", session_id)


# --- invoice --------------------------------------------------------------------------------------------


def _invoice(world: World, invoice_id: str, problem: str) -> str:
    invoice = world.get(invoice_id, "invoice")
    body = _sum(invoice["amount_due"], invoice["currency"])
    if invoice["status"] == "open":
        body += _buttons(f"/i/{invoice_id}", [("Pay", "pay"), ("Decline", "decline")])
    return _page("Invoice", body + f"<p class=note>It is {invoice['status']}.</p>", problem)


def _at_invoice(world: World, invoice_id: str, act: str) -> str:
    invoice = world.get(invoice_id, "invoice")
    if act == "decline" or invoice["status"] != "open":
        raise checkouts.Declined
    if not world.card_of(invoice["customer"]):
        world.save_card(invoice["customer"])
    world.cards[invoice["customer"]] = "ok"  # who pays here has found a card that works
    invoices.attempt(world, invoice)
    subscriptions.invoice_paid(world, invoice)
    return f"{world.address}/i/{invoice_id}"


# --- portal ---------------------------------------------------------------------------------------------


def _portal(world: World, session_id: str, problem: str) -> str:
    session = world.get(session_id, "billing_portal.session")
    body = ""
    for subscription in world.all("subscription", customer=session["customer"]):
        if subscription["status"] not in ("canceled", "incomplete_expired"):
            body += f"<p>Subscription, {subscription['status']}</p>" + _sum(
                item(subscription)["price"]["unit_amount"], subscription["currency"]
            )
            ending = subscription["cancel_at_period_end"]
            body += _buttons(
                f"/p/{session_id}", [("Keep it", "keep") if ending else ("End it with its period", "end")]
            )
    for invoice in world.all("invoice", customer=session["customer"]):
        body += f"<a class=button href='/i/{invoice['id']}'>Invoice, {invoice['status']}</a>"
    body += _buttons(f"/p/{session_id}", [("A card that works", "good"), ("A card that is declined", "bad")])
    body += f"<a class=button href='{escape(str(session['return_url']))}'>Back</a>"
    return _page("Your account with us", body, problem)


def _at_portal(world: World, session_id: str, act: str) -> str:
    customer_id = str(world.get(session_id, "billing_portal.session")["customer"])
    if act in ("good", "bad"):
        if not world.card_of(customer_id):
            world.save_card(customer_id)
        world.cards[customer_id] = "ok" if act == "good" else "decline"
    else:
        for subscription in world.all("subscription", customer=customer_id):
            if subscription["status"] not in ("canceled", "incomplete_expired"):
                wanted = {"cancel_at_period_end": "true" if act == "end" else "false"}
                subscriptions.update(world, subscription, wanted)
    return f"{world.address}/p/{session_id}"


# --- what only a fake has --------------------------------------------------------------------------------


def _controls(world: World, _panel: str, problem: str) -> str:
    body = f"<p class=note>It is {time.strftime('%Y-%m-%d %H:%M', time.gmtime(world.now))} UTC here.</p>"
    acts = [("A day passes", "day"), ("A month passes", "month")]
    body += _buttons("/control/panel", acts) + f"<hr><p>Cards: {world.default_card}</p>"
    body += _buttons(
        "/control/panel",
        [
            ("All cards work", "ok"),
            ("All cards are declined", "decline"),
            ("Banks want to see people", "authenticate"),
        ],
    )
    return _page("Time and banks", body, problem)


def _at_controls(world: World, _panel: str, act: str) -> str:
    if act in ("day", "month"):
        clock.advance(world, DAY if act == "day" else MONTH + DAY)
    elif act in ("ok", "decline", "authenticate"):
        world.default_card = act  # type: ignore[assignment]
    return f"{world.address}/control/panel"


Shown = Callable[[World, str, str], str]
PLACES: dict[tuple[str, ...], tuple[Shown, Shown]] = {
    ("c", "pay"): (_checkout, _at_checkout),
    ("i",): (_invoice, _at_invoice),
    ("p",): (_portal, _at_portal),
    ("control",): (_controls, _at_controls),
}
