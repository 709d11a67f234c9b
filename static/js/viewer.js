// One file in one box: a skeleton at once, then its renderer's work, or a card that says what went wrong (S14).
//
// Renderers are `render(stage, source, tools)` in modules of their own, fetched when first needed. The same ones serve
// the chat's panel, the page of a file and shared pages.

import { element } from "./dom.js";
import { failureCard, isGone } from "./failure.js";
import { isScripted, kindOf } from "./kinds.js";
import { _ } from "./words.js";

const RENDER_MAX = 10 * 2 ** 20; // bytes that our own script takes on

const RENDERERS = {
  image: () => import("./renderers/image.js"),
  media: () => import("./renderers/media.js"),
  pdf: () => import("./renderers/pdf.js"),
  html: () => import("./renderers/html.js"),
  svg: () => import("./renderers/image.js"),
  markdown: () => import("./renderers/markdown.js"),
  code: () => import("./renderers/code.js"),
  table: () => import("./renderers/table.js"),
  json: () => import("./renderers/json.js"),
  text: () => import("./renderers/text.js"),
  other: () => import("./renderers/other.js"),
};

export class Viewer {
  /** `onEscape()`: the key was pressed inside a frame, which keeps it from the page; `onGone()`: there is nothing to be had. */
  constructor(box, { limit = RENDER_MAX, onEscape = () => {}, onGone = () => {} } = {}) {
    Object.assign(this, { box, limit, onEscape, onGone });
    this.abort = null;
  }

  show(source, mode = "preview") {
    Object.assign(this, { source, mode, retry: 0 });
    this.#load();
  }

  again() {
    this.retry += 1;
    this.#load();
  }

  /** Leaves nothing behind: no frame, no request, no text. */
  clear() {
    this.abort?.abort();
    this.box.replaceChildren();
  }

  #load() {
    this.abort?.abort();
    this.abort = new AbortController();
    const stage = element("div", { className: "stage" });
    this.box.replaceChildren(skeleton(), stage);
    this.#play(stage, this.abort.signal);
  }

  async #play(stage, signal) {
    const kind = this.#kind();
    const fail = (problem) => signal.aborted || this.fail(problem);
    const tools = {
      ...{ signal, retry: this.retry, kind, fail, onEscape: this.onEscape },
      guard: (act) => guarded(act, fail),
      showSource: () => this.show(this.source, "source"),
    };
    try {
      const { render } = await RENDERERS[kind]();
      await render(stage, this.source, tools);
      if (signal.aborted) return;
      stage.classList.add("ready");
      this.box.querySelector(".skeleton")?.remove();
    } catch (problem) {
      fail(problem);
    }
  }

  #kind() {
    const kind = kindOf(this.source);
    const read = this.mode === "source" ? "code" : kind;
    return isScripted(read) && this.source.size > this.limit ? "other" : read;
  }

  /** Why it cannot be shown, instead of it. */
  fail(problem) {
    this.abort.abort();
    this.box.replaceChildren(failureCard(this.source, problem, () => this.again()));
    if (isGone(problem)) this.onGone();
  }
}

function guarded(act, fail) {
  return (...given) => {
    try {
      return act(...given);
    } catch (problem) {
      return fail(problem);
    }
  };
}

function skeleton() {
  const lines = Array.from({ length: 6 }, () => element("span"));
  return element("div", { className: "skeleton", role: "status", ariaLabel: _("Loading") }, ...lines);
}
