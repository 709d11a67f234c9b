// The script of every page around the chat: theme, copy buttons, local times, busy forms, confirmations and tabs.

import { copyWithFeedback } from "../lib/clipboard.js";
import { confirmAction } from "../lib/confirm_dialog.js";
import { startTheme } from "../lib/theme.js";

startTheme();
for (const button of document.querySelectorAll("[data-copy]")) {
  button.hidden = false;
  const { copy, copied: done, notCopied: failed } = button.dataset;
  button.addEventListener("click", () =>
    copyWithFeedback(button, document.getElementById(copy).textContent.trim(), { done, failed }),
  );
}
for (const time of document.querySelectorAll("time[datetime]")) {
  const then = new Date(time.dateTime);
  if (Number.isNaN(then.getTime())) continue;
  const isThisYear = then.getFullYear() === new Date().getFullYear();
  time.textContent = then.toLocaleString(undefined, {
    year: isThisYear ? undefined : "numeric",
    month: "short",
    day: "numeric",
    hour: "numeric",
    minute: "2-digit",
    timeZone: time.dataset.zone, // that of a task; otherwise the reader's
  });
}
for (const form of document.querySelectorAll("form[data-busy]")) {
  form.addEventListener("submit", ({ submitter }) => {
    const words = submitter.textContent;
    Object.assign(submitter, { disabled: true, textContent: form.dataset.busy });
    addEventListener("pagehide", () => Object.assign(submitter, { disabled: false, textContent: words }), {
      once: true,
    }); // for people who go back to the page
  });
}
for (const form of document.querySelectorAll("form[data-confirm]")) {
  form.addEventListener("submit", async (event) => {
    const { confirm: text, confirmTitle: title } = form.dataset;
    if (!title) return confirm(text) || event.preventDefault();
    event.preventDefault();
    if (await confirmAction({ title, text, yes: event.submitter.textContent })) form.submit();
    return true;
  });
}

// On a narrow screen the tabs are one row that scrolls: bring the open page's tab into view, also after a rotation.
const tabBar = document.querySelector(".tabs");
const openTab = tabBar?.querySelector("[aria-current]");

/** Scroll the tab bar by hand, as scrollIntoView would move the page too. */
function revealOpenTab() {
  const [outer, inner] = [tabBar.getBoundingClientRect(), openTab.getBoundingClientRect()];
  const left = tabBar.scrollLeft + inner.left - outer.left - (outer.width - inner.width) / 2;
  const top = tabBar.scrollTop + inner.top - outer.top - (outer.height - inner.height) / 2;
  tabBar.scrollTo({ left, top, behavior: "instant" });
}

if (openTab) {
  new ResizeObserver(revealOpenTab).observe(tabBar);
  // There and back between two frames: no size changed, but the place is lost.
  addEventListener("resize", revealOpenTab);
}
