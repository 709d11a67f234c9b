// Kinds of files: which renderer shows a file, what it is called, and in which language its code is
// highlighted.

import { _ } from "./i18n.js";

const IMAGE_TYPES = ["image/png", "image/jpeg", "image/gif", "image/webp", "image/avif"];
const MEDIA_TYPES = [
  "audio/mpeg",
  "audio/ogg",
  "audio/wav",
  "audio/flac",
  "audio/mp4",
  "video/mp4",
  "video/webm",
  "video/ogg",
];
const KINDS_BY_TYPE = {
  "application/pdf": "pdf",
  "text/html": "html",
  "application/xhtml+xml": "html",
  "image/svg+xml": "svg",
  "text/markdown": "markdown",
  "text/csv": "table",
  "text/tab-separated-values": "table",
  "application/json": "json",
};
const CODE_TYPES = ["application/xml", "application/toml", "application/yaml"];
const LANGUAGES_BY_EXTENSION = {
  bat: "bash",
  c: "c",
  cc: "cpp",
  cfg: "ini",
  cpp: "cpp",
  cs: "csharp",
  css: "css",
  diff: "diff",
  dockerfile: "dockerfile",
  go: "go",
  h: "c",
  htm: "html",
  html: "html",
  ini: "ini",
  java: "java",
  js: "javascript",
  json: "json",
  jsx: "javascript",
  kt: "kotlin",
  lua: "lua",
  md: "markdown",
  mjs: "javascript",
  patch: "diff",
  php: "php",
  py: "python",
  rb: "ruby",
  rs: "rust",
  sh: "bash",
  sql: "sql",
  svg: "xml",
  swift: "swift",
  toml: "ini",
  ts: "typescript",
  tsx: "typescript",
  xhtml: "html",
  xml: "xml",
  yaml: "yaml",
  yml: "yaml",
};
const LABELS = {
  image: _("Image"),
  svg: "SVG",
  pdf: "PDF",
  html: _("Web page"),
  markdown: "Markdown",
  table: _("Table"),
  json: "JSON",
  text: _("Text"),
  code: _("Code"),
  other: _("File"),
};

const fileExtension = (name) => (name.includes(".") ? name.split(".").pop().toLowerCase() : "");

/**
 * @param {{ type: string, name: string }} file
 * @returns {string} a key of the viewer's renderers
 */
export function fileKind({ type, name }) {
  if (IMAGE_TYPES.includes(type)) return "image";
  if (MEDIA_TYPES.includes(type)) return "media";
  if (type in KINDS_BY_TYPE) return KINDS_BY_TYPE[type];
  if (!type.startsWith("text/") && !CODE_TYPES.includes(type)) return "other";
  return type !== "text/plain" || fileLanguage({ name }) ? "code" : "text";
}

/**
 * True for kinds that our own script reads and paints; only these have a largest size.
 * @param {string} kind
 */
export const isRenderedByScript = (kind) =>
  ["html", "markdown", "code", "table", "json", "text"].includes(kind);

/**
 * True for kinds whose source tells more than their preview.
 * @param {string} kind
 */
export const hasSourceView = (kind) => ["html", "svg", "markdown", "table", "json"].includes(kind);

/** @param {string} kind */
export const isTextKind = (kind) => isRenderedByScript(kind) || kind === "svg";

/**
 * @param {{ name: string }} file
 * @returns {string} a name of the highlighter; empty if there is none
 */
export const fileLanguage = ({ name }) => LANGUAGES_BY_EXTENSION[fileExtension(name)] ?? "";

/**
 * @param {{ type: string, name: string }} file
 * @returns {string}
 */
export function fileTypeLabel(file) {
  const kind = fileKind(file);
  if (kind === "media") return file.type.startsWith("audio/") ? _("Audio") : _("Video");
  if (kind === "code" && fileExtension(file.name)) return fileExtension(file.name).toUpperCase();
  if (kind === "other" && fileExtension(file.name))
    return _("{kind} file", { kind: fileExtension(file.name).toUpperCase() });
  return LABELS[kind];
}

/**
 * Format a size by powers of two, as all limits are given.
 * @param {number} bytes
 */
export function formatSize(bytes) {
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
