// A side question (/btw) and its answer above the composer; it is not stored, and gone after a reload.

import { byId, delegateClicks, fillSlot, findSlot, setVisible } from "../lib/dom.js";
import { _ } from "../lib/i18n.js";
import { StreamingMarkdown } from "../lib/markdown.js";

export class SideQuestion {
  /** @param {{ stop: () => unknown }} options `stop` ends the answer */
  constructor({ stop }) {
    this.box = byId("side-question");
    this.stop = stop;
    this.side = null; // the id of the question that is shown, once its answer begins
    this.ended = true;
    delegateClicks(this.box, { "close-side-question": () => this.#close() });
  }

  /** @param {SessionEvent} event */
  handleEvent(event) {
    if (this.box.hidden || event.kind === "side.started" || event.session_id === this.before) return;
    this.side ??= event.session_id; // one at a time: what begins now answers what was just asked
    if (event.session_id !== this.side) return;
    if (event.kind === "side.extended")
      this.text = [...this.text].slice(0, event.offset).join("") + event.delta;
    else this.#finish(event);
    this.prose.update(this.text, this.ended);
  }

  start(asked) {
    this.before = this.side;
    this.side = null;
    this.text = "";
    this.ended = false;
    fillSlot(this.box, "asked", asked);
    this.prose = new StreamingMarkdown(findSlot(this.box, "prose"));
    this.prose.update("…", false);
    setVisible(this.box, true);
  }

  /** @param {any} event */
  #finish({ outcome, text, label }) {
    this.ended = true;
    this.text =
      outcome === "failed" ? [text, label || _("Couldn't answer that.")].filter(Boolean).join("\n\n") : text;
  }

  /** Hide it, as the question was refused. */
  hide() {
    setVisible(this.box, false);
  }

  #close() {
    setVisible(this.box, false);
    if (!this.ended) this.stop();
    byId("text").focus();
  }
}
