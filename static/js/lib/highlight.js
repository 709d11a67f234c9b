// Highlight finished code blocks; the highlighter and each language are fetched when first needed.

import "../../vendor/dompurify/purify.min.js";

const LANGUAGES = {
  bash: () => import("../../vendor/highlight/languages/bash.min.js"),
  c: () => import("../../vendor/highlight/languages/c.min.js"),
  cpp: () => import("../../vendor/highlight/languages/cpp.min.js"),
  csharp: () => import("../../vendor/highlight/languages/csharp.min.js"),
  css: () => import("../../vendor/highlight/languages/css.min.js"),
  diff: () => import("../../vendor/highlight/languages/diff.min.js"),
  dockerfile: () => import("../../vendor/highlight/languages/dockerfile.min.js"),
  go: () => import("../../vendor/highlight/languages/go.min.js"),
  ini: () => import("../../vendor/highlight/languages/ini.min.js"),
  java: () => import("../../vendor/highlight/languages/java.min.js"),
  javascript: () => import("../../vendor/highlight/languages/javascript.min.js"),
  json: () => import("../../vendor/highlight/languages/json.min.js"),
  kotlin: () => import("../../vendor/highlight/languages/kotlin.min.js"),
  lua: () => import("../../vendor/highlight/languages/lua.min.js"),
  markdown: () => import("../../vendor/highlight/languages/markdown.min.js"),
  php: () => import("../../vendor/highlight/languages/php.min.js"),
  python: () => import("../../vendor/highlight/languages/python.min.js"),
  ruby: () => import("../../vendor/highlight/languages/ruby.min.js"),
  rust: () => import("../../vendor/highlight/languages/rust.min.js"),
  sql: () => import("../../vendor/highlight/languages/sql.min.js"),
  swift: () => import("../../vendor/highlight/languages/swift.min.js"),
  typescript: () => import("../../vendor/highlight/languages/typescript.min.js"),
  xml: () => import("../../vendor/highlight/languages/xml.min.js"),
  yaml: () => import("../../vendor/highlight/languages/yaml.min.js"),
};
const ALIASES = {
  "c++": "cpp",
  "c#": "csharp",
  cs: "csharp",
  console: "bash",
  docker: "dockerfile",
  golang: "go",
  html: "xml",
  js: "javascript",
  jsx: "javascript",
  kt: "kotlin",
  md: "markdown",
  patch: "diff",
  py: "python",
  python3: "python",
  rb: "ruby",
  rs: "rust",
  sh: "bash",
  shell: "bash",
  svg: "xml",
  toml: "ini",
  ts: "typescript",
  tsx: "typescript",
  yml: "yaml",
  zsh: "bash",
};
const MAX_CODE_LENGTH = 20_000; // characters; beyond it colour costs more than it helps

let core = null;
const grammars = new Map(); // language → promise

async function loadGrammar(language) {
  core ??= import("../../vendor/highlight/core.min.js");
  const hljs = (await core).default;
  if (!grammars.has(language)) {
    grammars.set(
      language,
      LANGUAGES[language]().then((module) => hljs.registerLanguage(language, module.default)),
    );
  }
  await grammars.get(language);
  return hljs;
}

let last = Promise.resolve();

/**
 * Run one block per task: blocks that waited for a grammar would all be highlighted in one task, and the
 * page would freeze.
 */
function runInTurn(act) {
  last = last.then(() => new Promise((go) => setTimeout(go))).then(act, act);
  return last;
}

/**
 * Highlight the code blocks inside of `node`. Never throws: plain code is good enough.
 * @param {Element} node
 */
export async function highlightCode(node) {
  const blocks = node.matches(".code") ? [node] : node.querySelectorAll(".code");
  for (const block of blocks) {
    const name = block.querySelector(".code-head span").textContent.toLowerCase();
    const language = ALIASES[name] ?? name;
    const code = block.querySelector("code");
    if (!(language in LANGUAGES) || code.childElementCount || code.textContent.length > MAX_CODE_LENGTH)
      continue;
    const hljs = await loadGrammar(language).catch(() => null);
    if (hljs) await runInTurn(() => highlightBlock(hljs, code, language)).catch(() => null);
  }
}

function highlightBlock(hljs, code, language) {
  if (!code.isConnected) return;
  const html = hljs.highlight(code.textContent, { language, ignoreIllegals: true }).value;
  code.replaceChildren(
    globalThis.DOMPurify.sanitize(html, {
      ALLOWED_TAGS: ["span"],
      ALLOWED_ATTR: ["class"],
      RETURN_DOM_FRAGMENT: true,
    }),
  );
}
