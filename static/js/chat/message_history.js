// Load older pages of the conversation: one more on scrolling up, and those between what is shown and a
// snapshot.

import { callApi } from "../lib/api.js";
import { showToast } from "../lib/toasts.js";
import { addOlderRows, firstMessage, isContiguous } from "./event_reducer.js";

const RETRY_AFTER_MS = 5000;
const GAP_PAGE_SIZE = 200; // as many as one request may ask for
const MAX_GAP_REQUESTS = 10; // after a longer gap, start again at the newest page

export class MessageHistory {
  /**
   * @param {SessionState} state
   * @param {{ sessionId: () => string | null, onLoaded: () => void }} options
   */
  constructor(state, { sessionId, onLoaded }) {
    this.state = state;
    this.sessionId = sessionId;
    this.onLoaded = onLoaded;
    this.from = 0;
  }

  /** Load one more page; after a failure, scrolling loads none for a while. */
  async loadOlder() {
    const { state } = this;
    if (!state.hasOlder || this.busy || !this.sessionId() || Date.now() < this.from) return;
    this.busy = true;
    try {
      const first = state.rows.get(state.order[0]);
      const { items, has_older } = await this.#fetchPage(first);
      if (state.order[0] !== first.id) return; // a snapshot came meanwhile: the page does not lie before it
      addOlderRows(state, items, has_older);
      this.onLoaded();
    } catch (problem) {
      this.from = Date.now() + RETRY_AFTER_MS;
      showToast(problem.message);
    } finally {
      this.busy = false;
    }
  }

  /** Load one more page for somebody who asks for it, also after a failure. */
  loadOlderNow() {
    this.from = 0;
    return this.loadOlder();
  }

  /** Extend a snapshot back to the rows that are shown; it stays as it was if that is too far or fails. */
  async joinSnapshot(snapshot) {
    let whole = snapshot;
    try {
      for (
        let asked = 0;
        asked < MAX_GAP_REQUESTS && whole.has_older && !isContiguous(this.state, whole);
        asked += 1
      ) {
        const { items, has_older } = await this.#fetchPage(firstMessage(whole), `&limit=${GAP_PAGE_SIZE}`);
        whole = { ...whole, messages: [...items, ...whole.messages], has_older };
      }
    } catch {
      return snapshot;
    }
    return isContiguous(this.state, whole) ? whole : snapshot;
  }

  #fetchPage({ sequence }, limit = "") {
    return callApi("GET", `/sessions/${this.sessionId()}/messages?before=${sequence}${limit}`);
  }
}
