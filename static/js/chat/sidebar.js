// The list of chats: live states, pin, rename in place, archive, delete with undo, and a drawer on narrow
// screens.

import { callApi } from "../lib/api.js";
import {
  byId,
  cloneTemplate,
  createElement,
  delegateClicks,
  fillSlot,
  findSlot,
  setVisible,
  targetOf,
} from "../lib/dom.js";
import { _ } from "../lib/i18n.js";
import { showToast } from "../lib/toasts.js";
import { ExportDialog } from "./export_dialog.js";

const UNDO_SECONDS = 10; // seconds
const STATE_LABELS = { idle: "", running: _("running"), waiting: _("needs you") };

export class Sidebar {
  /**
   * @param {object} options
   * @param {string | null} options.current
   * @param {() => void} options.onGone the open chat was archived or deleted
   */
  constructor({ current, onGone }) {
    this.list = byId("sessions");
    this.current = current;
    this.onGone = onGone;
    this.exports = new ExportDialog();
    this.menu = new SessionMenu({
      pin: (item) => this.#change(item, { pinned: true }),
      unpin: (item) => this.#change(item, { pinned: false }),
      rename: (item) => this.#rename(item),
      export: (item) => this.exports.open(item),
      archive: (item) => this.#archive(item),
      delete: (item) => this.#delete(item),
    });
    delegateClicks(this.list, { menu: (button) => this.menu.open(button.closest("li"), button) });
    delegateClicks(document.body, {
      "open-sidebar": () => this.#setDrawerOpen(true),
      "close-sidebar": () => this.#setDrawerOpen(false),
    });
    document.addEventListener("keydown", (event) => {
      if (event.key !== "Escape" || !document.body.dataset.drawer) return;
      event.preventDefault();
      this.#setDrawerOpen(false);
    });
    // A session finds its heading by the text, and browsers write some months otherwise than the server.
    for (const month of this.list.querySelectorAll("h2 time"))
      month.textContent = monthLabel(new Date(`${month.dateTime}-01T00:00`));
    startAccountMenu(document.querySelector(".me"));
    this.list.addEventListener("scroll", () => this.#loadMore(), { passive: true });
    this.list.querySelector("[aria-current]")?.scrollIntoView({ block: "nearest" });
    this.#offerUndo();
  }

  /**
   * Apply a `session.changed` or `title.changed` of any of the user's sessions.
   * @param {any} session
   */
  updateSession({
    session_id: id,
    title,
    state,
    deleted,
    archived,
    child,
    pinned,
    platform,
    active_at: activeAt,
  }) {
    let item = this.#findItem(id);
    if (deleted || archived) return this.#removeItem(item);
    if (!item) {
      if (state === undefined || child) return;
      item = this.#addItem({ id, title, state, pinned, activeAt });
    }
    if (pinned !== undefined) this.#setPinned(item, pinned);
    if (title !== undefined && !item.querySelector("input")) fillSlot(item, "title", title || _("New chat"));
    if (platform) fillSlot(item, "platform", platform.charAt(0).toUpperCase() + platform.slice(1));
    if (state === undefined) return;
    if (state === "running" && item.dataset.state !== "running") {
      item.dataset.activeAt = new Date().toISOString();
      this.#moveToTop(item);
    }
    item.dataset.state = state;
    fillSlot(item, "state", STATE_LABELS[state] ?? "");
  }

  /**
   * Pass on what changed before the socket was connected, or while it was not; newer sessions come to the
   * top.
   * @param {(session: any) => void} take
   */
  async loadMissedChanges(take) {
    const newest =
      [...this.list.querySelectorAll("li")]
        .map((item) => item.dataset.activeAt)
        .sort()
        .at(-1) ?? "";
    const { items } = await callApi("GET", "/sessions");
    for (const session of items.reverse()) {
      if (this.#findItem(session.id) || session.active_at > newest)
        take({ ...session, session_id: session.id });
    }
  }

  setCurrent(id, title) {
    this.current = id;
    for (const link of this.list.querySelectorAll("[aria-current]")) link.removeAttribute("aria-current");
    if (!id) return;
    const item = this.#findItem(id) ?? this.#addItem({ id, title, state: "idle" });
    item.querySelector("a").setAttribute("aria-current", "page");
  }

  /**
   * Remove an open session that was never used, without leaving the page.
   * @param {string} id
   */
  discardSession(id) {
    this.setCurrent(null);
    this.#removeItem(this.#findItem(id));
  }

  #findItem(id) {
    return this.list.querySelector(`li[data-session="${id}"]`);
  }

  #addItem({ id, title, state, pinned = false, activeAt = null }) {
    const item = cloneTemplate("session-item");
    item.dataset.session = id;
    item.dataset.pinned = String(pinned);
    item.dataset.state = state;
    item.dataset.activeAt = activeAt || new Date().toISOString();
    item.querySelector("a").href = `/chat/${id}/`;
    fillSlot(item, "title", title || _("New chat"));
    if (pinned || !activeAt) this.#moveToTop(item);
    else this.#insertByDate(item);
    return item;
  }

  /** Move to the top of the pinned sessions, or of today's. */
  #moveToTop(item) {
    const place =
      item.dataset.pinned === "true" ? this.#ensureSection(_("Pinned")) : this.#ensureSection(_("Today"));
    if (place.firstElementChild !== item) place.prepend(item);
    this.#removeEmptySections();
  }

  #setPinned(item, pinned) {
    if ((item.dataset.pinned === "true") === pinned) return;
    item.dataset.pinned = String(pinned);
    if (pinned) this.#moveToTop(item);
    else this.#insertByDate(item);
  }

  /** Insert among the days; a session is no newer for having been pinned. */
  #insertByDate(item) {
    const { activeAt } = item.dataset;
    const isOlder = (other) =>
      other.dataset.pinned !== "true" && other !== item && other.dataset.activeAt < activeAt;
    const next = [...this.list.querySelectorAll("li")].find(isOlder);
    const label = dayLabel(activeAt);
    let list = this.#findSection(label);
    if (!list) {
      list = createElement("ul");
      const section = createElement("section", {}, createElement("h2", { textContent: label }), list);
      this.list.insertBefore(section, next?.closest("section") ?? null);
    }
    list.insertBefore(item, next?.parentElement === list ? next : null);
    this.#removeEmptySections();
  }

  #removeEmptySections() {
    for (const section of this.list.querySelectorAll("section"))
      if (!section.querySelector("li")) section.remove();
  }

  #findSection(label) {
    const headings = [...this.list.querySelectorAll("section h2")];
    return headings.find((heading) => heading.textContent.trim() === label)?.nextElementSibling;
  }

  #ensureSection(label) {
    const known = this.#findSection(label);
    if (known) return known;
    const headings = [...this.list.querySelectorAll("section h2")];
    const list = createElement("ul");
    const section = createElement("section", {}, createElement("h2", { textContent: label }), list);
    const pinned = headings.find((heading) => heading.textContent.trim() === _("Pinned"));
    if (pinned && label !== _("Pinned")) pinned.closest("section").after(section);
    else this.list.prepend(section);
    return list;
  }

  async #change(item, changes) {
    try {
      await callApi("PATCH", `/sessions/${item.dataset.session}`, changes);
    } catch (problem) {
      showToast(problem.message);
      return false;
    }
    if (changes.pinned !== undefined) this.#setPinned(item, changes.pinned);
    return true;
  }

  async #archive(item) {
    const id = item.dataset.session;
    if (!(await this.#change(item, { archived: true }))) return;
    this.#removeItem(item);
    if (id !== this.current)
      showToast(_("Chat archived."), {
        label: _("Undo"),
        act: () => callApi("PATCH", `/sessions/${id}`, { archived: false }).catch(() => {}),
      });
  }

  #removeItem(item) {
    if (!item) return;
    const section = item.closest("section");
    item.remove();
    if (section && !section.querySelector("li")) section.remove();
    if (item.dataset.session === this.current) this.onGone();
  }

  #rename(item) {
    const label = findSlot(item, "title");
    const before = label.textContent;
    const input = createElement("input", {
      className: "rename",
      value: before,
      maxLength: 200,
      ariaLabel: _("Title"),
    });
    const link = item.querySelector("a");
    setVisible(link, false);
    item.prepend(input);
    input.select();
    const finish = async (save) => {
      const held = document.activeElement === input;
      input.onblur = null;
      input.remove();
      setVisible(link, true);
      if (held) link.focus();
      const title = input.value.trim();
      if (!save || !title || title === before) return;
      label.textContent = title;
      try {
        await callApi("PATCH", `/sessions/${item.dataset.session}`, { title });
      } catch (problem) {
        label.textContent = before;
        showToast(problem.message);
      }
    };
    input.onblur = () => finish(true);
    input.onkeydown = (event) => {
      if (event.key === "Enter" && !event.isComposing) finish(true);
      if (event.key !== "Escape") return;
      event.preventDefault();
      event.stopPropagation();
      finish(false);
    };
  }

  async #delete(item) {
    const id = item.dataset.session;
    try {
      await callApi("DELETE", `/sessions/${id}`);
    } catch (problem) {
      showToast(problem.message);
      return;
    }
    // Kept across pages: deleting the open chat leaves its page.
    sessionStorage.setItem("deleted", JSON.stringify({ id, at: Date.now() }));
    this.#removeItem(item);
    if (id !== this.current) this.#offerUndo();
  }

  #offerUndo() {
    const { id, at } = JSON.parse(sessionStorage.getItem("deleted") ?? "{}");
    const left = UNDO_SECONDS - (Date.now() - at) / 1000;
    if (!id || !(left > 1)) return;
    const undo = async () => {
      sessionStorage.removeItem("deleted");
      try {
        await callApi("POST", `/sessions/${id}/restore`);
        location.assign(`/chat/${id}/`);
      } catch (problem) {
        showToast(problem.message);
      }
    };
    showToast(_("Chat deleted."), { label: _("Undo"), act: undo, seconds: left });
  }

  async #loadMore() {
    const { more } = this.list.dataset;
    const left = this.list.scrollHeight - this.list.scrollTop - this.list.clientHeight;
    if (!more || left > 200 || this.loading) return;
    this.loading = true;
    try {
      const page = await callApi("GET", `/sessions?cursor=${encodeURIComponent(more)}`);
      this.list.dataset.more = page.next_cursor ?? "";
      for (const session of page.items) this.updateSession({ ...session, session_id: session.id });
    } catch {
      // the next scroll asks again
    }
    this.loading = false;
  }

  #setDrawerOpen(open) {
    if (open) document.body.dataset.drawer = "open";
    else delete document.body.dataset.drawer;
    const opener = document.querySelector('[data-act="open-sidebar"]');
    opener.setAttribute("aria-expanded", String(open));
    byId("main").inert = open;
    (open ? byId("sidebar").querySelector("a, button") : opener).focus();
  }
}

/**
 * The heading of a session's day, with the same text as the server's.
 * @param {string} iso
 * @param {Date} [now]
 */
export function dayLabel(iso, now = new Date()) {
  const then = new Date(iso);
  const midnight = (date) => new Date(date.getFullYear(), date.getMonth(), date.getDate());
  const days = Math.round((midnight(now).getTime() - midnight(then).getTime()) / 86_400_000);
  if (days <= 0) return _("Today");
  if (days === 1) return _("Yesterday");
  if (days < 7) return _("Previous 7 days");
  if (days < 30) return _("Previous 30 days");
  return monthLabel(then);
}

const monthLabel = (date) =>
  date.toLocaleDateString(document.documentElement.lang, { month: "long", year: "numeric" });

/** Close the menu on Escape and on a click elsewhere, before Escape can stop a running turn. */
function startAccountMenu(menu) {
  const closes = (event) => {
    if (event.key !== "Escape" || !menu.open) return;
    event.preventDefault();
    event.stopPropagation();
    menu.open = false;
    menu.querySelector("summary").focus();
  };
  document.addEventListener("keydown", closes, true); // before other listeners for the key
  document.addEventListener("click", (event) => {
    if (menu.open && !menu.contains(targetOf(event))) menu.open = false;
  });
}

/** The menu of one session in the list: pin, rename, export, archive, delete; arrows move, Escape closes. */
class SessionMenu {
  /** @param {Record<string, (item: PageElement) => unknown>} acts called with the list item the menu was opened for */
  constructor(acts) {
    this.box = byId("session-menu");
    this.item = null;
    this.box.addEventListener("click", (event) => {
      const button = targetOf(event).closest("[data-act]");
      if (!button) return;
      const { item } = this;
      this.close();
      acts[button.dataset.act](item);
    });
    this.box.addEventListener("keydown", (event) => this.#onKey(event));
    this.box.addEventListener("toggle", (event) => event.newState === "closed" && this.#onClosed());
  }

  open(item, button) {
    this.item = item;
    this.opener = button;
    const pinned = item.dataset.pinned === "true";
    setVisible(this.box.querySelector('[data-act="pin"]'), !pinned);
    setVisible(this.box.querySelector('[data-act="unpin"]'), pinned);
    button.setAttribute("aria-expanded", "true");
    this.box.showPopover();
    const place = button.getBoundingClientRect();
    const top = Math.min(place.bottom + 4, innerHeight - this.box.offsetHeight - 8);
    this.box.style.top = `${Math.max(8, top)}px`;
    this.box.style.left = `${Math.max(8, Math.min(place.left, innerWidth - this.box.offsetWidth - 8))}px`;
    this.#visibleButtons()[0].focus();
  }

  close() {
    this.box.hidePopover();
  }

  #onClosed() {
    this.opener?.setAttribute("aria-expanded", "false");
    if (this.box.contains(document.activeElement) || document.activeElement === document.body)
      this.opener?.focus();
  }

  #visibleButtons() {
    return [...this.box.querySelectorAll("[data-act]:not([hidden])")];
  }

  #onKey(event) {
    const buttons = this.#visibleButtons();
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    const current = buttons.indexOf(/** @type {PageElement} */ (document.activeElement));
    if (step) buttons[(current + step + buttons.length) % buttons.length].focus();
    else if (event.key === "Tab" || event.key === "Escape") this.close();
    else return;
    event.preventDefault();
    event.stopPropagation();
  }
}
