// What every page around the chat needs.

import { confirmed } from "./confirm.js";
import { copyBy } from "./copying.js";
import { startTheme } from "./theme.js";

startTheme();
for (const button of document.querySelectorAll("[data-copy]")) {
  button.hidden = false;
  const { copy, copied: done, notCopied: failed } = button.dataset;
  button.addEventListener("click", () => copyBy(button, document.getElementById(copy).textContent.trim(), { done, failed }));
}
for (const time of document.querySelectorAll("time[datetime]")) {
  const then = new Date(time.dateTime);
  if (!Number.isNaN(then.getTime())) time.textContent = then.toLocaleString(undefined, { dateStyle: "medium", timeStyle: "short" });
}
for (const form of document.querySelectorAll("form[data-busy]")) {
  form.addEventListener("submit", ({ submitter }) => {
    const words = submitter.textContent;
    Object.assign(submitter, { disabled: true, textContent: form.dataset.busy });
    addEventListener("pagehide", () => Object.assign(submitter, { disabled: false, textContent: words }), { once: true }); // for who comes back
  });
}
for (const form of document.querySelectorAll("form[data-confirm]")) {
  form.addEventListener("submit", async (event) => {
    const { confirm: text, confirmTitle: title } = form.dataset;
    if (!title) return confirm(text) || event.preventDefault();
    event.preventDefault();
    if (await confirmed({ title, text, yes: event.submitter.textContent })) form.submit();
    return true;
  });
}
