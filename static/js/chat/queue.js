// Messages that wait for the running turn, above the composer: send now, edit, move up, withdraw.

import { byId, cloneTemplate, createElement, delegateClicks, fillSlot, setVisible } from "../lib/dom.js";
import { focusComposer } from "./cards.js";

export class MessageQueue {
  /**
   * @param {object} options
   * @param {(kind: string, fields: object) => void} options.send sends a command and shows why it was refused
   * @param {(text: string) => void} options.onTooLate gets an edit whose message has left the queue meanwhile
   */
  constructor({ send, onTooLate }) {
    this.send = send;
    this.onTooLate = onTooLate;
    this.list = byId("queue");
    this.state = null;
    this.painted = {}; // what was painted last, by identity
    this.editing = null; // the id of the message whose editor is open
    delegateClicks(this.list, {
      "send-now": (button) => this.#sendFor(button, "queue.send_now"),
      "queue-remove": (button) => this.#sendFor(button, "queue.remove"),
      "queue-up": (button) => this.#sendFor(button, "queue.move", { position: this.#positionOf(button) - 1 }),
      "queue-edit": (button) => this.#edit(button.closest(".chip").dataset.message),
      "queue-cancel": () => this.#edit(null),
    });
  }

  /**
   * @param {SessionState} state
   * @param {{ text: string, files: { name: string }[] }[]} sending entries of the outbox that will be queued
   */
  paint(state, sending) {
    this.state = state;
    if (this.painted.queue === state.queue && this.painted.sending === sending.length) return;
    this.#paintItems(state.queue, sending);
    this.painted = { queue: state.queue, sending: sending.length };
  }

  #paintItems(items, sending) {
    const focused = document.activeElement?.closest?.("#queue [data-act]");
    const focusTarget = focused && [focused.closest(".chip").dataset.message, focused.dataset.act];
    const waiting = sending.map((one) =>
      createElement(
        "li",
        { className: "chip pending" },
        createElement("span", {
          className: "chip-text",
          textContent: describeMessage(one.text, one.files),
          dir: "auto",
        }),
      ),
    );
    setVisible(this.list, items.length + waiting.length > 0);
    const editor = this.#findEditor(items);
    for (const old of [...this.list.children]) if (old !== editor) old.remove();
    let isPastEditor = !editor;
    for (const item of items) {
      if (editor && item.id === this.editing) isPastEditor = true;
      else if (isPastEditor) this.list.append(this.#createEntry(item));
      else editor.before(this.#createEntry(item)); // around it: moved itself, it would lose its focus
    }
    this.list.append(...waiting);
    if (focusTarget) this.#refocus(...focusTarget);
  }

  /** Find the editor somebody writes in; if its message has left the queue, hand the text back instead. */
  #findEditor(items) {
    const editor = this.list.querySelector(".editing");
    if (!editor || items.some((item) => item.id === this.editing)) return editor;
    this.editing = null;
    const area = editor.querySelector("textarea");
    if (area.value.trim() !== area.defaultValue) this.onTooLate(area.value);
    return null;
  }

  #createEntry(item) {
    return item.id === this.editing ? this.#createEditor(item) : this.#createChip(item);
  }

  #refocus(message, act) {
    const chip = this.list.querySelector(`[data-message="${message}"]`);
    const control =
      chip?.querySelector(`[data-act="${act}"]:not([hidden])`) ??
      chip?.querySelector("[data-act]:not([hidden])");
    if (control) control.focus();
    else focusComposer();
  }

  #createChip(item) {
    const chip = cloneTemplate("queued-chip");
    chip.dataset.message = item.id;
    fillSlot(chip, "text", describeMessage(item.text, item.attachments));
    setVisible(chip.querySelector('[data-act="queue-up"]'), this.#indexOf(item.id) > 0);
    return chip;
  }

  #createEditor(item) {
    const chip = cloneTemplate("queued-editor");
    chip.dataset.message = item.id;
    const area = chip.querySelector("textarea");
    area.value = area.defaultValue = item.text;
    chip.querySelector("form").onsubmit = (event) => {
      event.preventDefault();
      const text = area.value.trim();
      this.#edit(null);
      if (text && text !== item.text) this.send("queue.edit", { message_id: item.id, text });
    };
    area.onkeydown = (event) => {
      if (event.key === "Escape") {
        event.stopPropagation();
        this.#edit(null);
      } else if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
        event.preventDefault();
        chip.querySelector("form").requestSubmit();
      }
    };
    return chip;
  }

  #edit(id) {
    const before = this.editing;
    this.editing = id;
    this.list.replaceChildren();
    this.#paintItems(this.state.queue, []);
    if (id) this.list.querySelector("textarea")?.focus();
    else this.#refocus(before, "queue-edit");
  }

  #sendFor(button, kind, fields = {}) {
    this.send(kind, { message_id: button.closest(".chip").dataset.message, ...fields });
  }

  #indexOf(id) {
    return this.state.queue.findIndex((item) => item.id === id);
  }

  #positionOf(button) {
    const item = this.state.queue[this.#indexOf(button.closest(".chip").dataset.message)];
    return item?.position ?? 1;
  }
}

/**
 * One line for a message: its text, and the names of its files.
 * @param {string} text
 * @param {{ name: string }[]} [files]
 */
function describeMessage(text, files = []) {
  const names = files.map((file) => file.name).join(", ");
  return [text, names && `📎 ${names}`].filter(Boolean).join(" ");
}
