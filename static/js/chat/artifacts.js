// Files that the agent made: cards under the calls that made them, a count in the top bar, and the panel,
// which is fetched when first needed.

import { callApi } from "../lib/api.js";
import {
  byId,
  cloneTemplate,
  createElement,
  delegateClicks,
  fillSlot,
  setVisible,
  targetOf,
} from "../lib/dom.js";
import { codeBlockSource, ownFileSource } from "../lib/file_sources.js";
import { fileKind, fileTypeLabel, formatSize } from "../lib/file_types.js";
import { _ } from "../lib/i18n.js";
import { fileNames } from "../lib/markdown.js";
import { showToast } from "../lib/toasts.js";

export class ArtifactCards {
  /**
   * @param {SessionState} state
   * @param {{ elements: Map<string, PageElement>, calls: Map<string, string> }} transcript
   * @param {{ sessionId: () => string | null }} options
   */
  constructor(state, transcript, { sessionId }) {
    this.state = state;
    this.transcript = transcript;
    this.sessionId = sessionId;
    this.button = byId("artifacts");
    this.panel = null;
    this.cards = new Map(); // file id → its card
    this.unnamed = byId("transcript").getElementsByClassName("unnamed"); // links to files whose name is not known
    this.looked = new Set(); // ids of files that were looked up
    this.mayOpen = true; // until a person closes the panel
    this.openedFor = null; // the turn that has opened it
    this.button.addEventListener("click", () =>
      this.panel?.isOpen ? this.panel.dismiss() : this.#openPanel(null, { focus: true }),
    );
    delegateClicks(byId("transcript"), {
      "open-artifact": (card) =>
        this.#openPanel(
          this.#entries().find((one) => one.key === card.dataset.file),
          { focus: true },
        ),
      "open-code": (button) => this.#openPanel(this.#codeBlockEntry(button), { focus: true }),
    });
    byId("transcript").addEventListener("click", (event) => this.#openLink(event));
    // Such events do not bubble.
    byId("transcript").addEventListener("error", (event) => replaceWithName(targetOf(event)), true);
    for (const picture of document.querySelectorAll("#transcript .prose img"))
      if (picture.complete && !picture.naturalWidth) replaceWithName(picture);
    document.addEventListener("keydown", (event) => this.#onKey(event));
    addEventListener("pagehide", () => this.close()); // a page that comes back from the browser's memory shows none
  }

  /**
   * Open the panel for the first file of a running turn, but never where it would cover the chat, nor for a
   * picture, which the chat shows itself.
   * @param {SessionEvent} event
   */
  handleAdded({ file_id: id, turn_id: turn, name, type }) {
    // It was brought back.
    if (this.panel?.isLost(id)) return this.panel.show(this.#entries().find((one) => one.key === id));
    if (!turn || fileKind({ name, type }) === "image") return;
    const fits = matchMedia("(min-width: 60.01rem)").matches;
    if (
      !fits ||
      !this.mayOpen ||
      this.panel?.isInUse ||
      this.openedFor === turn ||
      this.state.turn?.id !== turn
    )
      return;
    this.openedFor = turn;
    this.#openPanel(
      this.#entries().find((one) => one.key === id),
      { focus: false },
    );
  }

  /** @param {SessionEvent} event */
  handleRemoved({ file_id: id }) {
    this.panel?.markDeleted(id);
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
    for (const artifact of this.state.artifacts)
      if (!this.cards.has(artifact.file_id)) this.#addCard(artifact);
    this.#hideShownPictures();
    if (this.painted !== this.state.artifacts) {
      this.painted = this.state.artifacts;
      for (const { file_id: id, name } of this.state.artifacts) fileNames.set(id, name);
      this.panel?.update(this.#entries());
      this.#paintButton();
    }
    for (const link of [...this.unnamed]) this.#nameLink(/** @type {PageElement} */ (link));
  }

  /** A picture that an answer shows needs no card. */
  #hideShownPictures() {
    const pictures = [...this.cards].filter(([, { isPicture }]) => isPicture);
    if (!pictures.length) return;
    const shown = new Set();
    for (const link of byId("transcript").querySelectorAll(".answer .prose .picture"))
      shown.add(fileIdOf(link));
    for (const [id, { item }] of pictures) setVisible(item, !shown.has(id));
  }

  /** Call a file by its name where the answer brought only its id. */
  #nameLink(link) {
    const id = fileIdOf(link);
    if (fileNames.has(id)) {
      link.textContent = fileNames.get(id);
      link.classList.remove("unnamed");
    } else if (!this.looked.has(id)) this.#lookUp(id);
  }

  async #lookUp(id) {
    this.looked.add(id);
    const attached = [...this.state.rows.values()].flatMap((row) => row.attachments ?? []);
    const known = attached.find((file) => file.file_id === id);
    const { name } = known ?? (await this.#fetchFile(id).catch(() => ({ name: "" })));
    if (!name) return;
    fileNames.set(id, name);
    for (const link of [...this.unnamed]) this.#nameLink(/** @type {PageElement} */ (link));
  }

  /** Put the card behind the row of its call, not into it: steps may be collapsed, files are not. */
  #addCard(artifact) {
    const anchor = this.transcript.elements.get(this.transcript.calls.get(artifact.call_id));
    if (!anchor) return;
    const item = cloneTemplate("made-card");
    item.querySelector("button").dataset.file = artifact.file_id;
    fillSlot(item, "name", artifact.name);
    fillSlot(item, "about", `${fileTypeLabel(artifact)} · ${formatSize(artifact.size)}`);
    if (fileKind(artifact) === "image") showPicture(item, artifact);
    /** @type {Element} */
    let last = anchor;
    while (last.nextElementSibling?.classList.contains("made")) last = last.nextElementSibling;
    last.after(item);
    this.cards.set(artifact.file_id, { item, anchor, isPicture: fileKind(artifact) === "image" });
  }

  #paintButton() {
    const count = new Set(this.state.artifacts.map((one) => one.name)).size; // versions share a name
    setVisible(this.button, count > 0);
    fillSlot(this.button, "count", String(count));
    this.button.setAttribute("aria-expanded", String(Boolean(this.panel?.isOpen)));
  }

  #entries() {
    return this.state.artifacts.map((one) => ({ ...one, key: one.file_id }));
  }

  #codeBlockEntry(button) {
    const message = button.closest("[data-row]").dataset.row;
    const blocks = [...button.closest(".prose").querySelectorAll(".code")];
    const block = button.closest(".code");
    const language = block.querySelector(".code-head span").textContent.toLowerCase();
    const place = { session: this.sessionId(), message, index: blocks.indexOf(block), language };
    const source = codeBlockSource({ ...place, text: block.querySelector("code").textContent });
    return {
      key: `${message}/${place.index}`,
      name: source.name,
      type: source.type,
      size: source.size,
      source,
    };
  }

  /** Open a file that an answer names in the panel; with a modifier key the link opens a tab as any other. */
  async #openLink(event) {
    const link = targetOf(event).closest("a.file-link[href]");
    if (!link || event.defaultPrevented || event.button || event.ctrlKey || event.metaKey || event.shiftKey)
      return;
    event.preventDefault();
    const id = fileIdOf(link);
    try {
      await this.#openPanel(this.#entries().find((one) => one.key === id) ?? (await this.#fetchFile(id)), {
        focus: true,
      });
    } catch (problem) {
      showToast(problem.status === 404 ? _("This file was deleted or isn't available.") : problem.message);
    }
  }

  /** Fetch a file that was not made in this chat. */
  async #fetchFile(id) {
    const { name, type, size, created_at } = await callApi("GET", `/files/${id}`);
    return { key: id, file_id: id, name, type, size, created_at };
  }

  async #openPanel(piece, { focus }) {
    try {
      const { ArtifactPanel } = await import("./artifact_panel.js");
      this.panel ??= new ArtifactPanel({
        onClose: () => this.#onPanelClosed(),
        sourceOf: (one) => one.source ?? ownFileSource(one),
      });
    } catch {
      showToast(_("Couldn't load the panel."));
      return;
    }
    this.panel.update(this.#entries());
    this.panel.open({ focus });
    if (piece) this.panel.show(piece);
    else this.panel.showList();
    this.#paintButton();
  }

  #onPanelClosed() {
    this.mayOpen = false;
    this.#paintButton();
  }

  /** Let Escape close the panel; but in the composer, while a turn runs, it stops the turn. */
  #onKey(event) {
    if (event.key !== "Escape" || event.defaultPrevented || !this.panel?.isOpen) return;
    if (document.body.dataset.drawer || document.querySelector("dialog[open]")) return;
    // As painted: what one sees decides.
    if (byId("app").matches("[data-running]") && document.activeElement === byId("text")) return;
    event.preventDefault();
    this.panel.dismiss();
  }
}

/** The id of the file that a link to its page is about. */
const fileIdOf = (link) => link.getAttribute("href").split("/")[2];

function showPicture(item, { file_id: id, name }) {
  const src = `/api/v1/files/${id}/download?inline=true`; // not the address of the panel: what it shows must not come from a cache
  const picture = createElement("img", { src, alt: "", title: name, loading: "lazy" });
  picture.onerror = () => picture.remove();
  item.querySelector(".icon").replaceWith(picture);
}

/** Replace an image that cannot be shown by its name, which is a link. */
function replaceWithName(picture) {
  if (!picture.matches(".prose .picture img")) return;
  picture.parentElement.classList.remove("picture");
  picture.replaceWith(picture.alt);
}
