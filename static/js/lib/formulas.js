// Find TeX in Markdown, by the same rules as the server's formulas module, and turn it into MathML.
//
// MathML needs no inline style, which the content policy forbids. The renderer is fetched with the first
// formula.

import { byId } from "./dom.js";

const INNER = String.raw`(?:[^\\]|\\\\|\\(?![%\\]))`; // what has no such mark; "\\[2pt]" begins a line, no formula
const SQUARE = INNER.replace("%", "\\[\\]");
const DOUBLE = String.raw`(?:(?!\$\$)[^])`;
const LINES = String.raw`(?!\n[ \t]*(?:\n|$))`;
const BLOCK = new RegExp(
  String.raw`^ {0,3}(?:\$\$((?:${LINES}${DOUBLE})+)\$\$|\\\[((?:${LINES}${SQUARE})+)\\\])[ \t]*(?:\n|$)`,
);
const OPEN_BLOCK = new RegExp(
  String.raw`^ {0,3}(?:\$\$((?:${LINES}${DOUBLE})*)|\\\[((?:${LINES}${SQUARE})*))\s*$`,
);
const PAIRS = new RegExp(
  String.raw`^(?:\$\$(${DOUBLE}+)\$\$|\\\[(${SQUARE}+)\\\]|\\\((${INNER.replace("%", "()")}+)\\\))`,
);
const DOLLARS = /^\$(?!\s)((?:\\[^\n]|[^$\\\n])+)(?<!\s)\$(?![\w$])/;
const MONEY = /^\d(?=.*\s)[^\\^_=+<>{}]*$/s; // "$5 and $" is no formula; "$5 + x$" and "$5$" are

const MAX_FORMULA_LENGTH = 5000; // characters of a formula
const MAX_CACHED = 500; // formulas; a growing paragraph is painted again and again

const escapeHtml = (text) =>
  text.replace(/[&<>]/g, (one) => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;" })[one]);
const extractTex = (found) => (found?.slice(1).find(Boolean) ?? "").trim();

let isStreaming = false; // whether more may follow: an open formula at the end is one already
let temml = null;
let isLoading = false;
const mathCache = new Map();

/** Extensions of `marked` for formulas on lines of their own and within a line. */
export const formulaExtensions = [
  {
    name: "formula_block",
    level: "block",
    // A paragraph ends there.
    start: (text) => /(?<=\n) {0,3}(?:\$\$|\\\[)/.exec(text.slice(0, text.search(/\n[ \t]*\n|$/)))?.index,
    tokenizer(text) {
      const whole = BLOCK.exec(text);
      const found = whole ?? (isStreaming ? OPEN_BLOCK.exec(text) : null);
      const tex = extractTex(found);
      return found && (tex || !whole)
        ? { type: "formula_block", raw: found[0], tex, open: !whole }
        : undefined;
    },
    renderer: ({ tex, open }) =>
      `<div class="formula display${open ? " open" : ""}" tabindex="0">${escapeHtml(tex)}</div>\n`,
  },
  {
    name: "formula",
    level: "inline",
    start: (text) => /\$|\\[([]/.exec(text)?.index,
    tokenizer(text, before) {
      const found = PAIRS.exec(text) ?? matchDollars(text, before.at(-1)?.raw.at(-1) ?? "");
      const tex = extractTex(found);
      const display = /^(\$\$|\\\[)/.test(text);
      return tex ? { type: "formula", raw: found[0], tex, display } : undefined;
    },
    renderer: ({ tex, display }) =>
      `<span class="formula${display ? " display" : ""}">${escapeHtml(tex)}</span>`,
  },
];

/** Match $…$, but not after a letter or a digit, as in US$, and not between two prices. */
function matchDollars(text, before) {
  const found = /[\w$]/.test(before) ? null : DOLLARS.exec(text);
  return found && MONEY.test(found[1]) ? null : found;
}

/**
 * Run `act` while an open formula at the end of a text counts as one, if the text is still streaming.
 * @template T
 * @param {boolean} still
 * @param {() => T} act
 * @returns {T}
 */
export function parseStreaming(still, act) {
  const before = isStreaming; // a quote is a growing text within one
  isStreaming = still;
  try {
    return act();
  } finally {
    isStreaming = before;
  }
}

/**
 * Typeset the formulas inside of `root`: at once if the renderer is loaded, else when it is.
 * @param {ParentNode} root
 */
export function typesetFormulas(root) {
  const found = root.querySelectorAll(".formula:not([data-tex], .open)");
  if (!found.length) return;
  if (temml) found.forEach(renderFormula);
  else if (!isLoading) loadRenderer();
}

async function loadRenderer() {
  isLoading = true; // for good: a request that failed is not repeated
  try {
    temml = (await import("../../vendor/temml/temml.min.js")).default;
  } catch {
    return; // TeX reads well enough
  }
  const styles = byId("formula-styles");
  if (styles) document.head.append(styles.content.cloneNode(true));
  for (const node of document.querySelectorAll(".formula:not([data-tex], .open)")) {
    renderFormula(node);
    // A page full of formulas must stay responsive.
    if (mathCache.size % 20 === 19) await new Promise((go) => setTimeout(go));
  }
}

function renderFormula(node) {
  const tex = node.textContent;
  const display = node.matches(".display");
  node.dataset.tex = tex;
  const formula = cachedMath(tex, display);
  if (formula) node.replaceChildren(formula.cloneNode(true));
  else node.classList.add("unread");
}

function cachedMath(tex, display) {
  const key = `${display} ${tex}`;
  if (!mathCache.has(key)) {
    if (mathCache.size >= MAX_CACHED) mathCache.delete(mathCache.keys().next().value);
    mathCache.set(key, createMath(tex, display));
  }
  return mathCache.get(key);
}

function createMath(tex, display) {
  if (tex.length > MAX_FORMULA_LENGTH) return null;
  const box = document.createElement("span");
  try {
    temml.render(tex, box, {
      displayMode: display,
      throwOnError: true,
      trust: false,
      maxSize: [20, 40],
      maxExpand: 500,
    });
  } catch {
    return null;
  }
  const [math] = box.children;
  const odd = [...box.querySelectorAll("*")].some(
    (one) => one.namespaceURI !== "http://www.w3.org/1998/Math/MathML" || one.hasAttribute("href"),
  );
  if (!math || box.children.length > 1 || odd) return null;
  return math;
}
