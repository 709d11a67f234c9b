// The dialog that shares a conversation: it shows what will be public before it is.

import { callApi } from "../lib/api.js";
import { copyWithFeedback } from "../lib/clipboard.js";
import { byId, createElement, delegateClicks, fillSlot, findSlot, setVisible, targetOf } from "../lib/dom.js";
import { _ } from "../lib/i18n.js";
import { StreamingMarkdown } from "../lib/markdown.js";
import { announce, showToast } from "../lib/toasts.js";
import { toolLabel } from "./labels.js";

const MAX_PREVIEWED = 200; // messages of a preview; more would make the dialog slow, and nobody reads them here
const STEP_CHARACTERS = 300; // of a tool's output or a thought
const DEBOUNCE_MS = 350;
const DAY_SECONDS = 24 * 3600;
const WITHHELD_REASONS = {
  not_vouched_for: _("From another chat, or mentioned only by the assistant"),
  tool_output: _("Tool output"),
  excluded: "",
};

let dialog = null;

/**
 * @param {string} sessionId
 * @param {string | null} through the last message to share; without it, all that is finished
 */
export function openShareDialog(sessionId, through) {
  dialog ??= new ShareDialog();
  dialog.open(sessionId, through);
}

class ShareDialog {
  constructor() {
    this.dialog = byId("sharing");
    this.form = this.dialog.querySelector("form");
    this.previewNumber = 0; // of the last preview that was asked for
    this.choices = new Map(); // file id → whether the owner wants it public
    delegateClicks(this.dialog, {
      close: () => this.dialog.close(),
      "copy-link": (button) => copyWithFeedback(button, findSlot(this.dialog, "url").value),
      revoke: () => this.#revoke(),
    });
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.#create();
    });
    this.form.addEventListener("change", (event) => this.#onChange(targetOf(event)));
    this.form.elements.password.addEventListener("input", () => this.#showLead());
    this.form.elements.title.addEventListener("input", () => {
      clearTimeout(this.timer);
      this.timer = setTimeout(() => this.#preview(), DEBOUNCE_MS);
    });
  }

  async open(sessionId, through) {
    this.sessionId = sessionId;
    this.through = through;
    this.choices.clear();
    this.form.reset();
    this.dialog.removeAttribute("data-made");
    setVisible(findSlot(this.dialog, "days"), false);
    this.#showProblem("");
    this.#showLink(null);
    this.#showLead();
    findSlot(this.dialog, "messages").replaceChildren();
    this.dialog.showModal();
    await Promise.all([this.#preview(), this.#loadExisting()]);
  }

  /** Say who will be able to read it; a password narrows that. */
  #showLead() {
    const hasPassword = Boolean(this.form.elements.password.value);
    const whole = hasPassword
      ? _("Anyone with the link and the password can see this snapshot. Later messages stay private.")
      : _("Anyone with the link can see this snapshot. Later messages stay private.");
    const part = hasPassword
      ? _("Anyone with the link and the password can see this chat up to the message you chose.")
      : _("Anyone with the link can see this chat up to the message you chose.");
    fillSlot(this.dialog, "lead", this.through ? part : whole);
  }

  async #loadExisting() {
    try {
      const { items } = await callApi("GET", `/shares?session=${this.sessionId}&limit=10`);
      const share = items.find(({ state }) => state !== "taken_down");
      if (!share) return;
      this.#showLink(
        share,
        share.state === "expired"
          ? _("The last link expired. Create a new one below.")
          : _("This chat already has a link. It stops working when you create a new one."),
      );
    } catch (problem) {
      this.#showProblem(problem.message);
    }
  }

  #showLink(share, about = "") {
    setVisible(findSlot(this.dialog, "standing"), Boolean(share));
    if (!share) return;
    const views = share.views ? ` ${_("Views so far: {count}.", { count: share.views })}` : "";
    fillSlot(this.dialog, "about", about + views);
    findSlot(this.dialog, "url").value = share.url;
    findSlot(this.dialog, "open").href = share.url;
  }

  #formOptions() {
    const { elements } = this.form;
    const chosen = (wanted) => [...this.choices].filter(([, yes]) => yes === wanted).map(([id]) => id);
    return {
      through: this.through,
      include_reasoning: elements.include_reasoning.checked,
      include_tools: elements.include_tools.checked,
      show_author: elements.show_author.checked,
      allow_continue: elements.allow_continue.checked,
      title: elements.title.value.trim(),
      include_files: chosen(true),
      exclude_files: chosen(false),
    };
  }

  #onChange(field) {
    if (field.name === "file") this.choices.set(field.value, field.checked);
    if (field.name === "expiry") setVisible(findSlot(this.dialog, "days"), field.value === "custom");
    if (field.type === "checkbox") this.#preview();
  }

  async #preview() {
    const asked = this.#formOptions();
    this.previewNumber += 1;
    const number = this.previewNumber;
    try {
      const found = await callApi("POST", `/sessions/${this.sessionId}/share/preview`, asked);
      if (number !== this.previewNumber) return; // a later choice is being looked at already
      this.#showProblem("");
      this.#paint(found);
      findSlot(this.dialog, "make").disabled = false;
    } catch (problem) {
      if (number !== this.previewNumber) return;
      findSlot(this.dialog, "make").disabled = true;
      this.#showProblem(problem.message);
    }
  }

  #paint({ title, author, messages, files }) {
    fillSlot(this.dialog, "title", title || _("Shared conversation"));
    this.form.elements.title.placeholder = title || _("Shared conversation");
    fillSlot(this.dialog, "author", author ? `: ${author}` : "");
    const rows = messages.slice(0, MAX_PREVIEWED).map(createRow);
    if (messages.length > MAX_PREVIEWED)
      rows.push(
        createElement("li", {
          className: "sharing-more",
          textContent: _("… and {count} more", { count: messages.length - MAX_PREVIEWED }),
        }),
      );
    findSlot(this.dialog, "messages").replaceChildren(...rows);
    setVisible(findSlot(this.dialog, "files-box"), files.length > 0);
    findSlot(this.dialog, "files").replaceChildren(...files.map(createFileSwitch));
  }

  async #create() {
    const { elements } = this.form;
    const days =
      elements.expiry.value === "custom" ? Number(elements.days.value) : Number(elements.expiry.value);
    const password = elements.password.value;
    if (password && password.length < 8)
      return this.#showProblem(_("Use at least 8 characters for the password."));
    if (elements.expiry.value && !(days >= 1 && days <= 365))
      return this.#showProblem(_("Enter a number of days from 1 to 365, or choose Never."));
    findSlot(this.dialog, "make").disabled = true;
    try {
      const terms = {
        expires_in: elements.expiry.value ? Math.round(days) * DAY_SECONDS : null,
        password: password || null,
      };
      const share = await callApi("POST", `/sessions/${this.sessionId}/share`, {
        ...this.#formOptions(),
        ...terms,
      });
      this.dialog.toggleAttribute("data-made", true);
      this.#showProblem("");
      this.#showLink(
        share,
        password
          ? _("Anyone with this link and the password can see the chat as it is now.")
          : _("Anyone with this link can see the chat as it is now."),
      );
      announce(_("Link created."));
      findSlot(this.dialog, "url").select();
    } catch (problem) {
      this.#showProblem(problem.message);
    }
    findSlot(this.dialog, "make").disabled = false;
  }

  async #revoke() {
    try {
      await callApi("DELETE", `/sessions/${this.sessionId}/share`);
      this.#showLink(null);
      this.dialog.close();
      showToast(_("Link revoked."));
    } catch (problem) {
      this.#showProblem(problem.message);
    }
  }

  #showProblem(words) {
    setVisible(fillSlot(this.dialog, "problem", words), Boolean(words));
  }
}

function createRow(entry) {
  if (entry.type === "tool") return createStep(toolLabel(entry.tool), entry.output || entry.arguments);
  if (entry.type === "reasoning") return createStep(_("Thought"), entry.text);
  const who = createElement("strong", {
    textContent: entry.author || (entry.role === "user" ? _("You") : "Pilothouse"),
  });
  if (entry.role === "user")
    return createElement("li", {}, who, createElement("p", { textContent: entry.text }));
  const prose = createElement("div", { className: "prose" });
  new StreamingMarkdown(prose).update(entry.text, true);
  return createElement("li", {}, who, prose);
}

function createFileSwitch(file) {
  const box = createElement("input", {
    type: "checkbox",
    name: "file",
    value: file.id,
    checked: file.public,
  });
  const facts = file.public ? "" : WITHHELD_REASONS[file.withheld];
  const name = createElement("span", { className: "sharing-file", textContent: file.name });
  return createElement(
    "li",
    {},
    createElement(
      "label",
      {},
      box,
      name,
      createElement("span", { className: "sharing-why", textContent: facts }),
    ),
  );
}

function createStep(label, text) {
  const textContent = text ? `${label} · ${text.slice(0, STEP_CHARACTERS)}` : label;
  return createElement("li", { className: "sharing-step", textContent });
}
