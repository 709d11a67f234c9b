// Notify of answers and questions while nobody looks: in the tab's title and, if it was switched on, by the
// browser.

import { byId, setVisible } from "../lib/dom.js";

const STORAGE_KEY = "notify"; // in this browser: a choice of the device, not of the account

export class Notifications {
  /** @param {{ onSeen: () => void }} options `onSeen`: somebody looks at the page again */
  constructor({ onSeen }) {
    this.onSeen = onSeen;
    this.states = new Map(); // session id → its last known state
    for (const { dataset } of document.querySelectorAll("#sessions .session"))
      this.states.set(dataset.session, dataset.state);
    this.unseen = new Set(); // sessions with news since somebody looked
    this.button = byId("notify");
    setVisible(this.button, "Notification" in window);
    this.button.addEventListener("click", () => this.#toggle());
    document.addEventListener("visibilitychange", () => document.hidden || this.#markSeen());
    this.#paint();
  }

  /** The number of chats with news, in front of the tab's title. */
  get titlePrefix() {
    return this.unseen.size ? `(${this.unseen.size}) ` : "";
  }

  /**
   * Notify of a `session.changed` of any chat; true if the title has to be painted again.
   * @param {any} session
   */
  handleChange({ session_id: id, state, title, child, deleted }) {
    const before = this.states.get(id);
    this.states.set(id, state);
    const ended = state === "idle" && (before === "running" || before === "waiting");
    if (child || deleted || !document.hidden || !(ended || (state === "waiting" && before !== "waiting")))
      return false;
    this.unseen.add(id);
    if (this.isEnabled) this.#notify(id, title, this.button.dataset[ended ? "ended" : "waits"]);
    return true;
  }

  get isEnabled() {
    return (
      "Notification" in window &&
      Notification.permission === "granted" &&
      localStorage.getItem(STORAGE_KEY) === "on"
    );
  }

  /** The tag makes several tabs show it once. */
  #notify(id, title, words) {
    const told = new Notification(title || "Pilothouse", {
      body: words,
      tag: `${id}`,
      icon: this.button.dataset.icon,
    });
    told.onclick = () => {
      focus();
      if (!location.pathname.includes(id)) location.assign(`/chat/${id}/`);
      told.close();
    };
  }

  async #toggle() {
    if (this.isEnabled) localStorage.removeItem(STORAGE_KEY);
    else if ((await Notification.requestPermission()) === "granted") localStorage.setItem(STORAGE_KEY, "on");
    this.#paint();
  }

  #markSeen() {
    this.unseen.clear();
    this.onSeen();
  }

  #paint() {
    this.button.setAttribute("aria-pressed", String(this.isEnabled));
  }
}
