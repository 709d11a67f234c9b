// Ctrl/⌘+K: find a chat by its title or a message by its words, and go there (W2.9).

import { call } from "./api.js";
import { byId, element, fill, show } from "./dom.js";
import { clock } from "./rows.js";

const PATIENCE = 120; // milliseconds after a key before the server is asked
const RECENT = 7;
const AGAIN = 3000; // … and asked once more when it found nothing: what was just said is found a little later
const TRIES = 5;

export class Palette {
  constructor() {
    this.dialog = byId("palette");
    this.input = byId("palette-text");
    this.list = byId("palette-list");
    this.marked = null;
    this.input.addEventListener("input", () => this.#typed());
    this.input.addEventListener("keydown", (event) => this.#key(event));
    this.list.addEventListener("pointermove", (event) => this.#mark(event.target.closest("[role=option]")));
    this.dialog.addEventListener("click", (event) => event.target === this.dialog && this.dialog.close());
    document.addEventListener("keydown", (event) => {
      if (event.key.toLowerCase() !== "k" || !(event.ctrlKey || event.metaKey) || event.shiftKey || event.altKey) return;
      event.preventDefault();
      if (this.dialog.open) this.dialog.close();
      else this.open();
    });
  }

  open() {
    if (this.dialog.open) return;
    this.input.value = "";
    this.#recent();
    this.dialog.showModal();
    this.input.focus();
  }

  #typed() {
    clearTimeout(this.timer);
    this.asking?.abort();
    const text = this.input.value.trim();
    if (!text) return this.#recent();
    this.timer = setTimeout(() => this.#ask(text), PATIENCE);
  }

  async #ask(text, tries = TRIES) {
    if (!this.dialog.open) return;
    this.asking = new AbortController();
    try {
      const found = await call("GET", `/search?q=${encodeURIComponent(text)}`, undefined, { signal: this.asking.signal });
      this.#show([
        ["chats", found.sessions.map((one) => option(`/chat/${one.id}/`, marked(one.title || this.#words("untitled"), text), one))],
        ["messages", found.messages.map((one) => message(one, this.#words("untitled")))],
      ]);
      const nothing = !found.sessions.length && !found.messages.length;
      if (nothing && tries) this.timer = setTimeout(() => this.#ask(text, tries - 1), AGAIN);
    } catch (problem) {
      if (problem.name !== "AbortError") this.#say(problem.message);
    }
  }

  #recent() {
    const links = [...byId("sessions").querySelectorAll(".session a")].slice(0, RECENT);
    const chats = links.map((link) => option(link.getAttribute("href"), [link.querySelector('[data-slot="title"]').textContent]));
    const pages = [...byId("sidebar").querySelectorAll("[data-palette]")].map((link) => option(link.getAttribute("href"), [link.textContent.trim()]));
    this.#show([["recent", chats], ["go", pages]]);
  }

  #show(groups) {
    const filled = groups.filter(([, options]) => options.length);
    this.list.replaceChildren(
      ...filled.map(([name, options]) => {
        const heading = element("p", { className: "palette-heading", textContent: this.#words(name), ariaHidden: "true" });
        const group = element("div", { role: "group", ariaLabel: this.#words(name) }, heading, ...options);
        return group;
      }),
    );
    [...this.list.querySelectorAll("[role=option]")].forEach((one, number) => (one.id = `found-${number}`));
    this.#mark(this.list.querySelector("[role=option]"));
    this.#say(filled.length ? "" : this.#words("nothing"));
  }

  #say(words) {
    show(fill(this.dialog, "nothing", words), Boolean(words));
  }

  /** What the page's template says, in the reader's language. */
  #words(name) {
    return this.dialog.dataset[name];
  }

  #key(event) {
    if (event.isComposing) return;
    const options = [...this.list.querySelectorAll("[role=option]")];
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step && options.length) this.#mark(options[(options.indexOf(this.marked) + step + options.length) % options.length], true);
    else if (event.key === "Enter" && this.marked) this.marked.click();
    else return;
    event.preventDefault();
  }

  #mark(option, scroll = false) {
    if (!option && this.list.contains(this.marked)) return;
    this.marked?.setAttribute("aria-selected", "false");
    this.marked = option;
    option?.setAttribute("aria-selected", "true");
    if (option) this.input.setAttribute("aria-activedescendant", option.id);
    else this.input.removeAttribute("aria-activedescendant");
    if (scroll) option.scrollIntoView({ block: "nearest" });
  }
}

function option(href, title, { active_at: when } = {}) {
  const made = element("a", { className: "found", role: "option", href, tabIndex: -1, ariaSelected: "false" });
  made.append(element("span", { className: "found-title" }, ...title));
  if (when) made.append(element("time", { textContent: clock(when) }));
  return made;
}

function message(hit, untitled) {
  const made = option(`/chat/${hit.session_id}/?at=${hit.message_id}`, [hit.title || untitled], { active_at: hit.created_at });
  const words = hit.snippet.map((piece) => (piece.hit ? element("mark", { textContent: piece.text }) : piece.text));
  made.append(element("span", { className: "found-words" }, ...words));
  return made;
}

/** A title with the part that was typed marked. */
function marked(title, text) {
  const at = title.toLowerCase().indexOf(text.toLowerCase());
  if (at < 0) return [title];
  return [title.slice(0, at), element("mark", { textContent: title.slice(at, at + text.length) }), title.slice(at + text.length)];
}
