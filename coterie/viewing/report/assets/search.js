"use strict";
// Search in prompts, answers, thoughts and tool results: blocks are opened one after another.
(() => {
  const C = window.Coterie;
  let words = "";
  let hits = null; // run -> rows whose tree has the words
  let state = "";
  let current = 0;

  const lower = (text) => (text ?? "").toLowerCase();

  function has(tree) {
    return tree.nodes.some((node) =>
      node.decisions.some(
        (decision) =>
          lower(decision.prompt).includes(words) ||
          decision.branches.some(
            (branch) =>
              lower(branch.completion).includes(words) ||
              lower(branch.thought).includes(words) ||
              lower(branch.fault?.reason).includes(words) ||
              (branch.tool_results ?? []).some((text) => lower(text).includes(words)) ||
              branch.calls.some((call) => lower(call.text).includes(words)),
          ),
      ),
    );
  }

  async function search() {
    const mine = ++current;
    words = lower(C.get("search").value.trim());
    if (!words) {
      hits = null;
      state = "";
      C.list.update();
      C.episode.again();
      return;
    }
    const { run, step } = C.list.state;
    const { columns, count } = C.list.index().runs[run];
    const blocks = new Map();
    for (let row = 0; row < count; row++) {
      if (step !== null && columns.step[row] !== step) continue;
      if (!blocks.has(columns.block[row])) blocks.set(columns.block[row], []);
      blocks.get(columns.block[row]).push(row);
    }
    hits = new Map([[run, new Set()]]);
    let done = 0;
    for (const [block, rows] of blocks) {
      const { trees } = await C.data.block(block);
      if (mine !== current) return; // another search began
      const known = new Map();
      for (const row of rows) {
        const tree = columns.tree[row];
        if (!known.has(tree)) known.set(tree, has(trees[tree]));
        if (known.get(tree)) hits.get(run).add(row);
      }
      done += 1;
      state = done < blocks.size ? `searched ${done} of ${blocks.size} parts` : `with “${words}”${step === null ? "" : ` in step ${step}`}`;
      C.list.update();
      if (done % 4 === 0) await new Promise((resolve) => setTimeout(resolve));
    }
    C.episode.again();
  }

  // A text with the words marked.
  function marked(text) {
    if (!words) return [text];
    const parts = [];
    const low = text.toLowerCase();
    if (low.length !== text.length) return [text]; // a letter whose small form is longer
    let at = 0;
    for (let next = low.indexOf(words); next >= 0; next = low.indexOf(words, at)) {
      parts.push(text.slice(at, next), C.h("mark", null, text.slice(next, next + words.length)));
      at = next + words.length;
    }
    return [...parts, text.slice(at)];
  }

  // The next text on the page that has the words.
  let hit = -1;
  function move(by) {
    const of = [...C.get("reader").querySelectorAll("pre")].filter((pre) => words && lower(pre.textContent).includes(words));
    if (!of.length) return;
    hit = (((hit + by) % of.length) + of.length) % of.length;
    const fold = of[hit].closest("details");
    if (fold) fold.open = true;
    of[hit].scrollIntoView({ block: "center" });
    for (const pre of of) pre.classList.toggle("hit", pre === of[hit]);
  }

  C.search = {
    marked,
    move,
    rows: (run) => (hits ? (hits.get(run) ?? new Set()) : null),
    progress: () => state,
    again() {
      return words ? search() : null;
    },
    words: () => words,
    set(text) {
      C.get("search").value = text;
      return search();
    },
    start() {
      let waiting = 0;
      C.get("search").addEventListener("input", () => {
        clearTimeout(waiting);
        words = lower(C.get("search").value.trim());
        C.places.changed();
        waiting = setTimeout(search, 200);
      });
    },
  };
})();
