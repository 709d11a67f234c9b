// The diagnostics dashboard: refreshes itself, and confirms every change in a dialog. Without a script
// every form is a page.

import { copyText } from "../lib/clipboard.js";
import { byId, targetOf } from "../lib/dom.js";

const SECOND_MS = 1000;
const STALE_SECONDS = 90;
const FRAGMENT = { "X-Fragment": "1" };
const root = byId("diagnostics");
const content = byId("dx-live");
const dialog = byId("dx-dialog");
const banner = byId("dx-banner");
const freshness = byId("dx-fresh");
const refreshMs = Number(root.dataset.refreshSeconds) * SECOND_MS;
let refreshedAt = Date.now();
let triedAt = Date.now();
let isRefreshing = false;

// --- painting ----------------------------------------------------------------------------------------

const LOCAL = new Intl.DateTimeFormat(undefined, {
  month: "short",
  day: "numeric",
  hour: "2-digit",
  minute: "2-digit",
});

function localiseTimes(part) {
  for (const time of part.querySelectorAll("time[datetime]")) {
    const moment = new Date(time.dateTime);
    if (Number.isNaN(moment.getTime())) continue;
    time.title = `${time.dateTime.slice(0, 19).replace("T", " ")} UTC`;
    time.textContent = LOCAL.format(moment);
  }
}

const rowBoxes = () => [...content.querySelectorAll('input[name="ids"]')];
const chosenRows = () => rowBoxes().filter((box) => box.checked);

function showSelection() {
  const number = chosenRows().length;
  for (const box of rowBoxes()) box.closest("tr").toggleAttribute("data-chosen", box.checked);
  for (const button of content.querySelectorAll("[data-needs-rows]")) button.disabled = number === 0;
  const words = byId("dx-selected");
  if (words) words.textContent = number ? `${number} selected` : "Select rows to act on them";
  const all = byId("dx-all");
  if (all) {
    all.checked = number > 0 && number === rowBoxes().length;
    all.indeterminate = number > 0 && number < rowBoxes().length;
  }
}

function updateControls() {
  localiseTimes(content);
  showSelection();
}

// --- refreshing --------------------------------------------------------------------------------------

function pauseReason() {
  if (document.hidden) return "hidden";
  if (dialog.open) return "a dialog is open";
  if (chosenRows().length) return "rows are selected";
  if (content.contains(document.activeElement) && document.activeElement.closest(".dx-filters"))
    return "a filter is being written";
  return "";
}

class RateLimited extends Error {}

async function fetchFragment(url, options = {}) {
  const answer = await fetch(url, {
    ...options,
    headers: FRAGMENT,
    credentials: "same-origin",
    redirect: "error",
  });
  if (answer.status === 429) throw new RateLimited(await answer.text());
  if (!answer.ok) throw new Error(`the server answered ${answer.status}`);
  return answer.text();
}

async function refresh() {
  if (isRefreshing) return;
  isRefreshing = true;
  triedAt = Date.now();
  showFreshness();
  try {
    const text = await fetchFragment(location.href);
    const kept = new Set(chosenRows().map((box) => box.value));
    const filtering = content.querySelector(".dx-filterbox")?.open;
    const scroll = [window.scrollX, window.scrollY, content.querySelector(".dx-scroll")?.scrollLeft ?? 0];
    content.innerHTML = text;
    const tabs = content.querySelector("template");
    root.querySelector(".dx-tabs").replaceChildren(...tabs.content.firstElementChild.children);
    tabs.remove();
    for (const box of rowBoxes()) box.checked = kept.has(box.value);
    const filters = content.querySelector(".dx-filterbox");
    if (filters && filtering) filters.open = true;
    updateControls();
    window.scrollTo(scroll[0], scroll[1]);
    const table = content.querySelector(".dx-scroll");
    if (table) table.scrollLeft = scroll[2];
    refreshedAt = Date.now();
    banner.hidden = true;
  } catch (problem) {
    const reason = `This page could not be renewed (${problem.message}).`;
    banner.textContent = `${reason} What you see is older; it is tried again.`;
    banner.hidden = false;
  } finally {
    isRefreshing = false;
    showFreshness();
  }
}

function showFreshness() {
  const seconds = Math.round((Date.now() - refreshedAt) / SECOND_MS);
  const paused = pauseReason();
  freshness.classList.toggle("dx-stale", seconds > STALE_SECONDS);
  freshness.classList.toggle("dx-paused", Boolean(paused));
  const age = isRefreshing ? "updating…" : seconds < 2 ? "updated now" : `updated ${seconds} s ago`;
  byId("dx-fresh-words").textContent = paused ? `${age}, paused: ${paused}` : age;
}

function tick() {
  if (Date.now() - triedAt >= refreshMs && !pauseReason()) refresh();
  showFreshness();
}

// --- confirming -------------------------------------------------------------------------------------

function showToast(text) {
  const place = byId("dx-toasts");
  place.innerHTML = text;
  const close = document.createElement("button");
  close.type = "button";
  close.className = "dx-link";
  close.textContent = "Dismiss";
  close.addEventListener("click", () => place.replaceChildren());
  place.firstElementChild?.append(close);
}

// Not form.action: there is a field of that name.
const formAction = (form) => form.getAttribute("action");

async function openConfirmation(form, button) {
  const data = new FormData(form, button);
  dialog.innerHTML = await fetchFragment(formAction(form), { method: "POST", body: data });
  localiseTimes(dialog);
  if (!dialog.open) dialog.showModal();
}

async function submitConfirmed(form, button) {
  for (const one of form.querySelectorAll("button")) one.disabled = true;
  const data = new FormData(form);
  if (button?.name) data.set(button.name, button.value);
  const text = await fetchFragment(formAction(form), { method: "POST", body: data });
  if (text.includes("data-apply")) {
    dialog.innerHTML = text;
    return;
  }
  dialog.close();
  showToast(text);
  for (const box of chosenRows()) box.checked = false;
  showSelection();
  await refresh();
}

async function onSubmit(event) {
  const form = targetOf(event);
  const act = form.matches("[data-confirm]")
    ? openConfirmation
    : form.matches("[data-apply]")
      ? submitConfirmed
      : null;
  if (!act) return;
  event.preventDefault();
  try {
    await act(form, event.submitter);
  } catch (problem) {
    dialog.close();
    banner.textContent =
      problem instanceof RateLimited
        ? problem.message
        : `Nothing is known of what became of it (${problem.message}). Look at the list before you try again.`;
    banner.hidden = false;
  }
}

// --- wiring ------------------------------------------------------------------------------------------

root.addEventListener("submit", onSubmit);
root.addEventListener("change", (event) => {
  if (targetOf(event).id === "dx-all") for (const box of rowBoxes()) box.checked = targetOf(event).checked;
  showSelection();
});
root.addEventListener("click", async (event) => {
  const copy = targetOf(event).closest("[data-copy]");
  if (copy) copy.title = (await copyText(copy.dataset.copy, copy)) ? "Copied" : "Not copied";
  if (targetOf(event).closest("[data-close]") && dialog.open) {
    event.preventDefault();
    dialog.close();
  }
});
byId("dx-refresh").addEventListener("click", refresh);
document.addEventListener("visibilitychange", tick);
updateControls();
localiseTimes(root);
root.querySelector(".dx-tabs [aria-current]")?.scrollIntoView({ inline: "center", block: "nearest" });
if (!("still" in root.dataset)) {
  freshness.hidden = false;
  setInterval(tick, SECOND_MS);
}
