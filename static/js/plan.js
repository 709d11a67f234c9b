// The plan page: says before each change what it means, sends it once, and waits for a payment to be confirmed.

import { call } from "./api.js";
import { confirmed } from "./confirm.js";
import { _ } from "./words.js";

const LOOK_EVERY = 2000;
const LOOK_FOR = 120_000; // then a reload shows it: the payment service is late, nothing is lost

const money = (cents, currency) => (cents / 100).toLocaleString(undefined, { style: "currency", currency });

const day = (text) => new Date(text).toLocaleDateString(undefined, { dateStyle: "long" });

/** What a change means, in a title and a sentence; an upgrade is asked for its price first. */
async function meaning(form) {
  const { plan, name, until } = form.dataset;
  const date = until ? day(until) : "";
  if (plan === "downgrade" || plan === "cancel") {
    const title = plan === "cancel" ? _("End your plan?") : _("Change to {name}?", { name });
    const text = date
      ? _("Your plan stays as it is until {date}. Nothing is charged now.", { date })
      : _("It changes at once. Nothing is charged.");
    return { title, text, yes: _("Change to {name}", { name }) };
  }
  return { title: _("Change to {name}?", { name }), text: await priceNow(form), yes: _("Change to {name}", { name }) };
}

/** What an upgrade costs at this moment; if that cannot be told, the rule by which it is reckoned. */
async function priceNow(form) {
  const asked = await call("POST", "/billing/subscription/preview", { tier: form.tier.value }).catch(() => null);
  if (!asked) return _("The difference for the rest of this period is charged now.");
  if (!asked.due_now_cents) return _("Nothing is charged now.");
  const amount = money(asked.due_now_cents, form.dataset.currency);
  return _("{amount} are charged now, for the rest of this period.", { amount });
}

function once(form) {
  for (const button of document.querySelectorAll("form[data-plan] button")) button.disabled = true;
  form.querySelector("button").setAttribute("aria-busy", "true");
  form.submit();
}

for (const form of document.querySelectorAll("form[data-plan]")) {
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    if (form.dataset.plan === "keep" || form.dataset.plan === "checkout") return once(form);
    if (await confirmed(await meaning(form))) once(form);
  });
}

async function look(waiting, until) {
  const status = await call("GET", "/billing/subscription").catch(() => null);
  if (status && status.tier !== waiting.dataset.tier) location.replace("/billing/plan");
  else if (Date.now() < until) setTimeout(look, LOOK_EVERY, waiting, until);
  else waiting.querySelector("p").append(` ${_("It takes longer than usual; look again in a while.")}`);
}

const waiting = document.getElementById("waiting");
if (waiting) look(waiting, Date.now() + LOOK_FOR);
