// Calls that wait for a person: what would run, with which arguments, at what cost; approve, change, reject, or allow (W2.4).

import { paintCards, submit } from "./cards.js";
import { byId, clone, element, fill, show, slot } from "./dom.js";
import { toolLabel } from "./rows.js";
import { _ } from "./words.js";

const MICRO = 1_000_000;
const LINE = 60; // characters of an argument that still fit one line

export class Approvals {
  /** `decide(fields)` decides about calls or fails; `allow(fields)` sets what runs unasked in this chat, or fails. */
  constructor({ decide, allow }) {
    this.decide = decide;
    this.allow = allow;
    this.box = byId("approvals");
    this.unasked = byId("unasked");
    this.unasked.querySelector("button").onclick = () => this.#switchOff();
    this.seen = {};
  }

  paint({ approvals, autoApprove }) {
    if (this.seen.approvals !== approvals) paintCards(this.box, approvals, (approval) => this.#card(approval));
    if (this.seen.autoApprove !== autoApprove) this.#paintUnasked(autoApprove);
    this.seen = { approvals, autoApprove };
  }

  #paintUnasked({ enabled, cap_microdollars: cap, sub_sessions: too, inherited }) {
    const limit = cap === null ? _("as long as they cost nothing") : _("up to {amount} in all", { amount: dollars(cap) });
    const where = inherited ? _("here, as the chat that started this one allows") : too ? _("in this chat and its sub-chats") : _("in this chat");
    fill(this.unasked, "text", _("Calls run unasked {where}, {limit}.", { where, limit }));
    show(this.unasked.querySelector("button"), !inherited);
    show(this.unasked, enabled);
  }

  #card(approval) {
    const card = clone("approval-card");
    fill(card, "what", `${toolLabel(approval.tool)}?`);
    fill(card, "cost", approval.estimate_microdollars === null ? "" : _("about {amount}", { amount: dollars(approval.estimate_microdollars) }));
    fill(card, "why", [approval.reason, approval.block_reason, remaining(approval)].filter(Boolean).join(" "));
    const fields = Object.entries(approval.arguments).map(([name, value]) => field(approval, name, value));
    slot(card, "fields").append(...fields);
    show(card.querySelector(".approval-always"), approval.can_always_allow);
    card.onsubmit = (event) => {
      event.preventDefault();
      submit(card, () => this.#approve(card, approval));
    };
    card.elements.reject.onclick = () => submit(card, () => this.#reject(card));
    card.elements.allow.onclick = () => submit(card, () => this.#allow(card, approval));
    onEnter(card.elements.feedback, card.elements.reject);
    onEnter(card.elements.cap, card.elements.allow);
    return card;
  }

  #approve(card, approval) {
    const given = edited(card, approval.arguments);
    return this.decide({ approval_id: approval.id, decision: "approve", ...(given ? { arguments: given } : {}) });
  }

  #reject(card) {
    return this.decide({ approval_id: card.dataset.id, decision: "reject", feedback: card.elements.feedback.value.trim() });
  }

  async #allow(card, approval) {
    const cap = card.elements.cap.value.trim();
    const cap_microdollars = cap === "" ? null : Math.round(Number(cap) * MICRO);
    await this.allow({ enabled: true, cap_microdollars, sub_sessions: card.elements.sub_sessions.checked });
    await this.#approve(card, approval);
  }

  async #switchOff() {
    const button = this.unasked.querySelector("button");
    button.disabled = true;
    await this.allow({ enabled: false }).catch(() => {});
    button.disabled = false;
  }
}

/** Enter means the button beside a field: left to the form, it would approve what somebody is about to reject. */
function onEnter(input, button) {
  input.onkeydown = (event) => {
    if (event.key !== "Enter" || event.isComposing) return;
    event.preventDefault();
    button.click();
  };
}

function field({ id, editable }, name, value) {
  const text = typeof value === "string" ? value : JSON.stringify(value);
  const lines = text.split("\n").reduce((sum, line) => sum + Math.max(1, Math.ceil(line.length / LINE)), 0);
  const area = element("textarea", { id: `${id}-${name}`, value: text, rows: Math.min(8, lines) });
  area.dataset.argument = name;
  area.spellcheck = false;
  area.dir = "auto";
  area.readOnly = !editable;
  return element("div", { className: "approval-field" }, element("label", { htmlFor: area.id, textContent: name }), area);
}

/** The arguments as they stand in the card, or null when nobody changed them: masked secrets stay the server's. */
function edited(card, original) {
  const given = {};
  let changed = false;
  for (const area of card.querySelectorAll("[data-argument]")) {
    const name = area.dataset.argument;
    const value = original[name];
    const shown = typeof value === "string" ? value : JSON.stringify(value);
    given[name] = value;
    if (area.value === shown) continue;
    changed = true;
    given[name] = typeof value === "string" ? area.value : parsed(name, area.value);
  }
  return changed ? given : null;
}

function parsed(name, text) {
  try {
    return JSON.parse(text);
  } catch {
    throw new Error(_("{name}: this is not valid JSON.", { name }));
  }
}

function remaining({ remaining_cap_microdollars: left }) {
  return left === null ? "" : _("{amount} of the cap are left.", { amount: dollars(left) });
}

function dollars(micro) {
  const amount = micro / MICRO;
  return `$${amount >= 0.01 || amount === 0 ? amount.toFixed(2) : amount.toPrecision(2)}`;
}
