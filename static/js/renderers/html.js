// HTML that somebody else wrote, in a frame without an origin. It may say three things to us, and nothing it says is trusted.

import { element } from "../dom.js";
import { addressOf, askToLeave } from "../leaving.js";
import { explain } from "../sources.js";

const GRACE = 2000; // for the word of a frame that has loaded; a refusal never says it

export async function render(stage, source, { retry, signal, onEscape, showSource }) {
  await explain(source, { retry, signal });
  const frame = element("iframe", { className: "framed", title: source.name });
  frame.setAttribute("sandbox", "allow-scripts"); // before its address: a frame keeps what it began with
  const ready = new Promise((resolve) => {
    const acts = { ready: () => resolve(true), link: ({ href }) => leave(frame, href), escape: () => document.activeElement === frame && onEscape() };
    addEventListener("message", (event) => hear(event, frame, acts), { signal });
    frame.addEventListener("load", () => setTimeout(resolve, GRACE, false), { signal });
  });
  frame.src = source.frame(retry);
  stage.append(frame);
  if (!(await ready)) showSource(); // a browser that does not say who asks gets no document
}

function hear(event, frame, acts) {
  if (event.source !== frame.contentWindow || event.origin !== "null") return;
  const said = event.data?.artifact;
  if (typeof said !== "object" || said === null || !Object.hasOwn(acts, said.kind)) return;
  acts[said.kind](said);
}

/** Whether a person is at work in the frame: a document must not pull at the page by itself. */
const isHeld = (frame) => document.activeElement === frame && navigator.userActivation?.isActive !== false;

function leave(frame, href) {
  const address = addressOf(href);
  if (address && isHeld(frame)) askToLeave(address);
}
