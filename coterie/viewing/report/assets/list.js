"use strict";
// The list of episodes: run, step, filter, order, pages.
(() => {
  const C = window.Coterie;
  const PAGE = 40;
  const state = { run: 0, step: null, filter: "all", sort: "", page: 0, chosen: null };
  let index = null; // {runs: [{count, columns}]}
  let rows = []; // of the present list, in order
  let turn = 0; // of `changed`, of which the newest counts

  const of = (name, row, run = state.run) => index.runs[run].columns[name]?.[row] ?? null;

  function steps() {
    return [...new Set(index.runs[state.run].columns.step ?? [])].sort((a, b) => a - b);
  }

  function outcome(success) {
    if (success === null) return ["?", "without outcome", "lost"];
    if (success >= 1) return ["✓", "success", "good"];
    return success > 0 ? ["◐", `success ${C.text.number(success)}`, "part"] : ["✗", "no success", "bad"];
  }

  function entry(row, place) {
    const [sign, said, kind] = outcome(of("success", row));
    const faults = of("faults", row);
    const marks = [
      faults ? `${faults} not parsed` : "",
      of("missing", row) ? `${of("missing", row)} missing` : "",
      of("lost", row) ? "lost" : "",
      of("repeats", row) ? `${of("repeats", row)} repeated` : "",
    ].filter(Boolean);
    return C.h(
      "div",
      {
        class: "entry",
        role: "option",
        id: `entry-${place}`,
        "aria-selected": row === state.chosen ? "true" : "false",
        onclick: () => choose(row),
      },
      C.h("span", { class: `sign ${kind}`, title: said, "aria-label": said, role: "img" }, sign),
      C.h(
        "span",
        { class: "what" },
        C.h("span", { class: "task" }, of("task", row)),
        C.h(
          "span",
          { class: "small" },
          [
            state.step === null ? `step ${of("step", row)}` : "",
            of("chain", row) ? `chain ${of("chain", row)}` : "",
            of("episode", row) ? `path ${of("episode", row)}` : "",
            `${of("turns", row)} ${of("turns", row) === 1 ? "turn" : "turns"}`,
            `${C.text.number(of("tokens", row))} tokens`,
            of("stratum", row) || "",
            ...marks,
          ]
            .filter(Boolean)
            .join(" · "),
        ),
      ),
      C.h("span", { class: "reward", title: "mean reward on the path" }, C.text.number(of("reward", row))),
    );
  }

  function show() {
    const pages = Math.max(1, Math.ceil(rows.length / PAGE));
    state.page = Math.min(state.page, pages - 1);
    const from = state.page * PAGE;
    const list = C.get("episode-list");
    C.fill(
      list,
      rows.slice(from, from + PAGE).map((row, i) => entry(row, from + i)),
      rows.length ? null : C.h("p", { class: "empty" }, "No episode is like this. Another step or another filter may have some."),
    );
    const place = rows.indexOf(state.chosen);
    if (place >= from && place < from + PAGE) {
      list.setAttribute("aria-activedescendant", `entry-${place}`);
      list.children[place - from].scrollIntoView({ block: "nearest" });
    } else list.removeAttribute("aria-activedescendant");
    C.get("page-at").textContent = pages > 1 ? `${state.page + 1} of ${pages}` : "";
    C.get("page-before").disabled = state.page === 0;
    C.get("page-after").disabled = state.page >= pages - 1;
    document.querySelector(".paging").hidden = pages < 2;
  }

  function status(hits) {
    const all = index.runs[state.run].count;
    const text = `${rows.length.toLocaleString("en-US")} of ${all.toLocaleString("en-US")} episodes`;
    C.get("list-status").textContent = hits ? `${text}, ${hits}` : text;
  }

  function update() {
    const columns = index.runs[state.run].columns;
    const found = C.search.rows(state.run);
    const kept = [];
    for (let row = 0; row < index.runs[state.run].count; row++) {
      if (state.step !== null && columns.step[row] !== state.step) continue;
      if (found && !found.has(row)) continue;
      if (C.filters.keeps(state.filter, columns, row)) kept.push(row);
    }
    rows = C.filters.ordered(kept, state.sort, columns);
    status(C.search.progress());
    show();
  }

  async function choose(row, place) {
    state.chosen = row;
    problem("");
    show();
    await C.episode.open(0, { run: state.run, row }, place);
    C.places.changed();
  }

  function setRun(run) {
    state.run = run;
    C.get("run").value = run;
    const known = steps();
    C.options(C.get("step"), [{ value: "", label: "all" }, ...known.map((step) => ({ value: step, label: step }))]);
    C.filters.fill(C.get("filter"), Object.keys(C.data.main.runs[run].team));
    C.get("filter").value = state.filter;
    setStep(known.includes(state.step) ? state.step : (known[known.length - 1] ?? null));
  }

  function setStep(step) {
    state.step = step;
    C.get("step").value = step ?? "";
    state.page = 0;
  }

  function setFilter(filter) {
    state.filter = filter;
    C.get("filter").value = filter;
    state.sort = C.filters.sortOf(filter);
    C.filters.chooseSort(C.get("sort"), state.sort);
    state.page = 0;
  }

  // The row of an episode by its run, step and key; -1: it is not in this file.
  function rowOf(key, run, step) {
    const { columns } = index.runs[run];
    return (columns.key ?? []).findIndex((of, row) => of === key && (step === null || step === undefined || columns.step[row] === step));
  }

  // Where run or step were changed, the episode follows: one of the same task, else the list's first.
  function follow(task) {
    const here = state.chosen !== null && (state.step === null || of("step", state.chosen) === state.step);
    if (here) return C.places.changed();
    const next = rows.find((row) => of("task", row) === task) ?? rows[0];
    if (next !== undefined) {
      state.page = Math.floor(rows.indexOf(next) / PAGE);
      return choose(next);
    }
    state.chosen = null;
    C.episode.close(0, "The list has no episode.");
    return C.places.changed();
  }

  async function changed(task = state.chosen === null ? null : of("task", state.chosen)) {
    const mine = ++turn;
    problem("");
    update();
    await C.search.again();
    if (mine === turn) await follow(task);
  }

  // A link may be of another report, or of an episode that a smaller file leaves out.
  function absent(what) {
    state.chosen = null;
    show();
    C.episode.close(0, "Choose an episode.");
    problem(`The address names ${what}, which is not in this report. Choose an episode from the list.`);
  }

  function problem(text) {
    C.get("place-problem").textContent = C.text.visible(text);
    C.get("place-problem").hidden = !text;
  }

  C.list = {
    state,
    of,
    update,
    steps,
    rows: () => rows,
    index: () => index,
    outcome,
    rowOf,
    problem,
    choose,
    move(by) {
      const place = rows.indexOf(state.chosen);
      const next = rows[Math.max(0, Math.min(rows.length - 1, place < 0 ? 0 : place + by))];
      if (next === undefined) return;
      state.page = Math.floor(rows.indexOf(next) / PAGE);
      choose(next);
    },
    moveStep(by) {
      const known = steps();
      const place = known.indexOf(state.step);
      const next = known[place < 0 ? known.length - 1 : Math.max(0, Math.min(known.length - 1, place + by))];
      if (next === undefined) return;
      setStep(next);
      changed();
    },
    // What a link says: {run, step, filter, sort, episode, of, node, joint}; `of`: the episode's step.
    async goTo(to) {
      await C.list.start();
      if (!index.runs.length) return;
      setRun(Math.min(to.run ?? state.run, index.runs.length - 1));
      if (to.step !== undefined && (to.step === null || steps().includes(to.step))) setStep(to.step);
      setFilter(to.filter ?? state.filter);
      if (to.sort !== undefined) {
        state.sort = to.sort;
        C.filters.chooseSort(C.get("sort"), to.sort);
      }
      update();
      if (to.unknown || (to.step && !steps().includes(to.step))) return absent(to.unknown ? `run ${to.unknown}` : `step ${to.step}`);
      let row = to.episode === undefined ? -1 : rowOf(to.episode, state.run, to.of ?? to.step);
      if (row < 0 && to.episode !== undefined) return absent(`episode ${to.episode}`);
      if (row < 0) row = rows[0] ?? -1;
      if (row >= 0) {
        const place = rows.indexOf(row);
        if (place >= 0) state.page = Math.floor(place / PAGE);
        await choose(row, to);
      }
    },
    async start() {
      if (index) return;
      index = await C.data.openEpisodes();
      C.options(C.get("run"), C.data.main.runs.map((run, i) => ({ value: i, label: run.label })));
      C.get("run-label").hidden = C.data.main.runs.length < 2;
      C.filters.fillSorts(C.get("sort"));
      C.get("run").addEventListener("change", (event) => {
        const task = state.chosen === null ? null : of("task", state.chosen);
        state.chosen = null;
        setRun(Number(event.target.value));
        changed(task);
      });
      C.get("step").addEventListener("change", (event) => {
        setStep(event.target.value === "" ? null : Number(event.target.value));
        changed();
      });
      C.get("filter").addEventListener("change", (event) => {
        setFilter(event.target.value);
        changed();
      });
      C.get("sort").addEventListener("change", (event) => {
        state.sort = event.target.value;
        changed();
      });
      C.get("step-before").addEventListener("click", () => C.list.moveStep(-1));
      C.get("step-after").addEventListener("click", () => C.list.moveStep(1));
      for (const [id, by] of [["page-before", -1], ["page-after", 1]]) {
        C.get(id).addEventListener("click", () => {
          state.page += by;
          show();
        });
      }
      C.get("episode-list").addEventListener("keydown", (event) => {
        const by = { ArrowDown: 1, ArrowUp: -1, PageDown: 10, PageUp: -10 }[event.key];
        if (!by) return;
        event.preventDefault();
        event.stopPropagation();
        C.list.move(by);
      });
      setRun(0);
    },
  };
})();
