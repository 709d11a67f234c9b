// Cards of tool calls that need permission: their arguments and cost; approve, edit, reject, or allow all
// in this chat.

import { byId, cloneTemplate, createElement, fillSlot, findSlot, setVisible } from "../lib/dom.js";
import { _ } from "../lib/i18n.js";
import { paintCards, submitCard } from "./cards.js";
import { toolLabel } from "./labels.js";

const MICRODOLLARS = 1_000_000;
const LINE_LENGTH = 60; // characters of an argument that still fit one line

export class ApprovalCards {
  /**
   * @param {object} options
   * @param {(fields: object) => Promise<unknown>} options.decide approves or rejects a call
   * @param {(fields: object) => Promise<unknown>} options.allow sets what runs without asking in this chat
   */
  constructor({ decide, allow }) {
    this.decide = decide;
    this.allow = allow;
    this.box = byId("approvals");
    this.autoApproval = byId("auto-approval");
    this.autoApproval.querySelector("button").onclick = () => this.#disableAutoApproval();
    this.seen = {};
  }

  /** @param {SessionState} state */
  paint({ approvals, autoApprove }) {
    if (this.seen.approvals !== approvals)
      paintCards(this.box, approvals, (approval) => this.#createCard(approval));
    if (this.seen.autoApprove !== autoApprove) this.#paintAutoApproval(autoApprove);
    this.seen = { approvals, autoApprove };
  }

  /** @param {SessionState["autoApprove"]} autoApprove */
  #paintAutoApproval({ enabled, cap_microdollars: cap, sub_sessions: too, inherited }) {
    const limit =
      cap === null ? _("while they're free") : _("up to {amount} in total", { amount: formatDollars(cap) });
    const where = inherited
      ? _("here, as allowed by the chat that started this one")
      : too
        ? _("in this chat and its sub-chats")
        : _("in this chat");
    fillSlot(this.autoApproval, "text", _("Tools run without asking {where}, {limit}.", { where, limit }));
    setVisible(this.autoApproval.querySelector("button"), !inherited);
    setVisible(this.autoApproval, enabled);
  }

  #createCard(approval) {
    const card = cloneTemplate("approval-card");
    fillSlot(card, "what", `${toolLabel(approval.tool)}?`);
    fillSlot(
      card,
      "cost",
      approval.estimate_microdollars === null
        ? ""
        : _("about {amount}", { amount: formatDollars(approval.estimate_microdollars) }),
    );
    fillSlot(
      card,
      "why",
      [approval.reason, approval.block_reason, describeRemainingCap(approval)].filter(Boolean).join(" "),
    );
    const fields = Object.entries(approval.arguments).map(([name, value]) =>
      createField(approval, name, value),
    );
    findSlot(card, "fields").append(...fields);
    setVisible(card.querySelector(".approval-always"), approval.can_always_allow);
    card.onsubmit = (event) => {
      event.preventDefault();
      submitCard(card, () => this.#approve(card, approval));
    };
    card.elements.reject.onclick = () => submitCard(card, () => this.#reject(card));
    card.elements.allow.onclick = () => submitCard(card, () => this.#allowAll(card, approval));
    clickOnEnter(card.elements.feedback, card.elements.reject);
    clickOnEnter(card.elements.cap, card.elements.allow);
    return card;
  }

  #approve(card, approval) {
    const given = changedArguments(card, approval.arguments);
    return this.decide({
      approval_id: approval.id,
      decision: "approve",
      ...(given ? { arguments: given } : {}),
    });
  }

  #reject(card) {
    return this.decide({
      approval_id: card.dataset.id,
      decision: "reject",
      feedback: card.elements.feedback.value.trim(),
    });
  }

  async #allowAll(card, approval) {
    const cap = card.elements.cap.value.trim();
    const cap_microdollars = cap === "" ? null : Math.round(Number(cap) * MICRODOLLARS);
    await this.allow({ enabled: true, cap_microdollars, sub_sessions: card.elements.sub_sessions.checked });
    await this.#approve(card, approval);
  }

  async #disableAutoApproval() {
    const button = this.autoApproval.querySelector("button");
    button.disabled = true;
    await this.allow({ enabled: false }).catch(() => {});
    button.disabled = false;
  }
}

/**
 * Let Enter press the button beside a field: left to the form, it would approve what somebody is about to
 * reject.
 */
function clickOnEnter(input, button) {
  input.onkeydown = (event) => {
    if (event.key !== "Enter" || event.isComposing) return;
    event.preventDefault();
    button.click();
  };
}

function createField({ id, editable }, name, value) {
  const text = typeof value === "string" ? value : JSON.stringify(value);
  const lines = text
    .split("\n")
    .reduce((sum, line) => sum + Math.max(1, Math.ceil(line.length / LINE_LENGTH)), 0);
  const area = createElement("textarea", { id: `${id}-${name}`, value: text, rows: Math.min(8, lines) });
  area.dataset.argument = name;
  area.spellcheck = false;
  area.dir = "auto";
  area.readOnly = !editable;
  return createElement(
    "div",
    { className: "approval-field" },
    createElement("label", { htmlFor: area.id, textContent: name }),
    area,
  );
}

/**
 * The arguments as they stand in the card, or null if nobody changed them: masked secrets stay on the
 * server.
 */
function changedArguments(card, original) {
  const given = {};
  let changed = false;
  for (const area of card.querySelectorAll("[data-argument]")) {
    const name = area.dataset.argument;
    const value = original[name];
    const shown = typeof value === "string" ? value : JSON.stringify(value);
    given[name] = value;
    if (area.value === shown) continue;
    changed = true;
    given[name] = typeof value === "string" ? area.value : parseArgument(name, area.value);
  }
  return changed ? given : null;
}

function parseArgument(name, text) {
  try {
    return JSON.parse(text);
  } catch {
    throw new Error(_("{name}: not valid JSON.", { name }));
  }
}

function describeRemainingCap({ remaining_cap_microdollars: left }) {
  return left === null ? "" : _("{amount} of the limit left.", { amount: formatDollars(left) });
}

function formatDollars(micro) {
  const amount = micro / MICRODOLLARS;
  return `$${amount >= 0.01 || amount === 0 ? amount.toFixed(2) : amount.toPrecision(2)}`;
}
