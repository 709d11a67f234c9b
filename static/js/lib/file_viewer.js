// Show one file in one box: a skeleton at once, then what its renderer makes, or a card that says what went
// wrong.
//
// Renderers are `render(stage, source, tools)` in modules of their own, fetched when first needed. The same
// ones serve the chat's panel, the page of a file and shared pages.

import { copyWithFeedback } from "./clipboard.js";
import { createElement } from "./dom.js";
import { fileKind, formatSize, isRenderedByScript } from "./file_types.js";
import { _ } from "./i18n.js";

const MAX_RENDER_BYTES = 10 * 2 ** 20; // bytes that our own script takes on

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
  other: () => import("./renderers/download.js"),
};

export class FileViewer {
  /**
   * `onEscape()`: Escape was pressed inside of a frame, which keeps the key from the page. `onGone()`: the
   * file was deleted or is in quarantine.
   * @param {HTMLElement} box
   * @param {{ limit?: number, onEscape?: () => void, onGone?: () => void }} [options]
   */
  constructor(box, { limit = MAX_RENDER_BYTES, onEscape = () => {}, onGone = () => {} } = {}) {
    this.box = box;
    this.limit = limit;
    this.onEscape = onEscape;
    this.onGone = onGone;
    this.abort = null;
  }

  /**
   * @param {FileSource} source
   * @param {"preview" | "source"} [mode]
   */
  show(source, mode = "preview") {
    this.source = source;
    this.mode = mode;
    this.retry = 0;
    this.#load();
  }

  reload() {
    this.retry += 1;
    this.#load();
  }

  /** Remove the frame or text and abort the request. */
  clear() {
    this.abort?.abort();
    this.box.replaceChildren();
  }

  #load() {
    this.abort?.abort();
    this.abort = new AbortController();
    const stage = createElement("div", { className: "stage" });
    this.box.replaceChildren(createSkeleton(), stage);
    this.#render(stage, this.abort.signal);
  }

  async #render(stage, signal) {
    const kind = this.#rendererKind();
    const fail = (problem) => signal.aborted || this.fail(problem);
    const tools = {
      ...{ signal, retry: this.retry, kind, fail, onEscape: this.onEscape },
      guard: (act) => guardCallback(act, fail),
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

  #rendererKind() {
    const kind = fileKind(this.source);
    const read = this.mode === "source" ? "code" : kind;
    return isRenderedByScript(read) && this.source.size > this.limit ? "other" : read;
  }

  /** Show why the file cannot be shown, instead of it. */
  fail(problem) {
    this.abort.abort();
    this.box.replaceChildren(createFailureCard(this.source, problem, () => this.reload()));
    if (isUnavailable(problem)) this.onGone();
  }
}

function guardCallback(act, fail) {
  return (...given) => {
    try {
      return act(...given);
    } catch (problem) {
      return fail(problem);
    }
  };
}

function createSkeleton() {
  const lines = Array.from({ length: 6 }, () => createElement("span"));
  return createElement("div", { className: "skeleton", role: "status", ariaLabel: _("Loading") }, ...lines);
}

const FAILURE_TEXTS = {
  0: _("Couldn't load this file. Check your connection."),
  403: _("This file is in quarantine."),
  404: _("This file was deleted or isn't available."),
  409: _("This file is being scanned. Try again in a moment."),
  413: _("This file is too large to preview."),
  429: _("Too many requests. Try again in a moment."),
  503: _("File storage isn't responding. Try again in a moment."),
};

/** True if the file was deleted or is in quarantine: trying again would be refused too. */
const isUnavailable = (problem) => problem?.status === 404 || problem?.status === 403;

function createFailureCard(source, problem, retry) {
  const details = [
    `type: ${source.type}`,
    `size: ${source.size} bytes (${formatSize(source.size)})`,
    `error: ${problem?.name ?? "Error"}: ${problem?.message ?? problem}`,
    problem?.stack ?? "",
  ].join("\n");
  const copy = createElement("button", {
    type: "button",
    className: "button",
    textContent: _("Copy details"),
  });
  copy.addEventListener("click", () => copyWithFeedback(copy, details));
  const again = createElement("button", {
    type: "button",
    className: "button primary",
    textContent: _("Try again"),
  });
  again.addEventListener("click", retry);
  const download = createElement("a", {
    className: "button",
    href: source.download,
    download: source.name,
    textContent: _("Download"),
  });
  return createElement(
    "div",
    { className: "failure", role: "alert" },
    createElement("p", {
      className: "failure-words",
      textContent: FAILURE_TEXTS[problem?.status] ?? _("Couldn't show this."),
    }),
    createElement(
      "div",
      { className: "failure-acts" },
      ...(isUnavailable(problem) ? [] : [again, download]),
      copy,
    ),
    createElement(
      "details",
      {},
      createElement("summary", { textContent: _("Details") }),
      createElement("pre", { textContent: details, tabIndex: 0 }),
    ),
  );
}
