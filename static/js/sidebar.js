// The list of chats: live dots, pin, rename in place, archive, delete with undo, a drawer on narrow screens.

import { call } from "./api.js";
import { byId, clone, delegate, element, fill, show, slot } from "./dom.js";
import { Exports } from "./exports.js";
import { Menu } from "./menu.js";
import { toast } from "./toast.js";
import { _ } from "./words.js";

const UNDO_FOR = 10; // seconds
const DOTS = { idle: "", running: _("running"), waiting: _("needs you") };

export class Sidebar {
  constructor({ current, onGone }) {
    this.list = byId("sessions");
    this.current = current;
    this.onGone = onGone;
    this.exports = new Exports();
    this.menu = new Menu({
      pin: (item) => this.#change(item, { pinned: true }),
      unpin: (item) => this.#change(item, { pinned: false }),
      rename: (item) => this.#rename(item),
      export: (item) => this.exports.ask(item),
      archive: (item) => this.#archive(item),
      delete: (item) => this.#delete(item),
    });
    delegate(this.list, { menu: (button) => this.menu.open(button.closest("li"), button) });
    delegate(document.body, { "open-sidebar": () => this.#drawer(true), "close-sidebar": () => this.#drawer(false) });
    document.addEventListener("keydown", (event) => {
      if (event.key !== "Escape" || !document.body.dataset.drawer) return;
      event.preventDefault();
      this.#drawer(false);
    });
    // A chat joins a heading by its words, and browsers write some months otherwise than the server.
    for (const month of this.list.querySelectorAll("h2 time")) month.textContent = monthLabel(new Date(`${month.dateTime}-01T00:00`));
    startAccountMenu(document.querySelector(".me"));
    this.list.addEventListener("scroll", () => this.#more(), { passive: true });
    this.list.querySelector("[aria-current]")?.scrollIntoView({ block: "nearest" });
    this.#offerUndo();
  }

  /** A `session.changed` or `title.changed` of any of the user's sessions. */
  changed({ session_id: id, title, state, deleted, archived, child, pinned, platform, active_at: activeAt }) {
    let item = this.#item(id);
    if (deleted || archived) return this.#remove(item);
    if (!item) {
      if (state === undefined || child) return;
      item = this.#add({ id, title, state, pinned, activeAt });
    }
    if (pinned !== undefined) this.#pin(item, pinned);
    if (title !== undefined && !item.querySelector("input")) fill(item, "title", title || _("New chat"));
    if (platform) fill(item, "platform", platform.charAt(0).toUpperCase() + platform.slice(1));
    if (state === undefined) return;
    if (state === "running" && item.dataset.state !== "running") {
      item.dataset.activeAt = new Date().toISOString();
      this.#toTop(item);
    }
    item.dataset.state = state;
    fill(item, "state", DOTS[state] ?? "");
  }

  /** What changed between the page and its socket, or while there was none, goes to `take`; what came meanwhile stands on top. */
  async catchUp(take) {
    const newest = [...this.list.querySelectorAll("li")].map((item) => item.dataset.activeAt).sort().at(-1) ?? "";
    const { items } = await call("GET", "/sessions");
    for (const session of items.reverse()) {
      if (this.#item(session.id) || session.active_at > newest) take({ ...session, session_id: session.id });
    }
  }

  setCurrent(id, title) {
    this.current = id;
    for (const link of this.list.querySelectorAll("[aria-current]")) link.removeAttribute("aria-current");
    if (!id) return;
    const item = this.#item(id) ?? this.#add({ id, title, state: "idle" });
    item.querySelector("a").setAttribute("aria-current", "page");
  }

  #item(id) {
    return this.list.querySelector(`li[data-session="${id}"]`);
  }

  #add({ id, title, state, pinned = false, activeAt }) {
    const item = clone("session-item");
    item.dataset.session = id;
    item.dataset.pinned = String(pinned);
    item.dataset.state = state;
    item.dataset.activeAt = activeAt || new Date().toISOString();
    item.querySelector("a").href = `/chat/${id}/`;
    fill(item, "title", title || _("New chat"));
    if (pinned || !activeAt) this.#toTop(item);
    else this.#sortIn(item);
    return item;
  }

  /** To the top of the pinned ones, or of today's. */
  #toTop(item) {
    const place = item.dataset.pinned === "true" ? this.#section(_("Pinned")) : this.#section(_("Today"));
    if (place.firstElementChild !== item) place.prepend(item);
    this.#tidy();
  }

  #pin(item, pinned) {
    if ((item.dataset.pinned === "true") === pinned) return;
    item.dataset.pinned = String(pinned);
    if (pinned) this.#toTop(item);
    else this.#sortIn(item);
  }

  /** Back among the days: it is no newer for having been pinned. */
  #sortIn(item) {
    const { activeAt } = item.dataset;
    const isOlder = (other) => other.dataset.pinned !== "true" && other !== item && other.dataset.activeAt < activeAt;
    const next = [...this.list.querySelectorAll("li")].find(isOlder);
    const label = dayLabel(activeAt);
    let list = this.#known(label);
    if (!list) {
      list = element("ul");
      const section = element("section", {}, element("h2", { textContent: label }), list);
      this.list.insertBefore(section, next?.closest("section") ?? null);
    }
    list.insertBefore(item, next?.parentElement === list ? next : null);
    this.#tidy();
  }

  #tidy() {
    for (const section of this.list.querySelectorAll("section")) if (!section.querySelector("li")) section.remove();
  }

  #known(label) {
    const headings = [...this.list.querySelectorAll("section h2")];
    return headings.find((heading) => heading.textContent.trim() === label)?.nextElementSibling;
  }

  #section(label) {
    const known = this.#known(label);
    if (known) return known;
    const headings = [...this.list.querySelectorAll("section h2")];
    const list = element("ul");
    const section = element("section", {}, element("h2", { textContent: label }), list);
    const pinned = headings.find((heading) => heading.textContent.trim() === _("Pinned"));
    if (pinned && label !== _("Pinned")) pinned.closest("section").after(section);
    else this.list.prepend(section);
    return list;
  }

  async #change(item, changes) {
    try {
      await call("PATCH", `/sessions/${item.dataset.session}`, changes);
    } catch (problem) {
      toast(problem.message);
      return false;
    }
    if (changes.pinned !== undefined) this.#pin(item, changes.pinned);
    return true;
  }

  async #archive(item) {
    const id = item.dataset.session;
    if (!(await this.#change(item, { archived: true }))) return;
    this.#remove(item);
    if (id !== this.current) toast(_("Chat archived."), { label: _("Undo"), act: () => call("PATCH", `/sessions/${id}`, { archived: false }).catch(() => {}) });
  }

  #remove(item) {
    if (!item) return;
    const section = item.closest("section");
    item.remove();
    if (section && !section.querySelector("li")) section.remove();
    if (item.dataset.session === this.current) this.onGone();
  }

  #rename(item) {
    const label = slot(item, "title");
    const before = label.textContent;
    const input = element("input", { className: "rename", value: before, maxLength: 200, ariaLabel: _("Title") });
    const link = item.querySelector("a");
    show(link, false);
    item.prepend(input);
    input.select();
    const finish = async (save) => {
      input.onblur = null;
      input.remove();
      show(link, true);
      const title = input.value.trim();
      if (!save || !title || title === before) return;
      label.textContent = title;
      try {
        await call("PATCH", `/sessions/${item.dataset.session}`, { title });
      } catch (problem) {
        label.textContent = before;
        toast(problem.message);
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
      await call("DELETE", `/sessions/${id}`);
    } catch (problem) {
      return toast(problem.message);
    }
    // Kept across pages: deleting the open chat leaves its page.
    sessionStorage.setItem("deleted", JSON.stringify({ id, at: Date.now() }));
    this.#remove(item);
    if (id !== this.current) this.#offerUndo();
  }

  #offerUndo() {
    const { id, at } = JSON.parse(sessionStorage.getItem("deleted") ?? "{}");
    const left = UNDO_FOR - (Date.now() - at) / 1000;
    if (!id || !(left > 1)) return;
    const undo = async () => {
      sessionStorage.removeItem("deleted");
      try {
        await call("POST", `/sessions/${id}/restore`);
        location.assign(`/chat/${id}/`);
      } catch (problem) {
        toast(problem.message);
      }
    };
    toast(_("Chat deleted."), { label: _("Undo"), act: undo, seconds: left });
  }

  async #more() {
    const { more } = this.list.dataset;
    const left = this.list.scrollHeight - this.list.scrollTop - this.list.clientHeight;
    if (!more || left > 200 || this.loading) return;
    this.loading = true;
    try {
      const page = await call("GET", `/sessions?cursor=${encodeURIComponent(more)}`);
      this.list.dataset.more = page.next_cursor ?? "";
      for (const session of page.items) this.changed({ ...session, session_id: session.id });
    } catch {
      // the next scroll asks again
    }
    this.loading = false;
  }

  #drawer(open) {
    if (open) document.body.dataset.drawer = "open";
    else delete document.body.dataset.drawer;
    const opener = document.querySelector('[data-act="open-sidebar"]');
    opener.setAttribute("aria-expanded", String(open));
    byId("main").inert = open;
    (open ? byId("sidebar").querySelector("a, button") : opener).focus();
  }
}

/** The heading a session stands under: the same words as the server's. */
export function dayLabel(iso, now = new Date()) {
  const then = new Date(iso);
  const midnight = (date) => new Date(date.getFullYear(), date.getMonth(), date.getDate());
  const days = Math.round((midnight(now) - midnight(then)) / 86_400_000);
  if (days <= 0) return _("Today");
  if (days === 1) return _("Yesterday");
  if (days < 7) return _("Previous 7 days");
  if (days < 30) return _("Previous 30 days");
  return monthLabel(then);
}

const monthLabel = (date) => date.toLocaleDateString(document.documentElement.lang, { month: "long", year: "numeric" });

/** Escape and a click elsewhere close it, and mean nothing else then: an answer that runs goes on. */
function startAccountMenu(menu) {
  const closes = (event) => {
    if (event.key !== "Escape" || !menu.open) return;
    event.preventDefault();
    event.stopPropagation();
    menu.open = false;
    menu.querySelector("summary").focus();
  };
  document.addEventListener("keydown", closes, true); // before whoever else listens for the key
  document.addEventListener("click", ({ target }) => {
    if (menu.open && !menu.contains(target)) menu.open = false;
  });
}
