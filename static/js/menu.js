// The small menu of one chat in the list: pin, rename, export, archive, delete; arrows move, Escape closes.

import { byId, show } from "./dom.js";

export class Menu {
  /** `acts[name](item)` is called with the chat the menu was opened for. */
  constructor(acts) {
    this.box = byId("session-menu");
    this.item = null;
    this.box.addEventListener("click", (event) => {
      const button = event.target.closest("[data-act]");
      if (!button) return;
      const { item } = this;
      this.close();
      acts[button.dataset.act](item);
    });
    this.box.addEventListener("keydown", (event) => this.#key(event));
    this.box.addEventListener("toggle", (event) => event.newState === "closed" && this.#closed());
  }

  open(item, button) {
    this.item = item;
    this.opener = button;
    const pinned = item.dataset.pinned === "true";
    show(this.box.querySelector('[data-act="pin"]'), !pinned);
    show(this.box.querySelector('[data-act="unpin"]'), pinned);
    button.setAttribute("aria-expanded", "true");
    this.box.showPopover();
    const place = button.getBoundingClientRect();
    const top = Math.min(place.bottom + 4, innerHeight - this.box.offsetHeight - 8);
    this.box.style.top = `${Math.max(8, top)}px`;
    this.box.style.left = `${Math.max(8, Math.min(place.left, innerWidth - this.box.offsetWidth - 8))}px`;
    this.#shown()[0].focus();
  }

  close() {
    this.box.hidePopover();
  }

  #closed() {
    this.opener?.setAttribute("aria-expanded", "false");
    if (this.box.contains(document.activeElement) || document.activeElement === document.body) this.opener?.focus();
  }

  #shown() {
    return [...this.box.querySelectorAll("[data-act]:not([hidden])")];
  }

  #key(event) {
    const buttons = this.#shown();
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step) buttons[(buttons.indexOf(document.activeElement) + step + buttons.length) % buttons.length].focus();
    else if (event.key === "Tab" || event.key === "Escape") this.close();
    else return;
    event.preventDefault();
    event.stopPropagation();
  }
}
