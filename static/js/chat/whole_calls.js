// Opened steps show everything that ran: arguments that the wire shortens and output beyond its preview are
// fetched when somebody looks.

import { callApi } from "../lib/api.js";
import { createElement, fillSlot, findSlot, setVisible, targetOf } from "../lib/dom.js";
import { highlightCode } from "../lib/highlight.js";
import { _ } from "../lib/i18n.js";
import { showToast } from "../lib/toasts.js";

const PREVIEW_CHARACTERS = 4000; // of an output on the wire
const PROGRAMS = { bash_exec: ["command", "bash"], python_exec: ["code", "python"] };

export class WholeCalls {
  /**
   * @param {PageElement} list
   * @param {SessionState} state
   */
  constructor(list, state) {
    this.state = state;
    this.loaded = new WeakMap(); // item → what of the call is shown whole: "arguments" or "output"
    // Such events do not bubble.
    list.addEventListener("toggle", (event) => this.#onToggle(targetOf(event)), true);
    list.addEventListener("click", (event) => {
      const button = targetOf(event).closest('[data-act="more-output"]');
      if (button) this.#loadMore(button);
    });
  }

  /**
   * What of a call is shown whole, so that its preview must not replace it.
   * @param {PageElement} item
   * @returns {"arguments" | "output" | undefined}
   */
  shownWhole(item) {
    return this.loaded.get(item);
  }

  /** Load a call again when its result has come while it was open. */
  update(item, row, result) {
    if (result && this.loaded.get(item) === "arguments" && item.querySelector("details").open)
      this.#load(item, row, result);
  }

  #onToggle(details) {
    const item = details.closest(".row.tool");
    if (!item || !details.open || details.parentElement !== item || this.loaded.has(item)) return;
    const row = this.state.rows.get(item.dataset.row);
    const result = this.#findResult(row);
    if (row?.kind === "tool_call" && (row.content.shortened || isCut(result))) this.#load(item, row, result);
  }

  #findResult(row) {
    const results = [...this.state.rows.values()].filter(({ kind }) => kind === "tool_result");
    return results.find(({ content }) => content.call_id === row?.content.call_id)?.content;
  }

  async #load(item, row, result) {
    this.loaded.set(item, result ? "output" : "arguments");
    try {
      const call = await fetchCall(row, 0);
      paintArguments(item, row.content.tool, call);
      if (result && isCut(result)) this.#paintOutput(item, row, call);
    } catch (problem) {
      this.loaded.delete(item);
      showToast(problem.message);
    }
  }

  #paintOutput(item, row, call) {
    const parts = PROGRAMS[row.content.tool] && call.next_offset === null ? parseOutput(call.output) : null;
    if (parts) for (const name of ["stdout", "stderr"]) fillSlot(item, name, parts[name] ?? "");
    else {
      setVisible(fillSlot(item, "result", call.output), true);
      for (const name of ["stdout", "stderr"]) setVisible(findSlot(item, name), false);
    }
    this.#paintMore(item, call.next_offset);
  }

  #paintMore(item, next) {
    item.querySelector('[data-act="more-output"]')?.remove();
    if (next === null) return;
    const button = createElement("button", {
      type: "button",
      className: "quiet",
      textContent: _("Show more"),
    });
    Object.assign(button.dataset, { act: "more-output", offset: String(next) });
    findSlot(item, "result").after(button);
  }

  async #loadMore(button) {
    const item = button.closest(".row.tool");
    button.disabled = true;
    try {
      const call = await fetchCall(this.state.rows.get(item.dataset.row), Number(button.dataset.offset));
      findSlot(item, "result").append(call.output);
      this.#paintMore(item, call.next_offset);
    } catch (problem) {
      button.disabled = false;
      showToast(problem.message);
    }
  }
}

const isCut = (result) =>
  Boolean(result) && (result.truncated || result.file_id || result.preview.length >= PREVIEW_CHARACTERS);

function fetchCall({ turn_id: turn, content }, offset) {
  return callApi("GET", `/turns/${turn}/tool-calls/${encodeURIComponent(content.call_id)}?offset=${offset}`);
}

function paintArguments(item, tool, { arguments: given, raw_arguments: raw }) {
  const [program, language] = PROGRAMS[tool] ?? [];
  if (program && typeof given[program] === "string") paintProgram(item, given[program], language);
  const list = findSlot(item, "arguments");
  const texts = Object.entries(given).map(([name, value]) => [
    name,
    typeof value === "string" ? value : JSON.stringify(value, null, 2),
  ]);
  list.replaceChildren(
    ...[...texts, ...(raw ? [[_("Malformed arguments"), raw]] : [])].flatMap(([name, text]) => [
      createElement("dt", { textContent: name }),
      createElement("dd", { textContent: text }),
    ]),
  );
}

/** Show a script in the colours of its language, which the highlighter gives to blocks of an answer. */
async function paintProgram(item, text, language) {
  const command = findSlot(item, "command");
  command.textContent = text;
  command.classList.toggle("script", text.includes("\n"));
  const code = createElement("code", { textContent: text });
  const head = createElement(
    "div",
    { className: "code-head" },
    createElement("span", { textContent: language }),
  );
  const box = createElement("div", { className: "code", hidden: true }, head, code);
  document.body.append(box);
  await highlightCode(box);
  if (code.childElementCount) command.replaceChildren(...code.childNodes);
  box.remove();
}

function parseOutput(text) {
  try {
    const value = JSON.parse(text);
    return "exit_code" in value ? value : null;
  } catch {
    return null;
  }
}
