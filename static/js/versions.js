// Versions of what was said: edit and send again, retry, and the switch between them (W2.7).

import { clone, slot } from "./dom.js";
import { toast } from "./toast.js";

export class Versions {
  /** `command(kind, fields)` sends and may fail; `choices()` → {tier, mode}; `onSent()` after a new version began. */
  constructor(list, state, { command, choices, onSent }) {
    Object.assign(this, { list, state, command, choices, onSent });
  }

  get acts() {
    return {
      edit: (button) => this.edit(this.#rowOf(button)),
      "edit-cancel": (button) => this.#close(button.closest("[data-row]")),
      retry: (button) => this.retry(button),
      "older-version": (button) => this.#switch(this.#rowOf(button), -1),
      "newer-version": (button) => this.#switch(this.#rowOf(button), 1),
    };
  }

  /** Answer again, with the model that is chosen now. */
  retry(control) {
    return this.#begin("branch.retry", { message_id: this.#rowOf(control).id }, [control]);
  }

  /** Opens the editor in place of the bubble. */
  edit(row) {
    const item = this.list.querySelector(`[data-row="${row.id}"]`);
    if (!item || item.dataset.editing !== undefined) return;
    const other = this.list.querySelector("[data-editing]");
    if (other) this.#close(other);
    const form = clone("sent-editor");
    const area = form.querySelector("textarea");
    area.value = row.content;
    form.onsubmit = (event) => {
      event.preventDefault();
      this.#send(row, area.value.trim(), form);
    };
    area.onkeydown = (event) => this.#key(event, item, form);
    area.oninput = () => this.#grow(area);
    item.dataset.editing = "";
    slot(item, "text").after(form);
    this.#grow(area);
    area.focus();
    area.setSelectionRange(area.value.length, area.value.length);
  }

  #key(event, item, form) {
    if (event.isComposing) return;
    if (event.key === "Escape") {
      event.preventDefault();
      event.stopPropagation();
      this.#close(item);
    } else if (event.key === "Enter" && !event.shiftKey && !matchMedia("(pointer: coarse)").matches) {
      event.preventDefault();
      form.requestSubmit();
    }
  }

  #grow(area) {
    area.style.height = "auto";
    area.style.height = `${Math.min(area.scrollHeight + 2, innerHeight * 0.4)}px`;
  }

  async #send(row, text, form) {
    if (!text && !row.attachments.length) return;
    await this.#begin("branch.edit", { message_id: row.id, text }, [...form.elements]);
  }

  async #begin(kind, fields, controls) {
    for (const control of controls) control.disabled = true;
    try {
      await this.command(kind, { ...fields, ...this.choices() });
      this.onSent();
    } catch (problem) {
      toast(problem.message);
    }
    for (const control of controls) control.disabled = false;
  }

  async #switch(row, step) {
    try {
      await this.command("branch.switch", { message_id: row.id, branch: row.branch + step });
    } catch (problem) {
      toast(problem.message);
    }
  }

  #close(item) {
    item.querySelector(".sent-editor").remove();
    delete item.dataset.editing;
    item.querySelector('[data-act="edit"]').focus();
  }

  #rowOf(button) {
    return this.state.rows.get(button.closest("[data-row]").dataset.row);
  }
}
