// Renews the dashboard every half minute, and asks in a dialog before anything is changed. Without it every form is a page.

import { copied } from "./copying.js";

const SECOND = 1000;
const STALE_SECONDS = 90;
const FRAGMENT = { "X-Fragment": "1" };
const root = document.getElementById("diagnostics");
const live = document.getElementById("dx-live");
const dialog = document.getElementById("dx-dialog");
const banner = document.getElementById("dx-banner");
const fresh = document.getElementById("dx-fresh");
const period = Number(root.dataset.refreshSeconds) * SECOND;
let renewedAt = Date.now();
let triedAt = Date.now();
let renewing = false;

// --- what is shown -----------------------------------------------------------------------------------

const LOCAL = new Intl.DateTimeFormat(undefined, { month: "short", day: "numeric", hour: "2-digit", minute: "2-digit" });

function localise(part) {
  for (const time of part.querySelectorAll("time[datetime]")) {
    const moment = new Date(time.dateTime);
    if (Number.isNaN(moment.getTime())) continue;
    time.title = `${time.dateTime.slice(0, 19).replace("T", " ")} UTC`;
    time.textContent = LOCAL.format(moment);
  }
}

const rows = () => [...live.querySelectorAll('input[name="ids"]')];
const chosen = () => rows().filter((box) => box.checked);

function showSelection() {
  const number = chosen().length;
  for (const box of rows()) box.closest("tr").toggleAttribute("data-chosen", box.checked);
  for (const button of live.querySelectorAll("[data-needs-rows]")) button.disabled = number === 0;
  const words = document.getElementById("dx-selected");
  if (words) words.textContent = number ? `${number} selected` : "Select rows to act on them";
  const all = document.getElementById("dx-all");
  if (all) {
    all.checked = number > 0 && number === rows().length;
    all.indeterminate = number > 0 && number < rows().length;
  }
}

function settle() {
  localise(live);
  showSelection();
}

// --- renewing ----------------------------------------------------------------------------------------

function pausedBecause() {
  if (document.hidden) return "hidden";
  if (dialog.open) return "a dialog is open";
  if (chosen().length) return "rows are selected";
  if (live.contains(document.activeElement) && document.activeElement.closest(".dx-filters")) return "a filter is being written";
  return "";
}

class Refused extends Error {}

async function fragment(url, options = {}) {
  const answer = await fetch(url, { ...options, headers: FRAGMENT, credentials: "same-origin", redirect: "error" });
  if (answer.status === 429) throw new Refused(await answer.text());
  if (!answer.ok) throw new Error(`the server answered ${answer.status}`);
  return answer.text();
}

async function renew() {
  if (renewing) return;
  renewing = true;
  triedAt = Date.now();
  tell();
  try {
    const text = await fragment(location.href);
    const kept = new Set(chosen().map((box) => box.value));
    const filtering = live.querySelector(".dx-filterbox")?.open;
    const scroll = [window.scrollX, window.scrollY, live.querySelector(".dx-scroll")?.scrollLeft ?? 0];
    live.innerHTML = text;
    const tabs = live.querySelector("template");
    root.querySelector(".dx-tabs").replaceChildren(...tabs.content.firstElementChild.children);
    tabs.remove();
    for (const box of rows()) box.checked = kept.has(box.value);
    const filters = live.querySelector(".dx-filterbox");
    if (filters && filtering) filters.open = true;
    settle();
    window.scrollTo(scroll[0], scroll[1]);
    const table = live.querySelector(".dx-scroll");
    if (table) table.scrollLeft = scroll[2];
    renewedAt = Date.now();
    banner.hidden = true;
  } catch (problem) {
    banner.textContent = `This page could not be renewed (${problem.message}). What you see is older; it is tried again.`;
    banner.hidden = false;
  } finally {
    renewing = false;
    tell();
  }
}

function tell() {
  const seconds = Math.round((Date.now() - renewedAt) / SECOND);
  const paused = pausedBecause();
  fresh.classList.toggle("dx-stale", seconds > STALE_SECONDS);
  fresh.classList.toggle("dx-paused", Boolean(paused));
  const age = renewing ? "updating…" : seconds < 2 ? "updated now" : `updated ${seconds} s ago`;
  document.getElementById("dx-fresh-words").textContent = paused ? `${age}, paused: ${paused}` : age;
}

function tick() {
  if (Date.now() - triedAt >= period && !pausedBecause()) renew();
  tell();
}

// --- asking first ------------------------------------------------------------------------------------

function toast(text) {
  const place = document.getElementById("dx-toasts");
  place.innerHTML = text;
  const close = document.createElement("button");
  close.type = "button";
  close.className = "dx-link";
  close.textContent = "Dismiss";
  close.addEventListener("click", () => place.replaceChildren());
  place.firstElementChild?.append(close);
}

// Not form.action: there is a field of that name.
const addressOf = (form) => form.getAttribute("action");

async function ask(form, button) {
  const data = new FormData(form, button);
  dialog.innerHTML = await fragment(addressOf(form), { method: "POST", body: data });
  localise(dialog);
  if (!dialog.open) dialog.showModal();
}

async function apply(form, button) {
  for (const one of form.querySelectorAll("button")) one.disabled = true;
  const data = new FormData(form);
  if (button?.name) data.set(button.name, button.value);
  const text = await fragment(addressOf(form), { method: "POST", body: data });
  if (text.includes("data-apply")) {
    dialog.innerHTML = text;
    return;
  }
  dialog.close();
  toast(text);
  for (const box of chosen()) box.checked = false;
  showSelection();
  await renew();
}

async function submitted(event) {
  const form = event.target;
  const act = form.matches("[data-confirm]") ? ask : form.matches("[data-apply]") ? apply : null;
  if (!act) return;
  event.preventDefault();
  try {
    await act(form, event.submitter);
  } catch (problem) {
    dialog.close();
    banner.textContent = problem instanceof Refused
      ? problem.message
      : `Nothing is known of what became of it (${problem.message}). Look at the list before you try again.`;
    banner.hidden = false;
  }
}

// --- wiring ------------------------------------------------------------------------------------------

root.addEventListener("submit", submitted);
root.addEventListener("change", (event) => {
  if (event.target.id === "dx-all") for (const box of rows()) box.checked = event.target.checked;
  showSelection();
});
root.addEventListener("click", async (event) => {
  const copy = event.target.closest("[data-copy]");
  if (copy) copy.title = (await copied(copy.dataset.copy, copy)) ? "Copied" : "Not copied";
  if (event.target.closest("[data-close]") && dialog.open) {
    event.preventDefault();
    dialog.close();
  }
});
document.getElementById("dx-refresh").addEventListener("click", renew);
document.addEventListener("visibilitychange", tick);
settle();
localise(root);
root.querySelector(".dx-tabs [aria-current]")?.scrollIntoView({ inline: "center", block: "nearest" });
if (!("still" in root.dataset)) {
  fresh.hidden = false;
  setInterval(tick, SECOND);
}
