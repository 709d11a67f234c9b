// Change the children of one node into those of another with as few changes as possible, so that nothing
// flickers.

/**
 * Make the children of `target` from `start` on look like those of `source`; with `count`, leave what comes
 * after so many.
 * @param {Node & ParentNode} target
 * @param {Node} source
 * @param {number} [start]
 * @param {number} [count]
 */
export function patchChildren(target, source, start = 0, count = Infinity) {
  let at = start;
  for (const wanted of [...source.childNodes]) {
    const present = target.childNodes[at];
    if (!present) target.append(wanted);
    else if (!patchNode(present, wanted)) present.replaceWith(wanted);
    at += 1;
  }
  if (count !== Infinity) return;
  while (target.childNodes.length > at) target.lastChild.remove();
}

function patchNode(present, wanted) {
  if (present.nodeType !== wanted.nodeType || present.nodeName !== wanted.nodeName) return false;
  if (present.nodeType === Node.TEXT_NODE) {
    patchText(present, wanted.data);
    return true;
  }
  if (present.nodeType !== Node.ELEMENT_NODE) return false;
  if (present.dataset?.tex ?? wanted.dataset?.tex)
    return present.className === wanted.className && present.dataset.tex === wanted.dataset.tex;
  for (const { name, value } of wanted.attributes) {
    if (present.getAttribute(name) !== value) present.setAttribute(name, value);
  }
  for (const { name } of [...present.attributes])
    if (!wanted.hasAttribute(name) && !(name === "open" && present.nodeName === "DETAILS"))
      present.removeAttribute(name); // details stay as their reader left them
  patchChildren(present, wanted);
  return true;
}

/** Append where possible: it keeps a reader's selection, which setting `data` would drop. */
function patchText(node, text) {
  if (node.data === text) return;
  if (text.startsWith(node.data)) node.appendData(text.slice(node.data.length));
  else node.data = text;
}
