// Small ways to make and fill elements from the page's templates.

export const byId = (id) => document.getElementById(id);

export function clone(templateId) {
  return byId(templateId).content.firstElementChild.cloneNode(true);
}

export const slot = (element, name) => element.querySelector(`[data-slot="${name}"]`);

export function fill(element, name, text) {
  const target = slot(element, name);
  if (target && target.textContent !== text) target.textContent = text;
  return target;
}

export function show(element, visible) {
  if (element && element.hidden === visible) element.hidden = !visible;
}

/** One listener for many buttons: `acts[data-act](button, event)`. */
export function delegate(root, acts) {
  root.addEventListener("click", (event) => {
    const button = event.target.closest("[data-act]");
    if (button && root.contains(button)) acts[button.dataset.act]?.(button, event);
  });
}

export function element(tag, properties = {}, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}
