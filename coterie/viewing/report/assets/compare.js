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
    start: () => C.get("compare").addEventListener("change", (event) => choose(event.target.value)),
  };
})();
