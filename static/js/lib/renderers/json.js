// Render JSON as a tree whose branches are created when they are opened.

import { createElement } from "../dom.js";
import { readText } from "../file_sources.js";
import { _ } from "../i18n.js";
import { render as renderCode } from "./code.js";

const PAGE_SIZE = 200; // children; more are a click away

/** A number that JavaScript would round, kept as written. */
class ExactNumber {
  constructor(source) {
    this.source = source;
  }
}

function keepExactNumber(_key, value, context) {
  const isRounded = typeof value === "number" && context?.source && String(value) !== context.source;
  return isRounded ? new ExactNumber(context.source) : value;
}

/**
 * @param {HTMLElement} stage
 * @param {FileSource} source
 * @param {RenderTools} tools
 */
export async function render(stage, source, tools) {
  const text = await readText(source, tools);
  let value;
  try {
    value = JSON.parse(text, keepExactNumber);
  } catch (problem) {
    stage.append(
      createElement("p", {
        className: "viewer-note",
        textContent: _("Not valid JSON: {problem}", { problem: problem.message }),
      }),
    );
    return renderCode(stage, { ...source, text }, tools);
  }
  const tree = createElement(
    "div",
    { className: "tree", tabIndex: 0 },
    createNode("", value, true, tools.guard),
  );
  stage.append(tree);
}

function createNode(name, value, open, guard) {
  const isBranch = value !== null && typeof value === "object" && !(value instanceof ExactNumber);
  const label = createElement("span", { className: "tree-name", textContent: name });
  if (!isBranch) return createElement("div", { className: "leaf" }, label, createLeaf(value));
  const entries = Array.isArray(value)
    ? value.map((one, index) => [String(index), one])
    : Object.entries(value);
  const sign = Array.isArray(value) ? `[ ${entries.length} ]` : `{ ${entries.length} }`;
  const branch = createElement(
    "details",
    {},
    createElement("summary", {}, label, createElement("span", { className: "tree-sign", textContent: sign })),
  );
  branch.addEventListener(
    "toggle",
    guard(() => branch.open && branch.children.length === 1 && appendEntries(branch, entries, 0, guard)),
  );
  branch.open = open;
  return branch;
}

function appendEntries(branch, entries, from, guard) {
  branch.append(
    ...entries.slice(from, from + PAGE_SIZE).map(([name, value]) => createNode(name, value, false, guard)),
  );
  const left = entries.length - from - PAGE_SIZE;
  if (left <= 0) return;
  const more = createElement("button", {
    type: "button",
    className: "quiet",
    textContent: _("Show more ({number} left)", { number: left.toLocaleString() }),
  });
  more.addEventListener(
    "click",
    guard(() => {
      more.remove();
      appendEntries(branch, entries, from + PAGE_SIZE, guard);
    }),
  );
  branch.append(more);
}

function createLeaf(value) {
  const exact = value instanceof ExactNumber;
  const kind = value === null ? "null" : exact ? "number" : typeof value;
  return createElement("span", {
    className: `tree-value ${kind}`,
    textContent: exact ? value.source : JSON.stringify(value),
  });
}
