// Versions of a message: edit and send again, retry, and switch between them.

import { cloneTemplate, findSlot } from "../lib/dom.js";
import { showToast } from "../lib/toasts.js";

export class MessageVersions {
  /**
   * @param {PageElement} list
   * @param {SessionState} state
   * @param {object} options
   * @param {(kind: string, fields: object) => Promise<unknown>} options.sendCommand
   * @param {() => { tier: string, mode: string }} options.modelChoice
   * @param {() => void} options.onSent a new version has begun
   */
  constructor(list, state, { sendCommand, modelChoice, onSent }) {
    this.list = list;
    this.state = state;
    this.sendCommand = sendCommand;
    this.modelChoice = modelChoice;
    this.onSent = onSent;
  }

  get actions() {
    return {
      edit: (button) => this.edit(this.#rowOf(button)),
      "edit-cancel": (button) => this.#close(button.closest("[data-row]")),
      retry: (button) => this.retry(button),
      "older-version": (button) => this.#switchBranch(this.#rowOf(button), -1),
      "newer-version": (button) => this.#switchBranch(this.#rowOf(button), 1),
    };
  }

  /**
   * Answer again, with the model that is chosen now.
   * @param {PageElement} control
   */
  retry(control) {
    return this.#startVersion("branch.retry", { message_id: this.#rowOf(control).id }, [control]);
  }

  /**
   * Open the editor in place of the message.
   * @param {Row} row
   */
  edit(row) {
    const item = this.list.querySelector(`[data-row="${row.id}"]`);
    if (!item || item.dataset.editing !== undefined) return;
    const other = this.list.querySelector("[data-editing]");
    if (other) this.#close(other);
    const form = cloneTemplate("sent-editor");
    const area = form.querySelector("textarea");
    area.value = row.content;
    form.onsubmit = (event) => {
      event.preventDefault();
      this.#send(row, area.value.trim(), form);
    };
    area.onkeydown = (event) => this.#onKey(event, item, form);
    area.oninput = () => this.#fitHeight(area);
    item.dataset.editing = "";
    findSlot(item, "text").after(form);
    this.#fitHeight(area);
    area.focus();
    area.setSelectionRange(area.value.length, area.value.length);
  }

  #onKey(event, item, form) {
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

  #fitHeight(area) {
    area.style.height = "auto";
    area.style.height = `${Math.min(area.scrollHeight + 2, innerHeight * 0.4)}px`;
  }

  async #send(row, text, form) {
    if (!text && !row.attachments.length) return;
    await this.#startVersion("branch.edit", { message_id: row.id, text }, [...form.elements]);
  }

  async #startVersion(kind, fields, controls) {
    for (const control of controls) control.disabled = true;
    try {
      await this.sendCommand(kind, { ...fields, ...this.modelChoice() });
      this.onSent();
    } catch (problem) {
      showToast(problem.message);
    }
    for (const control of controls) control.disabled = false;
  }

  async #switchBranch(row, step) {
    try {
      await this.sendCommand("branch.switch", { message_id: row.id, branch: row.branch + step });
    } catch (problem) {
      showToast(problem.message);
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
