"use strict";
// The keyboard; `?` shows what each key does.
(() => {
  const C = window.Coterie;

  const inField = (target) => target.closest?.("input:not([type=range]):not([type=checkbox]), select, textarea");

  function inEpisodes(key) {
    if (key === "j") C.list.move(1);
    else if (key === "k") C.list.move(-1);
    else if (key === "[") C.list.moveStep(-1);
    else if (key === "]") C.list.moveStep(1);
    else if (key === "n") C.search.move(1);
    else if (key === "p") C.search.move(-1);
    else if (key === "g") C.episode.focusTree();
    else if (key === "s") {
      C.tokens.next();
      C.episode.again();
    } else return false;
    return true;
  }

  function pressed(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const dialog = C.get("keys");
    if (event.key === "Escape" && inField(event.target)) event.target.blur();
    if (dialog.open || inField(event.target)) return;
    const views = C.places.views();
    const number = Number(event.key);
    if (event.key === "?") dialog.showModal();
    else if (event.key === "t") C.theme.toggle();
    else if (event.key === "/") {
      const id = C.places.view() === "metrics" ? "metric-search" : "search";
      if (id === "search" && C.places.view() !== "episodes") location.hash = "#episodes";
      setTimeout(() => C.get(id).focus());
    } else if (number >= 1 && number <= views.length) location.hash = `#${views[number - 1]}`;
    else if (C.places.view() !== "episodes" || !C.list.index() || !inEpisodes(event.key)) return;
    event.preventDefault();
  }

  C.keys = {
    start() {
      document.addEventListener("keydown", pressed);
      C.get("keys-button").addEventListener("click", () => C.get("keys").showModal());
    },
  };
})();
