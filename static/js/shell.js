// What a program put out, taken apart for its tool row: command, exit status, stdout, stderr (W2.3); see copilot/shell.py.

import { _ } from "./words.js";

const PROGRAMS = { bash_exec: "command", python_exec: "code" };

/** {command, status, stdout, stderr, message}, or null when it was no program or its result cannot be read. */
export function shellOf(tool, given, preview) {
  const name = PROGRAMS[tool];
  if (!name) return null;
  const command = given[name] ?? "";
  const said = preview ? parsed(preview) : {};
  if (!said || (preview && !("exit_code" in said))) return null;
  const status = said.timed_out ? _("timed out") : said.exit_code === undefined ? "" : _("exit {code}", { code: said.exit_code });
  return { command, status, stdout: said.stdout ?? "", stderr: said.stderr ?? "", message: said.message ?? "" };
}

/** The preview may end anywhere; its keys are sorted, so that what is cut is the end of stdout or stderr. */
function parsed(preview) {
  for (const text of [preview, `${preview.replace(/\\(u[0-9a-fA-F]{0,3})?$/, "")}"}`]) {
    try {
      return JSON.parse(text);
    } catch {
      // the next form
    }
  }
  return null;
}
