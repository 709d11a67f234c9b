// What GitHub adds to Markdown: a few harmless HTML tags, details, footnotes, callouts and task lists.
//
// The server's github_markdown module follows the same rules. Tags count only in pairs, and no attribute is
// read but `open`.

import { _ } from "./i18n.js";

const TAG = /^<(\/?)(br|sub|sup|kbd|mark|ins|del|small|q|u|b|i|s|em|strong)\s*\/?>/i;
const DETAILS = /^ {0,3}<details(\s+open)?\s*>[ \t]*\n?/i;
const SUMMARY = /^[ \t\n]{0,8}<summary>([\s\S]*?)<\/summary>[ \t]*\n?/i;
const DETAILS_TAG = /<(\/?)details(?:\s+open)?\s*>/gi;
const FENCE = /^ {0,3}(`{3,}|~{3,})/;
const MAX_DETAILS_DEPTH = 5;
const FOOTNOTE_LABEL = String.raw`(\d{1,3}|[a-z][\w-]{0,31})`;
const FOOTNOTE_MARK = new RegExp(String.raw`^\[\^${FOOTNOTE_LABEL}\](?!\()`, "i");
const FOOTNOTE = new RegExp(
  String.raw`^ {0,3}\[\^${FOOTNOTE_LABEL}\]:[ \t]*([^\n]*(?:\n(?![ \t]*\n| {0,3}\[\^)[^\n]+)*)(?:\n|$)`,
  "i",
);
const NAMED_FOOTNOTE = /^ {0,3}\[\^([a-z][\w-]{0,31})\]:/gim;
const CALLOUT = /^\[!(NOTE|TIP|IMPORTANT|WARNING|CAUTION)\][ \t]*(?:\n|$)/i;
const CALLOUT_TITLES = {
  note: _("Note"),
  tip: _("Tip"),
  important: _("Important"),
  warning: _("Warning"),
  caution: _("Caution"),
};

const escapeHtml = (text) =>
  text.replace(/[&<>]/g, (one) => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;" })[one]);

let detailsDepth = 0;
let footnoteNames = new Set(); // of the text that is being parsed

/**
 * The named footnotes that a text defines; a name in brackets is one only then.
 * @param {string} text
 * @returns {string[]}
 */
export function findFootnoteNames(text) {
  return text.includes("[^") ? [...text.matchAll(NAMED_FOOTNOTE)].map((found) => found[1].toLowerCase()) : [];
}

/** @param {string[]} names of the text that is parsed next */
export function setFootnoteNames(names) {
  footnoteNames = new Set(names);
}

/**
 * True if a quote is a callout, from its first line on.
 * @param {string} text without the marks of a quote
 */
export const isCallout = (text) => CALLOUT.test(text);

/** Extensions of `marked`. */
export const githubExtensions = [
  {
    name: "inline_tag",
    level: "inline",
    start: (text) => text.indexOf("<"),
    tokenizer(text) {
      const [raw, slash, name] = TAG.exec(text) ?? [];
      return raw
        ? { type: "inline_tag", raw, tag: name.toLowerCase(), isClosing: Boolean(slash), isPaired: false }
        : undefined;
    },
    renderer: ({ raw, tag, isClosing, isPaired }) =>
      isPaired ? `<${isClosing ? "/" : ""}${tag}>` : escapeHtml(raw),
  },
  {
    name: "footnote_mark",
    level: "inline",
    start: (text) => text.indexOf("[^"),
    tokenizer(text) {
      const [raw, label] = FOOTNOTE_MARK.exec(text) ?? [];
      const isKnown = label && (/^\d/.test(label) || footnoteNames.has(label.toLowerCase()));
      return isKnown && !this.lexer.state.inLink ? { type: "footnote_mark", raw, label } : undefined;
    },
    renderer: ({ label }) =>
      `<sup class="footnote-mark"><button type="button" data-act="footnote">${escapeHtml(label)}</button></sup>`,
  },
  {
    name: "footnote",
    level: "block",
    start: (text) =>
      /(?<=\n) {0,3}\[\^[\w-]{1,32}\]:/.exec(text.slice(0, text.search(/\n[ \t]*\n|$/)))?.index,
    tokenizer(text) {
      const [raw, label, content] = FOOTNOTE.exec(text) ?? [];
      return raw ? { type: "footnote", raw, label, tokens: this.lexer.inline(content) } : undefined;
    },
    renderer({ label, tokens }) {
      return `<p class="footnote-text"><sup>${escapeHtml(label)}</sup> ${this.parser.parseInline(tokens)}</p>\n`;
    },
  },
  {
    name: "details",
    level: "block",
    start: (text) => /(?<=\n) {0,3}<details/i.exec(text.slice(0, text.search(/\n[ \t]*\n|$/)))?.index,
    tokenizer(text) {
      const found = detailsDepth < MAX_DETAILS_DEPTH ? DETAILS.exec(text) : null;
      if (!found) return undefined;
      const [bodyEnd, end] = findDetailsEnd(text, found[0].length);
      const inside = text.slice(found[0].length, bodyEnd);
      const [summary = "", title = ""] = SUMMARY.exec(inside) ?? [];
      detailsDepth += 1;
      try {
        return {
          type: "details",
          raw: text.slice(0, end),
          isOpen: Boolean(found[1]),
          head: found[0].length + summary.length, // characters before the body
          isClosed: end > bodyEnd,
          title: this.lexer.inline(title.trim()),
          tokens: this.lexer.blockTokens(inside.slice(summary.length), []),
        };
      } finally {
        detailsDepth -= 1;
      }
    },
    renderer({ isOpen, title, tokens }) {
      const heading = this.parser.parseInline(title) || escapeHtml(_("Details"));
      return (
        `<details${isOpen ? ' open=""' : ""}><summary>${heading}</summary>` +
        `<div class="details-body">\n${this.parser.parse(tokens)}</div></details>\n`
      );
    },
  },
];

/**
 * Renderers of `marked`, which calls them as its own methods.
 * @type {any}
 */
export const githubRenderers = {
  blockquote({ tokens }) {
    const [first, ...rest] = tokens;
    const found = first?.type === "paragraph" && CALLOUT.exec(first.text);
    if (!found) return false;
    const kind = found[1].toLowerCase();
    const lineEnd = first.tokens.findIndex((token) => token.type === "br");
    const opening = lineEnd < 0 ? [] : [{ ...first, tokens: first.tokens.slice(lineEnd + 1) }];
    const title = `<p class="callout-title">${escapeHtml(CALLOUT_TITLES[kind])}</p>`;
    return `<div class="callout ${kind}">\n${title}\n${this.parser.parse([...opening, ...rest])}</div>\n`;
  },
  checkbox: ({ checked }) => `<span class="task${checked ? " done" : ""}">${checked ? "☑" : "☐"}</span> `,
};

/** Find where the body of a details block ends and where the block does: at its own closing tag, or with the text. */
function findDetailsEnd(text, from) {
  let depth = 1;
  let fence = "";
  let at = from;
  while (at < text.length) {
    const lineEnd = text.indexOf("\n", at) < 0 ? text.length : text.indexOf("\n", at) + 1;
    const line = text.slice(at, lineEnd);
    const mark = FENCE.exec(line)?.[1] ?? "";
    if (fence) fence = mark.startsWith(fence) ? "" : fence;
    else if (mark) fence = mark;
    else
      for (const found of line.matchAll(DETAILS_TAG)) {
        depth += found[1] ? -1 : 1;
        if (!depth) return [at + found.index, endOfLine(text, at + found.index + found[0].length)];
      }
    at = lineEnd;
  }
  return [text.length, text.length];
}

function endOfLine(text, at) {
  return at + (/^[ \t]*\n?/.exec(text.slice(at, at + 200))?.[0].length ?? 0);
}

/**
 * Mark the tags that have their counterpart in the same run of text; others are shown as written.
 * @param {any[]} tokens
 */
export function pairTags(tokens) {
  const open = [];
  const counts = new Map(); // tag → how many of it are open
  for (const token of tokens) {
    if (token.type === "inline_tag") pairTag(token, open, counts);
    for (const part of [token.tokens, token.title, token.items, token.header, ...(token.rows ?? [])])
      if (Array.isArray(part)) pairTags(part);
  }
}

function pairTag(token, open, counts) {
  const { tag, isClosing } = token;
  if (tag === "br") token.isPaired = !isClosing;
  else if (!isClosing) {
    open.push(token);
    counts.set(tag, (counts.get(tag) ?? 0) + 1);
  } else if (counts.get(tag)) {
    let last;
    do {
      last = open.pop();
      counts.set(last.tag, counts.get(last.tag) - 1);
    } while (last.tag !== tag);
    last.isPaired = token.isPaired = true;
  }
}
