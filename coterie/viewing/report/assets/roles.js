"use strict";
// What each role did in one recorded step: what stands out as sentences, and the numbers as a table.
(() => {
  const C = window.Coterie;
  const COLUMNS = [
    ["actions", "actions", "number"],
    ["reward", "reward", "number"],
    ["advantage", "|advantage|", "number"],
    ["tokens", "tokens", "number"],
    ["unparsed", "could not be parsed", "share"],
    ["empty", "empty", "share"],
    ["finish_length", "cut off", "share"],
    ["repeats", "repeats another role", "share"],
    ["distinct", "different siblings", "share"],
    ["length_reward", "reward with length", "number"],
    ["zero_variance", "groups of equal rewards", "share"],
    ["missing", "no reward", "share"],
    ["lost", "lost by the system", "number"],
  ];
  let run = 0;

  const steps = () => Object.keys(C.data.main.runs[run].roles).map(Number);

  function sentence(run, step, finding) {
    const filter = C.filters.ofFinding(finding.kind, finding.role);
    return C.h(
      "li",
      null,
      C.h("strong", null, finding.role),
      " ",
      `${finding.text}${finding.since < step ? `, in every recorded step since step ${finding.since}` : ""}. `,
      filter ? C.h("a", { href: C.places.link({ view: "episodes", run, step, filter }) }, "See these episodes") : null,
    );
  }

  function show() {
    const of = steps();
    const slider = C.get("roles-step");
    const step = of[Number(slider.value)];
    const place = C.get("roles-of-step");
    if (step === undefined) {
      C.get("roles-step-value").textContent = "";
      C.fill(place, C.h("p", { class: "note" }, "The run has recorded no rollouts, so only its curves tell of roles."));
      return;
    }
    C.get("roles-step-value").textContent = `step ${step}`;
    slider.setAttribute("aria-valuetext", `step ${step}`);
    const { roles, findings } = C.data.main.runs[run].roles[step];
    const marked = new Set(findings.map((of) => `${of.role}\n${of.kind === "length" ? "length_reward" : of.kind}`));
    const rows = roles.map((entry) => [
      entry.role,
      ...COLUMNS.map(([key, , kind]) => ({
        text: kind === "share" ? C.text.share(entry[key]) : C.text.number(entry[key]),
        class: marked.has(`${entry.role}\n${key}`) ? "marked" : "",
      })),
    ]);
    const reasons = roles.filter((entry) => entry.reasons.length);
    C.fill(
      place,
      findings.length
        ? C.h("ul", { class: "signs" }, findings.map((of) => sentence(run, step, of)))
        : C.h("p", { class: "calm" }, "No role fails in this step by the rules of docs/report.md."),
      C.table(["role", ...COLUMNS.map(([, label]) => label)], rows, `Roles in step ${step}`),
      reasons.length
        ? C.h(
            "details",
            { class: "table-box" },
            C.h("summary", null, "Why answers could not be parsed"),
            reasons.map((entry) =>
              C.table([entry.role, "times"], entry.reasons.map(([text, count]) => [text, count]), `Reasons of ${entry.role}`),
            ),
          )
        : null,
    );
  }

  // On the overview: what fails in the last recorded step of each run.
  function last() {
    const { runs } = C.data.main;
    const parts = runs.map((of, index) => {
      const step = Object.keys(of.roles).map(Number).pop();
      const here = step === undefined ? [] : of.roles[step].findings;
      if (!here.length) return null;
      const where = `In step ${step}${runs.length > 1 ? ` of ${of.label}` : ""}, the last recorded one`;
      return [C.h("h2", null, where), C.h("ul", { class: "signs" }, here.map((finding) => sentence(index, step, finding)))];
    });
    C.fill(C.get("overview-findings"), parts);
  }

  function setRun(index) {
    run = index;
    const of = steps();
    const slider = C.get("roles-step");
    slider.max = Math.max(0, of.length - 1);
    slider.value = slider.max;
    slider.disabled = of.length < 2;
    show();
  }

  C.roles = {
    at: () => ({ run, step: steps()[Number(C.get("roles-step").value)] }),
    goTo(index, step) {
      if (index !== undefined) {
        C.get("roles-run").value = index;
        setRun(index);
      }
      const place = steps().indexOf(step);
      if (place >= 0) C.get("roles-step").value = place;
      show();
    },
    start() {
      const { runs } = C.data.main;
      C.options(C.get("roles-run"), runs.map((of, index) => ({ value: index, label: of.label })));
      C.get("roles-run-label").hidden = runs.length < 2;
      C.get("roles-run").addEventListener("change", (event) => setRun(Number(event.target.value)));
      C.get("roles-step").addEventListener("input", () => {
        show();
        C.places.changed();
      });
      setRun(0);
      last();
    },
  };
})();
