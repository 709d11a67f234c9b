// The menu of commands under a leading slash; the server's copilot/slashes.py says which there are.

import { byId, show } from "./dom.js";

export class Slashes {
  /** `choose(text)` puts a command into the box. */
  constructor(text, choose) {
    this.text = text;
    this.choose = choose;
    this.list = byId("commands");
    this.options = [...this.list.children];
    text.addEventListener("input", () => this.#offer());
    text.addEventListener("blur", () => this.close());
    this.list.addEventListener("pointerdown", (event) => {
      event.preventDefault(); // the box keeps the focus
      const option = event.target.closest("[role=option]");
      if (option) this.#take(option);
    });
  }

  get open() {
    return !this.list.hidden;
  }

  /** Whether a text is one of the commands, as the server will see it. */
  known(text) {
    const [, name, rest] = /^\/([a-z]+)(?:\s+([^]*))?$/.exec(text.trim()) ?? [];
    const option = this.options.find((one) => one.dataset.name === name);
    return option && (option.dataset.takes || !rest) ? name : null;
  }

  /** The menu's keys; whether it was one. */
  key(event) {
    if (!this.open) return false;
    const shown = this.options.filter((option) => !option.hidden);
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step) this.#mark(shown[(shown.indexOf(this.marked) + step + shown.length) % shown.length]);
    else if (event.key === "Tab" || (event.key === "Enter" && !event.shiftKey && !this.#isWhole())) this.#take(this.marked);
    else if (event.key === "Escape") this.close();
    else return false;
    event.preventDefault();
    return true;
  }

  close() {
    show(this.list, false);
    this.text.removeAttribute("aria-activedescendant");
  }

  #offer() {
    const begun = /^\/([a-z]*)$/.exec(this.text.value);
    for (const option of this.options) show(option, Boolean(begun) && option.dataset.name.startsWith(begun[1]));
    const first = this.options.find((option) => !option.hidden);
    if (!first) return this.close();
    show(this.list, true);
    this.#mark(first);
  }

  /** Written out already: Enter sends it, unless it waits for words. */
  #isWhole() {
    return this.text.value === `/${this.marked.dataset.name}` && !this.#waits(this.marked);
  }

  #waits(option) {
    return Boolean(option.dataset.takes) && !option.dataset.takes.startsWith("[");
  }

  #mark(option) {
    this.marked = option;
    for (const other of this.options) other.setAttribute("aria-selected", String(other === option));
    this.text.setAttribute("aria-activedescendant", option.id);
    option.scrollIntoView({ block: "nearest" });
  }

  #take(option) {
    this.close();
    this.choose(`/${option.dataset.name}${option.dataset.takes ? " " : ""}`);
  }
}
