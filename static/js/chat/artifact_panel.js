// The panel beside the chat: the list of the agent's files, or one of them with its versions.

import { copyWithFeedback } from "../lib/clipboard.js";
import {
  byId,
  cloneTemplate,
  createElement,
  delegateClicks,
  fillSlot,
  findSlot,
  setVisible,
  targetOf,
} from "../lib/dom.js";
import { LoadError, readText } from "../lib/file_sources.js";
import { fileKind, fileTypeLabel, formatSize, hasSourceView, isTextKind } from "../lib/file_types.js";
import { FileViewer } from "../lib/file_viewer.js";
import { _ } from "../lib/i18n.js";
import { showToast } from "../lib/toasts.js";
import { formatTime } from "./labels.js";

export class ArtifactPanel {
  /**
   * @param {object} options
   * @param {() => void} options.onClose a person has closed it
   * @param {(entry: any) => FileSource} options.sourceOf
   */
  constructor({ onClose, sourceOf }) {
    this.box = byId("panel");
    this.app = byId("app");
    this.onClose = onClose;
    this.sourceOf = sourceOf;
    this.pieces = [];
    this.shown = null;
    this.limit = Number(this.box.dataset.renderMax);
    this.viewer = new FileViewer(findSlot(this.box, "viewer"), {
      limit: this.limit,
      onEscape: () => this.dismiss(),
      onGone: () => this.#onUnavailable(),
    });
    this.resizeHandle = new ResizeHandle(findSlot(this.box, "handle"), {
      apply: (pixels) => this.app.style.setProperty("--panel-width", `${pixels}px`),
      taken: () => byId("sidebar").getBoundingClientRect().width,
    });
    this.narrow = matchMedia("(max-width: 60rem)");
    this.narrow.addEventListener("change", () => this.#updateCover());
    delegateClicks(this.box, {
      "panel-close": () => this.dismiss(),
      "panel-list": () => this.showList(),
      "panel-piece": (button) => this.show(this.pieces.find((one) => one.key === button.dataset.key)),
      "panel-preview": () => this.#setMode("preview"),
      "panel-source": () => this.#setMode("source"),
      "panel-copy": (button) => this.#copy(button),
    });
    findSlot(this.box, "versions").addEventListener("change", (event) =>
      this.show(this.pieces.find((one) => one.key === targetOf(event).value)),
    );
  }

  get isOpen() {
    return !this.box.hidden;
  }

  /** True if it is open and shows something that still exists. */
  get isInUse() {
    return this.isOpen && !this.shown?.lost;
  }

  isLost(id) {
    return this.isOpen && Boolean(this.shown?.lost) && this.shown.piece.key === id;
  }

  /** Take over all files, oldest first. The panel moves on from the newest version of a file to the next one. */
  update(pieces) {
    const followed = this.shown && this.#newestVersion()?.key === this.shown.piece.key;
    this.pieces = pieces;
    if (!this.isOpen) return;
    const newest = followed && this.#newestVersion();
    if (newest && newest.key !== this.shown.piece.key) this.show(newest, this.shown.mode);
    else if (this.shown) this.#paintVersions();
    else this.#paintList();
  }

  /** The newest version of the file that is shown. */
  #newestVersion() {
    return this.pieces.findLast((one) => one.name === this.shown.piece.name);
  }

  open({ focus }) {
    const before = document.activeElement;
    if (!this.isOpen) this.opener = before === document.body ? null : before;
    this.box.hidden = false;
    this.app.dataset.panel = "";
    this.#updateCover();
    this.resizeHandle.restore();
    if (focus) this.box.focus();
  }

  dismiss() {
    this.close();
    this.onClose();
  }

  close() {
    const held = this.box.contains(document.activeElement);
    this.viewer.clear();
    this.shown = null;
    this.box.hidden = true;
    delete this.app.dataset.panel;
    this.#updateCover();
    if (held) (this.opener?.isConnected ? this.opener : byId("text")).focus();
  }

  /** On a narrow window the panel covers everything else, so nothing else can be reached. */
  #updateCover() {
    const covers = this.isOpen && this.narrow.matches;
    for (const id of ["main", "sidebar"]) byId(id).inert = covers;
    setVisible(findSlot(this.box, "handle"), !this.narrow.matches);
  }

  showList() {
    this.viewer.clear();
    this.shown = null;
    this.#paintHead();
    this.#paintList();
  }

  /**
   * @param {any} piece
   * @param {"preview" | "source"} [mode]
   */
  show(piece, mode = "preview") {
    this.shown = { piece, source: this.sourceOf(piece), mode };
    this.#paintHead();
    this.#paintVersions();
    this.viewer.show(this.shown.source, mode);
  }

  /** Say that a file was deleted, here or elsewhere, if it is the one that is shown. */
  markDeleted(id) {
    if (!this.isOpen || this.shown?.piece.key !== id) return;
    this.viewer.fail(new LoadError(404));
  }

  /** Offer no actions until the file is restored. */
  #onUnavailable() {
    this.shown.lost = true;
    this.#paintActions(null);
    setVisible(findSlot(this.box, "modes"), false);
    this.#paintControls();
  }

  #setMode(mode) {
    this.shown.mode = mode;
    this.#paintModes();
    this.viewer.show(this.shown.source, mode);
  }

  #paintHead() {
    const { box, shown } = this;
    fillSlot(box, "name", shown ? shown.piece.name : _("Artifacts"));
    fillSlot(
      box,
      "about",
      shown
        ? [fileTypeLabel(shown.piece), formatSize(shown.piece.size), formatTime(shown.piece.created_at)]
            .filter(Boolean)
            .join(" · ")
        : "",
    );
    setVisible(findSlot(box, "list"), !shown);
    setVisible(findSlot(box, "viewer"), Boolean(shown));
    setVisible(findSlot(box, "back"), Boolean(shown) && this.pieces.some((one) => one.file_id));
    this.#paintActions(shown?.source);
    if (shown) this.#paintModes();
    else setVisible(findSlot(box, "ways"), false);
  }

  #paintActions(source) {
    const { box } = this;
    setVisible(
      findSlot(box, "copy"),
      Boolean(source) && isTextKind(fileKind(source)) && !this.#isTooLarge(source),
    );
    setVisible(findSlot(box, "download"), Boolean(source));
    setVisible(findSlot(box, "tab"), Boolean(source?.page));
    if (source) Object.assign(findSlot(box, "download"), { href: source.download, download: source.name });
    if (source?.page) findSlot(box, "tab").href = source.page;
  }

  #isTooLarge(source) {
    return source.size > this.limit;
  }

  #paintModes() {
    const { source } = this.shown;
    setVisible(findSlot(this.box, "modes"), hasSourceView(fileKind(source)) && !this.#isTooLarge(source));
    this.#paintControls();
    for (const mode of ["preview", "source"])
      findSlot(this.box, mode).setAttribute("aria-pressed", String(mode === this.shown.mode));
  }

  /** Files of the same name are versions of one file. */
  #paintVersions() {
    const { piece } = this.shown;
    const versions = this.pieces.filter((one) => one.name === piece.name);
    const select = findSlot(this.box, "versions");
    const options = versions.map((one, index) =>
      createElement("option", {
        value: one.key,
        textContent: _("Version {number} of {all}", { number: index + 1, all: versions.length }),
      }),
    );
    select.replaceChildren(...options.reverse());
    select.value = piece.key;
    setVisible(select, versions.length > 1);
    this.#paintControls();
  }

  #paintControls() {
    setVisible(
      findSlot(this.box, "ways"),
      !findSlot(this.box, "modes").hidden || !findSlot(this.box, "versions").hidden,
    );
  }

  #paintList() {
    const newest = new Map(); // name → {piece, versions}
    for (const piece of this.pieces)
      newest.set(piece.name, { piece, versions: (newest.get(piece.name)?.versions ?? 0) + 1 });
    const list = findSlot(this.box, "list");
    list.replaceChildren(
      ...[...newest.values()].reverse().map(({ piece, versions }) => this.#createItem(piece, versions)),
    );
  }

  #createItem(piece, versions) {
    const item = cloneTemplate("panel-piece");
    item.querySelector("button").dataset.key = piece.key;
    fillSlot(item, "name", piece.name);
    const about = [
      fileTypeLabel(piece),
      formatSize(piece.size),
      formatTime(piece.created_at),
      versions > 1 ? _("version {number}", { number: versions }) : "",
    ];
    fillSlot(item, "about", about.filter(Boolean).join(" · "));
    return item;
  }

  async #copy(button) {
    try {
      await copyWithFeedback(button, await readText(this.shown.source));
    } catch (problem) {
      showToast(problem.message);
    }
  }
}

const WIDTH_KEY = "panel-width";
const KEY_STEP = 24; // pixels per key press; with Shift four of them
const MIN_WIDTH = 320;
const MIN_CHAT_WIDTH = 360; // what stays for the conversation

class ResizeHandle {
  /**
   * @param {HTMLElement} handle
   * @param {object} options
   * @param {(pixels: number) => void} options.apply sets the width
   * @param {() => number} options.taken pixels left of both columns
   */
  constructor(handle, { apply, taken }) {
    this.handle = handle;
    this.apply = apply;
    this.taken = taken;
    handle.addEventListener("pointerdown", (event) => this.#onPointerDown(event));
    handle.addEventListener(
      "pointermove",
      (event) => handle.hasPointerCapture(event.pointerId) && this.#setWidth(innerWidth - event.clientX),
    );
    handle.addEventListener("lostpointercapture", () => this.#onRelease());
    handle.addEventListener("keydown", (event) => this.#onKey(event));
    addEventListener("resize", () => this.restore());
  }

  /** Set the width that was last chosen, within the room of the window. */
  restore() {
    const kept = Number(localStorage.getItem(WIDTH_KEY));
    this.#setWidth(kept || Math.round((innerWidth - this.taken()) * 0.5));
  }

  get #maxWidth() {
    return Math.max(MIN_WIDTH, innerWidth - this.taken() - MIN_CHAT_WIDTH);
  }

  #setWidth(pixels) {
    this.width = Math.round(Math.min(Math.max(pixels, MIN_WIDTH), this.#maxWidth));
    this.apply(this.width);
    const values = { min: MIN_WIDTH, max: this.#maxWidth, now: this.width };
    for (const [name, value] of Object.entries(values)) {
      this.handle.setAttribute(`aria-value${name}`, String(value));
    }
  }

  #onPointerDown(event) {
    if (event.button !== 0) return;
    event.preventDefault();
    this.handle.focus();
    // Frames under the pointer get nothing, and its release is ours wherever it happens.
    this.handle.setPointerCapture(event.pointerId);
    document.body.dataset.resizing = "";
  }

  #onRelease() {
    delete document.body.dataset.resizing;
    localStorage.setItem(WIDTH_KEY, String(this.width));
  }

  #onKey(event) {
    const step = event.shiftKey ? 4 * KEY_STEP : KEY_STEP;
    const wanted = {
      ArrowLeft: this.width + step,
      ArrowRight: this.width - step,
      Home: this.#maxWidth,
      End: MIN_WIDTH,
    }[event.key];
    if (wanted === undefined) return;
    event.preventDefault();
    this.#setWidth(wanted);
    localStorage.setItem(WIDTH_KEY, String(this.width));
  }
}
