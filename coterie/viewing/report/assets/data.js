"use strict";
// The embedded data: base64 of gzip, opened when it is looked at.
(() => {
  const C = (window.Coterie = {});
  const KEPT = 12; // opened blocks that stay in memory
  const opened = new Map();

  const parsed = new Promise((resolve) => {
    if (document.readyState !== "loading") resolve();
    else document.addEventListener("DOMContentLoaded", resolve, { once: true });
  });

  function bytes(text) {
    if (Uint8Array.fromBase64) return Uint8Array.fromBase64(text);
    const raw = atob(text);
    const array = new Uint8Array(raw.length);
    for (let i = 0; i < raw.length; i++) array[i] = raw.charCodeAt(i);
    return array;
  }

  async function read(name) {
    // Until the parser has reached the next element, a part may be there by half.
    if (!document.getElementById(`data-${name}`)?.nextElementSibling) await parsed;
    const element = document.getElementById(`data-${name}`);
    if (!element) throw new Error(`the file lacks its part ${name}: it was cut short`);
    const stream = new Blob([bytes(element.textContent)]).stream();
    const text = await new Response(stream.pipeThrough(new DecompressionStream("gzip"))).text();
    return JSON.parse(text);
  }

  // Where each word with the space after it is a token, lengths are not written.
  function cut(call, branch, i) {
    if (call.cuts !== "words") return;
    const words = (call.text ?? (i === branch.calls.length - 1 ? branch.completion : "")).split(" ");
    call.cuts = words.map((word, j) => word.length + (j < words.length - 1 ? 1 : 0));
    while (call.cuts.length < call.tokens) call.cuts.push(0);
  }

  // Prompts and tokens in place of what stands for them (viewing/report/trees.py).
  function completed(block) {
    for (const tree of block.trees) {
      for (const node of tree.nodes) {
        for (const decision of node.decisions) {
          decision.prompt = block.prompts[decision.prompt];
          for (const branch of decision.branches) branch.calls.forEach((call, i) => cut(call, branch, i));
        }
      }
    }
    return block;
  }

  C.data = {
    main: null,
    episodes: null,
    async start() {
      C.data.main = await read("main");
    },
    async openEpisodes() {
      C.data.episodes ??= read("episodes");
      return C.data.episodes;
    },
    async block(number) {
      if (!opened.has(number)) {
        opened.set(number, read(`block-${number}`).then(completed));
        if (opened.size > KEPT) opened.delete(opened.keys().next().value);
      }
      return opened.get(number);
    },
    // A value of a token that was rounded to an integer, and is exact otherwise.
    unscaled(value) {
      const digits = C.data.main.digits;
      return value === null || digits === null ? value : value / 10 ** digits;
    },
  };
})();
