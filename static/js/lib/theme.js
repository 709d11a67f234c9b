// Switch between light, dark and the system's theme. The choice is a cookie, so that the server paints it
// at once.

import { targetOf } from "./dom.js";

const YEAR_SECONDS = 365 * 24 * 3600;

function setCookie(name, value) {
  const secure = location.protocol === "https:" ? "; Secure" : "";
  // biome-ignore lint/suspicious/noDocumentCookie: not every browser we support has a cookieStore
  document.cookie = `${name}=${value}; Path=/; Max-Age=${value ? YEAR_SECONDS : 0}; SameSite=Lax${secure}`;
}

export function startTheme() {
  const now = document.documentElement.dataset.theme ?? "system";
  for (const choice of document.querySelectorAll("[data-theme-choice]")) {
    choice.hidden = false;
    for (const radio of choice.querySelectorAll("input")) radio.checked = radio.value === now;
    choice.addEventListener("change", (event) => {
      const { value } = targetOf(event);
      if (value === "system") delete document.documentElement.dataset.theme;
      else document.documentElement.dataset.theme = value;
      setCookie("theme", value === "system" ? "" : value);
    });
  }
  // The server groups chats by the viewer's days.
  setCookie("zone", encodeURIComponent(Intl.DateTimeFormat().resolvedOptions().timeZone));
}
