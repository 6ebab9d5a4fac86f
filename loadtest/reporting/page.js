"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  for (const host of document.querySelectorAll("[data-chart]")) {
    const spec = data.charts[host.dataset.chart];
    if (!spec) continue;
    if (spec.x === "run") { spec.range = data.range; spec.window = data.window; spec.marks = data.marks; }
    tide.chart(host, spec);
  }
})();
