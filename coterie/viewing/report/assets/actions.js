"use strict";
// One role at a node: its prompt, the branches that were sampled, and one of them in full.
(() => {
  const C = window.Coterie;
  const LONG = 700; // characters of a prompt that is folded

  // A text in a box that scrolls where it is long, which the keyboard has to reach.
  function box(attributes, text, ...children) {
    const scrolls = text.length > 800 || text.split("\n").length > 14;
    return C.h("pre", { ...attributes, tabindex: scrolls ? "0" : null }, children);
  }

  function prompt(decision) {
    const text = C.text.visible(decision.prompt);
    return C.h(
      "details",
      { class: "prompt", open: text.length <= LONG },
      C.h("summary", null, "prompt ", C.h("span", { class: "small" }, `${C.text.number(decision.prompt_tokens)} tokens`)),
      box({}, text, C.search.marked(text)),
    );
  }

  function scores(branch) {
    const names = Object.keys(branch.scores ?? {});
    if (!names.length) return null;
    return C.h(
      "ul",
      { class: "scores" },
      names.map((name) =>
        C.h(
          "li",
          { title: [branch.reasons?.[name], branch.comments?.[name]].filter(Boolean).join("\n") || null },
          C.h("span", null, name),
          " ",
          C.h("b", { class: branch.scores[name] === null ? "lost" : "" }, branch.scores[name] === null ? "missing" : C.text.number(branch.scores[name])),
        ),
      ),
    );
  }

  function comments(branch) {
    const of = [
      ...Object.entries(branch.reasons ?? {}).map(([name, text]) => [`${name}: why`, text]),
      ...Object.entries(branch.comments ?? {}).map(([name, text]) => [name, text]),
    ];
    return of.length ? C.h("dl", { class: "comments" }, of.map(([name, text]) => C.h("div", null, C.h("dt", null, name), C.h("dd", null, text)))) : null;
  }

  // Where calls are one text, it is the completion's; else each call is shown, with the tool's result after it.
  function calls(branch, most) {
    const last = branch.calls.length - 1;
    let first = 0;
    const parts = branch.calls.map((call, i) => {
      const text = call.text ?? (i === last ? branch.completion : null);
      const values = C.tokens.values(branch, call, first);
      first += call.tokens;
      const head = branch.calls.length > 1 ? C.h("p", { class: "small" }, `call ${i + 1} of ${last + 1}, ${call.tokens} tokens, ended by ${call.finish}`) : null;
      const body = text === null ? C.h("p", { class: "small" }, "the text of this call is not recorded; the result is") : box({ class: "completion", "data-text": i === last ? "completion" : null }, text, text === "" ? C.h("i", { class: "nothing" }, "(no text)") : C.tokens.shaded(text, call, values, most));
      const result = branch.tool_results?.[i];
      return [head, body, result === undefined ? null : C.h("div", { class: "tool" }, C.h("p", { class: "small" }, "tool result"), box({}, result, result))];
    });
    const differs = last >= 0 && branch.calls[last].text !== undefined;
    const rest = (branch.tool_results ?? []).slice(branch.calls.length).map((text) => box({}, text, text));
    const handed =
      differs || last < 0
        ? [C.h("p", { class: "small" }, "what it hands on"), box({ class: "completion", "data-text": "handed" }, branch.completion, branch.completion === "" ? C.h("i", { class: "nothing" }, "(no text)") : branch.completion)]
        : null;
    return [parts, rest, handed];
  }

  function versions(branch) {
    const runs = branch.calls.flatMap((call) => call.version_runs ?? []);
    if (runs.length) return `weights of updates ${[...new Set(runs.map(([version]) => version))].join(", ")}`;
    return branch.version === null || branch.version === undefined ? "" : `weights of update ${branch.version}`;
  }

  function action(branch, most) {
    const last = branch.calls[branch.calls.length - 1];
    return C.h(
      "div",
      { class: "action" },
      branch.fault ? C.h("p", { class: `fault ${branch.fault.kind}` }, branch.fault.kind === "policy" ? "could not be parsed: " : "lost by the system: ", branch.fault.reason) : null,
      branch.tool_limit ? C.h("p", { class: "fault policy" }, "it used all its calls of tools") : null,
      branch.thought ? C.h("details", { class: "thought" }, C.h("summary", null, "thought"), box({}, branch.thought, branch.thought)) : null,
      calls(branch, most),
      C.h(
        "p",
        { class: "small facts-line" },
        [
          `reward ${C.text.number(branch.reward)}`,
          `return ${C.text.number(branch.return)}`,
          `advantage ${C.text.signed(C.tokens.meanAdvantage(branch))}${Array.isArray(branch.advantage) ? " (mean of tokens)" : branch.advantage === null ? " (not trained)" : ""}`,
          branch.weight !== undefined && branch.weight !== null ? `weight ${C.text.number(branch.weight)}` : "",
          `${branch.calls.reduce((sum, call) => sum + call.tokens, 0)} tokens`,
          last ? `ended by ${last.finish}` : "",
          versions(branch),
        ]
          .filter(Boolean)
          .join(" · "),
      ),
      scores(branch),
      comments(branch),
    );
  }

  function siblings(decision, shown, committed, most, onchoose) {
    if (decision.branches.length < 2) return null;
    return C.h(
      "div",
      { class: "siblings", role: "group", "aria-label": C.text.visible(`branches of ${decision.role}`) },
      decision.branches.map((branch, i) => {
        const advantage = C.tokens.meanAdvantage(branch);
        return C.h(
          "button",
          {
            type: "button",
            class: `sibling a-${C.tree.bucket(advantage, most)}${committed === i ? " committed" : ""}`,
            "aria-pressed": shown === i ? "true" : "false",
            "data-branch": i,
            title: C.text.visible(C.text.short(branch.completion, 200)),
            onclick: () => onchoose(i),
          },
          C.h("span", { class: "number" }, `${i}${branch.fault ? " !" : ""}`),
          C.h("span", null, `r ${C.text.number(branch.reward, 2)}`),
          C.h("span", null, `a ${C.text.signed(advantage, 2)}`),
        );
      }),
    );
  }

  // A role's decision at a node; `onchoose(branch)` follows a branch.
  function decision(of, shown, committed, most, onchoose) {
    const branch = of.branches[shown];
    return C.h(
      "section",
      { class: "decision", "data-role": C.text.visible(of.role) },
      C.h(
        "h4",
        null,
        of.role,
        " ",
        C.h("span", { class: "small" }, [of.policy ? `policy ${of.policy}` : "no policy", of.trainable ? "" : "not trained", of.temperature === undefined || of.temperature === 1 ? "" : `temperature ${C.text.number(of.temperature)}`].filter(Boolean).join(", ")),
      ),
      prompt(of),
      siblings(of, shown, committed, most, onchoose),
      branch ? action(branch, most) : C.h("p", { class: "empty" }, "No action was sampled."),
    );
  }

  C.actions = { decision };
})();
