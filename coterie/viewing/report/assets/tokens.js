"use strict";
// A completion, its tokens shaded by advantage or by log-prob, or as one where its tokens are not known.
(() => {
  const C = window.Coterie;
  const MODES = [
    ["advantage", "advantage"],
    ["logprob", "log-prob when sampled"],
    ["reference", "log-prob against the reference"],
    ["none", "nothing"],
  ];
  let mode = "advantage";

  // The mean over tokens where there is one a token; null: not trained.
  function meanAdvantage(branch) {
    const { advantage } = branch;
    if (!Array.isArray(advantage)) return advantage ?? null;
    return C.text.mean(advantage.map(C.data.unscaled));
  }

  // [values, largest size] of the tokens of a call under the mode; null: nothing to shade by.
  function values(branch, call, first) {
    const of = (list) => list.slice(first, first + call.tokens).map(C.data.unscaled);
    if (mode === "advantage") {
      if (Array.isArray(branch.advantage)) return of(branch.advantage);
      return typeof branch.advantage === "number" ? Array(call.tokens).fill(branch.advantage) : null;
    }
    const logprobs = call.logprobs.map(C.data.unscaled);
    if (mode === "logprob") return logprobs;
    const reference = branch.annotations?.ref_logprobs;
    if (mode !== "reference" || !reference) return null;
    return of(reference).map((value, i) => (value === null || logprobs[i] === null ? null : logprobs[i] - value));
  }

  function level(value, most) {
    if (value === null || value === undefined) return "";
    if (mode === "logprob") return `p-${value > -0.05 ? 0 : value > -0.5 ? 1 : value > -1.5 ? 2 : value > -3 ? 3 : value > -6 ? 4 : 5}`;
    return `a-${C.tree.bucket(value, most)}`;
  }

  function said(value) {
    if (value === null || value === undefined) return "";
    const number = C.text.number(value, C.data.main.digits === null ? 6 : 4);
    return mode === "logprob" ? `log-prob ${number}` : mode === "advantage" ? `advantage ${number}` : `log-prob minus reference ${number}`;
  }

  // A text in the tokens of its call; `most`: the largest value of the tree, which has the full colour.
  function shaded(text, call, of, most) {
    const own = Math.max(most, ...(of ?? []).map((value) => Math.abs(value ?? 0)));
    if (!of) return [text];
    if (!call.cuts) {
      const mean = C.text.mean(of);
      return [C.h("span", { class: `token whole ${level(mean, own)}`, title: `mean ${said(mean)}, ${call.tokens} tokens` }, text)];
    }
    let at = 0;
    return call.cuts.map((length, i) => {
      const piece = text.slice(at, at + length);
      at += length;
      const end = length === 0;
      return C.h(
        "span",
        { class: `token ${end ? "end " : ""}${level(of[i], own)}`, title: `${end ? "without text, such as the end; " : ""}${said(of[i])}` },
        end ? (i === call.cuts.length - 1 && call.finish === "stop" ? "⏎" : "") : piece,
      );
    });
  }

  C.tokens = {
    MODES,
    mode: () => mode,
    set(next) {
      mode = next;
    },
    next() {
      const names = MODES.map(([name]) => name);
      mode = names[(names.indexOf(mode) + 1) % names.length];
    },
    meanAdvantage,
    values,
    shaded,
  };
})();
