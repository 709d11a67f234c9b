// The menu of slash commands; the page's template lists those the server knows.

import { byId, setVisible, targetOf } from "../lib/dom.js";

export class SlashCommandMenu {
  /**
   * @param {PageElement} text
   * @param {(text: string) => void} choose puts a command into the box
   */
  constructor(text, choose) {
    this.text = text;
    this.choose = choose;
    this.list = byId("commands");
    this.options = [...this.list.querySelectorAll("[role=option]")];
    text.addEventListener("input", () => this.#update());
    text.addEventListener("blur", () => this.close());
    this.list.addEventListener("pointerdown", (event) => {
      event.preventDefault(); // the box keeps the focus
      const option = targetOf(event).closest("[role=option]");
      if (option) this.#pick(option);
    });
  }

  get isOpen() {
    return !this.list.hidden;
  }

  /**
   * The name of the command a text is, as the server will see it, or null.
   * @param {string} text
   * @returns {string | null}
   */
  matchCommand(text) {
    const [, name, rest] = /^\/([a-z]+)(?:\s+(.*))?$/s.exec(text.trim()) ?? [];
    const option = this.options.find((one) => one.dataset.name === name);
    return option && (option.dataset.takes || !rest) ? name : null;
  }

  /**
   * Handle a key of the open menu; true if it was one.
   * @param {KeyboardEvent} event
   */
  handleKey(event) {
    if (!this.isOpen) return false;
    const shown = this.options.filter((option) => !option.hidden);
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step) this.#mark(shown[(shown.indexOf(this.marked) + step + shown.length) % shown.length]);
    else if (event.key === "Tab" || (event.key === "Enter" && !event.shiftKey && !this.#isComplete()))
      this.#pick(this.marked);
    else if (event.key === "Escape") this.close();
    else return false;
    event.preventDefault();
    return true;
  }

  close() {
    setVisible(this.list, false);
    this.text.removeAttribute("aria-activedescendant");
  }

  #update() {
    const begun = /^\/([a-z]*)$/.exec(this.text.value);
    for (const option of this.options)
      setVisible(option, Boolean(begun) && option.dataset.name.startsWith(begun[1]));
    const first = this.options.find((option) => !option.hidden);
    if (!first) return this.close();
    setVisible(this.list, true);
    this.#mark(first);
  }

  /** True if the command is typed already, so that Enter sends it, and it needs no argument. */
  #isComplete() {
    return this.text.value === `/${this.marked.dataset.name}` && !this.#needsArgument(this.marked);
  }

  #needsArgument(option) {
    return Boolean(option.dataset.takes) && !option.dataset.takes.startsWith("[");
  }

  #mark(option) {
    this.marked = option;
    for (const other of this.options) other.setAttribute("aria-selected", String(other === option));
    this.text.setAttribute("aria-activedescendant", option.id);
    option.scrollIntoView({ block: "nearest" });
  }

  #pick(option) {
    this.close();
    this.choose(`/${option.dataset.name}${option.dataset.takes ? " " : ""}`);
  }
}
