"use strict";
// A second episode of the same task, of another run, step, chain or path, beside the first.
(() => {
  const C = window.Coterie;
  const MOST = 200;
  let chosen = "";

  function others() {
    const { run, row } = C.episode.sides[0];
    const task = C.list.of("task", row, run);
    const entries = [];
    C.list.index().runs.forEach((of, other) => {
      for (let at = 0; at < of.count && entries.length < MOST; at++) {
        if (of.columns.task[at] !== task || (other === run && at === row)) continue;
        const label = [
          C.data.main.runs.length > 1 ? C.data.main.runs[other].label : "",
          `step ${of.columns.step[at]}`,
          of.columns.chain[at] ? `chain ${of.columns.chain[at]}` : "",
          of.columns.episode[at] ? `path ${of.columns.episode[at]}` : "",
          `reward ${C.text.number(of.columns.reward[at])}`,
        ];
        entries.push({ value: `${other}:${at}`, label: label.filter(Boolean).join(", ") });
      }
    });
    return entries;
  }

  async function choose(value) {
    chosen = value;
    const side = C.get("side-1");
    side.hidden = !value;
    C.get("sides").classList.toggle("two", Boolean(value));
    if (!value) return C.episode.close(1);
    const [run, row] = value.split(":").map(Number);
    await C.episode.open(1, { run, row });
  }

  C.compare = {
    async update() {
      const entries = others();
      C.get("compare-bar").hidden = !entries.length;
      C.options(C.get("compare"), [{ value: "", label: entries.length ? `none of ${entries.length}` : "none" }, ...entries]);
      const kept = entries.some((entry) => entry.value === chosen) ? chosen : "";
      C.get("compare").value = kept;
      if (kept !== chosen || !kept) await choose(kept);
    },
    none() {
      C.get("compare-bar").hidden = true;
      if (chosen) choose("");
    },
    // What a link says of it: {run, step, key}.
    at() {
      if (!chosen) return null;
      const [run, row] = chosen.split(":").map(Number);
      return { run, step: C.list.of("step", row, run), key: C.list.of("key", row, run) };
    },
    async goTo(to) {
      const row = to.run < 0 ? -1 : C.list.rowOf(to.key, to.run, to.step);
      const value = `${to.run}:${row}`;
      if (![...C.get("compare").options].some((option) => option.value === value)) {
        return C.list.problem(`The address names episode ${to.key} of step ${to.step} beside this one, which is not in this report.`);
      }
      C.get("compare").value = value;
      await choose(value);
    },
    start: () =>
      C.get("compare").addEventListener("change", async (event) => {
        await choose(event.target.value);
        C.places.changed();
      }),
  };
})();
