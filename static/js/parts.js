// Lists and tables while they grow: parts that nothing can change any more are neither read nor painted again (W4.4).

const ENOUGH = 400; // characters that are worth a cut
const OPEN = 2; // parts at the end that may still change

/** How a frame of parts and a part are told from others, where their nodes are, and how a cut list or table goes on. */
export const BY_PARTS = {
  list: {
    parts: "items",
    frame: ({ ordered, start }) => `${ordered} ${start}`,
    mark: ({ loose, raw }) => `${loose} ${raw.trimEnd()}`,
    box: (node) => node,
    kind: ({ ordered, loose }) => `${ordered} ${loose}`,
    lead: ({ items, loose }, at) => `${/^ {0,3}(?:[-+*]|\d{1,9}[.)])/.exec(items[at].raw)?.[0]} x${loose ? "\n\n" : "\n"}`,
    leading: 1, // the lead is an item itself
    length: ({ items }, count) => items.slice(0, count).reduce((sum, { raw }) => sum + raw.length, 0),
  },
  table: {
    parts: "rows",
    frame: ({ header, align }) => `${header.map((cell) => cell.text).join("|")} ${align}`,
    mark: (row) => row.map((cell) => cell.text).join("|"),
    box: (node) => node.querySelector?.("tbody"),
    kind: ({ header, align }) => `${header.length} ${align}`,
    lead: ({ raw }) => raw.slice(0, lineEnd(raw, 2)),
    leading: 0,
    length: ({ raw }, count) => lineEnd(raw, 2 + count),
  },
};

function lineEnd(text, lines) {
  let at = 0;
  for (let line = 0; line < lines; line += 1) at = text.indexOf("\n", at) + 1;
  return at;
}

export function marksOf(token) {
  const way = BY_PARTS[token?.type];
  return way ? [`${token.type} ${way.frame(token)}`, ...token[way.parts].map(way.mark)] : null;
}

/** After which parts of a block a cut may be made that nothing later moves; `before` are the characters that lead to it. */
export function cutParts(token, before) {
  const way = BY_PARTS[token?.type];
  const count = way ? token[way.parts].length - OPEN : 0;
  const length = count > 0 ? way.length(token, count) : 0;
  if (length < ENOUGH) return null;
  return { type: token.type, kind: way.kind(token), lead: way.lead(token, count), length: before + length, count };
}

/** The block behind its lead: its parts, and the cut that follows; null if it is no longer the one that was cut. */
export function goOn(cut, blocks) {
  const [token, ...others] = blocks;
  const way = BY_PARTS[cut.type];
  if (token?.type !== cut.type || others.length || way.kind(token) !== cut.kind) return null;
  if (way.leading && token.items[0].raw !== cut.lead) return null;
  const parts = token[way.parts].slice(way.leading);
  const next = cutParts(token, cut.length - cut.lead.length);
  const moved = next ? { ...next, count: next.count - way.leading + cut.count } : cut;
  return { token: { ...token, [way.parts]: parts }, cut: moved };
}
