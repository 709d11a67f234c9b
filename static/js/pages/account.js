// The page of a person's data: poll while an archive is being made, and reload when it is ready.

import { callApi } from "../lib/api.js";
import { byId } from "../lib/dom.js";

const POLL_MS = 3000;

async function pollExports() {
  const { items } = await callApi("GET", "/exports").catch(() => ({ items: [{ state: "running" }] }));
  const going = items.some(({ state }) => state === "queued" || state === "running");
  const chosen = byId("document").files.length; // a reload would lose it
  if (going || chosen) setTimeout(pollExports, POLL_MS);
  else location.reload();
}

if (document.querySelector("[data-going]")) setTimeout(pollExports, POLL_MS);
