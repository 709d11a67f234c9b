// The page's words in the reader's language: the catalogue comes with the page, English needs none.

const catalogue = JSON.parse(document.getElementById("words")?.textContent ?? "{}");

/** A text as its reader reads it, with `{name}` replaced; named as the tool that gathers the texts expects it. */
export function _(text, fields = {}) {
  return (catalogue[text] ?? text).replace(/\{(\w+)\}/g, (whole, name) => fields[name] ?? whole);
}

/** A text that the server wrote, without fields; not one for the tool to gather. */
export const translate = (text) => catalogue[text] ?? text;

/** What the wire says of a refusal: English with its numbers, or the reader's sentence for its code. */
export const errorMessage = (error) => catalogue[`refused:${error?.code}`] ?? error?.message;
