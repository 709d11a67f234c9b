// The diagnostics dashboard: refreshes itself, and confirms every change in a dialog. Without a script
// every form is a page.

import { copyText } from "../lib/clipboard.js";
import { byId, targetOf } from "../lib/dom.js";

const SECOND_MS = 1000;
const STALE_SECONDS = 90;
const FRAGMENT = { "X-Fragment": "1" };
const LOCAL_TIME = new Intl.DateTimeFormat(undefined, {
  month: "short",
  day: "numeric",
  hour: "2-digit",
  minute: "2-digit",
});

class RateLimited extends Error {}

class DiagnosticsPage {
  constructor() {
    this.root = byId("diagnostics");
    this.content = byId("dx-live");
    this.dialog = byId("dx-dialog");
    this.banner = byId("dx-banner");
    this.freshness = byId("dx-fresh");
    this.refreshMs = Number(this.root.dataset.refreshSeconds) * SECOND_MS;
    this.refreshedAt = Date.now();
    this.triedAt = Date.now();
    this.isRefreshing = false;
  }

  start() {
    const { root } = this;
    root.addEventListener("submit", (event) => this.#onSubmit(event));
    root.addEventListener("change", (event) => this.#onChange(targetOf(event)));
    root.addEventListener("click", (event) => this.#onClick(event));
    byId("dx-refresh").addEventListener("click", () => this.#refresh());
    document.addEventListener("visibilitychange", () => this.#tick());
    this.#updateControls();
    localiseTimes(root);
    root.querySelector(".dx-tabs [aria-current]")?.scrollIntoView({ inline: "center", block: "nearest" });
    if ("still" in root.dataset) return;
    this.freshness.hidden = false;
    setInterval(() => this.#tick(), SECOND_MS);
  }

  // --- selection ---

  #rowBoxes() {
    return [...this.content.querySelectorAll('input[name="ids"]')];
  }

  #chosenRows() {
    return this.#rowBoxes().filter((box) => box.checked);
  }

  #showSelection() {
    const boxes = this.#rowBoxes();
    const number = this.#chosenRows().length;
    for (const box of boxes) box.closest("tr").toggleAttribute("data-chosen", box.checked);
    for (const button of this.content.querySelectorAll("[data-needs-rows]")) button.disabled = number === 0;
    const label = byId("dx-selected");
    if (label) label.textContent = number ? `${number} selected` : "Select rows to act on them";
    const all = byId("dx-all");
    if (!all) return;
    all.checked = number > 0 && number === boxes.length;
    all.indeterminate = number > 0 && number < boxes.length;
  }

  #updateControls() {
    localiseTimes(this.content);
    this.#showSelection();
  }

  // --- refreshing ---

  #pauseReason() {
    const focused = document.activeElement;
    if (document.hidden) return "hidden";
    if (this.dialog.open) return "a dialog is open";
    if (this.#chosenRows().length) return "rows are selected";
    if (this.content.contains(focused) && focused.closest(".dx-filters")) return "you are editing a filter";
    return "";
  }

  #tick() {
    if (Date.now() - this.triedAt >= this.refreshMs && !this.#pauseReason()) this.#refresh();
    this.#showFreshness();
  }

  async #refresh() {
    if (this.isRefreshing) return;
    this.isRefreshing = true;
    this.triedAt = Date.now();
    this.#showFreshness();
    try {
      this.#replaceContent(await fetchFragment(location.href));
      this.refreshedAt = Date.now();
      this.banner.hidden = true;
    } catch (problem) {
      const reason = `This page couldn't be refreshed (${problem.message}).`;
      this.#showBanner(`${reason} The figures are out of date. Trying again…`);
    } finally {
      this.isRefreshing = false;
      this.#showFreshness();
    }
  }

  /** Keep the selection, the open filters and the scroll positions. */
  #replaceContent(html) {
    const { content } = this;
    const chosen = new Set(this.#chosenRows().map((box) => box.value));
    const isFiltering = content.querySelector(".dx-filterbox")?.open;
    const { scrollX, scrollY } = window;
    const tableLeft = content.querySelector(".dx-scroll")?.scrollLeft ?? 0;
    content.innerHTML = html;
    const tabs = content.querySelector("template");
    this.root.querySelector(".dx-tabs").replaceChildren(...tabs.content.firstElementChild.children);
    tabs.remove();
    for (const box of this.#rowBoxes()) box.checked = chosen.has(box.value);
    const filters = content.querySelector(".dx-filterbox");
    if (filters && isFiltering) filters.open = true;
    this.#updateControls();
    window.scrollTo(scrollX, scrollY);
    const table = content.querySelector(".dx-scroll");
    if (table) table.scrollLeft = tableLeft;
  }

  #showFreshness() {
    const seconds = Math.round((Date.now() - this.refreshedAt) / SECOND_MS);
    const paused = this.#pauseReason();
    this.freshness.classList.toggle("dx-stale", seconds > STALE_SECONDS);
    this.freshness.classList.toggle("dx-paused", Boolean(paused));
    const age = this.isRefreshing ? "updating…" : seconds < 2 ? "updated now" : `updated ${seconds} s ago`;
    byId("dx-fresh-words").textContent = paused ? `${age}, paused: ${paused}` : age;
  }

  #showBanner(text) {
    this.banner.textContent = text;
    this.banner.hidden = false;
  }

  // --- confirming ---

  /** Ask for the confirmation of a change and show it in the dialog. */
  async #openConfirmation(form, button) {
    const data = new FormData(form, button);
    this.dialog.innerHTML = await fetchFragment(actionOf(form), { method: "POST", body: data });
    localiseTimes(this.dialog);
    if (!this.dialog.open) this.dialog.showModal();
  }

  /** Make a confirmed change; the server sends the form again if something must be corrected. */
  async #submitConfirmed(form, button) {
    for (const one of form.querySelectorAll("button")) one.disabled = true;
    const data = new FormData(form);
    if (button?.name) data.set(button.name, button.value);
    const html = await fetchFragment(actionOf(form), { method: "POST", body: data });
    if (html.includes("data-apply")) {
      this.dialog.innerHTML = html;
      return;
    }
    this.dialog.close();
    showResult(html);
    for (const box of this.#chosenRows()) box.checked = false;
    this.#showSelection();
    await this.#refresh();
  }

  // --- events ---

  async #onSubmit(event) {
    const form = targetOf(event);
    const isConfirmed = form.matches("[data-apply]");
    if (!isConfirmed && !form.matches("[data-confirm]")) return;
    event.preventDefault();
    try {
      if (isConfirmed) await this.#submitConfirmed(form, event.submitter);
      else await this.#openConfirmation(form, event.submitter);
    } catch (problem) {
      this.dialog.close();
      const unknown = `Nothing is known of what became of it (${problem.message}).`;
      const text = `${unknown} Look at the list before you try again.`;
      this.#showBanner(problem instanceof RateLimited ? problem.message : text);
    }
  }

  #onChange(target) {
    if (target.id === "dx-all") for (const box of this.#rowBoxes()) box.checked = target.checked;
    this.#showSelection();
  }

  async #onClick(event) {
    const target = targetOf(event);
    const copy = target.closest("[data-copy]");
    if (copy) copy.title = (await copyText(copy.dataset.copy, copy)) ? "Copied" : "Not copied";
    if (!target.closest("[data-close]") || !this.dialog.open) return;
    event.preventDefault();
    this.dialog.close();
  }
}

/** @param {ParentNode} part */
function localiseTimes(part) {
  for (const time of part.querySelectorAll("time[datetime]")) {
    const moment = new Date(time.dateTime);
    if (Number.isNaN(moment.getTime())) continue;
    time.title = `${time.dateTime.slice(0, 19).replace("T", " ")} UTC`;
    time.textContent = LOCAL_TIME.format(moment);
  }
}

/**
 * @param {string} url
 * @param {RequestInit} [options]
 */
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

/** The address of a form; not `form.action`, as there is a field of that name. */
const actionOf = (form) => form.getAttribute("action");

function showResult(html) {
  const place = byId("dx-toasts");
  place.innerHTML = html;
  const close = document.createElement("button");
  close.type = "button";
  close.className = "dx-link";
  close.textContent = "Dismiss";
  close.addEventListener("click", () => place.replaceChildren());
  place.firstElementChild?.append(close);
}

new DiagnosticsPage().start();
