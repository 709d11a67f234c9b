// Taking a chat along: a small form, a document at once, or word when the one made in the background is ready (S15).

import { Refused } from "./api.js";
import { byId, element, fill, show } from "./dom.js";
import { toast } from "./toast.js";
import { _ } from "./words.js";

export class Exports {
  constructor() {
    this.dialog = byId("export");
    this.form = this.dialog.querySelector("form");
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      if (event.submitter?.value === "cancel") this.dialog.close();
      else this.#export();
    });
  }

  ask(item) {
    this.session = item.dataset.session;
    fill(this.dialog, "title", item.querySelector('[data-slot="title"]').textContent);
    this.#problem("");
    this.dialog.showModal();
  }

  /** `export.finished`: news for its owner, whichever chat is open. */
  finished({ export_id: id, state, name }) {
    this.waiting?.(); // the promise is kept
    if (state !== "ready") return toast(_("An export could not be made."));
    const fetchIt = () => location.assign(`/api/v1/exports/${id}/download`);
    toast(_("“{name}” is ready.", { name }), { label: _("Download"), act: fetchIt, seconds: 60 });
  }

  async #export() {
    const fields = new FormData(this.form);
    const query = new URLSearchParams({ format: fields.get("format") });
    for (const name of ["reasoning", "tools", "files"]) if (fields.get(name)) query.set(name, "1");
    const button = this.form.elements.go;
    button.disabled = true;
    try {
      await this.#fetch(`/api/v1/sessions/${this.session}/export?${query}`);
      this.dialog.close();
    } catch (problem) {
      this.#problem(problem.message);
    }
    button.disabled = false;
  }

  async #fetch(path) {
    const response = await fetch(path);
    if (response.status === 202) return this.#wait(await response.json());
    if (!response.ok) throw new Refused(response.status, await response.json().catch(() => null));
    save(await response.blob(), nameIn(response.headers.get("Content-Disposition") ?? ""));
  }

  #wait(job) {
    if (job.state === "ready") return this.finished({ export_id: job.id, state: "ready", name: job.name });
    this.waiting = toast(_("Your export is being made. You will be told here when it is ready; it is also on the page “Your data”."), { seconds: 10 });
  }

  #problem(words) {
    fill(this.dialog, "problem", words);
    show(this.dialog.querySelector('[data-slot="problem"]'), Boolean(words));
  }
}

function save(blob, name) {
  const link = element("a", { href: URL.createObjectURL(blob), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

/** The name a download would have; the encoded form goes first, because only it holds every letter. */
export function nameIn(disposition) {
  const encoded = disposition.match(/filename\*=UTF-8''([^;]+)/)?.[1];
  if (encoded) return decodeURIComponent(encoded);
  return disposition.match(/filename="((?:\\.|[^"\\])*)"/)?.[1].replaceAll(/\\(.)/g, "$1") ?? "conversation";
}
