"use strict";
// An episode: its tree, and what each role saw and did on the path that is followed.
(() => {
  const C = window.Coterie;
  const sides = [null, null]; // {run, row, tree, path, shown}

  async function treeOf({ run, row }) {
    const block = await C.data.block(C.list.of("block", row, run));
    return block.trees[C.list.of("tree", row, run)];
  }

  // A path through a joint action: as before above it, by the first expanded joint action below.
  function through(tree, node, joint) {
    const above = [];
    let at = node;
    for (let up = C.tree.parent(tree, at); up; up = C.tree.parent(tree, at)) {
      above.unshift(up);
      at = up[0];
    }
    const path = [...above, [node, joint]];
    let child = tree.nodes[node].joints[joint].child;
    while (child !== null && child !== undefined) {
      const of = tree.nodes[child];
      if (!of.joints.length) {
        path.push([child, null]);
        break;
      }
      const next = C.tree.firstExpanded(of);
      path.push([child, next]);
      child = of.joints[next].child;
    }
    return path;
  }

  function committed(decision, node, joint) {
    return joint === null ? null : (node.joints[joint].branches[decision.role] ?? null);
  }

  // Follow a branch: the joint action on the path with this branch in it.
  function follow(side, place, role, branch) {
    const { tree, path } = sides[side];
    const [nodeIndex, jointIndex] = path[place];
    const node = tree.nodes[nodeIndex];
    const now = jointIndex === null ? {} : node.joints[jointIndex].branches;
    const has = node.joints.map((joint, i) => [joint, i]).filter(([joint]) => joint.branches[role] === branch);
    const same = ([joint]) => Object.entries(joint.branches).filter(([of, b]) => of !== role && now[of] === b).length;
    has.sort((a, b) => same(b) - same(a) || Number(a[0].recombined ?? false) - Number(b[0].recombined ?? false));
    if (has.length) select(side, nodeIndex, has[0][1]);
    sides[side].shown = new Map([[`${nodeIndex}\n${role}`, branch]]);
    draw(side);
    C.get(`side-${side}`).querySelector(`[data-place="${place}"] [data-role="${CSS.escape(C.text.visible(role))}"] [data-branch="${branch}"]`)?.focus();
  }

  function select(side, node, joint) {
    const of = sides[side];
    const on = of.path.findIndex(([n, j]) => n === node && j === joint);
    of.shown = new Map();
    if (on < 0) of.path = through(of.tree, node, joint);
    of.at = [node, joint];
    if (side === 0) C.places.changed();
  }

  function choose(side, node, joint, focus) {
    select(side, node, joint);
    draw(side);
    const place = sides[side].path.findIndex(([n]) => n === node);
    const box = C.get(`side-${side}`);
    if (focus) box.querySelector(`g.joint[data-node="${node}"][data-joint="${joint}"]`)?.focus();
    else box.querySelector(`[data-place="${place}"]`)?.scrollIntoView({ block: "nearest", behavior: "auto" });
  }

  function head(of) {
    const field = (name) => C.list.of(name, of.row, of.run);
    const [sign, said, kind] = C.list.outcome(field("success"));
    const outcomes = Object.keys(C.list.index().runs[of.run].columns)
      .filter((name) => name.startsWith("outcome.") && name !== "outcome.turns" && field(name) !== null)
      .map((name) => `${name.slice(8)} ${C.text.number(field(name))}`);
    const several = C.data.main.runs.length > 1;
    return C.h(
      "header",
      { class: "episode-head" },
      C.h("h2", null, C.h("span", { class: `sign ${kind}`, "aria-hidden": "true" }, sign), " ", of.tree.task, " ", C.h("span", { class: "small" }, said)),
      C.h(
        "p",
        { class: "small" },
        [
          several ? C.data.main.runs[of.run].label : "",
          `step ${of.tree.step}`,
          `chain ${of.tree.chain}`,
          `path ${field("episode")}`,
          of.tree.stratum,
          `reward ${C.text.number(field("reward"))}`,
          `advantage ${C.text.signed(field("advantage"))}`,
          `${field("turns")} ${field("turns") === 1 ? "turn" : "turns"}`,
          ...outcomes,
        ]
          .filter(Boolean)
          .join(" · "),
      ),
    );
  }

  function joint(of) {
    const several = Object.keys(of.branches).length > 1; // of one role, its action shows them
    const own = several ? Object.entries(of.scores ?? {}).filter(([name]) => name.startsWith("team.")) : [];
    const parts = [
      ...Object.entries(of.reward).map(([role, value]) => `${role} is paid ${C.text.number(value)}`),
      of.expanded ? { best: "the best went on", sampled: "drawn to go on", all: "all go on", only: "" }[of.rule] ?? `chosen by ${of.rule}` : "not followed in play",
      of.recombined ? "recombined from branches" : "",
      of.terminated ? "the environment ended the episode" : of.truncated ? "cut by a limit" : "",
      ...Object.entries(of.outcome ?? {}).map(([name, value]) => `${name} ${C.text.number(value)}`),
    ].filter(Boolean);
    return C.h(
      "div",
      { class: "joint-line" },
      C.h("p", { class: "small" }, parts.join(" · ")),
      own.length ? C.h("ul", { class: "scores" }, own.map(([name, value]) => C.h("li", { title: of.reasons?.[name] || null }, C.h("span", null, name), " ", C.h("b", { class: value === null ? "lost" : "" }, value === null ? "missing" : C.text.number(value))))) : null,
      of.fault ? C.h("p", { class: `fault ${of.fault.kind}` }, of.fault.reason) : null,
      Object.values(of.comments ?? {}).map((text) => C.h("p", { class: "small" }, text)),
    );
  }

  function stage(side, place, most) {
    const { tree, path, shown } = sides[side];
    const [nodeIndex, jointIndex] = path[place];
    const node = tree.nodes[nodeIndex];
    return C.h(
      "section",
      { class: "stage", "data-place": place },
      C.h("h3", null, `Turn ${node.turn + 1}`, C.h("span", { class: "small" }, ` stage ${node.stage + 1}`)),
      C.h(
        "div",
        { class: node.decisions.length > 1 ? "decisions together" : "decisions" },
        node.decisions.map((decision) => {
          const of = committed(decision, node, jointIndex);
          const branch = shown.get(`${nodeIndex}\n${decision.role}`) ?? of ?? 0;
          return C.actions.decision(decision, branch, of, most, (i) => follow(side, place, decision.role, i));
        }),
      ),
      jointIndex === null ? C.h("p", { class: "fault system" }, "No joint action of this node could go on.") : joint(node.joints[jointIndex]),
    );
  }

  function shades(side) {
    const of = sides[side];
    const branches = of.tree.nodes.flatMap((node) => node.decisions.flatMap((decision) => decision.branches));
    const whole = branches.some((branch) => branch.calls.some((call) => call.tokens && !call.cuts));
    const reference = branches.some((branch) => branch.annotations?.ref_logprobs);
    const select = C.h(
      "select",
      { "aria-label": "shade tokens by", onchange: (event) => C.episode.shade(event.target.value) },
      C.tokens.MODES.filter(([name]) => name !== "reference" || reference).map(([name, label]) => C.h("option", { value: name, selected: name === C.tokens.mode() }, label)),
    );
    const scale =
      C.tokens.mode() === "logprob"
        ? ["likely ", [0, 1, 2, 3, 4, 5].map((i) => C.h("span", { class: `token p-${i}` }, " ")), " unlikely"]
        : C.tokens.mode() === "none"
          ? []
          : ["− ", ["down-3", "down-2", "down-1", "zero", "up-1", "up-2", "up-3"].map((name) => C.h("span", { class: `token a-${name}` }, " ")), " +"];
    return C.h(
      "div",
      { class: "shades" },
      C.h("label", null, "shade by ", select),
      C.h("span", { class: "scale small", "aria-hidden": "true" }, scale),
      whole ? C.h("span", { class: "small" }, "Some completions can't be cut into tokens without their model's tokenizer: these are shaded as one, by their mean.") : null,
    );
  }

  function draw(side) {
    const of = sides[side];
    const box = C.get(`side-${side}`);
    const scroll = box.querySelector(".tree-box")?.scrollLeft;
    const most = Math.max(
      0,
      ...of.tree.nodes.flatMap((node) => node.decisions.flatMap((decision) => decision.branches.map((branch) => Math.abs(C.tokens.meanAdvantage(branch) ?? 0)))),
    );
    C.fill(
      box,
      head(of),
      C.h("div", { class: "tree-box scroll", tabindex: "0", role: "region", "aria-label": "The rollout tree" }, C.tree.draw(of.tree, of.path, (node, joint, focus) => choose(side, node, joint, focus))),
      C.h("p", { class: "small tree-note" }, "below a joint action: mean reward of its roles; colour: advantage; ring: it went on in play"),
      shades(side),
      of.path.map((_, place) => stage(side, place, most)),
    );
    const tree = box.querySelector(".tree-box");
    const on = box.querySelectorAll("g.joint.on");
    if (scroll !== undefined && of.drawn === of.tree) tree.scrollLeft = scroll;
    const last = on.length ? on[on.length - 1].getBoundingClientRect() : null;
    const seen = tree.getBoundingClientRect();
    if (last && (of.drawn !== of.tree || last.left < seen.left || last.right > seen.right)) {
      tree.scrollLeft += (last.left + last.right) / 2 - seen.left - tree.clientWidth / 2;
    }
    if (tree.scrollWidth > tree.clientWidth + 1) box.querySelector(".tree-note").prepend("The tree is wider than the page: scroll it sideways. ");
    of.drawn = of.tree;
  }

  C.episode = {
    sides,
    async open(side, episode, place = {}) {
      const wanted = (sides[side] = { ...episode });
      const tree = await treeOf(episode);
      if (sides[side] !== wanted) return; // another one was chosen meanwhile
      const path = C.list.of("path", episode.row, episode.run);
      Object.assign(wanted, { tree, path, shown: new Map(), at: null });
      if (place.node !== undefined && tree.nodes[place.node]?.joints[place.joint]) select(side, place.node, place.joint);
      draw(side);
      if (side === 0) await C.compare.update();
    },
    close(side, text) {
      sides[side] = null;
      C.fill(C.get(`side-${side}`), text ? C.h("p", { class: "empty" }, text) : null);
      if (side === 0) C.compare.none();
    },
    shade(mode) {
      C.tokens.set(mode);
      sides.forEach((of, side) => of?.tree && draw(side));
    },
    again: () => sides.forEach((of, side) => of?.tree && draw(side)),
    focusTree: () => (C.get("side-0").querySelector('g.joint[tabindex="0"]') ?? C.get("side-0").querySelector("g.joint"))?.focus(),
  };
})();
