// Buying credit: one click is one purchase, and what was paid is waited for until the payment service has confirmed it.

import { call } from "./api.js";
import { _ } from "./words.js";

const LOOK_EVERY = 1500;
const LOOK_FOR = 120_000; // then a reload shows it: the payment service is late, nothing is lost

for (const form of document.querySelectorAll("form[data-once]")) {
  form.addEventListener("submit", (event) => {
    if (form.dataset.sent) return event.preventDefault();
    form.dataset.sent = "yes";
    event.submitter?.setAttribute("aria-busy", "true");
    return true;
  });
}
// Coming back with the browser's own button: the page may be used again.
addEventListener("pageshow", () => {
  for (const form of document.querySelectorAll("form[data-sent]")) {
    delete form.dataset.sent;
    form.querySelector("[aria-busy]")?.removeAttribute("aria-busy");
  }
});

async function look(news, until) {
  const found = await call("GET", `/billing/top-ups/${news.dataset.topUp}`).catch(() => null);
  if (found && found.state !== news.dataset.state) location.reload();
  else if (Date.now() < until) setTimeout(look, LOOK_EVERY, news, until);
  else news.querySelector("p").append(` ${_("It takes longer than usual; look again in a while.")}`);
}

const news = document.querySelector("[data-top-up]");
if (news && ["OPEN", "CREATED"].includes(news.dataset.state)) look(news, Date.now() + LOOK_FOR);
