// Cards that wait for a person above the composer: they stay as they are while they wait, and their end
// leaves nobody without a focus.

import { byId, fillSlot, findSlot, setVisible } from "../lib/dom.js";

/**
 * When what had the focus goes away, one goes on in the composer; not where that would open a keyboard on
 * the screen.
 */
export function focusComposer() {
  if (!matchMedia("(pointer: coarse)").matches) byId("text").focus();
}

/** The cards in `box` become those of `wanted`; `make(one)` makes the card of one that is new. */
export function paintCards(box, wanted, make) {
  for (const card of [...box.children]) {
    if (wanted.some(({ id }) => id === card.dataset.id)) continue;
    if (card.contains(document.activeElement)) focusComposer();
    card.remove();
  }
  setVisible(box, wanted.length > 0);
  const known = new Set([...box.children].map((card) => card.dataset.id));
  for (const one of wanted.filter(({ id }) => !known.has(id))) {
    const card = make(one);
    card.dataset.id = one.id;
    box.append(card);
    byId("todos").open = false; // what needs a person has the room
    card.scrollIntoView({ block: "nearest" });
  }
}

/** Does what a card's button says: nothing is pressed twice, and a refusal is shown in the card. */
export async function submitCard(card, act) {
  const held = card.contains(document.activeElement) ? document.activeElement : null;
  const controls = [...card.elements];
  for (const control of controls) control.disabled = true;
  setVisible(findSlot(card, "problem"), false);
  try {
    await act();
    if (held) focusComposer();
  } catch (problem) {
    setVisible(fillSlot(card, "problem", problem.message), true);
    for (const control of controls) control.disabled = false;
    held?.focus();
  }
}
