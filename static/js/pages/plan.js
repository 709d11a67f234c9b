// The plan page: change the plan after a confirmation, buy credits, and wait until a payment is confirmed.

import { callApi } from "../lib/api.js";
import { confirmAction } from "../lib/confirm_dialog.js";
import { _ } from "../lib/i18n.js";

const PLAN_POLL_MS = 2000;
const TOP_UP_POLL_MS = 1500;
const POLL_FOR_MS = 120_000; // then a reload shows it: the payment service is late, nothing is lost

const formatMoney = (cents, currency) =>
  (cents / 100).toLocaleString(undefined, { style: "currency", currency });

const formatDate = (text) => new Date(text).toLocaleDateString(undefined, { dateStyle: "long" });

/** Describe a change of plan for its confirmation dialog; an upgrade asks the server for its price first. */
async function describeChange(form) {
  const { plan, name, until } = form.dataset;
  const date = until ? formatDate(until) : "";
  if (plan === "downgrade" || plan === "cancel") {
    const title = plan === "cancel" ? _("Cancel your plan?") : _("Switch to {name}?", { name });
    const text = date
      ? _("You keep your current plan until {date}. Nothing is charged now.", { date })
      : _("This takes effect immediately. Nothing is charged.");
    return { title, text, yes: _("Switch to {name}", { name }) };
  }
  return {
    title: _("Switch to {name}?", { name }),
    text: await describePrice(form),
    yes: _("Switch to {name}", { name }),
  };
}

/** Say what an upgrade costs now, or the rule by which it is calculated if the price cannot be fetched. */
async function describePrice(form) {
  const asked = await callApi("POST", "/billing/subscription/preview", { tier: form.tier.value }).catch(
    () => null,
  );
  if (!asked) return _("You'll be charged the difference for the rest of this period now.");
  if (!asked.due_now_cents) return _("Nothing is charged now.");
  const amount = formatMoney(asked.due_now_cents, form.dataset.currency);
  return _("You'll be charged {amount} now for the rest of this period.", { amount });
}

function submitOnce(form) {
  for (const button of document.querySelectorAll("form[data-plan] button")) button.disabled = true;
  form.querySelector("button").setAttribute("aria-busy", "true");
  form.submit();
}

for (const form of document.querySelectorAll("form[data-plan]")) {
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    if (form.dataset.plan === "keep" || form.dataset.plan === "checkout") return submitOnce(form);
    if (await confirmAction(await describeChange(form))) submitOnce(form);
  });
}

/** Poll until the subscription has changed; then show the plan page without the waiting notice. */
async function pollPlan(notice, until) {
  const status = await callApi("GET", "/billing/subscription").catch(() => null);
  if (status && status.tier !== notice.dataset.tier) location.replace("/billing/plan");
  else if (Date.now() < until) setTimeout(pollPlan, PLAN_POLL_MS, notice, until);
  else showDelay(notice);
}

const planNotice = document.getElementById("waiting");
if (planNotice) pollPlan(planNotice, Date.now() + POLL_FOR_MS);

// --- top-ups ---

// One click is one purchase.
for (const form of document.querySelectorAll("form[data-once]")) {
  form.addEventListener("submit", (event) => {
    if (form.dataset.sent) return event.preventDefault();
    form.dataset.sent = "yes";
    event.submitter?.setAttribute("aria-busy", "true");
    return true;
  });
}
// Coming back with the browser's own button: the page may be used again.
addEventListener("pageshow", () => {
  for (const form of document.querySelectorAll("form[data-sent]")) {
    delete form.dataset.sent;
    form.querySelector("[aria-busy]")?.removeAttribute("aria-busy");
  }
});

/** Poll until the payment service has confirmed or refused the top-up; then reload. */
async function pollTopUp(notice, until) {
  const topUp = await callApi("GET", `/billing/top-ups/${notice.dataset.topUp}`).catch(() => null);
  if (topUp && topUp.state !== notice.dataset.state) location.reload();
  else if (Date.now() < until) setTimeout(pollTopUp, TOP_UP_POLL_MS, notice, until);
  else showDelay(notice);
}

const topUpNotice = document.querySelector("[data-top-up]");
if (topUpNotice && ["OPEN", "CREATED"].includes(topUpNotice.dataset.state)) {
  pollTopUp(topUpNotice, Date.now() + POLL_FOR_MS);
}

function showDelay(notice) {
  notice.querySelector("p").append(` ${_("This is taking longer than usual. Check back in a while.")}`);
}
