// REST calls with the page's CSRF token; a refusal becomes an error that carries the wire's code and words (E3).

import { _, refusal } from "./words.js";

export class Refused extends Error {
  constructor(status, body) {
    super(refusal(body?.error) ?? _("The server did not understand."));
    this.status = status;
    this.code = body?.error?.code ?? "unknown";
  }
}

export const token = () => document.querySelector("[name=csrfmiddlewaretoken]")?.value ?? "";

export async function call(method, path, body, options = {}) {
  const response = await fetch(`/api/v1${path}`, {
    method,
    headers: {
      Accept: "application/json",
      "X-CSRFToken": token(),
      ...(body === undefined ? {} : { "Content-Type": "application/json" }),
    },
    body: body === undefined ? undefined : JSON.stringify(body),
    ...options,
  }).catch(() => {
    throw new Refused(0, { error: { code: "not_connected", message: _("Not connected right now. Please try again in a moment.") } });
  });
  const answer = response.status === 204 ? null : await response.json().catch(() => null);
  if (!response.ok) throw new Refused(response.status, answer);
  return answer;
}

/** Upload one file with progress (0 … 1); the promise is the stored file's entry. */
export function upload(file, onProgress) {
  const request = new XMLHttpRequest();
  const form = new FormData();
  form.append("files", file);
  const done = new Promise((resolve, reject) => {
    request.upload.onprogress = (event) => event.lengthComputable && onProgress(event.loaded / event.total);
    request.onerror = () => reject(new Refused(0, { error: { message: _("The upload was interrupted.") } }));
    request.onabort = () => reject(new Refused(0, { error: { code: "aborted", message: _("Cancelled.") } }));
    request.onload = () => {
      const result = request.response?.results?.[0];
      if (result?.file) resolve(result.file);
      else reject(new Refused(request.status, result?.error ? result : request.response));
    };
  });
  request.open("POST", "/api/v1/files");
  request.responseType = "json";
  request.setRequestHeader("X-CSRFToken", token());
  request.send(form);
  return { done, abort: () => request.abort() };
}
