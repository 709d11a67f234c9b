// What shapes the answers of one chat: instructions, a personality, and which tools it may use (W2.8, A30.1).

import { call } from "./api.js";
import { byId, clone, element, fill, show, slot } from "./dom.js";
import { toolLabel } from "./rows.js";

export class ThisChat {
  /** `sessionId()` → the chat's id or null; `begin()` makes the chat when there is none yet. */
  constructor({ sessionId, begin }) {
    Object.assign(this, { sessionId, begin });
    this.dialog = byId("this-chat");
    this.form = this.dialog.querySelector("form");
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.#save();
    });
    this.form.elements.cancel.addEventListener("click", () => this.dialog.close());
    this.dialog.addEventListener("click", (event) => event.target === this.dialog && this.dialog.close());
    slot(this.form, "every").addEventListener("change", (event) => {
      for (const box of this.#boxes()) box.checked = event.target.checked;
    });
    slot(this.form, "tools").addEventListener("change", () => this.#tally());
  }

  async open() {
    this.#problem("");
    this.#wait(true); // what is typed before the present state came would be lost
    this.dialog.showModal();
    const id = this.sessionId();
    try {
      const [session, tools, personalities] = await Promise.all([
        id ? call("GET", `/sessions/${id}`) : { instructions: "", personality: null, allowed_tools: null },
        call("GET", "/tools"),
        call("GET", "/personalities"),
      ]);
      this.#fill(session, tools.items.filter((tool) => tool.available), personalities.items);
      this.#wait(false);
      this.form.elements.instructions.focus();
    } catch (problem) {
      this.#problem(problem.message);
    }
  }

  #wait(waiting) {
    for (const control of this.form.elements) if (control.name !== "cancel") control.disabled = waiting;
  }

  #fill(session, tools, personalities) {
    this.form.elements.instructions.value = session.instructions;
    const choice = this.form.elements.personality;
    choice.replaceChildren(choice.options[0], ...personalities.map((one) => new Option(one.name, one.id)));
    choice.value = session.personality ?? "";
    show(slot(this.form, "personalities"), personalities.length > 0);
    const allowed = session.allowed_tools && new Set(session.allowed_tools);
    slot(this.form, "tools").replaceChildren(...tools.map((tool) => toolSwitch(tool, !allowed || allowed.has(tool.name))));
    this.#tally();
  }

  #boxes() {
    return [...slot(this.form, "tools").querySelectorAll("input")];
  }

  #tally() {
    const boxes = this.#boxes();
    const on = boxes.filter((box) => box.checked).length;
    const every = slot(this.form, "every");
    every.checked = on === boxes.length;
    every.indeterminate = on > 0 && on < boxes.length;
    fill(this.form, "count", `${on}/${boxes.length}`);
  }

  async #save() {
    const boxes = this.#boxes();
    const names = boxes.filter((box) => box.checked).map((box) => box.value);
    const changes = {
      instructions: this.form.elements.instructions.value.trim(),
      personality: Number(this.form.elements.personality.value) || null,
      allowed_tools: names.length === boxes.length ? null : names,
    };
    try {
      if (!this.sessionId()) await this.begin();
      await call("PATCH", `/sessions/${this.sessionId()}`, changes);
    } catch (problem) {
      return this.#problem(problem.message);
    }
    const shaped = Boolean(changes.instructions || changes.personality || changes.allowed_tools);
    byId("shape").toggleAttribute("data-shaped", shaped);
    this.dialog.close();
  }

  #problem(words) {
    show(fill(this.form, "problem", words), Boolean(words));
  }
}

function toolSwitch(tool, on) {
  const item = clone("tool-switch");
  const box = item.querySelector("input");
  box.value = tool.name;
  box.checked = on;
  fill(item, "name", toolLabel(tool.name));
  fill(item, "does", firstSentence(tool.description));
  const server = slot(item, "server");
  if (tool.server) server.replaceWith(element("span", { className: "tag", textContent: tool.server }));
  else server.remove();
  return item;
}

function firstSentence(text) {
  return /^.*?[.!?](?=\s|$)/s.exec(text)?.[0] ?? text;
}
