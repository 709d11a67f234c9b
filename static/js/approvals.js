// Calls that wait for a person: what would run, with which arguments, at what cost; approve, change, reject, or allow (W2.4).

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
    if (this.seen.approvals !== approvals) this.#paintCards(approvals);
    if (this.seen.autoApprove !== autoApprove) this.#paintUnasked(autoApprove);
    this.seen = { approvals, autoApprove };
  }

  #paintCards(approvals) {
    const known = new Map([...this.box.children].map((card) => [card.dataset.approval, card]));
    for (const [id, card] of known) if (!approvals.some((one) => one.id === id)) card.remove();
    for (const approval of approvals) if (!known.has(approval.id)) this.box.append(this.#card(approval));
    show(this.box, approvals.length > 0);
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
    card.dataset.approval = approval.id;
    fill(card, "what", `${toolLabel(approval.tool)}?`);
    fill(card, "cost", approval.estimate_microdollars === null ? "" : _("about {amount}", { amount: dollars(approval.estimate_microdollars) }));
    fill(card, "why", [approval.reason, approval.block_reason, remaining(approval)].filter(Boolean).join(" "));
    const fields = Object.entries(approval.arguments).map(([name, value]) => field(approval, name, value));
    slot(card, "fields").append(...fields);
    card.onsubmit = (event) => {
      event.preventDefault();
      this.#send(card, () => this.#approve(card, approval));
    };
    card.elements.reject.onclick = () => this.#send(card, () => this.#reject(card));
    card.elements.allow.onclick = () => this.#send(card, () => this.#allow(card, approval));
    return card;
  }

  #approve(card, approval) {
    const given = edited(card, approval.arguments);
    return this.decide({ approval_id: approval.id, decision: "approve", ...(given ? { arguments: given } : {}) });
  }

  #reject(card) {
    return this.decide({ approval_id: card.dataset.approval, decision: "reject", feedback: card.elements.feedback.value.trim() });
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

  async #send(card, act) {
    const controls = [...card.elements];
    for (const control of controls) control.disabled = true;
    show(slot(card, "problem"), false);
    try {
      await act();
    } catch (problem) {
      show(fill(card, "problem", problem.message), true);
      for (const control of controls) control.disabled = false;
    }
  }
}

function field({ id, editable }, name, value) {
  const text = typeof value === "string" ? value : JSON.stringify(value);
  const area = element("textarea", { id: `${id}-${name}`, value: text, rows: Math.min(8, Math.ceil(text.length / LINE) || 1) });
  area.dataset.argument = name;
  area.spellcheck = false;
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
