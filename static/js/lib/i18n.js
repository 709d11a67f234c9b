// Translate texts with the catalogue embedded in the page; English has none.

const catalogue = JSON.parse(document.getElementById("words")?.textContent ?? "{}");

/**
 * Translate a text and replace its `{name}`s. xgettext finds the texts by this function's name.
 * @param {string} text
 * @param {Record<string, unknown>} [fields]
 * @returns {string}
 */
export function _(text, fields = {}) {
  return (catalogue[text] ?? text).replace(/\{(\w+)\}/g, (whole, name) => fields[name] ?? whole);
}

/**
 * Translate a text that the server wrote; xgettext does not gather these.
 * @param {string} text
 * @returns {string}
 */
export const translate = (text) => catalogue[text] ?? text;

/**
 * The translated text for an error's code, or the server's English text.
 * @param {{ code?: string, message?: string }} [error]
 * @returns {string | undefined}
 */
export const errorMessage = (error) => catalogue[`refused:${error?.code}`] ?? error?.message;
