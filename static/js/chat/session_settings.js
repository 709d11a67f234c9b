// The settings dialog of one chat: instructions, a personality, and which tools it may use.

import { callApi } from "../lib/api.js";
import { byId, cloneTemplate, createElement, fillSlot, findSlot, setVisible, targetOf } from "../lib/dom.js";
import { toolLabel } from "./labels.js";

export class SessionSettings {
  /** @param {{ sessionId: () => string | null, createSession: () => Promise<void> }} options */
  constructor({ sessionId, createSession }) {
    this.sessionId = sessionId;
    this.createSession = createSession;
    this.dialog = byId("this-chat");
    this.form = this.dialog.querySelector("form");
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.#save();
    });
    this.form.elements.cancel.addEventListener("click", () => this.dialog.close());
    this.dialog.addEventListener("click", (event) => event.target === this.dialog && this.dialog.close());
    findSlot(this.form, "every").addEventListener("change", (event) => {
      for (const box of this.#toolBoxes()) box.checked = targetOf(event).checked;
    });
    findSlot(this.form, "tools").addEventListener("change", () => this.#updateCount());
  }

  async open() {
    this.#showProblem("");
    this.#setLoading(true); // what is typed before the present state came would be lost
    this.dialog.showModal();
    const id = this.sessionId();
    try {
      const [session, tools, personalities] = await Promise.all([
        id ? callApi("GET", `/sessions/${id}`) : { instructions: "", personality: null, allowed_tools: null },
        callApi("GET", "/tools"),
        callApi("GET", "/personalities"),
      ]);
      this.#fill(
        session,
        tools.items.filter((tool) => tool.available),
        personalities.items,
      );
      this.#setLoading(false);
      this.form.elements.instructions.focus();
    } catch (problem) {
      this.#showProblem(problem.message);
    }
  }

  #setLoading(waiting) {
    for (const control of this.form.elements) if (control.name !== "cancel") control.disabled = waiting;
  }

  #fill(session, tools, personalities) {
    this.form.elements.instructions.value = session.instructions;
    const choice = this.form.elements.personality;
    choice.replaceChildren(choice.options[0], ...personalities.map((one) => new Option(one.name, one.id)));
    choice.value = session.personality ?? "";
    setVisible(findSlot(this.form, "personalities"), personalities.length > 0);
    const allowed = session.allowed_tools && new Set(session.allowed_tools);
    findSlot(this.form, "tools").replaceChildren(
      ...tools.map((tool) => createToolSwitch(tool, !allowed || allowed.has(tool.name))),
    );
    this.#updateCount();
  }

  #toolBoxes() {
    return [...findSlot(this.form, "tools").querySelectorAll("input")];
  }

  #updateCount() {
    const boxes = this.#toolBoxes();
    const on = boxes.filter((box) => box.checked).length;
    const every = findSlot(this.form, "every");
    every.checked = on === boxes.length;
    every.indeterminate = on > 0 && on < boxes.length;
    fillSlot(this.form, "count", `${on}/${boxes.length}`);
  }

  async #save() {
    const boxes = this.#toolBoxes();
    const names = boxes.filter((box) => box.checked).map((box) => box.value);
    const changes = {
      instructions: this.form.elements.instructions.value.trim(),
      personality: Number(this.form.elements.personality.value) || null,
      allowed_tools: names.length === boxes.length ? null : names,
    };
    try {
      if (!this.sessionId()) await this.createSession();
      await callApi("PATCH", `/sessions/${this.sessionId()}`, changes);
    } catch (problem) {
      return this.#showProblem(problem.message);
    }
    const shaped = Boolean(changes.instructions || changes.personality || changes.allowed_tools);
    byId("shape").toggleAttribute("data-shaped", shaped);
    this.dialog.close();
  }

  #showProblem(words) {
    setVisible(fillSlot(this.form, "problem", words), Boolean(words));
  }
}

function createToolSwitch(tool, on) {
  const item = cloneTemplate("tool-switch");
  const box = item.querySelector("input");
  box.value = tool.name;
  box.checked = on;
  fillSlot(item, "name", toolLabel(tool.name));
  fillSlot(item, "does", firstSentence(tool.description));
  const server = findSlot(item, "server");
  if (tool.server) server.replaceWith(createElement("span", { className: "tag", textContent: tool.server }));
  else server.remove();
  return item;
}

function firstSentence(text) {
  return /^.*?[.!?](?=\s|$)/s.exec(text)?.[0] ?? text;
}
