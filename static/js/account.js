// The page of a person's data: while an archive is being made, look now and then, and show it when it is ready.

import { call } from "./api.js";

const LOOK_EVERY = 3000;

async function look() {
  const { items } = await call("GET", "/exports").catch(() => ({ items: [{ state: "running" }] }));
  const going = items.some(({ state }) => state === "queued" || state === "running");
  const chosen = document.getElementById("document").files.length; // a reload would lose it
  if (going || chosen) setTimeout(look, LOOK_EVERY);
  else location.reload();
}

if (document.querySelector("[data-going]")) setTimeout(look, LOOK_EVERY);
