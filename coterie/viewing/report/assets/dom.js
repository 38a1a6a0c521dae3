"use strict";
// Elements without markup from text: whatever a model wrote can only become text.
(() => {
  const C = window.Coterie;
  const SVG = "http://www.w3.org/2000/svg";

  function filled(element, attributes, children) {
    for (const [name, value] of Object.entries(attributes ?? {})) {
      if (value === null || value === undefined || value === false) continue;
      if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
      else element.setAttribute(name, value === true ? "" : value);
    }
    for (const child of children.flat(Infinity)) {
      if (child === null || child === undefined || child === false) continue;
      element.append(child instanceof Node ? child : document.createTextNode(C.text.visible(child)));
    }
    return element;
  }

  C.h = (tag, attributes, ...children) => filled(document.createElement(tag), attributes, children);
  C.s = (tag, attributes, ...children) => filled(document.createElementNS(SVG, tag), attributes, children);
  C.get = (id) => document.getElementById(id);
  C.fill = (element, ...children) => {
    element.replaceChildren();
    return filled(element, null, children);
  };
  C.options = (select, entries, chosen) => {
    C.fill(
      select,
      entries.map((entry) =>
        entry.group
          ? C.h(
              "optgroup",
              { label: C.text.visible(entry.group) },
              entry.entries.map((of) => C.h("option", { value: of.value }, of.label)),
            )
          : C.h("option", { value: entry.value }, entry.label),
      ),
    );
    if (chosen !== undefined) select.value = chosen;
  };
  C.table = (head, rows, caption) =>
    C.h(
      "div",
      { class: "scroll", tabindex: "0", role: "region", "aria-label": C.text.visible(caption) },
      C.h(
        "table",
        null,
        C.h("thead", null, C.h("tr", null, head.map((name) => C.h("th", { scope: "col" }, name)))),
        C.h(
          "tbody",
          null,
          rows.map((row) =>
            C.h(
              "tr",
              null,
              row.map((cell, index) =>
                index === 0
                  ? C.h("th", { scope: "row" }, cell)
                  : C.h("td", cell && cell.class ? { class: cell.class } : null, cell && cell.text !== undefined ? cell.text : cell),
              ),
            ),
          ),
        ),
      ),
    );
})();
