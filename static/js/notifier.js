// Tells of endings and questions while nobody looks: in the tab's title and, where it was asked for, by the browser (W2.10).

import { byId, show } from "./dom.js";

const KEPT = "notify"; // in this browser: a choice of the device, not of the account

export class Notifier {
  constructor() {
    this.states = new Map(); // session id → the last state heard of, or painted
    for (const { dataset } of document.querySelectorAll("#sessions .session")) this.states.set(dataset.session, dataset.state);
    this.unseen = new Set(); // sessions with news since somebody looked
    this.button = byId("notify");
    show(this.button, "Notification" in window);
    this.button.addEventListener("click", () => this.#switch());
    document.addEventListener("visibilitychange", () => document.hidden || this.#seen());
    this.#paint();
  }

  /** In front of the tab's title. */
  get mark() {
    return this.unseen.size ? `(${this.unseen.size}) ` : "";
  }

  /** A `session.changed` of any chat; whether the title has to be painted again. */
  heard({ session_id: id, state, title, child, deleted }) {
    const before = this.states.get(id);
    this.states.set(id, state);
    const ended = state === "idle" && (before === "running" || before === "waiting");
    if (child || deleted || !document.hidden || !(ended || (state === "waiting" && before !== "waiting"))) return false;
    this.unseen.add(id);
    if (this.on) this.#tell(id, title, this.button.dataset[ended ? "ended" : "waits"]);
    return true;
  }

  get on() {
    return "Notification" in window && Notification.permission === "granted" && localStorage.getItem(KEPT) === "on";
  }

  /** The tag lets several tabs tell it once. */
  #tell(id, title, words) {
    const told = new Notification(title || "Pilothouse", { body: words, tag: `${id}`, icon: this.button.dataset.icon });
    told.onclick = () => {
      focus();
      if (!location.pathname.includes(id)) location.assign(`/chat/${id}/`);
      told.close();
    };
  }

  async #switch() {
    if (this.on) localStorage.removeItem(KEPT);
    else if ((await Notification.requestPermission()) === "granted") localStorage.setItem(KEPT, "on");
    this.#paint();
  }

  #seen() {
    this.unseen.clear();
    this.onSeen?.();
  }

  #paint() {
    this.button.setAttribute("aria-pressed", String(this.on));
  }
}
