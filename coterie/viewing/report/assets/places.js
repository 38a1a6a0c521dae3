"use strict";
// Links to a place: the part of the report, and in it the run, step, episode and joint action.
(() => {
  const C = window.Coterie;
  const VIEWS = ["overview", "roles", "episodes", "metrics", "coach", "configuration"];
  // `of`: the episode's step where the list has all; `beside`: the second episode, with its step and run.
  const PLACES = ["filter", "sort", "episode", "of", "at", "beside", "beside_step", "beside_run", "metrics", "text"];
  let view = "overview";
  let going = false;

  const views = () => VIEWS.filter((name) => C.get(`view-${name}`));
  const label = (run) => C.data.main.runs[run]?.label;

  function link(to) {
    const words = new URLSearchParams();
    if (to.run && label(to.run)) words.set("run", label(to.run));
    if (to.step === null) words.set("step", "all");
    else if (to.step !== undefined) words.set("step", to.step);
    for (const name of PLACES) if (to[name] !== undefined && to[name] !== null && to[name] !== "") words.set(name, to[name]);
    const text = words.toString();
    return `#${to.view}${text ? `?${text}` : ""}`;
  }

  function read(hash) {
    const [name, text = ""] = hash.replace(/^#/, "").split("?");
    const words = new URLSearchParams(text);
    const run = C.data.main.runs.findIndex((of) => of.label === words.get("run"));
    const to = { view: views().includes(name) ? name : "overview", run: run < 0 ? 0 : run };
    if (run < 0 && words.has("run")) to.unknown = words.get("run");
    if (words.has("step")) to.step = words.get("step") === "all" ? null : Number(words.get("step"));
    for (const key of ["filter", "sort", "episode", "text"]) if (words.has(key)) to[key] = words.get(key);
    if (words.has("of")) to.of = Number(words.get("of"));
    if (words.has("beside")) {
      const of = words.get("beside_run");
      to.beside = { key: words.get("beside"), step: Number(words.get("beside_step")), run: of === null ? to.run : C.data.main.runs.findIndex((known) => known.label === of) };
    }
    if (words.has("at")) [to.node, to.joint] = words.get("at").split(".").map(Number);
    if (words.has("metrics")) to.metrics = words.get("metrics").split(",");
    return to;
  }

  function present() {
    if (view === "episodes" && C.list.index()) {
      const { run, step, filter, sort, chosen } = C.list.state;
      const at = C.episode.sides[0]?.at;
      const beside = C.compare.at();
      return {
        view,
        run,
        step,
        filter: filter === "all" ? "" : filter,
        sort: sort === C.filters.sortOf(filter) ? "" : sort,
        episode: chosen === null ? "" : C.list.of("key", chosen, run),
        of: chosen !== null && step === null ? C.list.of("step", chosen, run) : "",
        at: at ? at.join(".") : "",
        beside: beside?.key,
        beside_step: beside?.step,
        beside_run: beside && beside.run !== run ? label(beside.run) : "",
        text: C.search.words(),
      };
    }
    if (view === "roles") return { view, ...C.roles.at() };
    if (view === "metrics") return { view, metrics: C.metrics.chosen().join(",") };
    return { view };
  }

  function show(name) {
    view = name;
    for (const of of views()) C.get(`view-${of}`).hidden = of !== name;
    for (const tab of document.querySelectorAll(".tabs a")) {
      if (tab.getAttribute("href") === `#${name}`) {
        tab.setAttribute("aria-current", "page");
        const row = tab.parentElement; // on a phone it scrolls
        row.scrollLeft = tab.offsetLeft - row.offsetLeft - (row.clientWidth - tab.offsetWidth) / 2;
      } else tab.removeAttribute("aria-current");
    }
  }

  async function goTo(to) {
    going = true;
    try {
      if (view !== to.view) window.scrollTo(0, 0);
      show(to.view);
      if (to.view === "episodes") {
        await C.list.goTo(to);
        if (to.text) await C.search.set(to.text);
        if (to.beside && C.episode.sides[0]) await C.compare.goTo(to.beside);
      } else if (to.view === "roles") C.roles.goTo(to.run, to.step);
      else if (to.view === "metrics" && to.metrics) C.metrics.show(to.metrics);
    } finally {
      going = false;
    }
  }

  C.places = {
    link,
    views,
    view: () => view,
    goTo,
    changed() {
      if (going || !C.data.main) return;
      history.replaceState(null, "", link(present()));
    },
    // Hide all parts but the first one to be seen, before anything is drawn.
    first: () => show(read(location.hash === "#content" ? "" : location.hash).view),
    async start() {
      window.addEventListener("hashchange", () => {
        if (location.hash === "#content") return;
        goTo(read(location.hash)).catch(C.failed);
      });
      await goTo(read(location.hash === "#content" ? "" : location.hash));
    },
  };
})();
