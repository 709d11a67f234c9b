// A long paragraph while it grows: what can no longer change is left alone, so that a frame costs what is new (W4.4).

const ENOUGH = 400; // characters that are worth a node of their own
const AT_MOST = 3000; // an opened mark that stays open so long is left as it is until the paragraph ends

// In a text: brackets that became no link, signs that open nothing where they stand.
const HARMLESS = /\[[^[\]]*\](?![([])|(?<=[\p{L}\p{N}])_+(?=[\p{L}\p{N}])|[*_~$](?=\s)|<(?=[\s\d=])/gu;
const MAY_OPEN = /[*_~`[\]<\\|$]/;
const MAY_BE_FORMULA = /^\\[([]/; // an escaped bracket until its closing comes

/** How many characters of a paragraph no later text can change; they end before a word. */
function steadyLength(parts, text) {
  let [steady, at] = [0, 0];
  for (const { type, raw } of parts) {
    if (type === "html" || (type === "escape" && MAY_BE_FORMULA.test(raw)) || (type === "text" && MAY_OPEN.test(raw.replace(HARMLESS, "")))) return steady;
    if (type === "text") steady = lastWordIn(text, at, at + raw.length) || steady;
    at += raw.length;
  }
  return steady;
}

/** Where the last word begins whose space before it lies between the two; 0 if there is none. */
function lastWordIn(text, from, to) {
  for (let at = to; at > from; at -= 1) if (/\s/.test(text[at - 1]) && /\S/.test(text[at] ?? " ")) return at;
  return 0;
}

/** Where to cut what is open of a paragraph: not yet, or after so many characters, and whether that is a guess. */
export function cutOf(parts, text) {
  const steady = steadyLength(parts, text);
  if (steady >= ENOUGH) return { length: steady, guessed: false };
  const length = text.length < AT_MOST ? 0 : lastWordIn(text, 0, text.length - ENOUGH);
  return length ? { length, guessed: true } : null;
}
