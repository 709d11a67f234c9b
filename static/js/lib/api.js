// Call the REST API with the page's CSRF token. A refused call throws an ApiError with the code and text of
// the answer.

import { _, errorMessage } from "./i18n.js";

/** The reason why a call failed. `status` is 0 if there was no response. */
export class ApiError extends Error {
  /**
   * @param {number} status
   * @param {{ error?: { code?: string, message?: string } } | null} body
   */
  constructor(status, body) {
    super(errorMessage(body?.error) ?? _("Something went wrong on the server."));
    this.status = status;
    this.code = body?.error?.code ?? "unknown";
  }
}

export const csrfToken = () => document.querySelector("[name=csrfmiddlewaretoken]")?.value ?? "";

/**
 * @param {string} method
 * @param {string} path below /api/v1
 * @param {unknown} [body] sent as JSON
 * @param {RequestInit} [options]
 * @returns {Promise<any>} the answer's JSON; null if it is empty
 */
export async function callApi(method, path, body, options = {}) {
  const response = await fetch(`/api/v1${path}`, {
    method,
    headers: {
      Accept: "application/json",
      "X-CSRFToken": csrfToken(),
      ...(body === undefined ? {} : { "Content-Type": "application/json" }),
    },
    body: body === undefined ? undefined : JSON.stringify(body),
    ...options,
  }).catch(() => {
    throw new ApiError(0, {
      error: { code: "not_connected", message: _("You're offline. Try again in a moment.") },
    });
  });
  const answer = response.status === 204 ? null : await response.json().catch(() => null);
  if (!response.ok) throw new ApiError(response.status, answer);
  return answer;
}

/**
 * Upload one file.
 * @param {File} file
 * @param {(part: number) => void} onProgress gets 0 to 1
 * @returns {{ done: Promise<{ id: string }>, abort: () => void }}
 */
export function uploadFile(file, onProgress) {
  const request = new XMLHttpRequest();
  const form = new FormData();
  form.append("files", file);
  const done = new Promise((resolve, reject) => {
    request.upload.onprogress = (event) => event.lengthComputable && onProgress(event.loaded / event.total);
    request.onerror = () => reject(new ApiError(0, { error: { message: _("The upload was interrupted.") } }));
    request.onabort = () => reject(new ApiError(0, { error: { code: "aborted", message: _("Cancelled.") } }));
    request.onload = () => {
      const result = request.response?.results?.[0];
      if (result?.file) resolve(result.file);
      else reject(new ApiError(request.status, result?.error ? result : request.response));
    };
  });
  request.open("POST", "/api/v1/files");
  request.responseType = "json";
  request.setRequestHeader("X-CSRFToken", csrfToken());
  request.send(form);
  return { done, abort: () => request.abort() };
}
