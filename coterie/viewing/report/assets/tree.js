"use strict";
// The rollout tree as SVG: nodes, and joint actions as edges to their children or to leaves.
(() => {
  const C = window.Coterie;
  const [X, Y, TOP] = [40, 84, 22];

  // A subtree with its root at 0: offsets of its joint actions, and by level the leftmost and rightmost place.
  function subtree(tree, index) {
    const items = tree.nodes[index].joints.map((joint) => (joint.child !== null ? subtree(tree, joint.child) : { contour: [[0, 0]] }));
    const offsets = [];
    const packed = [];
    items.forEach((item, j) => {
      const touching = item.contour.map(([left], level) => (packed[level] ? packed[level][1] - left + X : -Infinity));
      const offset = j ? Math.max(offsets[j - 1] + X, ...touching) : 0;
      offsets.push(offset);
      item.contour.forEach(([left, right], level) => {
        packed[level] = packed[level] ? [packed[level][0], right + offset] : [left + offset, right + offset];
      });
    });
    const children = offsets.filter((_, j) => tree.nodes[index].joints[j].child !== null);
    const middle = children.length === 1 ? children[0] : offsets.length ? (offsets[0] + offsets[offsets.length - 1]) / 2 : 0;
    const contour = [[0, 0], ...packed.map(([left, right]) => [left - middle, right - middle])];
    return { items, offsets: offsets.map((offset) => offset - middle), contour };
  }

  // Places of nodes and joint actions: parents above their only child or the middle of several, as close as levels allow.
  function layout(tree) {
    const nodes = tree.nodes.map(() => null);
    const joints = [];
    const place = (index, of, x, depth) => {
      nodes[index] = { x, y: TOP + depth * Y };
      tree.nodes[index].joints.forEach((joint, j) => {
        const at = x + of.offsets[j];
        joints.push({ node: index, joint: j, x: at, y: TOP + (depth + 1) * Y, leaf: joint.child === null });
        if (joint.child !== null) place(joint.child, of.items[j], at, depth + 1);
      });
    };
    const root = subtree(tree, 0);
    const left = Math.min(...root.contour.map(([side]) => side));
    const right = Math.max(...root.contour.map(([, side]) => side));
    place(0, root, X / 2 - left, 0);
    return { nodes, joints, width: right - left + X, depth: TOP + (root.contour.length - 1) * Y };
  }

  // Mean advantage of a joint action's branches; null where none is trained.
  function advantage(node, joint) {
    const of = Object.entries(joint.branches).map(([role, branch]) => {
      const action = node.decisions.find((decision) => decision.role === role)?.branches[branch];
      return action ? C.tokens.meanAdvantage(action) : null;
    });
    return C.text.mean(of);
  }

  function largest(tree) {
    const sizes = tree.nodes.flatMap((node) => node.joints.map((joint) => Math.abs(advantage(node, joint) ?? 0)));
    return Math.max(0, ...sizes);
  }

  function bucket(value, most) {
    if (value === null) return "none";
    const level = most > 0 ? Math.round((3 * value) / most) : 0;
    return level === 0 ? "zero" : `${level > 0 ? "up" : "down"}-${Math.min(3, Math.abs(level))}`;
  }

  function spoken(node, joint, index) {
    const rewards = Object.entries(joint.reward).map(([role, value]) => `${role} reward ${C.text.number(value)}`);
    const branches = Object.entries(joint.branches).map(([role, branch]) => `${role} branch ${branch}`);
    const end = joint.child !== null ? "goes on" : joint.expanded ? "the end of an episode" : "not followed";
    return C.text.visible(
      `joint action ${index}: ${[...branches, ...rewards].join(", ")}, advantage ${C.text.signed(advantage(node, joint))}, ${end}` +
        (joint.fault ? `, fault: ${joint.fault.reason}` : ""),
    );
  }

  function label(joint) {
    const values = Object.values(joint.reward);
    return C.text.number(C.text.mean(values.includes(null) ? [] : values), 2);
  }

  // Draws a tree; `path` is a list of [node, joint action], and `onchoose(node, joint)` is called.
  function draw(tree, path, onchoose) {
    const at = layout(tree);
    const most = largest(tree);
    const chosen = new Map(path.map(([node, joint]) => [node, joint]));
    const last = path[path.length - 1];
    const edges = [];
    const marks = [];
    for (const of of at.joints) {
      const node = tree.nodes[of.node];
      const joint = node.joints[of.joint];
      const from = at.nodes[of.node];
      const on = chosen.get(of.node) === of.joint;
      const middle = (from.y + of.y) / 2;
      edges.push({
        on,
        element: C.s("path", {
          d: `M${from.x},${from.y} C${from.x},${middle} ${of.x},${middle} ${of.x},${of.y}`,
          class: `edge${on ? " on" : ""}${joint.expanded ? " expanded" : ""}`,
        }),
      });
      const shape = of.leaf
        ? C.s("circle", { cx: of.x, cy: of.y, r: joint.expanded ? 9 : 7 })
        : C.s("rect", { x: of.x - 10, y: of.y - 10, width: 20, height: 20, rx: 5 });
      marks.push(
        C.s(
          "g",
          {
            class: `joint ${bucket(advantage(node, joint), most)}${on ? " on" : ""}${joint.expanded ? " expanded" : ""}${joint.fault ? " fault" : ""}`,
            role: "button",
            tabindex: last && last[0] === of.node && last[1] === of.joint ? "0" : "-1",
            "data-node": of.node,
            "data-joint": of.joint,
            "aria-label": spoken(node, joint, of.joint),
            "aria-pressed": on ? "true" : "false",
            onclick: () => onchoose(of.node, of.joint),
          },
          C.s("title", null, spoken(node, joint, of.joint)),
          shape,
          joint.fault ? C.s("text", { x: of.x, y: of.y + 4, class: "mark" }, "!") : null,
          C.s("text", { x: of.x, y: of.y + 23, class: "value" }, label(joint)),
        ),
      );
    }
    edges.sort((a, b) => a.on - b.on);
    const levels = new Map();
    at.nodes.forEach((of, index) => {
      if (of && !levels.has(of.y)) levels.set(of.y, tree.nodes[index]);
    });
    const root = at.nodes[0];
    const left = 118;
    const height = at.depth + 34;
    return C.s(
      "svg",
      {
        class: "tree",
        width: at.width + left + 12,
        height,
        viewBox: `${-left} 0 ${at.width + left + 12} ${height}`,
        role: "group",
        "aria-label": "The rollout tree. Arrow keys move in it, Enter chooses.",
        onkeydown: (event) => keys(event, tree, onchoose),
      },
      [...levels].map(([y, node]) =>
        C.s(
          "g",
          { class: "level" },
          C.s("text", { x: -left + 2, y: y + Y / 2 + 4 }, `turn ${node.turn + 1}`),
          C.s("text", { x: -left + 2, y: y + Y / 2 + 20, class: "roles" }, C.text.short(node.decisions.map((of) => of.role).join(" + "), 17)),
        ),
      ),
      edges.map((of) => of.element),
      root ? C.s("circle", { cx: root.x, cy: root.y, r: 6, class: "root" }) : null,
      marks,
    );
  }

  function keys(event, tree, onchoose) {
    const mark = event.target.closest?.("g.joint");
    if (!mark) return;
    const node = Number(mark.dataset.node);
    const joint = Number(mark.dataset.joint);
    const go = (to) => {
      event.preventDefault();
      event.stopPropagation();
      if (!to) return;
      onchoose(to[0], to[1], true);
    };
    const count = tree.nodes[node].joints.length;
    const child = tree.nodes[node].joints[joint].child;
    if (event.key === "ArrowRight") go(joint + 1 < count ? [node, joint + 1] : null);
    else if (event.key === "ArrowLeft") go(joint > 0 ? [node, joint - 1] : null);
    else if (event.key === "ArrowDown") go(child !== null ? [child, firstExpanded(tree.nodes[child])] : null);
    else if (event.key === "ArrowUp") go(parent(tree, node));
    else if (event.key === "Enter" || event.key === " ") go([node, joint]);
  }

  function parent(tree, node) {
    for (let i = 0; i < tree.nodes.length; i++) {
      const joint = tree.nodes[i].joints.findIndex((of) => of.child === node);
      if (joint >= 0) return [i, joint];
    }
    return null;
  }

  const firstExpanded = (node) => Math.max(0, node.joints.findIndex((joint) => joint.expanded));

  C.tree = { draw, parent, firstExpanded, bucket, largest };
})();
