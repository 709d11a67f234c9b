// The box to write messages in: keys, draft, attachments, slash commands and the choice of the model.

import { byId, setVisible } from "../lib/dom.js";
import { Attachments } from "./attachments.js";
import { focusComposer } from "./cards.js";
import { SlashCommandMenu } from "./slash_commands.js";

const PHONE = matchMedia("(pointer: coarse) and (max-width: 48rem)");

export class Composer {
  /**
   * @param {object} options
   * @param {string | null} options.sessionId
   * @param {(message: Draft) => void} options.onSend
   * @param {(name: string, message: Draft) => void} options.onCommand
   * @param {() => void} options.onStop
   * @param {() => boolean} options.onRecall ↑ was pressed in the empty box; true if it was used
   */
  constructor({ sessionId, onSend, onCommand, onStop, onRecall }) {
    this.form = byId("composer");
    this.text = byId("text");
    this.isRunning = false;
    if (PHONE.matches) this.text.enterKeyHint = "enter";
    this.sessionId = sessionId;
    this.onSend = onSend;
    this.onCommand = onCommand;
    this.onStop = onStop;
    this.onRecall = onRecall;
    this.commandMenu = new SlashCommandMenu(this.text, (text) => this.setText(text));
    this.#restoreDraft();
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.#submit();
    });
    this.text.addEventListener("keydown", (event) => this.#onKey(event));
    this.text.addEventListener("input", () => this.#onInput());
    byId("stop").addEventListener("click", () => this.onStop());
    document.addEventListener("keydown", (event) => {
      if (
        event.key === "Escape" &&
        this.isRunning &&
        !event.defaultPrevented &&
        !document.querySelector("dialog[open], [data-drawer]")
      )
        this.onStop();
    });
    this.attachments = new Attachments(this.form, {
      onChange: () => this.#updateButtons(),
      problem: (words) => this.showProblem(words),
    });
    this.#restoreModelChoice();
    this.#onInput();
  }

  setRunning(running) {
    if (this.isRunning === running) return;
    this.isRunning = running;
    if (!running && document.activeElement === byId("stop")) focusComposer();
    setVisible(byId("stop"), running);
    this.#updateButtons();
  }

  /** Move the draft along when a new chat gets its session. */
  setSession(sessionId) {
    localStorage.removeItem(this.#draftKey());
    this.sessionId = sessionId;
  }

  setText(text, { focus = true } = {}) {
    this.text.value = text;
    this.#onInput();
    if (!focus) return;
    this.text.focus();
    this.text.setSelectionRange(text.length, text.length);
  }

  /** Send a text at once; what is being written stays in the box. */
  sendText(text) {
    this.onSend({ text, files: [], attachments: [], ...this.modelChoice() });
  }

  /**
   * Put a message that was not accepted back, in front of what has been typed since.
   * @param {Draft} message
   */
  restoreMessage({ text, files }) {
    this.setText([text, this.text.value].filter(Boolean).join("\n\n"));
    this.attachments.restore(files);
  }

  showProblem(words) {
    const line = byId("problem");
    line.textContent = words;
    setVisible(line, Boolean(words));
  }

  #submit() {
    const text = this.text.value.trim();
    if (!this.#canSend()) return;
    const attachments = this.attachments.ids;
    const files = this.attachments.takeAll();
    this.commandMenu.close();
    this.setText("", { focus: false });
    this.showProblem("");
    const message = { text, files, attachments, ...this.modelChoice() };
    const name = files.length ? null : this.commandMenu.matchCommand(text);
    if (name) this.onCommand(name, message);
    else this.onSend(message);
  }

  /** The tier and the mode of thinking that are chosen now. */
  modelChoice() {
    return { tier: byId("tier").value, mode: byId("mode").checked ? "deep" : "fast" };
  }

  /** Choose another tier, here and for the next chats. */
  chooseTier(tier) {
    byId("tier").value = tier;
    localStorage.setItem("tier", tier);
  }

  #canSend() {
    return this.attachments.isReady && (this.text.value.trim() !== "" || !this.attachments.isEmpty);
  }

  #onKey(event) {
    if (event.isComposing || this.commandMenu.handleKey(event)) return;
    if (event.key === "Enter" && !event.shiftKey) {
      // A phone's keyboard has no Shift+Enter to speak of: there Enter breaks the line and the button sends.
      if (PHONE.matches) return;
      event.preventDefault();
      this.#submit();
    } else if (event.key === "ArrowUp" && this.text.value === "") {
      if (this.onRecall()) event.preventDefault();
    }
  }

  #onInput() {
    this.text.style.height = "auto";
    this.text.style.height = `${Math.min(this.text.scrollHeight, innerHeight * 0.4)}px`;
    this.#updateButtons();
    if (this.text.value) localStorage.setItem(this.#draftKey(), this.text.value);
    else localStorage.removeItem(this.#draftKey());
  }

  #updateButtons() {
    byId("send").disabled = !this.#canSend();
    setVisible(byId("send"), !this.isRunning || this.#canSend());
  }

  #draftKey() {
    return `draft:${this.sessionId || "new"}`;
  }

  #restoreDraft() {
    this.text.value ||= localStorage.getItem(this.#draftKey()) ?? "";
  }

  #restoreModelChoice() {
    const tier = byId("tier");
    const mode = byId("mode");
    const kept = localStorage.getItem("tier");
    if ([...tier.options].some((option) => option.value === kept)) tier.value = kept;
    mode.checked = localStorage.getItem("mode") !== "fast";
    tier.addEventListener("change", () => localStorage.setItem("tier", tier.value));
    mode.addEventListener("change", () => localStorage.setItem("mode", mode.checked ? "deep" : "fast"));
  }
}
