// Addresses of a file's bytes for its owner and for readers of a shared page, so that renderers need not
// know them.

import { _ } from "./i18n.js";

const withRetry = (path, retry) => (retry ? `${path}${path.includes("?") ? "&" : "?"}_retry=${retry}` : path);

/** A file could not be loaded. `status` is 0 where the server could not be reached. */
export class LoadError extends Error {
  constructor(status) {
    super(
      status ? _("The server answered with status {status}.", { status }) : _("Couldn't reach the server."),
    );
    this.name = "LoadProblem";
    this.status = status;
  }
}

/**
 * @param {FileFacts & { file_id: string }} file
 * @returns {FileSource}
 */
export function ownFileSource({ file_id: id, name, type, size }) {
  const file = `/api/v1/files/${id}/download`;
  return {
    ...{ name, type, size },
    download: file,
    page: `/files/${id}/`,
    content: (retry) => withRetry(`${file}?inline=1`, retry),
    frame: (retry) => withRetry(`/files/${id}/render`, retry),
  };
}

/**
 * @param {string} token of the share
 * @param {FileFacts & { file_id: string }} file
 * @returns {FileSource}
 */
export function sharedFileSource(token, { file_id: id, name, type, size }) {
  const file = `/share/${token}/files/${id}`;
  return {
    ...{ name, type, size },
    download: `${file}?download=1`,
    page: null,
    content: (retry) => withRetry(file, retry),
    frame: (retry) => withRetry(`${file}/render`, retry),
  };
}

/**
 * Describe a code block of an answer: its text is on the page already, and a frame asks for it by its
 * position.
 * @param {{ session: string, message: string, index: number, language: string, text: string }} block
 * @returns {FileSource}
 */
export function codeBlockSource({ session, message, index, language, text }) {
  const { type, name } = BLOCK_TYPES[language];
  const bytes = new Blob([text], { type });
  const url = URL.createObjectURL(bytes);
  return {
    ...{ name, type, text, size: bytes.size },
    download: url,
    page: null,
    content: () => url,
    frame: (retry) => withRetry(`/chat/${session}/messages/${message}/blocks/${index}/render`, retry),
  };
}

const BLOCK_TYPES = {
  html: { type: "text/html", name: "page.html" },
  svg: { type: "image/svg+xml", name: "picture.svg" },
};

/**
 * Read the whole text of a file.
 * @param {FileSource} source
 * @param {{ retry?: number, signal?: AbortSignal }} [options]
 * @returns {Promise<string>}
 */
export async function readText(source, { retry = 0, signal } = {}) {
  if (source.text !== undefined) return source.text;
  return (await fetchContent(source, { retry, signal })).text();
}

/**
 * @param {FileSource} source
 * @param {RequestInit & { retry?: number }} options
 */
async function fetchContent(source, { retry, signal, ...options }) {
  const response = await fetch(source.content(retry), { signal, ...options }).catch((problem) => {
    throw problem.name === "AbortError" ? problem : new LoadError(0);
  });
  if (!response.ok && response.type !== "opaqueredirect") throw new LoadError(response.status);
  return response;
}

/**
 * Throw a LoadError if the server refuses the file: an element that fails to load does not say why.
 * @param {FileSource} source
 * @param {{ retry: number, signal: AbortSignal }} options
 */
export async function explainFailure(source, { retry, signal }) {
  if (source.text === undefined)
    await fetchContent(source, { retry, signal, method: "HEAD", redirect: "manual" });
}
