"use strict";
// Texts and numbers for people. What models wrote may hold characters that nobody sees, or that reorder others.
(() => {
  const C = window.Coterie;
  const INVISIBLE =
    /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f\u2800\u3164\ud800-\uf8ff\ufeff\uffa0\ufff9-\ufffb\u{1bca0}-\u{1bca3}\u{1d173}-\u{1d17a}\u{e0000}-\u{10ffff}]/gu;
  const MOST_MARKS = 8;
  const MARKS = new RegExp(`(\\p{M}{${MOST_MARKS}})(\\p{M}+)`, "gu");

  function symbol(character) {
    const code = character.codePointAt(0);
    if (code < 0x20) return String.fromCharCode(0x2400 + code);
    if (code === 0x7f) return "␡";
    return `⟨U+${code.toString(16).toUpperCase().padStart(4, "0")}⟩`;
  }

  function number(value, digits = 3) {
    if (value === null || value === undefined) return "–";
    if (typeof value !== "number") return String(value);
    if (Number.isInteger(value)) return value.toLocaleString("en-US");
    const size = Math.abs(value);
    if (size >= 1e5 || size < 1e-4) return value.toExponential(Math.max(1, digits - 1));
    return String(Number(value.toPrecision(digits)));
  }

  C.text = {
    visible: (text) =>
      String(text)
        .replace(MARKS, (all, kept, rest) => `${kept}⟨combining characters: ${[...rest].length} more⟩`)
        .replace(INVISIBLE, symbol),
    number,
    signed: (value, digits = 3) =>
      value === null || value === undefined ? "–" : (value > 0 ? "+" : "") + number(value, digits).replace("-", "−"),
    share: (value) => (value === null || value === undefined ? "–" : `${number(100 * value, 3)} %`),
    short: (text, length) => (text.length > length ? `${text.slice(0, length - 1)}…` : text),
    mean: (values) => {
      const there = values.filter((value) => value !== null && value !== undefined);
      return there.length ? there.reduce((sum, value) => sum + value, 0) / there.length : null;
    },
  };
})();
