// Markdown while it grows: finished blocks stay untouched, only the tail is patched in place (W2.1).

import { Marked } from "../vendor/marked/marked.esm.js";
import "../vendor/dompurify/purify.min.js";
import { extensions, typeset, whileGrowing } from "./formulas.js";
import { highlight } from "./highlight.js";
import { morph } from "./morph.js";
import { cutOf } from "./paragraph.js";
import { BY_PARTS, cutParts, goOn, marksOf } from "./parts.js";
import { _ } from "./words.js";

const ALLOWED = {
  ALLOWED_TAGS: [
    "p", "br", "hr", "h1", "h2", "h3", "h4", "h5", "h6", "ul", "ol", "li", "blockquote", "strong", "em", "s",
    "del", "code", "pre", "a", "table", "thead", "tbody", "tr", "th", "td", "div", "span", "button", "img",
  ],
  ALLOWED_ATTR: ["href", "src", "alt", "loading", "title", "target", "rel", "class", "start", "type", "tabindex", "dir", "data-act"],
  ALLOWED_URI_REGEXP: /^(?:https?:|mailto:|[^a-z]|[a-z+.-]+(?:[^a-z+.:-]|$))/i,
  ALLOW_DATA_ATTR: false,
  RETURN_DOM_FRAGMENT: true,
};

const SHOWN = ["html", "svg"]; // languages whose blocks the panel can show
const ESCAPES = { "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#39;" };
const escape = (text) => text.replace(/[&<>"']/g, (one) => ESCAPES[one]);

// A file of the reader's own, named by its id; its page is /files/<id>/, and the chat shows it in the panel (S14).
const FILE = /^workspace:\/\/([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})(?![0-9a-f-])(?:\/([^#?]*))?/i;
const BARE_FILE = /^workspace:\/\/[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}(?![0-9a-f-])(?:[/#?][^\s<>"'`]*[^\s<>"'`.,:;!?)\]}*_])?/i;

const OWN_BYTES = "/api/v1/files/";

const marked = new Marked({ gfm: true, breaks: true });
marked.use({
  extensions: [
    ...extensions,
    {
      name: "file",
      level: "inline",
      start: (text) => text.indexOf("workspace://"),
      tokenizer(text) {
        const raw = !this.lexer.state.inLink && BARE_FILE.exec(text)?.[0];
        return raw ? { type: "file", raw, href: raw } : undefined;
      },
      renderer: ({ href }) => fileLink(href, escape(nameIn(href) || _("file"))),
    },
  ],
  renderer: {
    html: ({ text }) => escape(text),
    link({ href, tokens }) {
      return href.startsWith("workspace://") && fileLink(href, this.parser.parseInline(tokens));
    },
    image({ href, text }) {
      if (href.startsWith("workspace://")) return filePicture(href, escape(text || nameIn(href) || _("file")));
      return `<a href="${escape(href)}">${escape(text || "image")}</a>`;
    },
    list({ ordered, start, items }) {
      const tag = ordered ? "ol" : "ul";
      const first = ordered && start !== 1 ? ` start="${start}"` : "";
      return `<${tag}${first}>${items.map((item) => this.listitem(item).trimEnd()).join("")}</${tag}>`;
    },
    checkbox: ({ checked }) => (checked ? "☑ " : "☐ "),
    code: ({ text, lang }) => codeBlock(text, lang),
    table({ header, rows }) {
      const cells = (list, tag) => list.map((cell) => tableCell(this.parser, cell, tag)).join("");
      const body = rows.map((row) => `<tr>${cells(row, "td")}</tr>`).join("");
      const head = `<thead><tr>${cells(header, "th")}</tr></thead>`;
      return `<div class="table" tabindex="0"><table>${head}<tbody>${body}</tbody></table></div>`;
    },
  },
});

/** `label` is HTML. */
function fileLink(href, label) {
  const id = FILE.exec(href)?.[1].toLowerCase();
  return id ? `<a class="file-link" href="/files/${id}/">${label}</a>` : `<a class="missing">${label}</a>`;
}

/** Tried as a picture; artifacts.js puts its name there if it is none. */
function filePicture(href, name) {
  const id = FILE.exec(href)?.[1].toLowerCase();
  if (!id) return fileLink(href, name);
  return `<a class="file-link picture" href="/files/${id}/"><img src="${OWN_BYTES}${id}/download?inline=1" alt="${name}" loading="lazy"></a>`;
}

function nameIn(href) {
  try {
    return decodeURIComponent(FILE.exec(href)?.[2] ?? "").trim();
  } catch {
    return "";
  }
}

function tableCell(parser, cell, tag) {
  const place = cell.align === "right" || cell.align === "center" ? ` class="${cell.align}"` : "";
  return `<${tag}${place}>${parser.parseInline(cell.tokens)}</${tag}>`;
}

function codeBlock(text, lang) {
  const name = (lang ?? "").trim().split(/\s/)[0].slice(0, 32);
  const preview = SHOWN.includes(name.toLowerCase()) ? '<button type="button" class="quiet" data-act="open-code">Preview</button>' : "";
  return (
    `<div class="code"><div class="code-head"><span>${escape(name || "text")}</span>${preview}` +
    '<button type="button" class="quiet" data-act="copy-code">Copy</button></div>' +
    `<div class="code-body" tabindex="0"><pre><code>${escape(text)}\n</code></pre></div></div>`
  );
}

function rendered(tokens, links) {
  tokens.links = links;
  const fragment = globalThis.DOMPurify.sanitize(marked.parser(tokens), ALLOWED);
  for (const link of fragment.querySelectorAll("a[href]")) {
    link.rel = "noopener noreferrer nofollow";
    if (/^([a-z][a-z0-9+.-]*:|\/\/)/i.test(link.getAttribute("href"))) link.target = "_blank";
  }
  for (const picture of fragment.querySelectorAll(`img:not([src^="${OWN_BYTES}"])`)) picture.remove(); // whatever the rules above let through
  typeset(fragment);
  return fragment;
}

/** Each block reads from the side its own first letter says; code and formulas have theirs. */
function direct(fragment) {
  for (const block of fragment.children) if (!block.matches(".code, .formula, hr")) block.dir = "auto";
}

/** The block at the end may change as it grows; a list before what may become its next item, too. */
function unsettledFrom(tokens) {
  const visible = tokens.flatMap((token, i) => (token.type === "space" ? [] : [i]));
  const [before, last] = [visible.at(-2), visible.at(-1)];
  const mayJoin = tokens[before]?.type === "list" && /^ {0,3}(\d{1,9}[.)]?|[-+*])?\s*$/.test(tokens[last].raw);
  return (mayJoin ? before : last) ?? 0;
}

const STAND_IN = "x "; // for the part of a paragraph that is left alone: what follows is still inside a paragraph
const inline = (text) => marked.Lexer.lexInline(text, marked.defaults);

/** Parts of a paragraph instead of its nodes from `start` on; how many nodes they are. */
function paintParts(target, parts, start) {
  const painted = rendered([{ type: "paragraph", tokens: parts }], {}).firstChild;
  const count = painted.childNodes.length;
  morph(target, painted, start);
  return count;
}

const QUOTED = /^(?: {0,3}>[^\n]*(?:\n|$))+$/; // every line by its sign: none goes on by itself
const unquoted = (text) => text.replace(/^ {0,3}> ?/gm, "");
const visible = (tokens) => tokens.filter((token) => token.type !== "space");

/** A text that only grows, shown in `element`. */
export class GrowingMarkdown {
  /** `lead`: nodes that stay before it. */
  constructor(element, ...lead) {
    this.element = element;
    this.lead = lead;
    this.#restart();
  }

  #restart() {
    this.element.replaceChildren(...this.lead);
    this.finished = 0; // characters whose blocks are settled
    this.kept = this.lead.length; // child nodes that belong to them
    this.text = "";
    this.code = null; // the text node of a code block that is still open
    this.marks = null; // of the first block that is not settled, if it grows by parts
    this.open = null; // a paragraph that is the tail: characters and nodes of it that stay, and whether that is a guess
    this.cut = null; // a list or table that is the tail: what stays of it, and how to read on
    this.quote = null; // a block quote that is the tail: a growing text of its own
  }

  update(text, final) {
    if (!text.startsWith(this.text.slice(0, this.finished + (this.open ?? this.cut ?? this.quote ?? { length: 0 }).length))) this.#restart();
    this.text = text;
    whileGrowing(!final, () => this.#paint(text, final));
  }

  #paint(text, final) {
    if (!final && this.#growCode(text)) return;
    if (!final && (this.#growParts(text) || this.#growQuote(text))) return;
    if (this.open && this.#growParagraph(text, final)) return;
    const tokens = marked.lexer(text.slice(this.finished));
    const settled = final ? tokens : tokens.slice(0, unsettledFrom(tokens));
    if (settled.length) this.#settle(settled, tokens.links);
    this.#patchTail(final ? [] : tokens.slice(settled.length), tokens.links);
  }

  #settle(tokens, links) {
    this.finished += tokens.reduce((sum, token) => sum + token.raw.length, 0);
    const count = this.#put(tokens, links);
    for (let i = this.kept; i < this.kept + count; i += 1) {
      const node = this.element.childNodes[i];
      if (node.nodeType === Node.ELEMENT_NODE) highlight(node);
    }
    this.kept += count;
    this.code = null;
    this.marks = null;
  }

  #patchTail(tokens, links) {
    this.#put(tokens, links, true);
    const [only, second] = visible(tokens);
    const open = only?.type === "code" && !second && /^ {0,3}(`{3,}|~{3,})/.exec(only.raw);
    this.code = open ? { fence: open[1], head: only.raw.indexOf("\n") + 1 } : null;
    this.marks = marksOf(only);
    this.open = only?.type === "paragraph" && !second ? { length: 0, nodes: 0, guessed: false } : null;
    this.cut = only && !second ? cutParts(only, tokens.indexOf(only) ? tokens[0].raw.length : 0) : null;
    this.quote = null;
    if (only?.type === "blockquote" && !second && tokens[0] === only) this.#growQuote(this.text, true);
  }

  /** Blocks after what is settled, as few nodes touched as possible; how many nodes they are. */
  #put(tokens, links, last = false) {
    const first = tokens.findIndex((token) => token.type !== "space");
    const grown = this.#grow(tokens[first], links) ? 1 : 0;
    const fragment = rendered(grown ? tokens.slice(first + 1) : tokens, links);
    const count = fragment.childNodes.length;
    if (!this.lead.length) direct(fragment); // what stands in a quote reads from the quote's side
    morph(this.element, fragment, this.kept + grown, last ? Infinity : count);
    return grown + count;
  }

  /** A list or table that was the tail before: only its parts from the first changed one on are painted. */
  #grow(token, links) {
    const marks = this.marks && marksOf(token);
    if (!marks || marks[0] !== this.marks[0]) return false;
    const { parts, box } = BY_PARTS[token.type];
    const target = box(this.element.childNodes[this.kept]);
    const same = marks.findIndex((mark, i) => mark !== this.marks[i]);
    const from = (same < 0 ? Math.min(marks.length, this.marks.length) : same) - 1;
    if (!target || target.childNodes.length < from) return false;
    const changed = rendered([{ ...token, [parts]: token[parts].slice(from) }], links);
    morph(target, box(changed.firstChild), from);
    return true;
  }

  /** A long list or table: only its last parts are read; false if it has become something else, or is over. */
  #growParts(text) {
    if (!this.cut) return false;
    const { lead, length, count } = this.cut;
    const tokens = marked.lexer(lead + text.slice(this.finished + length));
    const grown = goOn(this.cut, visible(tokens));
    const box = grown && BY_PARTS[this.cut.type].box;
    const target = box?.(this.element.childNodes[this.kept]);
    this.cut = target && target.childNodes.length >= count ? grown.cut : null;
    if (this.cut) morph(target, box(rendered([grown.token], tokens.links).firstChild), count);
    return Boolean(this.cut);
  }

  /** A quote as a growing text of its own, as long as each of its lines bears the sign. */
  #growQuote(text, first = false) {
    if (!first && !this.quote) return false;
    const quoted = text.slice(this.finished);
    const box = this.element.childNodes[this.kept];
    if (!QUOTED.test(quoted) || box?.nodeName !== "BLOCKQUOTE") {
      this.quote = null;
      return false;
    }
    this.quote ??= { growing: new GrowingMarkdown(box, "\n"), length: 0 };
    this.quote.growing.update(unquoted(quoted), false);
    return true;
  }

  /** The open end of a paragraph; false if it has become something else, or is over and the rest is to be painted. */
  #growParagraph(text, final) {
    const { length, nodes, guessed } = this.open;
    const lead = length ? STAND_IN : "";
    const [first, ...others] = marked.lexer(lead + text.slice(this.finished + length));
    const over = final || others.some((token) => token.type !== "space");
    const target = this.element.childNodes[this.kept];
    this.open = null;
    if (first?.type !== "paragraph" || target?.nodeName !== "P" || (over && guessed)) return false;
    const rest = first.text.slice(lead.length);
    const parts = inline(rest);
    const cut = over ? null : cutOf(parts, rest);
    const kept = cut ? nodes + paintParts(target, inline(rest.slice(0, cut.length)), nodes) : nodes;
    paintParts(target, cut ? inline(rest.slice(cut.length)) : parts, kept);
    if (over) {
      this.finished += length + first.raw.length - lead.length;
      if (target.nextSibling?.nodeType !== Node.TEXT_NODE) target.after("\n"); // as the parser ends a paragraph
      this.kept += 2;
      return false;
    }
    this.open = { length: length + (cut?.length ?? 0), nodes: kept, guessed: guessed || Boolean(cut?.guessed) };
    return true;
  }

  /** Long code arrives one line at a time: add to its text node instead of parsing it all again. */
  #growCode(text) {
    if (!this.code?.head) return false;
    const body = text.slice(this.finished + this.code.head);
    if (new RegExp(`(^|\\n) {0,3}${this.code.fence[0]}{${this.code.fence.length},}`).test(body)) return false;
    const node = this.element.lastElementChild?.querySelector("code");
    if (!node) return false;
    const shown = node.firstChild ?? node.appendChild(document.createTextNode(""));
    const seen = shown.data.endsWith("\n") && !body.startsWith(shown.data) ? shown.data.slice(0, -1) : shown.data;
    if (body.startsWith(seen)) shown.replaceData(seen.length, shown.data.length - seen.length, body.slice(seen.length));
    else shown.data = body;
    return true;
  }
}
