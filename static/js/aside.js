// A question aside and its answer, above the composer: it leaves no trace, and is gone on reload (A30.3).

import { byId, delegate, fill, show, slot } from "./dom.js";
import { GrowingMarkdown } from "./markdown.js";
import { _ } from "./words.js";

export class Aside {
  /** `stop()` says that no answer is wanted any more. */
  constructor({ stop }) {
    this.box = byId("aside");
    this.stop = stop;
    this.side = null; // the id of the question that is shown, once its answer begins
    this.ended = true;
    delegate(this.box, { "close-aside": () => this.#close() });
  }

  take(event) {
    if (this.box.hidden || event.kind === "side.started" || event.session_id === this.before) return;
    this.side ??= event.session_id; // one at a time: what begins now answers what was just asked
    if (event.session_id !== this.side) return;
    if (event.kind === "side.extended") this.text = [...this.text].slice(0, event.offset).join("") + event.delta;
    else this.#end(event);
    this.prose.update(this.text, this.ended);
  }

  begin(asked) {
    Object.assign(this, { before: this.side, side: null, text: "", ended: false });
    fill(this.box, "asked", asked);
    this.prose = new GrowingMarkdown(slot(this.box, "prose"));
    this.prose.update("…", false);
    show(this.box, true);
  }

  #end({ outcome, text, label }) {
    this.ended = true;
    this.text = outcome === "failed" ? [text, label || _("It could not be answered.")].filter(Boolean).join("\n\n") : text;
  }

  /** The question was refused. */
  giveUp() {
    show(this.box, false);
  }

  #close() {
    show(this.box, false);
    if (!this.ended) this.stop();
    byId("text").focus();
  }
}
