// Files for the next message: added by button, drop or paste, each with its progress, its error and a
// second try.

import { uploadFile } from "../lib/api.js";
import { byId, cloneTemplate, delegateClicks, fillSlot, findSlot, setVisible, targetOf } from "../lib/dom.js";
import { formatSize } from "../lib/file_types.js";
import { _ } from "../lib/i18n.js";

const MAX_FILES = 20; // per message
const THUMBNAIL_TYPES = ["image/png", "image/jpeg", "image/gif", "image/webp", "image/avif"];

export class Attachments {
  /**
   * @param {PageElement} form
   * @param {{ onChange: () => void, problem: (text: string) => void }} options `problem` says what was not added
   */
  constructor(form, { onChange, problem }) {
    this.form = form;
    this.onChange = onChange;
    this.problem = problem;
    this.list = byId("attachments");
    this.limit = Number(this.list.dataset.fileMax) || Infinity;
    this.entries = []; // {file, name, size, id, item, abort, failed}
    delegateClicks(form, {
      attach: () => byId("file").click(),
      detach: (button) => this.#remove(this.#entryOf(button)),
      reupload: (button) => this.#upload(this.#entryOf(button)),
    });
    byId("file").addEventListener("change", (event) => {
      this.add([...targetOf(event).files]);
      targetOf(event).value = "";
    });
    byId("text").addEventListener("paste", (event) => this.#onPaste(event));
    this.#listenForDrops(byId("main"), byId("drop"));
  }

  get ids() {
    return this.entries.map((entry) => entry.id);
  }

  get isEmpty() {
    return this.entries.length === 0;
  }

  /** True if every file is uploaded: one that failed must be sent again or removed first. */
  get isReady() {
    return this.entries.every((entry) => entry.id);
  }

  /** Hand over all entries, and be empty. */
  takeAll() {
    const taken = this.entries;
    this.entries = [];
    this.#paint();
    return taken;
  }

  /** Put entries back in front of those that were added since. */
  restore(entries) {
    this.entries.unshift(...entries);
    this.#paint();
  }

  add(files) {
    const room = MAX_FILES - this.entries.length;
    const small = files.filter((file) => file.size <= this.limit);
    const tooLarge = files
      .filter((file) => file.size > this.limit)
      .map((file) => `${file.name} (${formatSize(file.size)})`);
    const words = [];
    if (tooLarge.length)
      words.push(
        _("Files can be up to {size}. Too large: {names}.", {
          size: formatSize(this.limit),
          names: tooLarge.join(", "),
        }),
      );
    if (small.length > room)
      words.push(
        _("You can attach up to {number} files; {left} were left out.", {
          number: MAX_FILES,
          left: small.length - room,
        }),
      );
    this.problem(words.join(" "));
    for (const file of small.slice(0, room)) this.#addFile(file);
  }

  #addFile(file) {
    const entry = {
      file,
      name: file.name || "pasted",
      size: file.size,
      id: null,
      item: cloneTemplate("attachment"),
    };
    fillSlot(entry.item, "name", entry.name);
    findSlot(entry.item, "name").title = entry.name;
    if (THUMBNAIL_TYPES.includes(file.type)) this.#showThumbnail(entry);
    this.entries.push(entry);
    this.#upload(entry);
  }

  #showThumbnail({ item, file }) {
    const image = item.querySelector("img");
    const url = URL.createObjectURL(file);
    image.onload = () => {
      URL.revokeObjectURL(url);
      setVisible(image, true);
      item.querySelector(".icon").remove();
    };
    image.onerror = () => URL.revokeObjectURL(url); // what only says that it is a picture keeps its icon
    image.src = url;
  }

  async #upload(entry) {
    entry.failed = null;
    const { done, abort } = uploadFile(entry.file, (part) => this.#paintProgress(entry, part));
    entry.abort = abort;
    this.#paintProgress(entry, 0);
    this.#paint();
    try {
      entry.id = (await done).id;
    } catch (problem) {
      if (problem.code === "aborted") return;
      entry.failed = problem.message;
    }
    this.#paint();
  }

  #paintProgress({ item, size }, part) {
    item.querySelector("progress").value = part;
    fillSlot(item, "about", part < 1 ? `${Math.floor(part * 100)} %` : formatSize(size));
  }

  #entryOf(button) {
    const item = button.closest("li");
    return this.entries.find((entry) => entry.item === item);
  }

  #remove(entry) {
    this.entries = this.entries.filter((other) => other !== entry);
    if (!entry.id) entry.abort();
    this.#paint();
    byId("text").focus();
  }

  #paint() {
    for (const entry of this.entries) paintEntry(entry);
    const items = this.entries.map((entry) => entry.item);
    if (
      items.length !== this.list.children.length ||
      items.some((item, at) => item !== this.list.children[at])
    )
      this.list.replaceChildren(...items);
    setVisible(this.list, items.length > 0);
    this.onChange();
  }

  /**
   * Take pasted files and images. Cells of a spreadsheet bring an image of themselves along: those are
   * text.
   */
  #onPaste(event) {
    const { files, types } = event.clipboardData;
    if (!files.length || (types.includes("text/plain") && types.includes("text/html"))) return;
    event.preventDefault();
    this.add([...files]);
  }

  #listenForDrops(area, veil) {
    let depth = 0; // entering a child is leaving its parent, in that order
    const hasFiles = (event) => event.dataTransfer?.types.includes("Files");
    const over = (step) => (event) => {
      if (!hasFiles(event)) return;
      depth += step;
      setVisible(veil, depth > 0);
    };
    area.addEventListener("dragenter", over(1));
    area.addEventListener("dragleave", over(-1));
    area.addEventListener("dragover", (event) => hasFiles(event) && event.preventDefault());
    area.addEventListener("drop", (event) => {
      if (!hasFiles(event)) return;
      event.preventDefault();
      depth = 0;
      setVisible(veil, false);
      this.add([...event.dataTransfer.files]);
    });
  }
}

function paintEntry({ item, id, failed, size }) {
  item.dataset.state = id ? "done" : failed ? "failed" : "loading";
  setVisible(item.querySelector("progress"), !id && !failed);
  setVisible(item.querySelector('[data-act="reupload"]'), Boolean(failed));
  if (id) fillSlot(item, "about", formatSize(size));
  if (failed) fillSlot(item, "about", failed);
}
