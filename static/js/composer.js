// The box one writes in: keys, draft, model choice. It hands over what to send and knows no more.

import { Attachments } from "./attachments.js";
import { focusComposer } from "./cards.js";
import { byId, show } from "./dom.js";
import { Slashes } from "./slashes.js";

const PHONE = matchMedia("(pointer: coarse) and (max-width: 48rem)");

export class Composer {
  /** Callbacks: `onSend({text, attachments, tier, mode})`, `onCommand(name, {text, …})`, `onStop()`, `onRecall()`: ↑ in an empty box. */
  constructor({ sessionId, onSend, onCommand, onStop, onRecall }) {
    this.form = byId("composer");
    this.text = byId("text");
    this.running = false;
    if (PHONE.matches) this.text.enterKeyHint = "enter";
    Object.assign(this, { sessionId, onSend, onCommand, onStop, onRecall });
    this.slashes = new Slashes(this.text, (text) => this.put(text));
    this.#restore();
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.#submit();
    });
    this.text.addEventListener("keydown", (event) => this.#key(event));
    this.text.addEventListener("input", () => this.#changed());
    byId("stop").addEventListener("click", () => this.onStop());
    document.addEventListener("keydown", (event) => {
      if (event.key === "Escape" && this.running && !event.defaultPrevented && !document.querySelector("dialog[open], [data-drawer]")) this.onStop();
    });
    this.attachments = new Attachments(this.form, { onChange: () => this.#buttons(), problem: (words) => this.problem(words) });
    this.#startChoices();
    this.#changed();
  }

  setRunning(running) {
    if (this.running === running) return;
    this.running = running;
    if (!running && document.activeElement === byId("stop")) focusComposer();
    show(byId("stop"), running);
    this.#buttons();
  }

  /** The new chat got its session: the draft moves with it. */
  setSession(sessionId) {
    localStorage.removeItem(this.#draftKey());
    this.sessionId = sessionId;
  }

  put(text, { focus = true } = {}) {
    this.text.value = text;
    this.#changed();
    if (!focus) return;
    this.text.focus();
    this.text.setSelectionRange(text.length, text.length);
  }

  /** Send this at once; what was being written waits. */
  say(text) {
    this.onSend({ text, files: [], attachments: [], ...this.choices() });
  }

  /** What was not accepted goes back in front of what has been typed since. */
  giveBack({ text, files }) {
    this.put([text, this.text.value].filter(Boolean).join("\n\n"));
    this.attachments.giveBack(files);
  }

  problem(words) {
    const line = byId("problem");
    line.textContent = words;
    show(line, Boolean(words));
  }

  #submit() {
    const text = this.text.value.trim();
    if (!this.#ready()) return;
    const attachments = this.attachments.ids;
    const files = this.attachments.take();
    this.slashes.close();
    this.put("", { focus: false });
    this.problem("");
    const message = { text, files, attachments, ...this.choices() };
    const name = files.length ? null : this.slashes.known(text);
    if (name) this.onCommand(name, message);
    else this.onSend(message);
  }

  /** The model and the way of thinking that are chosen now. */
  choices() {
    return { tier: byId("tier").value, mode: byId("mode").checked ? "deep" : "fast" };
  }

  /** Choose another model, here and for the next chats. */
  choose(tier) {
    byId("tier").value = tier;
    localStorage.setItem("tier", tier);
  }

  #ready() {
    return this.attachments.isReady && (this.text.value.trim() !== "" || !this.attachments.isEmpty);
  }

  #key(event) {
    if (event.isComposing || this.slashes.key(event)) return;
    if (event.key === "Enter" && !event.shiftKey) {
      // A phone's keyboard has no Shift+Enter to speak of: there Enter breaks the line and the button sends.
      if (PHONE.matches) return;
      event.preventDefault();
      this.#submit();
    } else if (event.key === "ArrowUp" && this.text.value === "") {
      if (this.onRecall()) event.preventDefault();
    }
  }

  #changed() {
    this.text.style.height = "auto";
    this.text.style.height = `${Math.min(this.text.scrollHeight, innerHeight * 0.4)}px`;
    this.#buttons();
    if (this.text.value) localStorage.setItem(this.#draftKey(), this.text.value);
    else localStorage.removeItem(this.#draftKey());
  }

  #buttons() {
    byId("send").disabled = !this.#ready();
    show(byId("send"), !this.running || this.#ready());
  }

  #draftKey() {
    return `draft:${this.sessionId || "new"}`;
  }

  #restore() {
    this.text.value ||= localStorage.getItem(this.#draftKey()) ?? "";
  }

  #startChoices() {
    const tier = byId("tier");
    const mode = byId("mode");
    const kept = localStorage.getItem("tier");
    if ([...tier.options].some((option) => option.value === kept)) tier.value = kept;
    mode.checked = localStorage.getItem("mode") !== "fast";
    tier.addEventListener("change", () => localStorage.setItem("tier", tier.value));
    mode.addEventListener("change", () => localStorage.setItem("mode", mode.checked ? "deep" : "fast"));
  }
}
