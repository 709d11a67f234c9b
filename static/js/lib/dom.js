// Find, create and fill elements of the page and of its templates.

/**
 * @param {string} id
 * @returns {PageElement | null}
 */
export const byId = (id) => /** @type {PageElement | null} */ (document.getElementById(id));

/**
 * The element an event happened at.
 * @param {Event} event
 * @returns {PageElement}
 */
export const targetOf = (event) => /** @type {PageElement} */ (event.target);

/**
 * The only element of a `<template>`, as a copy.
 * @param {string} templateId
 * @returns {PageElement}
 */
export function cloneTemplate(templateId) {
  return /** @type {PageElement} */ (byId(templateId).content.firstElementChild.cloneNode(true));
}

/**
 * The place of a template that a script fills.
 * @param {ParentNode} element
 * @param {string} name
 * @returns {PageElement | null}
 */
export const findSlot = (element, name) => element.querySelector(`[data-slot="${name}"]`);

/**
 * Write text into a slot, unless it is there already.
 * @param {ParentNode} element
 * @param {string} name
 * @param {string} text
 */
export function fillSlot(element, name, text) {
  const target = findSlot(element, name);
  if (target && target.textContent !== text) target.textContent = text;
  return target;
}

/**
 * Show or hide an element by its attribute: an SVG has no `hidden` property.
 * @param {Element | null} element
 * @param {boolean} visible
 */
export function setVisible(element, visible) {
  if (element && element.hasAttribute("hidden") === visible) element.toggleAttribute("hidden", !visible);
}

/**
 * Listen once for the clicks on many buttons: `actions[button.dataset.act](button, event)`.
 * @param {HTMLElement} root
 * @param {Record<string, (button: PageElement, event: MouseEvent) => unknown>} actions
 */
export function delegateClicks(root, actions) {
  root.addEventListener("click", (event) => {
    const button = targetOf(event).closest("[data-act]");
    if (button && root.contains(button)) actions[button.dataset.act]?.(button, event);
  });
}

/**
 * @template {keyof HTMLElementTagNameMap} Tag
 * @param {Tag} tag
 * @param {Partial<Omit<HTMLElementTagNameMap[Tag], "style">>} properties
 * @param {(Node | string)[]} children
 * @returns {HTMLElementTagNameMap[Tag]}
 */
export function createElement(tag, properties = {}, ...children) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
}
