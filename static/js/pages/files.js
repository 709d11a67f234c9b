// The list of files: selection with a count, and renaming.

import "./base.js";
import { byId } from "../lib/dom.js";

const boxes = [...document.querySelectorAll('.file input[type="checkbox"]')];
const all = byId("all");

function updateCount() {
  const chosen = boxes.filter((box) => box.checked).length;
  byId("count").textContent = chosen ? `(${chosen})` : "";
  byId("chosen").querySelector("button").disabled = chosen === 0;
  all.checked = chosen === boxes.length;
  all.indeterminate = chosen > 0 && chosen < boxes.length;
}

if (boxes.length) {
  all.addEventListener("change", () => {
    for (const box of boxes) box.checked = all.checked;
    updateCount();
  });
  for (const box of boxes) box.addEventListener("change", updateCount);
  addEventListener("pageshow", updateCount); // the browser may restore ticked boxes
}

for (const renaming of document.querySelectorAll(".renaming")) {
  const input = renaming.querySelector('[name="name"]');
  renaming.addEventListener("toggle", () => {
    if (!renaming.open) return;
    input.focus();
    input.setSelectionRange(0, Math.max(input.value.lastIndexOf("."), 0) || input.value.length);
  });
  renaming.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    renaming.open = false;
    renaming.querySelector("summary").focus();
  });
}
