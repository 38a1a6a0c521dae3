"use strict";
// Light and dark: as the system says, until somebody chooses.
(() => {
  const C = window.Coterie;
  const KEY = "coterie-theme";
  const listeners = [];
  const dark = window.matchMedia("(prefers-color-scheme: dark)");

  function kept() {
    try {
      return localStorage.getItem(KEY);
    } catch {
      return null; // storage is off
    }
  }

  function set(theme) {
    document.documentElement.dataset.theme = theme ?? (dark.matches ? "dark" : "light");
    for (const listener of listeners) listener();
  }

  C.theme = {
    isDark: () => document.documentElement.dataset.theme === "dark",
    onChange: (listener) => listeners.push(listener),
    toggle() {
      const theme = C.theme.isDark() ? "light" : "dark";
      set(theme);
      try {
        localStorage.setItem(KEY, theme);
      } catch {
        // the choice holds for this page
      }
    },
    colour: (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim(),
    start() {
      set(kept());
      dark.addEventListener("change", () => set(kept()));
      C.get("theme-button").addEventListener("click", C.theme.toggle);
    },
  };
})();
