"use strict";
(() => {
  const C = window.Coterie;

  C.failed = (error) => {
    const problem = C.get("problem");
    problem.hidden = false;
    problem.textContent = `This part could not be shown: ${error.message ?? error}`;
    console.error(error);
  };

  async function start() {
    C.theme.start();
    await C.data.start();
    C.places.first();
    C.charts.start();
    C.metrics.start();
    C.roles.start();
    C.search.start();
    C.compare.start();
    C.keys.start();
    performance.mark("coterie-drawn");
    await C.places.start();
    document.documentElement.dataset.ready = "true";
  }

  if (typeof DecompressionStream === "undefined") C.failed(new Error("this browser has no DecompressionStream (Chrome 80, Firefox 113, Safari 16.4 and later have)"));
  else start().catch(C.failed);
})();
