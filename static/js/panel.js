// The panel beside the chat: the list of what the agent made, or one piece of it with its versions (S14).

import { copyBy } from "./copying.js";
import { byId, clone, delegate, element, fill, show, slot } from "./dom.js";
import { hasSource, isText, kindOf, labelOf, sizeText } from "./kinds.js";
import { Resizing } from "./resizing.js";
import { clock } from "./rows.js";
import { LoadProblem, read } from "./sources.js";
import { toast } from "./toast.js";
import { Viewer } from "./viewer.js";
import { _ } from "./words.js";

export class Panel {
  /** `onClose()` after it was closed by a person; `sourceOf(artifact)` says where its bytes are. */
  constructor({ onClose, sourceOf }) {
    this.box = byId("panel");
    this.app = byId("app");
    Object.assign(this, { onClose, sourceOf, pieces: [], shown: null });
    this.limit = Number(this.box.dataset.renderMax);
    this.viewer = new Viewer(slot(this.box, "viewer"), { limit: this.limit, onEscape: () => this.dismiss(), onGone: () => this.#lost() });
    this.resizing = new Resizing(slot(this.box, "handle"), {
      apply: (pixels) => this.app.style.setProperty("--panel-width", `${pixels}px`),
      taken: () => byId("sidebar").getBoundingClientRect().width,
    });
    this.narrow = matchMedia("(max-width: 60rem)");
    this.narrow.addEventListener("change", () => this.#frame());
    delegate(this.box, {
      "panel-close": () => this.dismiss(),
      "panel-list": () => this.showList(),
      "panel-piece": (button) => this.show(this.pieces.find((one) => one.key === button.dataset.key)),
      "panel-preview": () => this.#turnTo("preview"),
      "panel-source": () => this.#turnTo("source"),
      "panel-copy": (button) => this.#copy(button),
    });
    slot(this.box, "versions").addEventListener("change", (event) => this.show(this.pieces.find((one) => one.key === event.target.value)));
  }

  get isOpen() {
    return !this.box.hidden;
  }

  /** It stands open for something that is still there. */
  get isInUse() {
    return this.isOpen && !this.shown?.lost;
  }

  isLost(id) {
    return this.isOpen && Boolean(this.shown?.lost) && this.shown.piece.key === id;
  }

  /** `pieces`: all there is, oldest first. What is shown stays as it is. */
  update(pieces) {
    this.pieces = pieces;
    if (!this.isOpen) return;
    if (this.shown) this.#paintVersions();
    else this.#paintList();
  }

  open({ focus }) {
    const before = document.activeElement;
    if (!this.isOpen) this.opener = before === document.body ? null : before;
    this.box.hidden = false;
    this.app.dataset.panel = "";
    this.#frame();
    this.resizing.restore();
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
    this.#frame();
    if (held) (this.opener?.isConnected ? this.opener : byId("text")).focus();
  }

  /** On a narrow window it covers everything else, so nothing else can be reached. */
  #frame() {
    const covers = this.isOpen && this.narrow.matches;
    for (const id of ["main", "sidebar"]) byId(id).inert = covers;
    show(slot(this.box, "handle"), !this.narrow.matches);
  }

  showList() {
    this.viewer.clear();
    this.shown = null;
    this.#paintHead();
    this.#paintList();
  }

  show(piece) {
    this.shown = { piece, source: this.sourceOf(piece), mode: "preview" };
    this.#paintHead();
    this.#paintVersions();
    this.viewer.show(this.shown.source);
  }

  /** A file was deleted, here or elsewhere; if it is the one that is shown, that is said instead of it. */
  lose(id) {
    if (!this.isOpen || this.shown?.piece.key !== id) return;
    this.viewer.fail(new LoadProblem(404));
  }

  /** Nothing can be done with it until it is brought back. */
  #lost() {
    this.shown.lost = true;
    this.#paintActs(null);
    show(slot(this.box, "modes"), false);
    this.#paintWays();
  }

  #turnTo(mode) {
    this.shown.mode = mode;
    this.#paintModes();
    this.viewer.show(this.shown.source, mode);
  }

  #paintHead() {
    const { box, shown } = this;
    fill(box, "name", shown ? shown.piece.name : _("Artifacts"));
    fill(box, "about", shown ? [labelOf(shown.piece), sizeText(shown.piece.size), clock(shown.piece.created_at)].filter(Boolean).join(" · ") : "");
    show(slot(box, "list"), !shown);
    show(slot(box, "viewer"), Boolean(shown));
    show(slot(box, "back"), Boolean(shown) && this.pieces.some((one) => one.file_id));
    this.#paintActs(shown?.source);
    if (shown) this.#paintModes();
    else show(slot(box, "ways"), false);
  }

  #paintActs(source) {
    const { box } = this;
    show(slot(box, "copy"), Boolean(source) && isText(kindOf(source)) && !this.#isTooLarge(source));
    show(slot(box, "download"), Boolean(source));
    show(slot(box, "tab"), Boolean(source?.page));
    if (source) Object.assign(slot(box, "download"), { href: source.download, download: source.name });
    if (source?.page) slot(box, "tab").href = source.page;
  }

  #isTooLarge(source) {
    return source.size > this.limit;
  }

  #paintModes() {
    const { source } = this.shown;
    show(slot(this.box, "modes"), hasSource(kindOf(source)) && !this.#isTooLarge(source));
    this.#paintWays();
    for (const mode of ["preview", "source"]) slot(this.box, mode).setAttribute("aria-pressed", String(mode === this.shown.mode));
  }

  /** Files of one name are versions of one thing. */
  #paintVersions() {
    const { piece } = this.shown;
    const versions = this.pieces.filter((one) => one.name === piece.name);
    const select = slot(this.box, "versions");
    const options = versions.map((one, index) => element("option", { value: one.key, textContent: _("Version {number} of {all}", { number: index + 1, all: versions.length }) }));
    select.replaceChildren(...options.reverse());
    select.value = piece.key;
    show(select, versions.length > 1);
    this.#paintWays();
  }

  #paintWays() {
    show(slot(this.box, "ways"), !slot(this.box, "modes").hidden || !slot(this.box, "versions").hidden);
  }

  #paintList() {
    const newest = new Map(); // name → {piece, versions}
    for (const piece of this.pieces) newest.set(piece.name, { piece, versions: (newest.get(piece.name)?.versions ?? 0) + 1 });
    const list = slot(this.box, "list");
    list.replaceChildren(...[...newest.values()].reverse().map(({ piece, versions }) => this.#item(piece, versions)));
  }

  #item(piece, versions) {
    const item = clone("panel-piece");
    item.querySelector("button").dataset.key = piece.key;
    fill(item, "name", piece.name);
    const about = [labelOf(piece), sizeText(piece.size), clock(piece.created_at), versions > 1 ? _("version {number}", { number: versions }) : ""];
    fill(item, "about", about.filter(Boolean).join(" · "));
    return item;
  }

  async #copy(button) {
    try {
      await copyBy(button, await read(this.shown.source));
    } catch (problem) {
      toast(problem.message);
    }
  }
}
