// Where a file's bytes are, for its owner and for the readers of a shared page; renderers know no addresses.

import { _ } from "./i18n.js";

const withRetry = (path, retry) => (retry ? `${path}${path.includes("?") ? "&" : "?"}_retry=${retry}` : path);

export class LoadError extends Error {
  constructor(status) {
    super(
      status
        ? _("The server answered with status {status}.", { status })
        : _("The server could not be reached."),
    );
    this.name = "LoadProblem";
    this.status = status;
  }
}

/** A file of one's own. `retry` counts up, so that no cache answers a second time. */
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

/** A file on a shared page. */
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

/** A code block of an answer: its text is on the page already, and a frame asks for it by its place. */
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
 * The whole text of a file.
 * @param {FileSource} source
 * @param {{ retry?: number, signal?: AbortSignal }} [options]
 * @returns {Promise<string>}
 */
export async function readText(source, { retry = 0, signal } = {}) {
  if (source.text !== undefined) return source.text;
  return (await fetchContent(source, { retry, signal })).text();
}

async function fetchContent(source, { retry, signal, ...options }) {
  const response = await fetch(source.content(retry), { signal, ...options }).catch((problem) => {
    throw problem.name === "AbortError" ? problem : new LoadError(0);
  });
  if (!response.ok && response.type !== "opaqueredirect") throw new LoadError(response.status);
  return response;
}

/** Why the browser could not load it by itself: an element that fails says nothing. */
export async function explainFailure(source, { retry, signal }) {
  if (source.text === undefined)
    await fetchContent(source, { retry, signal, method: "HEAD", redirect: "manual" });
}
