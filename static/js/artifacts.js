// What the agent made, in the chat: cards under the calls that made it, a count above, and the panel, fetched when first needed.

import { call } from "./api.js";
import { byId, clone, delegate, fill, show } from "./dom.js";
import { labelOf, sizeText } from "./kinds.js";
import { codeBlock, ownFile } from "./sources.js";
import { toast } from "./toast.js";
import { _ } from "./words.js";

export class Artifacts {
  constructor(state, transcript, { session }) {
    Object.assign(this, { state, transcript, session });
    this.button = byId("artifacts");
    this.panel = null;
    this.cards = new Map(); // file id → its card
    this.wanted = true; // until a person closes the panel
    this.openedFor = null; // the turn that has opened it
    this.button.addEventListener("click", () => (this.panel?.isOpen ? this.panel.dismiss() : this.#open(null, { focus: true })));
    delegate(byId("transcript"), {
      "open-artifact": (card) => this.#open(this.#pieces().find((one) => one.key === card.dataset.file), { focus: true }),
      "open-code": (button) => this.#open(this.#block(button), { focus: true }),
    });
    byId("transcript").addEventListener("click", (event) => this.#follow(event));
    byId("transcript").addEventListener("error", ({ target }) => nameInstead(target), true); // such events do not bubble
    for (const picture of document.querySelectorAll("#transcript .prose img")) if (picture.complete && !picture.naturalWidth) nameInstead(picture);
    document.addEventListener("keydown", (event) => this.#key(event));
    addEventListener("pagehide", () => this.close()); // a page that comes back from the browser's memory shows none
  }

  /** News of the running turn may open the panel, once; where it would cover the chat, never. */
  news({ file_id: id, turn_id: turn }) {
    if (this.panel?.isLost(id)) return this.panel.show(this.#pieces().find((one) => one.key === id)); // it was brought back
    if (!turn) return;
    const fits = matchMedia("(min-width: 60.01rem)").matches;
    if (!fits || !this.wanted || this.panel?.isInUse || this.openedFor === turn || this.state.turn?.id !== turn) return;
    this.openedFor = turn;
    this.#open(this.#pieces().find((one) => one.key === id), { focus: false });
  }

  /** A file was deleted. */
  lost({ file_id: id }) {
    this.panel?.lose(id);
  }

  close() {
    if (this.panel?.isOpen) this.panel.close();
    this.#paintButton();
  }

  paint() {
    const known = new Set(this.state.artifacts.map((one) => one.file_id));
    for (const [id, card] of this.cards) {
      if (known.has(id) && card.anchor.isConnected) continue;
      card.item.remove();
      this.cards.delete(id);
    }
    for (const artifact of this.state.artifacts) if (!this.cards.has(artifact.file_id)) this.#place(artifact);
    if (this.painted === this.state.artifacts) return;
    this.painted = this.state.artifacts;
    this.panel?.update(this.#pieces());
    this.#paintButton();
  }

  /** A card stands behind the call that made it, outside of its row: steps may be folded away, what they made is not. */
  #place(artifact) {
    const anchor = this.transcript.elements.get(this.transcript.calls.get(artifact.call_id));
    if (!anchor) return;
    const item = clone("made-card");
    item.querySelector("button").dataset.file = artifact.file_id;
    fill(item, "name", artifact.name);
    fill(item, "about", `${labelOf(artifact)} · ${sizeText(artifact.size)}`);
    let last = anchor;
    while (last.nextElementSibling?.classList.contains("made")) last = last.nextElementSibling;
    last.after(item);
    this.cards.set(artifact.file_id, { item, anchor });
  }

  #paintButton() {
    const count = this.state.artifacts.length;
    show(this.button, count > 0);
    fill(this.button, "count", String(count));
    this.button.setAttribute("aria-expanded", String(Boolean(this.panel?.isOpen)));
  }

  #pieces() {
    return this.state.artifacts.map((one) => ({ ...one, key: one.file_id }));
  }

  #block(button) {
    const message = button.closest("[data-row]").dataset.row;
    const blocks = [...button.closest(".prose").querySelectorAll(".code")];
    const block = button.closest(".code");
    const language = block.querySelector(".code-head span").textContent.toLowerCase();
    const place = { session: this.session(), message, index: blocks.indexOf(block), language };
    const source = codeBlock({ ...place, text: block.querySelector("code").textContent });
    return { key: `${message}/${place.index}`, name: source.name, type: source.type, size: source.size, source };
  }

  /** A file named in an answer opens beside it; with a modifier key its page opens in a tab, as any link does. */
  async #follow(event) {
    const link = event.target.closest("a.file-link[href]");
    if (!link || event.defaultPrevented || event.button || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    const id = link.getAttribute("href").split("/")[2];
    try {
      await this.#open(this.#pieces().find((one) => one.key === id) ?? (await this.#fetched(id)), { focus: true });
    } catch (problem) {
      toast(problem.status === 404 ? _("This file was deleted or is not available.") : problem.message);
    }
  }

  /** A file that was not made in this chat. */
  async #fetched(id) {
    const { name, type, size, created_at } = await call("GET", `/files/${id}`);
    return { key: id, file_id: id, name, type, size, created_at };
  }

  async #open(piece, { focus }) {
    try {
      const { Panel } = await import("./panel.js");
      this.panel ??= new Panel({ onClose: () => this.#dismissed(), sourceOf: (one) => one.source ?? ownFile(one) });
    } catch {
      return toast(_("The panel could not be loaded."));
    }
    this.panel.update(this.#pieces());
    this.panel.open({ focus });
    if (piece) this.panel.show(piece);
    else this.panel.showList();
    this.#paintButton();
  }

  #dismissed() {
    this.wanted = false;
    this.#paintButton();
  }

  /** Escape closes the panel; but in the composer, while an answer runs, it stops that. */
  #key(event) {
    if (event.key !== "Escape" || event.defaultPrevented || !this.panel?.isOpen) return;
    if (document.body.dataset.drawer || document.querySelector("dialog[open]")) return;
    if (byId("app").matches("[data-running]") && document.activeElement === byId("text")) return; // as painted: what one sees decides
    event.preventDefault();
    this.panel.dismiss();
  }
}

/** What could not be shown as a picture, because it is none or is gone, is a link with its name. */
function nameInstead(picture) {
  if (!picture.matches(".prose .picture img")) return;
  picture.parentElement.classList.remove("picture");
  picture.replaceWith(picture.alt);
}
