// Render Markdown while it streams: finished blocks stay untouched, only the last one is patched in place.

import { Marked } from "../../vendor/marked/marked.esm.js";
import "../../vendor/dompurify/purify.min.js";
import { patchChildren } from "./dom_patch.js";
import { formulaExtensions, parseStreaming, typesetFormulas } from "./formulas.js";
import {
  findFootnoteNames,
  githubExtensions,
  githubRenderers,
  isCallout,
  pairTags,
  setFootnoteNames,
} from "./github_markdown.js";
import { highlightCode } from "./highlight.js";
import { _ } from "./i18n.js";
import { BLOCK_TYPES, continueCut, findParagraphCut, findPartsCut, partKeys } from "./markdown_blocks.js";

const SANITIZER_OPTIONS = {
  ALLOWED_TAGS: [
    "p",
    "br",
    "hr",
    "h1",
    "h2",
    "h3",
    "h4",
    "h5",
    "h6",
    "ul",
    "ol",
    "li",
    "blockquote",
    "strong",
    "b",
    "em",
    "i",
    "u",
    "s",
    "del",
    "ins",
    "mark",
    "small",
    "q",
    "sub",
    "sup",
    "kbd",
    "details",
    "summary",
    "code",
    "pre",
    "a",
    "table",
    "thead",
    "tbody",
    "tr",
    "th",
    "td",
    "div",
    "span",
    "button",
    "img",
  ],
  ALLOWED_ATTR: [
    "href",
    "src",
    "alt",
    "loading",
    "title",
    "target",
    "rel",
    "class",
    "start",
    "type",
    "tabindex",
    "dir",
    "data-act",
    "open",
  ],
  ALLOWED_URI_REGEXP: /^(?:https?:|mailto:|[^a-z]|[a-z+.-]+(?:[^a-z+.:-]|$))/i,
  ALLOW_DATA_ATTR: false,
  RETURN_DOM_FRAGMENT: true,
};

const PREVIEWABLE = ["html", "svg"]; // languages whose blocks the panel can show
const ESCAPES = { "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#39;" };
const escapeHtml = (text) => text.replace(/[&<>"']/g, (one) => ESCAPES[one]);

// A file of the reader's own, named by its id; its page is /files/<id>/, and the chat shows it in the panel.
const UUID = "[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}(?![0-9a-f-])";
const FILE_URL = new RegExp(`^workspace://(${UUID})(?:/([^#?]*))?`, "i");
const BARE_FILE_URL = new RegExp(
  String.raw`^workspace://${UUID}(?:[/#?][^\s<>"'\`]*[^\s<>"'\`.,:;!?)\]}*_])?`,
  "i",
);

const ANY_FILE_URL = new RegExp(String.raw`(\]\()?workspace://(${UUID})((?:/[^\s<>"'\`)\]]*)?)`, "gi");

const FILE_ROUTE = "/api/v1/files/";

/**
 * Names of files by id, for links that bring none; the page fills it.
 * @type {Map<string, string>}
 */
export const fileNames = new Map();

const marked = new Marked({ gfm: true, breaks: true });
marked.use({
  extensions: [
    ...formulaExtensions,
    ...githubExtensions,
    {
      name: "file",
      level: "inline",
      start: (text) => text.indexOf("workspace://"),
      tokenizer(text) {
        const raw = !this.lexer.state.inLink && BARE_FILE_URL.exec(text)?.[0];
        return raw ? { type: "file", raw, href: raw } : undefined;
      },
      renderer: ({ href }) => renderNamedLink(href),
    },
  ],
  tokenizer: {
    html: () => undefined, // other HTML is text in a paragraph, as on the server
    tag(text) {
      const raw = this.rules.inline.tag.exec(text)?.[0];
      return raw && { type: "html", raw, text: raw, block: false, inLink: false, inRawBlock: false };
    },
  },
  renderer: {
    html: ({ text }) => escapeHtml(text),
    link({ href, text, tokens }) {
      if (!href.startsWith("workspace://")) return false;
      return /^workspace:\/\/|^$/.test(text)
        ? renderNamedLink(href)
        : renderFileLink(href, this.parser.parseInline(tokens));
    },
    image({ href, text }) {
      if (href.startsWith("workspace://"))
        return renderFileImage(href, escapeHtml(text || fileName(href) || _("file")));
      return `<a href="${escapeHtml(href)}">${escapeHtml(text || "image")}</a>`;
    },
    list({ ordered, start, items }) {
      const tag = ordered ? "ol" : "ul";
      const first = ordered && start !== 1 ? ` start="${start}"` : "";
      return `<${tag}${first}>${items.map((item) => this.listitem(item).trimEnd()).join("")}</${tag}>`;
    },
    code: ({ text, lang }) => renderCodeBlock(text, lang),
    table({ header, rows }) {
      const cells = (list, tag) => list.map((cell) => renderTableCell(this.parser, cell, tag)).join("");
      const body = rows.map((row) => `<tr>${cells(row, "td")}</tr>`).join("");
      const head = `<thead><tr>${cells(header, "th")}</tr></thead>`;
      return `<div class="table" tabindex="0"><table>${head}<tbody>${body}</tbody></table></div>`;
    },
  },
});

marked.use({ renderer: githubRenderers });

/**
 * @param {string} href
 * @param {string} label HTML
 * @param {string} kind class names
 */
function renderFileLink(href, label, kind = "file-link") {
  const id = FILE_URL.exec(href)?.[1].toLowerCase();
  return id ? `<a class="${kind}" href="/files/${id}/">${label}</a>` : `<a class="missing">${label}</a>`;
}

/** Render a link by the file's own name; the page looks up those it does not know. */
function renderNamedLink(href) {
  const name = fileName(href);
  return renderFileLink(href, escapeHtml(name || _("file")), name ? "file-link" : "file-link unnamed");
}

/** Render an image; artifacts.js replaces it by its name if the file is not an image. */
function renderFileImage(href, name) {
  const id = FILE_URL.exec(href)?.[1].toLowerCase();
  if (!id) return renderFileLink(href, name);
  const image = `<img src="${FILE_ROUTE}${id}/download?inline=1" alt="${name}" loading="lazy">`;
  return `<a class="file-link picture" href="/files/${id}/">${image}</a>`;
}

function fileName(href) {
  const [, id = "", name = ""] = FILE_URL.exec(href) ?? [];
  try {
    return decodeURIComponent(name).trim() || (fileNames.get(id.toLowerCase()) ?? "");
  } catch {
    return "";
  }
}

/**
 * Replace our own URIs by names and links that mean something outside of the chat.
 * @param {string} text
 */
export function makePortable(text) {
  return text.replace(ANY_FILE_URL, (whole, link, id) => {
    const url = `${location.origin}/files/${id.toLowerCase()}/`;
    const name = fileName(link ? whole.slice(2) : whole) || _("file");
    return link ? `](${url}` : `[${name}](${url})`;
  });
}

function renderTableCell(parser, cell, tag) {
  const place = cell.align === "right" || cell.align === "center" ? ` class="${cell.align}"` : "";
  return `<${tag}${place}>${parser.parseInline(cell.tokens)}</${tag}>`;
}

function renderCodeBlock(text, lang) {
  const name = (lang ?? "").trim().split(/\s/)[0].slice(0, 32);
  const preview = PREVIEWABLE.includes(name.toLowerCase())
    ? '<button type="button" class="quiet" data-act="open-code">Preview</button>'
    : "";
  return (
    `<div class="code"><div class="code-head"><span>${escapeHtml(name || "text")}</span>${preview}` +
    '<button type="button" class="quiet" data-act="copy-code">Copy</button></div>' +
    `<div class="code-body" tabindex="0"><pre><code>${escapeHtml(text)}\n</code></pre></div></div>`
  );
}

function renderTokens(tokens, links) {
  tokens.links = links;
  pairTags(tokens);
  const fragment = globalThis.DOMPurify.sanitize(marked.parser(tokens), SANITIZER_OPTIONS);
  for (const link of fragment.querySelectorAll("a[href]")) {
    link.rel = "noopener noreferrer nofollow";
    if (/^([a-z][a-z0-9+.-]*:|\/\/)/i.test(link.getAttribute("href"))) link.target = "_blank";
  }
  // Whatever the rules above let through.
  for (const picture of fragment.querySelectorAll(`img:not([src^="${FILE_ROUTE}"])`)) picture.remove();
  typesetFormulas(fragment);
  return fragment;
}

/** Let each block take its direction from its own first letter; code and formulas have theirs. */
function setDirection(fragment) {
  for (const block of fragment.children) if (!block.matches(".code, .formula, hr")) block.dir = "auto";
}

/**
 * Find the first block that more text may change: the last one, or a list before what may become its next
 * item.
 */
function firstOpenBlock(tokens) {
  const visible = tokens.flatMap((token, i) => (token.type === "space" ? [] : [i]));
  const [before, last] = [visible.at(-2), visible.at(-1)];
  const mayJoin =
    tokens[before]?.type === "list" && /^ {0,3}(\d{1,9}[.)]?|[-+*])?\s*$/.test(tokens[last].raw);
  return (mayJoin ? before : last) ?? 0;
}

const PLACEHOLDER = "x "; // for the part of a paragraph that is left alone: what follows is still inside a paragraph
const parseInline = (text) => marked.Lexer.lexInline(text, marked.defaults);

/** Paint inline tokens instead of the target's nodes from `start` on; the result is how many nodes they are. */
function patchParts(target, parts, start) {
  const painted = renderTokens([{ type: "paragraph", tokens: parts }], {}).firstChild;
  const count = painted.childNodes.length;
  patchChildren(target, painted, start);
  return count;
}

const QUOTE_LINES = /^(?: {0,3}>[^\n]*(?:\n|$))+$/; // every line has the mark: none continues without it
const stripQuoteMarks = (text) => text.replace(/^ {0,3}> ?/gm, "");
const withoutSpaces = (tokens) => tokens.filter((token) => token.type !== "space");

/** Shows a text that grows at its end. */
export class StreamingMarkdown {
  /**
   * @param {HTMLElement} element
   * @param {(Node | string)[]} lead nodes that stay before the text
   */
  constructor(element, ...lead) {
    this.element = element;
    this.lead = lead;
    this.footnotes = "";
    this.#reset();
  }

  #reset() {
    this.element.replaceChildren(...this.lead);
    this.finished = 0; // characters whose blocks no longer change
    this.kept = this.lead.length; // child nodes that belong to them
    this.text = "";
    this.code = null; // the text node of a code block that is still open
    this.marks = null; // keys of the first open block's parts, if it has any
    // A paragraph that is the tail: characters and nodes of it that stay, and whether that is a guess.
    this.open = null;
    this.cut = null; // a list or table at the end: the part that is final, and how to continue parsing
    this.quote = null; // a block quote at the end, which is a growing text itself
    this.details = null; // the same for details that are not closed yet
  }

  /**
   * @param {string} text all of it so far
   * @param {boolean} final no more will come
   */
  update(text, final) {
    if (
      !text.startsWith(
        this.text.slice(0, this.finished + (this.open ?? this.cut ?? this.quote ?? { length: 0 }).length),
      )
    )
      this.#reset();
    this.text = text;
    if (!this.lead.length) this.#readFootnotes(text);
    parseStreaming(!final, () => this.#paint(text, final));
  }

  /** A name in brackets may become a footnote by what comes later: then everything is painted once more. */
  #readFootnotes(text) {
    const names = findFootnoteNames(text);
    setFootnoteNames(names);
    if (names.join() === this.footnotes) return;
    this.footnotes = names.join();
    this.#reset();
    this.text = text;
  }

  #paint(text, final) {
    if (!final && this.#extendCode(text)) return;
    if (!final && (this.#extendParts(text) || this.#extendQuote(text) || this.#extendDetails(text))) return;
    if (this.open && this.#extendParagraph(text, final)) return;
    const tokens = marked.lexer(text.slice(this.finished));
    const settled = final ? tokens : tokens.slice(0, firstOpenBlock(tokens));
    if (settled.length) this.#finishBlocks(settled, tokens.links);
    this.#patchTail(final ? [] : tokens.slice(settled.length), tokens.links);
  }

  #finishBlocks(tokens, links) {
    this.finished += tokens.reduce((sum, token) => sum + token.raw.length, 0);
    const count = this.#patchBlocks(tokens, links);
    for (let i = this.kept; i < this.kept + count; i += 1) {
      const node = this.element.childNodes[i];
      if (node instanceof Element) highlightCode(node);
    }
    this.kept += count;
    this.code = null;
    this.marks = null;
  }

  #patchTail(tokens, links) {
    this.#patchBlocks(tokens, links, true);
    const [only, second] = withoutSpaces(tokens);
    const open = only?.type === "code" && !second && /^ {0,3}(`{3,}|~{3,})/.exec(only.raw);
    this.code = open ? { fence: open[1], head: only.raw.indexOf("\n") + 1 } : null;
    this.marks = partKeys(only);
    this.open = only?.type === "paragraph" && !second ? { length: 0, nodes: 0, guessed: false } : null;
    this.cut = only && !second ? findPartsCut(only, tokens.indexOf(only) ? tokens[0].raw.length : 0) : null;
    this.quote = null;
    this.details = null;
    if (second || tokens[0] !== only) return;
    if (only?.type === "blockquote") this.#extendQuote(this.text, true);
    if (only?.type === "details" && !only.isClosed) this.#startDetails(only.head);
  }

  /** Paint blocks behind the finished ones; the result is how many nodes they are. */
  #patchBlocks(tokens, links, last = false) {
    const first = tokens.findIndex((token) => token.type !== "space");
    const grown = this.#patchParts(tokens[first], links) ? 1 : 0;
    const fragment = renderTokens(grown ? tokens.slice(first + 1) : tokens, links);
    const count = fragment.childNodes.length;
    if (!this.lead.length) setDirection(fragment); // text in a quote follows the direction of the quote
    patchChildren(this.element, fragment, this.kept + grown, last ? Infinity : count);
    return grown + count;
  }

  /**
   * Paint only the changed parts of a list or table that was the last block before; false if it is another
   * block.
   */
  #patchParts(token, links) {
    const marks = this.marks && partKeys(token);
    if (!marks || marks[0] !== this.marks[0]) return false;
    const { parts, box } = BLOCK_TYPES[token.type];
    const target = box(this.element.childNodes[this.kept]);
    const same = marks.findIndex((mark, i) => mark !== this.marks[i]);
    const from = (same < 0 ? Math.min(marks.length, this.marks.length) : same) - 1;
    if (!target || target.childNodes.length < from) return false;
    const changed = renderTokens([{ ...token, [parts]: token[parts].slice(from) }], links);
    patchChildren(target, box(changed.firstChild), from);
    return true;
  }

  /**
   * Parse only the last parts of a long list or table; false if it has become something else or is
   * finished.
   */
  #extendParts(text) {
    if (!this.cut) return false;
    const { lead, length, count } = this.cut;
    const tokens = marked.lexer(lead + text.slice(this.finished + length));
    const grown = continueCut(this.cut, withoutSpaces(tokens));
    const box = grown && BLOCK_TYPES[this.cut.type].box;
    const target = box?.(this.element.childNodes[this.kept]);
    this.cut = target && target.childNodes.length >= count ? grown.cut : null;
    if (this.cut) patchChildren(target, box(renderTokens([grown.token], tokens.links).firstChild), count);
    return Boolean(this.cut);
  }

  /** Show a quote as a nested streaming text, as long as each of its lines begins with the mark. */
  #extendQuote(text, first = false) {
    if (!first && !this.quote) return false;
    const quoted = text.slice(this.finished);
    const box = this.element.childNodes[this.kept];
    const inside = QUOTE_LINES.test(quoted) ? stripQuoteMarks(quoted) : "";
    if (!inside || isCallout(inside) || box?.nodeName !== "BLOCKQUOTE") {
      this.quote = null;
      return false;
    }
    this.quote ??= { growing: new StreamingMarkdown(/** @type {HTMLElement} */ (box), "\n"), length: 0 };
    this.quote.growing.update(inside, false);
    return true;
  }

  #startDetails(head) {
    const box = /** @type {HTMLElement} */ (this.element.childNodes[this.kept]);
    const body = box?.nodeName === "DETAILS" ? box.querySelector(".details-body") : null;
    if (!body) return;
    this.details = { growing: new StreamingMarkdown(body, "\n"), head };
    this.#extendDetails(this.text);
  }

  /** Show the body of details as a streaming text of its own, until a tag may close it. */
  #extendDetails(text) {
    const body = this.details && text.slice(this.finished + this.details.head);
    if (!body || /<\/?(?:d|$)|<summary/i.test(body)) {
      this.details = null;
      return false;
    }
    this.details.growing.update(body, false);
    return true;
  }

  /**
   * Parse only the open end of a paragraph; false if it has become something else, or if it is finished and
   * the rest has to be painted.
   */
  #extendParagraph(text, final) {
    const { length, nodes, guessed } = this.open;
    const lead = length ? PLACEHOLDER : "";
    const [first, ...others] = marked.lexer(lead + text.slice(this.finished + length));
    const over = final || others.some((token) => token.type !== "space");
    const target = this.element.childNodes[this.kept];
    this.open = null;
    if (first?.type !== "paragraph" || target?.nodeName !== "P" || (over && guessed)) return false;
    const rest = first.text.slice(lead.length);
    const parts = parseInline(rest);
    const cut = over ? null : findParagraphCut(parts, rest);
    const kept = cut ? nodes + patchParts(target, parseInline(rest.slice(0, cut.length)), nodes) : nodes;
    patchParts(target, cut ? parseInline(rest.slice(cut.length)) : parts, kept);
    if (over) {
      this.finished += length + first.raw.length - lead.length;
      if (target.nextSibling?.nodeType !== Node.TEXT_NODE) target.after("\n"); // as the parser ends a paragraph
      this.kept += 2;
      return false;
    }
    this.open = {
      length: length + (cut?.length ?? 0),
      nodes: kept,
      guessed: guessed || Boolean(cut?.guessed),
    };
    return true;
  }

  /** Append to the text node of a code block that is still open, instead of parsing all of it again. */
  #extendCode(text) {
    if (!this.code?.head) return false;
    const body = text.slice(this.finished + this.code.head);
    if (new RegExp(`(^|\\n) {0,3}${this.code.fence[0]}{${this.code.fence.length},}`).test(body)) return false;
    const node = this.element.lastElementChild?.querySelector("code");
    if (!node) return false;
    const shown = /** @type {Text} */ (node.firstChild ?? node.appendChild(document.createTextNode("")));
    const seen =
      shown.data.endsWith("\n") && !body.startsWith(shown.data) ? shown.data.slice(0, -1) : shown.data;
    if (body.startsWith(seen))
      shown.replaceData(seen.length, shown.data.length - seen.length, body.slice(seen.length));
    else shown.data = body;
    return true;
  }
}
