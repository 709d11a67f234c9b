// Render tables of values separated by commas or tabs: text in cells, nothing is calculated.

import { createElement } from "../dom.js";
import { readText } from "../file_sources.js";
import { _ } from "../i18n.js";

export const MAX_ROWS = 1000;
export const MAX_COLUMNS = 100;
const BY_VALUE = new Intl.Collator(undefined, { numeric: true, sensitivity: "base" });

/**
 * @param {HTMLElement} stage
 * @param {FileSource} source
 * @param {RenderTools} tools
 */
export async function render(stage, source, { retry, signal, guard }) {
  const text = await readText(source, { retry, signal });
  const tabs = source.type === "text/tab-separated-values" || source.name.toLowerCase().endsWith(".tsv");
  const { rows, more } = parseTable(text, tabs ? "\t" : detectSeparator(text));
  if (!rows.length)
    return stage.append(
      createElement("p", { className: "viewer-note", textContent: _("This table is empty.") }),
    );
  const columns = Math.max(...rows.map((row) => row.length));
  const shown = Math.min(columns, MAX_COLUMNS);
  const [head, ...body] = rows;
  if (more || columns > shown)
    stage.append(
      createElement("p", {
        className: "viewer-note",
        textContent: describeLimits(body.length, more, shown, columns),
      }),
    );
  stage.append(createTable(head, body, shown, guard));
}

function describeLimits(rows, more, shown, columns) {
  const parts = [];
  if (more) parts.push(_("the first {number} rows", { number: rows.toLocaleString() }));
  if (columns > shown) parts.push(_("{number} of {all} columns", { number: shown, all: columns }));
  return _("Showing {parts}. Download the file to see everything.", { parts: parts.join(", ") });
}

/** Spreadsheets in countries with decimal commas separate values by semicolons. */
function detectSeparator(text) {
  const [line] = text.split("\n", 1);
  return line.split(";").length > line.split(",").length ? ";" : ",";
}

/**
 * Parse rows of cells; quotes may hold separators and line breaks. Stops after MAX_ROWS.
 * @param {string} text
 * @param {string} separator
 * @returns {{ rows: string[][], more: boolean }}
 */
export function parseTable(text, separator) {
  const rows = [];
  let row = [];
  let cell = "";
  let quoted = false;
  let at = 0;
  const endCell = () => {
    row.push(cell);
    cell = "";
  };
  const endRow = () => {
    endCell();
    if (row.length > 1 || row[0] !== "") rows.push(row);
    row = [];
  };
  for (; at < text.length && rows.length <= MAX_ROWS; at += 1) {
    const sign = text[at];
    if (quoted) {
      if (sign !== '"') cell += sign;
      else if (text[at + 1] !== '"') quoted = false;
      else {
        cell += '"';
        at += 1;
      }
    } else if (sign === '"' && cell === "") quoted = true;
    else if (sign === separator) endCell();
    else if (sign === "\n") endRow();
    else if (sign !== "\r" || text[at + 1] !== "\n") cell += sign;
  }
  if (at >= text.length && (cell || row.length)) endRow();
  return { rows, more: at < text.length };
}

function createTable(head, body, columns, guard) {
  const list = createElement("tbody");
  const headings = Array.from({ length: columns }, (_, column) => createHeading(head[column] ?? "", column));
  const paint = (rows) => list.replaceChildren(...rows.map((row) => createRow(row, columns)));
  for (const [column, cell] of headings.entries()) {
    cell.firstElementChild.addEventListener(
      "click",
      guard(() => paint(sortRows(body, headings, column))),
    );
  }
  paint(body);
  const table = createElement(
    "table",
    { className: "grid" },
    createElement("thead", {}, createElement("tr", {}, ...headings)),
    list,
  );
  return createElement(
    "div",
    { className: "grid-scroll", tabIndex: 0, role: "region", ariaLabel: _("Table") },
    table,
  );
}

function createHeading(text, column) {
  const button = createElement("button", {
    type: "button",
    textContent: text || _("Column {number}", { number: column + 1 }),
    title: _("Sort"),
  });
  return createElement("th", { scope: "col" }, button);
}

function createRow(row, columns) {
  return createElement(
    "tr",
    {},
    ...Array.from({ length: columns }, (_, column) =>
      createElement("td", { textContent: row[column] ?? "" }),
    ),
  );
}

/** Sort ascending at a column's first click, then in turns. */
function sortRows(body, headings, column) {
  const down = headings[column].getAttribute("aria-sort") === "ascending";
  for (const cell of headings) cell.removeAttribute("aria-sort");
  headings[column].setAttribute("aria-sort", down ? "descending" : "ascending");
  const rows = [...body].sort((a, b) => BY_VALUE.compare(a[column] ?? "", b[column] ?? ""));
  return down ? rows.reverse() : rows;
}
