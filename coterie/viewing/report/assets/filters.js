"use strict";
// Which episodes a list shows, and in which order. A filter is `name` or `name.role`.
(() => {
  const C = window.Coterie;
  const FAIL = (value) => value !== null && value > 0;
  const FILTERS = {
    all: { label: "all episodes", keep: () => true },
    worst: { label: "worst: lowest reward first", keep: (of) => of("reward") !== null, sort: "reward" },
    best: { label: "best: highest reward first", keep: (of) => of("reward") !== null, sort: "-reward" },
    failed: { label: "without success", keep: (of) => of("success") !== null && of("success") < 1 },
    solved: { label: "with success", keep: (of) => of("success") === 1 },
    disagreeing: { label: "disagreeing siblings", keep: (of) => FAIL(of("spread")), sort: "-spread" },
    chains: { label: "tasks whose chains disagree", keep: (of) => FAIL(of("difference")), sort: "-difference" },
    missing: { label: "missing scores or lost", keep: (of) => FAIL(of("missing")) || FAIL(of("lost")) || of("success") === null },
  };
  const OF_ROLES = {
    fails: { label: "failed: any of these", keep: (of) => ["faults", "missing", "lost", "empty"].some((name) => FAIL(of(name))) },
    faults: { label: "could not be parsed", keep: (of) => FAIL(of("faults")) },
    repeats: { label: "repeats another role", keep: (of) => FAIL(of("repeats")) },
    empty: { label: "empty answer", keep: (of) => FAIL(of("empty")) },
    finish_length: { label: "cut off", keep: (of) => FAIL(of("finish_length")) },
    missing: { label: "missing score or lost", keep: (of) => FAIL(of("missing")) || FAIL(of("lost")) },
    low: { label: "low reward first", keep: (of) => of("reward") !== null, sort: "reward" },
    long: { label: "longest first", keep: () => true, sort: "-tokens" },
    spread: { label: "disagreeing siblings", keep: (of) => FAIL(of("spread")), sort: "-spread" },
  };
  const OF_FINDING = { unparsed: "faults", empty: "empty", repeats: "repeats", finish_length: "finish_length", length: "long", missing: "missing" };
  const SORTS = [
    ["", "as played"],
    ["reward", "reward, lowest first"],
    ["-reward", "reward, highest first"],
    ["advantage", "advantage, lowest first"],
    ["-advantage", "advantage, highest first"],
    ["-spread", "difference of siblings"],
    ["-difference", "difference of a task's chains"],
    ["-tokens", "most tokens"],
    ["tokens", "fewest tokens"],
    ["-turns", "most turns"],
    ["turns", "fewest turns"],
    ["-faults", "most faults"],
    ["task", "task"],
  ];

  const value = (columns, name, row) => (name === "difference" ? differences(columns)[row] : (columns[name]?.[row] ?? null));

  // By row: how much the episodes of its task in its step differ, in reward or success, whichever differs more.
  function differences(columns) {
    if (columns.difference) return columns.difference;
    const count = columns.task?.length ?? 0;
    const ranges = new Map();
    const key = (row) => JSON.stringify([columns.step[row], columns.task[row]]);
    const NAMES = ["reward", "success"];
    for (let row = 0; row < count; row++) {
      if (!ranges.has(key(row))) ranges.set(key(row), NAMES.map(() => [Infinity, -Infinity]));
      ranges.get(key(row)).forEach((range, i) => {
        const of = columns[NAMES[i]]?.[row] ?? null;
        if (of === null) return;
        range[0] = Math.min(range[0], of);
        range[1] = Math.max(range[1], of);
      });
    }
    columns.difference = [...Array(count).keys()].map((row) => Math.max(0, ...ranges.get(key(row)).map(([low, high]) => high - low)));
    return columns.difference;
  }

  function parts(filter) {
    if (Object.hasOwn(FILTERS, filter)) return [FILTERS[filter], ""];
    const dot = filter.indexOf(".");
    const of = dot > 0 && Object.hasOwn(OF_ROLES, filter.slice(0, dot)) ? OF_ROLES[filter.slice(0, dot)] : null;
    return of ? [of, `.${filter.slice(dot + 1)}`] : [FILTERS.all, ""];
  }

  function compared(a, b) {
    if (a === b) return 0;
    if (a === null) return 1; // what is missing comes last
    if (b === null) return -1;
    return a < b ? -1 : 1;
  }

  C.filters = {
    ofFinding: (kind, role) => (OF_FINDING[kind] ? `${OF_FINDING[kind]}.${role}` : null),
    // A role's filter keeps episodes in which the role acted.
    keeps(filter, columns, row) {
      const [of, suffix] = parts(filter);
      if (suffix && !value(columns, `actions${suffix}`, row)) return false;
      return of.keep((name) => value(columns, name + suffix, row));
    },
    sortOf(filter) {
      const [of, suffix] = parts(filter);
      return of.sort ? of.sort + suffix : "";
    },
    ordered(rows, sort, columns) {
      if (!sort) return rows;
      const down = sort.startsWith("-");
      const name = down ? sort.slice(1) : sort;
      const of = (row) => value(columns, name, row);
      return [...rows].sort((a, b) => {
        const [x, y] = [of(a), of(b)];
        if (x === null || y === null) return compared(x, y) || a - b;
        const tasks = name === "difference" ? compared(columns.task[a], columns.task[b]) : 0; // those of a task together
        return (down ? compared(y, x) : compared(x, y)) || tasks || a - b;
      });
    },
    fill(select, roles) {
      const own = Object.entries(FILTERS).map(([name, of]) => ({ value: name, label: of.label }));
      const ofRoles = roles.map((role) => ({
        group: role,
        entries: Object.entries(OF_ROLES).map(([name, of]) => ({ value: `${name}.${role}`, label: `${role}: ${of.label}` })),
      }));
      C.options(select, [...own, ...ofRoles]);
    },
    fillSorts(select) {
      C.options(select, SORTS.map(([name, label]) => ({ value: name, label })));
    },
    // A sort that only a filter asks for joins the list.
    chooseSort(select, sort) {
      if (![...select.options].some((option) => option.value === sort)) {
        select.append(C.h("option", { value: sort }, `${sort.replace(/^-/, "")}${sort.startsWith("-") ? ", highest first" : ", lowest first"}`));
      }
      select.value = sort;
    },
  };
})();
