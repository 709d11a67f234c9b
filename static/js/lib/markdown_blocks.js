// Find where a block of Markdown that still grows can be cut, so that only what is new is parsed and
// painted.

// --- lists and tables ---

const MIN_CUT_LENGTH = 400; // characters that are worth a cut
const OPEN_PARTS = 2; // parts at the end that may still change

/**
 * How lists and tables are compared, where the nodes of their parts are, and how parsing continues after a
 * cut.
 */
export const BLOCK_TYPES = {
  list: {
    parts: "items",
    frame: ({ ordered, start }) => `${ordered} ${start}`,
    mark: ({ loose, raw }) => `${loose} ${raw.trimEnd()}`,
    box: (node) => node,
    kind: ({ ordered, loose }) => `${ordered} ${loose}`,
    lead: ({ items, loose }, at) =>
      `${/^ {0,3}(?:[-+*]|\d{1,9}[.)])/.exec(items[at].raw)?.[0]} x${loose ? "\n\n" : "\n"}`,
    leading: 1, // the lead is an item itself
    length: ({ items }, count) => items.slice(0, count).reduce((sum, { raw }) => sum + raw.length, 0),
  },
  table: {
    parts: "rows",
    frame: ({ header, align }) => `${header.map((cell) => cell.text).join("|")} ${align}`,
    mark: (row) => row.map((cell) => cell.text).join("|"),
    box: (node) => node.querySelector?.("tbody"),
    kind: ({ header, align }) => `${header.length} ${align}`,
    lead: ({ raw }) => raw.slice(0, lineOffset(raw, 2)),
    leading: 0,
    length: ({ raw }, count) => lineOffset(raw, 2 + count),
  },
};

function lineOffset(text, lines) {
  let at = 0;
  for (let line = 0; line < lines; line += 1) at = text.indexOf("\n", at) + 1;
  return at;
}

/** Keys of a block and of its parts: equal keys look the same. Null for blocks without parts. */
export function partKeys(token) {
  const way = BLOCK_TYPES[token?.type];
  return way ? [`${token.type} ${way.frame(token)}`, ...token[way.parts].map(way.mark)] : null;
}

/** Find how many parts of a list or table are finished; `before` are the characters in front of the block. */
export function findPartsCut(token, before) {
  const way = BLOCK_TYPES[token?.type];
  const count = way ? token[way.parts].length - OPEN_PARTS : 0;
  const length = count > 0 ? way.length(token, count) : 0;
  if (length < MIN_CUT_LENGTH) return null;
  return {
    type: token.type,
    kind: way.kind(token),
    lead: way.lead(token, count),
    length: before + length,
    count,
  };
}

/**
 * Remove the lead from a block that was parsed from a cut on, and move the cut; null if it is another block
 * now.
 */
export function continueCut(cut, blocks) {
  const [token, ...others] = blocks;
  const way = BLOCK_TYPES[cut.type];
  if (token?.type !== cut.type || others.length || way.kind(token) !== cut.kind) return null;
  if (way.leading && token.items[0].raw !== cut.lead) return null;
  const parts = token[way.parts].slice(way.leading);
  const next = findPartsCut(token, cut.length - cut.lead.length);
  const moved = next ? { ...next, count: next.count - way.leading + cut.count } : cut;
  return { token: { ...token, [way.parts]: parts }, cut: moved };
}

// --- paragraphs ---

const MAX_OPEN_LENGTH = 3000; // a mark that stays open this long is treated as text until the paragraph ends

// In a text: brackets that are not links, marks that open nothing at their place.
const HARMLESS = /\[[^[\]]*\](?![([])|(?<=[\p{L}\p{N}])_+(?=[\p{L}\p{N}])|[*_~$](?=\s)|<(?=[\s\d=])/gu;
const MAY_OPEN = /[*_~`[\]<\\|$]/;
const MAY_BE_FORMULA = /^\\[([]/; // an escaped bracket until its closing comes

/** Count the characters of a paragraph that no later text can change, up to the beginning of a word. */
function stableLength(parts, text) {
  let [steady, at] = [0, 0];
  for (const { type, raw } of parts) {
    if (
      type === "html" ||
      (type === "inline_tag" && !/^<br/i.test(raw)) ||
      (type === "escape" && MAY_BE_FORMULA.test(raw)) ||
      (type === "text" && MAY_OPEN.test(raw.replace(HARMLESS, "")))
    )
      return steady;
    if (type === "text") steady = lastWordStart(text, at, at + raw.length) || steady;
    at += raw.length;
  }
  return steady;
}

/** Find the last word after a space between two positions; 0 if there is none. */
function lastWordStart(text, from, to) {
  for (let at = to; at > from; at -= 1) if (/\s/.test(text[at - 1]) && /\S/.test(text[at] ?? " ")) return at;
  return 0;
}

/** Find how many characters of an open paragraph can be kept, and whether that is a guess; null if too few. */
export function findParagraphCut(parts, text) {
  const steady = stableLength(parts, text);
  if (steady >= MIN_CUT_LENGTH) return { length: steady, guessed: false };
  const length = text.length < MAX_OPEN_LENGTH ? 0 : lastWordStart(text, 0, text.length - MIN_CUT_LENGTH);
  return length ? { length, guessed: true } : null;
}
