"use strict";
// Every metric on demand: chosen from a list that is searched by name and meaning.
(() => {
  const C = window.Coterie;
  const MOST = 300;
  const chosen = new Map();

  function chartOf(name) {
    const of = C.data.main.metrics[name];
    const series = { metric: name, label: name };
    if (C.data.main.metrics[`${name}_ci95`]) series.interval = `${name}_ci95`;
    return { id: `metric-${name}`, title: name, kind: "lines", unit: of.unit, note: of.meaning, series: [series] };
  }

  function toggle(name, on) {
    if (!on) {
      chosen.get(name)?.remove();
      chosen.delete(name);
    } else if (!chosen.has(name)) {
      const figure = C.charts.figure(chartOf(name)) ?? C.h("p", { class: "note" }, `${name}: no numbers`);
      chosen.set(name, figure);
      C.get("charts-metrics").append(figure);
    }
    C.places?.changed();
  }

  function list() {
    const words = C.get("metric-search").value.toLowerCase().split(/\s+/).filter(Boolean);
    const known = Object.entries(C.data.main.metrics).filter(([name, of]) => {
      const text = `${name} ${of.meaning}`.toLowerCase();
      return !name.endsWith("_ci95") && words.every((word) => text.includes(word));
    });
    known.sort(([a], [b]) => chosen.has(b) - chosen.has(a)); // those that are drawn come first
    C.fill(
      C.get("metric-list"),
      known.slice(0, MOST).map(([name, of]) =>
        C.h(
          "label",
          { title: of.meaning },
          C.h("input", {
            type: "checkbox",
            checked: chosen.has(name),
            onchange: (event) => toggle(name, event.target.checked),
          }),
          C.h("span", { class: "mono" }, name),
          C.h("span", { class: "small" }, of.meaning),
        ),
      ),
      known.length > MOST ? C.h("p", { class: "small" }, `and ${known.length - MOST} more`) : null,
      known.length ? null : C.h("p", { class: "small" }, "No metric of these runs has these words."),
    );
  }

  C.metrics = {
    chosen: () => [...chosen.keys()],
    show(names) {
      for (const name of names) if (C.data.main.metrics[name]) toggle(name, true);
      list();
    },
    start() {
      C.get("metric-search").addEventListener("input", list);
      C.get("metric-none").addEventListener("click", () => {
        for (const name of [...chosen.keys()]) toggle(name, false);
        list();
      });
      list();
    },
  };
})();
