// The dialog to take a chat along: a form, then a download at once, or a toast when a document made in the
// background is ready.

import { ApiError } from "../lib/api.js";
import { byId, createElement, fillSlot, setVisible } from "../lib/dom.js";
import { _ } from "../lib/i18n.js";
import { showToast } from "../lib/toasts.js";

const WAITING = _("Preparing your export. You'll see it here and under “Your data” when it's ready.");

export class ExportDialog {
  constructor() {
    this.dialog = byId("export");
    this.form = this.dialog.querySelector("form");
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      if (/** @type {PageElement} */ (event.submitter)?.value === "cancel") this.dialog.close();
      else this.#export();
    });
  }

  open(item) {
    this.session = item.dataset.session;
    fillSlot(this.dialog, "title", item.querySelector('[data-slot="title"]').textContent);
    this.#showProblem("");
    this.dialog.showModal();
  }

  /** Offer the download of an `export.finished` event, whichever chat is open. */
  showFinished({ export_id: id, state, name }) {
    this.closeWaitingToast?.(); // the promise is kept
    if (state === "ready") {
      const act = () => location.assign(`/api/v1/exports/${id}/download`);
      showToast(_("“{name}” is ready.", { name }), { label: _("Download"), act, seconds: 60 });
    } else showToast(_("An export failed."));
  }

  async #export() {
    const fields = new FormData(/** @type {HTMLFormElement} */ (/** @type {HTMLElement} */ (this.form)));
    const query = new URLSearchParams({ format: String(fields.get("format")) });
    for (const name of ["reasoning", "tools", "files"]) if (fields.get(name)) query.set(name, "1");
    const button = this.form.elements.go;
    button.disabled = true;
    try {
      await this.#download(`/api/v1/sessions/${this.session}/export?${query}`);
      this.dialog.close();
    } catch (problem) {
      this.#showProblem(problem.message);
    }
    button.disabled = false;
  }

  async #download(path) {
    const response = await fetch(path);
    if (!response.ok) throw new ApiError(response.status, await response.json().catch(() => null));
    if (response.status === 202) this.#waitForJob(await response.json());
    else saveBlob(await response.blob(), fileNameFrom(response.headers.get("Content-Disposition") ?? ""));
  }

  #waitForJob(job) {
    if (job.state === "ready") this.showFinished({ export_id: job.id, state: "ready", name: job.name });
    else this.closeWaitingToast = showToast(WAITING, { seconds: 10 });
  }

  #showProblem(words) {
    fillSlot(this.dialog, "problem", words);
    setVisible(this.dialog.querySelector('[data-slot="problem"]'), Boolean(words));
  }
}

function saveBlob(blob, name) {
  const link = createElement("a", { href: URL.createObjectURL(blob), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

/**
 * Read the file name of a Content-Disposition header; the encoded form first, as only it holds every
 * letter.
 * @param {string} disposition
 * @returns {string}
 */
export function fileNameFrom(disposition) {
  const encoded = disposition.match(/filename\*=UTF-8''([^;]+)/)?.[1];
  if (encoded) return decodeURIComponent(encoded);
  return disposition.match(/filename="((?:\\.|[^"\\])*)"/)?.[1].replaceAll(/\\(.)/g, "$1") ?? "conversation";
}
