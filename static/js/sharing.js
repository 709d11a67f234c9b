// The dialog in which a conversation is shared: what will be public is shown before it is.

import { call } from "./api.js";
import { copyBy } from "./copying.js";
import { byId, delegate, element, fill, show, slot } from "./dom.js";
import { GrowingMarkdown } from "./markdown.js";
import { toolLabel } from "./rows.js";
import { announce, toast } from "./toast.js";
import { _ } from "./words.js";

const SHOWN = 200; // messages of a preview; more would make the dialog slow, and nobody reads them here
const TYPING = 350;
const DAY = 24 * 3600;
const WHY = {
  not_vouched_for: _("From another chat, or named by the agent only"),
  tool_output: _("Output of a tool"),
  excluded: "",
};

let sharing = null;

/** `through`: the last message to show; without it, all that is finished. */
export function openSharing(sessionId, through) {
  sharing ??= new Sharing();
  sharing.open(sessionId, through);
}

class Sharing {
  constructor() {
    this.dialog = byId("sharing");
    this.form = this.dialog.querySelector("form");
    this.choices = new Map(); // file id → whether the owner wants it public
    delegate(this.dialog, {
      close: () => this.dialog.close(),
      "copy-link": (button) => copyBy(button, slot(this.dialog, "url").value),
      revoke: () => this.#revoke(),
    });
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.#make();
    });
    this.form.addEventListener("change", (event) => this.#changed(event.target));
    this.form.elements.title.addEventListener("input", () => {
      clearTimeout(this.timer);
      this.timer = setTimeout(() => this.#preview(), TYPING);
    });
  }

  async open(sessionId, through) {
    this.sessionId = sessionId;
    this.through = through;
    this.choices.clear();
    this.form.reset();
    this.dialog.removeAttribute("data-made");
    show(slot(this.dialog, "days"), false);
    this.#problem("");
    this.#showLink(null);
    fill(this.dialog, "lead", through ? _("Everybody with the link sees this conversation up to the message you chose:") : _("Everybody with the link sees this, and nothing you write later:"));
    slot(this.dialog, "messages").replaceChildren();
    this.dialog.showModal();
    await Promise.all([this.#preview(), this.#standing()]);
  }

  async #standing() {
    try {
      const { items } = await call("GET", `/shares?session=${this.sessionId}&limit=10`);
      const share = items.find(({ state }) => state !== "taken_down");
      if (!share) return;
      this.#showLink(share, share.state === "expired" ? _("The last link has expired. A new one replaces it.") : _("There is a link already. A new one replaces it, and it stops working."));
    } catch (problem) {
      this.#problem(problem.message);
    }
  }

  #showLink(share, about = "") {
    show(slot(this.dialog, "standing"), Boolean(share));
    if (!share) return;
    const views = share.views ? ` ${_("Views so far: {count}.", { count: share.views })}` : "";
    fill(this.dialog, "about", about + views);
    slot(this.dialog, "url").value = share.url;
    slot(this.dialog, "open").href = share.url;
  }

  #asked() {
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

  #changed(field) {
    if (field.name === "file") this.choices.set(field.value, field.checked);
    if (field.name === "expiry") show(slot(this.dialog, "days"), field.value === "custom");
    if (field.type === "checkbox") this.#preview();
  }

  async #preview() {
    const asked = this.#asked();
    const number = (this.asked = (this.asked ?? 0) + 1);
    try {
      const found = await call("POST", `/sessions/${this.sessionId}/share/preview`, asked);
      if (number !== this.asked) return; // a later choice is being looked at already
      this.#problem("");
      this.#paint(found);
      slot(this.dialog, "make").disabled = false;
    } catch (problem) {
      if (number !== this.asked) return;
      slot(this.dialog, "make").disabled = true;
      this.#problem(problem.message);
    }
  }

  #paint({ title, author, messages, files }) {
    fill(this.dialog, "title", title || _("Shared conversation"));
    this.form.elements.title.placeholder = title || _("Shared conversation");
    fill(this.dialog, "author", author ? `: ${author}` : "");
    const rows = messages.slice(0, SHOWN).map(row);
    if (messages.length > SHOWN) rows.push(element("li", { className: "sharing-more", textContent: _("… and {count} more", { count: messages.length - SHOWN }) }));
    slot(this.dialog, "messages").replaceChildren(...rows);
    show(slot(this.dialog, "files-box"), files.length > 0);
    slot(this.dialog, "files").replaceChildren(...files.map(fileSwitch));
  }

  async #make() {
    const { elements } = this.form;
    const days = elements.expiry.value === "custom" ? Number(elements.days.value) : Number(elements.expiry.value);
    const password = elements.password.value;
    if (password && password.length < 8) return this.#problem(_("A password has at least 8 characters."));
    if (elements.expiry.value && !(days >= 1 && days <= 365)) return this.#problem(_("A link may last 1 to 365 days, or for ever."));
    slot(this.dialog, "make").disabled = true;
    try {
      const terms = { expires_in: elements.expiry.value ? Math.round(days) * DAY : null, password: password || null };
      const share = await call("POST", `/sessions/${this.sessionId}/share`, { ...this.#asked(), ...terms });
      this.dialog.toggleAttribute("data-made", true);
      this.#problem("");
      this.#showLink(share, _("Everybody with this link can read the conversation as it is now."));
      announce(_("The link is made."));
      slot(this.dialog, "url").select();
    } catch (problem) {
      this.#problem(problem.message);
    }
    slot(this.dialog, "make").disabled = false;
  }

  async #revoke() {
    try {
      await call("DELETE", `/sessions/${this.sessionId}/share`);
      this.#showLink(null);
      this.dialog.close();
      toast(_("The link is dead."));
    } catch (problem) {
      this.#problem(problem.message);
    }
  }

  #problem(words) {
    show(fill(this.dialog, "problem", words), Boolean(words));
  }
}

function row(entry) {
  if (entry.type === "tool") return element("li", { className: "sharing-step", textContent: `${toolLabel(entry.tool)}${entry.output || entry.arguments ? ` · ${(entry.output || entry.arguments).slice(0, 300)}` : ""}` });
  if (entry.type === "reasoning") return element("li", { className: "sharing-step", textContent: `${_("Thought")} · ${entry.text.slice(0, 300)}` });
  const who = element("strong", { textContent: entry.author || (entry.role === "user" ? _("You") : "Pilothouse") });
  if (entry.role === "user") return element("li", {}, who, element("p", { textContent: entry.text }));
  const prose = element("div", { className: "prose" });
  new GrowingMarkdown(prose).update(entry.text, true);
  return element("li", {}, who, prose);
}

function fileSwitch(file) {
  const box = element("input", { type: "checkbox", name: "file", value: file.id, checked: file.public });
  const facts = file.public ? "" : WHY[file.withheld];
  const name = element("span", { className: "sharing-file", textContent: file.name });
  return element("li", {}, element("label", {}, box, name, element("span", { className: "sharing-why", textContent: facts })));
}
