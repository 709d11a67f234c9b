// The form of a scheduled task: only the fields that belong to the chosen repetition are shown.

const FIELDS = {
  daily: ["at"],
  weekdays: ["at"],
  weekly: ["weekdays", "at"],
  monthly: ["month_day", "at"],
  cron: ["cron"],
};

for (const form of document.querySelectorAll("form[data-schedule]")) {
  const repeat = form.querySelector('[name="repeat"]');
  const update = () => {
    for (const name of ["weekdays", "month_day", "at", "cron"]) {
      const field = form.querySelector(`[data-field="${name}"]`);
      field.hidden = !FIELDS[repeat.value].includes(name) && !field.querySelector(".errorlist");
    }
  };
  repeat.addEventListener("change", update);
  addEventListener("pageshow", update); // the browser may bring back an earlier choice
  update();
}
