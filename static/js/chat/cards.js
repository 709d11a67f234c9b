// Cards above the composer that wait for a person: they stay as they are while they wait, and give the
// focus back.

import { byId, fillSlot, findSlot, setVisible } from "../lib/dom.js";

/**
 * Focus the composer when what had the focus goes away, but not where that would open a keyboard on the
 * screen.
 */
export function focusComposer() {
  if (!matchMedia("(pointer: coarse)").matches) byId("text").focus();
}

/**
 * Remove the cards that are no longer wanted and add the new ones.
 * @template {{ id: string }} T
 * @param {PageElement} box
 * @param {T[]} wanted
 * @param {(one: T) => PageElement} make creates a card
 */
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

/**
 * Run a card's action with its controls disabled, and show in the card why it was refused.
 * @param {PageElement} card
 * @param {() => unknown} act
 */
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
