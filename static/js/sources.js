// Where a file's bytes are, for its owner and for the readers of a shared page; renderers know no addresses.

import { _ } from "./words.js";

const again = (path, retry) => (retry ? `${path}${path.includes("?") ? "&" : "?"}_retry=${retry}` : path);

export class LoadProblem extends Error {
  constructor(status) {
    super(status ? _("The server answered with status {status}.", { status }) : _("The server could not be reached."));
    this.name = "LoadProblem";
    this.status = status;
  }
}

/** A file of one's own. `retry` counts up, so that no cache answers a second time. */
export function ownFile({ file_id: id, name, type, size }) {
  const file = `/api/v1/files/${id}/download`;
  return {
    ...{ name, type, size },
    download: file,
    page: `/files/${id}/`,
    content: (retry) => again(`${file}?inline=1`, retry),
    frame: (retry) => again(`/files/${id}/render`, retry),
  };
}

/** A file on a shared page. */
export function sharedFile(token, { file_id: id, name, type, size }) {
  const file = `/share/${token}/files/${id}`;
  return {
    ...{ name, type, size },
    download: `${file}?download=1`,
    page: null,
    content: (retry) => again(file, retry),
    frame: (retry) => again(`${file}/render`, retry),
  };
}

/** A code block of an answer: its text is on the page already, and a frame asks for it by its place. */
export function codeBlock({ session, message, index, language, text }) {
  const { type, name } = BLOCKS[language];
  const bytes = new Blob([text], { type });
  const url = URL.createObjectURL(bytes);
  return {
    ...{ name, type, text, size: bytes.size },
    download: url,
    page: null,
    content: () => url,
    frame: (retry) => again(`/chat/${session}/messages/${message}/blocks/${index}/render`, retry),
  };
}

const BLOCKS = {
  html: { type: "text/html", name: "page.html" },
  svg: { type: "image/svg+xml", name: "picture.svg" },
};

/** The whole text of a file. */
export async function read(source, { retry = 0, signal } = {}) {
  if (source.text !== undefined) return source.text;
  return (await answer(source, { retry, signal })).text();
}

async function answer(source, { retry, signal, ...options }) {
  const response = await fetch(source.content(retry), { signal, ...options }).catch((problem) => {
    throw problem.name === "AbortError" ? problem : new LoadProblem(0);
  });
  if (!response.ok && response.type !== "opaqueredirect") throw new LoadProblem(response.status);
  return response;
}

/** Why the browser could not load it by itself: an element that fails says nothing. */
export async function explain(source, { retry, signal }) {
  if (source.text === undefined) await answer(source, { retry, signal, method: "HEAD", redirect: "manual" });
}
