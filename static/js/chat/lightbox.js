// Show a picture large, over the chat; arrows go through the pictures of the same message.

import { byId, delegateClicks, fillSlot, findSlot, setVisible } from "../lib/dom.js";
import { _ } from "../lib/i18n.js";

class Lightbox {
  constructor() {
    this.dialog = byId("lightbox");
    this.pictures = [];
    this.at = 0;
    delegateClicks(this.dialog, {
      "lightbox-close": () => this.dialog.close(),
      "lightbox-back": () => this.#step(-1),
      "lightbox-next": () => this.#step(1),
    });
    this.dialog.addEventListener("click", (event) => {
      if (event.target === this.dialog) this.dialog.close(); // beside the picture
    });
    this.dialog.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (step) this.#step(step);
    });
  }

  /** @param {PageElement} link around a picture */
  open(link) {
    this.pictures = [...link.closest("ul").querySelectorAll("a.picture")];
    this.at = this.pictures.indexOf(link);
    this.#paint();
    this.dialog.showModal();
  }

  #step(by) {
    this.at = Math.min(Math.max(this.at + by, 0), this.pictures.length - 1);
    this.#paint();
  }

  #paint() {
    const link = this.pictures[this.at];
    const name = link.querySelector("img").alt;
    const { length } = this.pictures;
    Object.assign(findSlot(this.dialog, "picture"), { src: link.href, alt: name });
    fillSlot(this.dialog, "name", name);
    fillSlot(
      this.dialog,
      "count",
      length > 1 ? _("{number} of {all}", { number: this.at + 1, all: length }) : "",
    );
    Object.assign(findSlot(this.dialog, "download"), { href: link.href.split("?")[0], download: name });
    for (const [act, usable] of Object.entries({ back: this.at > 0, next: this.at < length - 1 })) {
      const button = this.dialog.querySelector(`[data-act="lightbox-${act}"]`);
      setVisible(button, length > 1);
      button.disabled = !usable;
    }
  }
}

/** @type {Lightbox | null} */
let lightbox = null;

/** @param {PageElement} link around a picture */
export function openPicture(link) {
  lightbox ??= new Lightbox();
  lightbox.open(link);
}
