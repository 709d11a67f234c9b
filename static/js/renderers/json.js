// JSON as a tree whose branches are made when they are opened.

import { element } from "../dom.js";
import { read } from "../sources.js";
import { render as renderCode } from "./code.js";
import { _ } from "../words.js";

const AT_ONCE = 200; // children; more are a click away

/** A number that JavaScript would round is shown as it is written. */
class Exact {
  constructor(source) {
    this.source = source;
  }
}

export async function render(stage, source, tools) {
  const text = await read(source, tools);
  let value;
  try {
    value = JSON.parse(text, (key, one, context) => (typeof one === "number" && context?.source && String(one) !== context.source ? new Exact(context.source) : one));
  } catch (problem) {
    stage.append(element("p", { className: "viewer-note", textContent: _("Not valid JSON: {problem}", { problem: problem.message }) }));
    return renderCode(stage, { ...source, text }, tools);
  }
  const tree = element("div", { className: "tree", tabIndex: 0 }, node("", value, true, tools.guard));
  stage.append(tree);
}

function node(name, value, open, guard) {
  const isBranch = value !== null && typeof value === "object" && !(value instanceof Exact);
  const label = element("span", { className: "tree-name", textContent: name });
  if (!isBranch) return element("div", { className: "leaf" }, label, leaf(value));
  const entries = Array.isArray(value) ? value.map((one, index) => [String(index), one]) : Object.entries(value);
  const sign = Array.isArray(value) ? `[ ${entries.length} ]` : `{ ${entries.length} }`;
  const branch = element("details", {}, element("summary", {}, label, element("span", { className: "tree-sign", textContent: sign })));
  branch.addEventListener("toggle", guard(() => branch.open && branch.children.length === 1 && grow(branch, entries, 0, guard)));
  branch.open = open;
  return branch;
}

function grow(branch, entries, from, guard) {
  branch.append(...entries.slice(from, from + AT_ONCE).map(([name, value]) => node(name, value, false, guard)));
  const left = entries.length - from - AT_ONCE;
  if (left <= 0) return;
  const more = element("button", { type: "button", className: "quiet", textContent: _("Show more ({number} left)", { number: left.toLocaleString() }) });
  more.addEventListener("click", guard(() => (more.remove(), grow(branch, entries, from + AT_ONCE, guard))));
  branch.append(more);
}

function leaf(value) {
  const exact = value instanceof Exact;
  const kind = value === null ? "null" : exact ? "number" : typeof value;
  return element("span", { className: `tree-value ${kind}`, textContent: exact ? value.source : JSON.stringify(value) });
}
