// What a file is to a reader: which renderer shows it, what it is called, which language colours it (S14).

import { _ } from "./words.js";

const IMAGES = ["image/png", "image/jpeg", "image/gif", "image/webp", "image/avif"];
const MEDIA = ["audio/mpeg", "audio/ogg", "audio/wav", "audio/flac", "audio/mp4", "video/mp4", "video/webm", "video/ogg"];
const KINDS = {
  "application/pdf": "pdf",
  "text/html": "html",
  "application/xhtml+xml": "html",
  "image/svg+xml": "svg",
  "text/markdown": "markdown",
  "text/csv": "table",
  "text/tab-separated-values": "table",
  "application/json": "json",
};
const CODE = ["application/xml", "application/toml", "application/yaml"];
const LANGUAGES = {
  bat: "bash", c: "c", cc: "cpp", cfg: "ini", cpp: "cpp", cs: "csharp", css: "css", diff: "diff", dockerfile: "dockerfile", go: "go",
  h: "c", htm: "html", html: "html", ini: "ini", java: "java", js: "javascript", json: "json", jsx: "javascript", kt: "kotlin", lua: "lua",
  md: "markdown", mjs: "javascript", patch: "diff", php: "php", py: "python", rb: "ruby", rs: "rust", sh: "bash", sql: "sql",
  svg: "xml", swift: "swift", toml: "ini", ts: "typescript", tsx: "typescript", xhtml: "html", xml: "xml", yaml: "yaml", yml: "yaml",
};
const LABELS = {
  image: _("Image"), svg: "SVG", pdf: "PDF", html: _("Web page"), markdown: "Markdown", table: _("Table"), json: "JSON", text: _("Text"), code: _("Code"), other: _("File"),
};

const extension = (name) => (name.includes(".") ? name.split(".").pop().toLowerCase() : "");

export function kindOf({ type, name }) {
  if (IMAGES.includes(type)) return "image";
  if (MEDIA.includes(type)) return "media";
  if (type in KINDS) return KINDS[type];
  if (!type.startsWith("text/") && !CODE.includes(type)) return "other";
  return type !== "text/plain" || languageOf({ type, name }) ? "code" : "text";
}

/** Kinds that our own script reads and paints: only these have a largest size. */
export const isScripted = (kind) => ["html", "markdown", "code", "table", "json", "text"].includes(kind);

/** Kinds whose source says more than their preview. */
export const hasSource = (kind) => ["html", "svg", "markdown", "table", "json"].includes(kind);

export const isText = (kind) => isScripted(kind) || kind === "svg";

export const languageOf = ({ name }) => LANGUAGES[extension(name)] ?? "";

export function labelOf(file) {
  const kind = kindOf(file);
  if (kind === "media") return file.type.startsWith("audio/") ? _("Audio") : _("Video");
  if (kind === "code" && extension(file.name)) return extension(file.name).toUpperCase();
  if (kind === "other" && extension(file.name)) return _("{kind} file", { kind: extension(file.name).toUpperCase() });
  return LABELS[kind];
}

/** Sizes by powers of two, as all limits are told. */
export function sizeText(bytes) {
  if (bytes < 1024) return `${bytes} B`;
  const units = ["KB", "MB", "GB", "TB"];
  let value = bytes / 1024;
  let unit = 0;
  while (value >= 1023.95 && unit < units.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${value < 9.95 ? Number(value.toFixed(1)) : Math.round(value)} ${units[unit]}`;
}
