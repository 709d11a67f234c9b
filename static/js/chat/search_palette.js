// The search palette (Ctrl or ⌘ + K): find a chat by its title, a message by its text, a page or an action.

import { callApi } from "../lib/api.js";
import { byId, createElement, fillSlot, setVisible, targetOf } from "../lib/dom.js";
import { formatTime } from "./labels.js";

const DEBOUNCE_MS = 120; // milliseconds after a key before the server is asked
const RECENT = 7;
const RETRY_MS = 3000; // … and asked once more when it found nothing: what was just said is found a little later
const MAX_RETRIES = 5;

export class SearchPalette {
  constructor() {
    this.dialog = byId("palette");
    this.input = byId("palette-text");
    this.list = byId("palette-list");
    this.marked = null;
    this.input.addEventListener("input", () => this.#onInput());
    this.input.addEventListener("keydown", (event) => this.#onKey(event));
    this.list.addEventListener("pointermove", (event) =>
      this.#mark(targetOf(event).closest("[role=option]")),
    );
    this.dialog.addEventListener("click", (event) => event.target === this.dialog && this.dialog.close());
    document.addEventListener("keydown", (event) => {
      if (
        event.key.toLowerCase() !== "k" ||
        !(event.ctrlKey || event.metaKey) ||
        event.shiftKey ||
        event.altKey
      )
        return;
      event.preventDefault();
      if (this.dialog.open) this.dialog.close();
      else this.open();
    });
  }

  open() {
    if (this.dialog.open) return;
    this.input.value = "";
    this.#showRecent();
    this.dialog.showModal();
    this.input.focus();
  }

  #onInput() {
    clearTimeout(this.timer);
    this.request?.abort();
    const text = this.input.value.trim();
    if (!text) return this.#showRecent();
    this.#show(this.#listPlaces(text)); // these need no answer of the server
    this.timer = setTimeout(() => this.#search(text), DEBOUNCE_MS);
  }

  async #search(text, tries = MAX_RETRIES) {
    if (!this.dialog.open) return;
    this.request = new AbortController();
    try {
      const found = await callApi("GET", `/search?q=${encodeURIComponent(text)}`, undefined, {
        signal: this.request.signal,
      });
      this.#show([
        [
          "chats",
          found.sessions.map((one) =>
            createOption(`/chat/${one.id}/`, highlightMatch(one.title || this.#label("untitled"), text), one),
          ),
        ],
        ...this.#listPlaces(text),
        ["messages", found.messages.map((one) => createMessageOption(one, this.#label("untitled")))],
      ]);
      const nothing = !found.sessions.length && !found.messages.length;
      if (nothing && tries) this.timer = setTimeout(() => this.#search(text, tries - 1), RETRY_MS);
    } catch (problem) {
      if (problem.name !== "AbortError") this.#showStatus(problem.message);
    }
  }

  #showRecent() {
    const links = [...byId("sessions").querySelectorAll(".session a")].slice(0, RECENT);
    const chats = links.map((link) =>
      createOption(link.getAttribute("href"), [link.querySelector('[data-slot="title"]').textContent]),
    );
    this.#show([["recent", chats], ...this.#listPlaces("")]);
  }

  /**
   * The pages and actions of the sidebar whose name has all these words.
   * @param {string} text
   */
  #listPlaces(text) {
    const words = text.toLowerCase().split(/\s+/);
    const nameOf = (element) => element.dataset.palette || element.textContent.trim();
    const matching = [...byId("sidebar").querySelectorAll("[data-palette]")].filter((element) => {
      const name = nameOf(element).toLowerCase();
      return words.every((word) => name.includes(word)) && !element.hasAttribute("hidden");
    });
    const pages = matching.filter((element) => element.matches("a"));
    const actions = matching.filter((element) => !element.matches("a"));
    return [
      [
        "go",
        pages.map((link) => createOption(link.getAttribute("href"), highlightMatch(nameOf(link), text))),
      ],
      [
        "actions",
        actions.map((element) =>
          this.#createAction(highlightMatch(nameOf(element), text), () => element.click()),
        ),
      ],
    ];
  }

  #createAction(title, act) {
    const made = createElement("button", {
      type: "button",
      className: "found",
      role: "option",
      tabIndex: -1,
      ariaSelected: "false",
    });
    made.append(createElement("span", { className: "found-title" }, ...title));
    made.addEventListener("click", () => {
      this.dialog.close();
      act();
    });
    return made;
  }

  #show(groups) {
    const filled = groups.filter(([, options]) => options.length);
    this.list.replaceChildren(
      ...filled.map(([name, options]) => {
        const heading = createElement("p", {
          className: "palette-heading",
          textContent: this.#label(name),
          ariaHidden: "true",
        });
        const group = createElement(
          "div",
          { role: "group", ariaLabel: this.#label(name) },
          heading,
          ...options,
        );
        return group;
      }),
    );
    for (const [number, one] of this.list.querySelectorAll("[role=option]").entries())
      one.id = `found-${number}`;
    this.#mark(this.list.querySelector("[role=option]"));
    this.#showStatus(filled.length ? "" : this.#label("nothing"));
  }

  #showStatus(words) {
    setVisible(fillSlot(this.dialog, "nothing", words), Boolean(words));
  }

  /** A translated text of the page's template. */
  #label(name) {
    return this.dialog.dataset[name];
  }

  #onKey(event) {
    if (event.isComposing) return;
    const options = [...this.list.querySelectorAll("[role=option]")];
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step && options.length)
      this.#mark(options[(options.indexOf(this.marked) + step + options.length) % options.length], true);
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

function createOption(href, title, { active_at: when = "" } = {}) {
  const made = createElement("a", {
    className: "found",
    role: "option",
    href,
    tabIndex: -1,
    ariaSelected: "false",
  });
  made.append(createElement("span", { className: "found-title" }, ...title));
  if (when) made.append(createElement("time", { textContent: formatTime(when) }));
  return made;
}

function createMessageOption(hit, untitled) {
  const made = createOption(`/chat/${hit.session_id}/?at=${hit.message_id}`, [hit.title || untitled], {
    active_at: hit.created_at,
  });
  const words = hit.snippet.map((piece) =>
    piece.hit ? createElement("mark", { textContent: piece.text }) : piece.text,
  );
  made.append(createElement("span", { className: "found-words" }, ...words));
  return made;
}

/** The title with the searched part marked. */
function highlightMatch(title, text) {
  if (!text) return [title];
  const at = title.toLowerCase().indexOf(text.toLowerCase());
  if (at < 0) return [title];
  return [
    title.slice(0, at),
    createElement("mark", { textContent: title.slice(at, at + text.length) }),
    title.slice(at + text.length),
  ];
}
