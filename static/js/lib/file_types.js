// What a file is to a reader: which renderer shows it, what it is called, which language colours it.

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

export function fileKind({ type, name }) {
  if (IMAGE_TYPES.includes(type)) return "image";
  if (MEDIA_TYPES.includes(type)) return "media";
  if (type in KINDS_BY_TYPE) return KINDS_BY_TYPE[type];
  if (!type.startsWith("text/") && !CODE_TYPES.includes(type)) return "other";
  return type !== "text/plain" || fileLanguage({ name }) ? "code" : "text";
}

/** Kinds that our own script reads and paints: only these have a largest size. */
export const isRenderedByScript = (kind) =>
  ["html", "markdown", "code", "table", "json", "text"].includes(kind);

/** Kinds whose source says more than their preview. */
export const hasSourceView = (kind) => ["html", "svg", "markdown", "table", "json"].includes(kind);

export const isTextKind = (kind) => isRenderedByScript(kind) || kind === "svg";

export const fileLanguage = ({ name }) => LANGUAGES_BY_EXTENSION[fileExtension(name)] ?? "";

export function fileTypeLabel(file) {
  const kind = fileKind(file);
  if (kind === "media") return file.type.startsWith("audio/") ? _("Audio") : _("Video");
  if (kind === "code" && fileExtension(file.name)) return fileExtension(file.name).toUpperCase();
  if (kind === "other" && fileExtension(file.name))
    return _("{kind} file", { kind: fileExtension(file.name).toUpperCase() });
  return LABELS[kind];
}

/** Sizes by powers of two, as all limits are told. */
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
