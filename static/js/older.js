// Older pages of the conversation: one more on scrolling up, and those between what is shown and a snapshot (W2.2).

import { call } from "./api.js";
import { addOlder, firstOf, meets } from "./fold.js";
import { toast } from "./toast.js";

const AGAIN_AFTER = 5000;
const ROWS_BETWEEN = 200; // as many as one request may ask for
const MOST_BETWEEN = 10; // requests; whoever missed more begins again at the newest page

export class Older {
  /** `onLoaded()`: there are rows above. */
  constructor(state, { sessionId, onLoaded }) {
    Object.assign(this, { state, sessionId, onLoaded, from: 0 });
  }

  /** One more page; after one that could not be had, scrolling asks for none for a while. */
  async load() {
    const { state } = this;
    if (!state.hasOlder || this.busy || !this.sessionId() || Date.now() < this.from) return;
    this.busy = true;
    try {
      const first = state.rows.get(state.order[0]);
      const { items, has_older } = await this.#page(first);
      if (state.order[0] !== first.id) return; // a snapshot came meanwhile: the page does not lie before it
      addOlder(state, items, has_older);
      this.onLoaded();
    } catch (problem) {
      this.from = Date.now() + AGAIN_AFTER;
      toast(problem.message);
    } finally {
      this.busy = false;
    }
  }

  /** As `load`, for somebody who asks for it. */
  loadNow() {
    this.from = 0;
    return this.load();
  }

  /** A snapshot that goes back to what is shown; as it was if that is too far or cannot be had. */
  async joined(snapshot) {
    let whole = snapshot;
    try {
      for (let asked = 0; asked < MOST_BETWEEN && whole.has_older && !meets(this.state, whole); asked += 1) {
        const { items, has_older } = await this.#page(firstOf(whole), `&limit=${ROWS_BETWEEN}`);
        whole = { ...whole, messages: [...items, ...whole.messages], has_older };
      }
    } catch {
      return snapshot;
    }
    return meets(this.state, whole) ? whole : snapshot;
  }

  #page({ sequence }, limit = "") {
    return call("GET", `/sessions/${this.sessionId()}/messages?before=${sequence}${limit}`);
  }
}
