// Messages that are being sent: shown at once, and removed when the transcript or the queue shows them.

import { cloneTemplate, fillSlot } from "../lib/dom.js";

export class Outbox {
  /** @param {PageElement} list */
  constructor(list) {
    this.list = list;
    this.entries = []; // {text, files, chip, id, lost, after, item}
  }

  get isEmpty() {
    return this.entries.length === 0;
  }

  /**
   * Add a message. While a turn runs it will be queued, so it is shown above the composer, unless the turn
   * waits.
   * @param {Draft} message
   * @param {SessionState} state
   */
  add({ text, files }, state) {
    const after = state.rows.get(state.order.at(-1))?.sequence ?? -1;
    const entry = {
      text,
      files,
      chip: Boolean(state.turn) && state.turn.status !== "waiting",
      id: null,
      lost: false,
      after,
      item: null,
    };
    this.entries.push(entry);
    return entry;
  }

  markAccepted(entry, id) {
    entry.id = id;
  }

  remove(entry) {
    entry.item?.remove();
    this.entries = this.entries.filter((other) => other !== entry);
  }

  queuedEntries(state) {
    return this.entries.filter((entry) => entry.chip && !this.#hasArrived(entry, state));
  }

  paint(state) {
    for (const entry of this.entries) {
      if (this.#hasArrived(entry, state)) this.remove(entry);
      else if (!entry.chip) this.#showEntry(entry);
    }
  }

  /**
   * After a reconnect: remove the lost messages, and return those that did not arrive.
   * @param {SessionState} state
   */
  takeLost(state) {
    const lost = this.entries.filter((entry) => entry.lost);
    for (const entry of lost) this.remove(entry);
    return lost.filter((entry) => !this.#hasArrived(entry, state));
  }

  /** Compare by id; before the answer brought one, by a new row or queued message with the same text. */
  #hasArrived(entry, { rows, order, queue }) {
    if (entry.id) return rows.has(entry.id) || queue.some((item) => item.id === entry.id);
    const fresh = order.slice(-20).map((id) => rows.get(id));
    const isOurs = (row) => row.kind === "user" && row.sequence > entry.after && row.content === entry.text;
    return fresh.some(isOurs) || (entry.chip && queue.some((item) => item.text === entry.text));
  }

  #showEntry(entry) {
    if (!entry.item) {
      entry.item = cloneTemplate("row-user");
      entry.item.classList.add("pending");
      fillSlot(entry.item, "text", entry.text);
    }
    if (entry.item !== this.list.lastElementChild) this.list.append(entry.item);
  }
}
