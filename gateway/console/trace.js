/* One trace as a waterfall: a line a span, its details below when it is opened. All texts go in as text. */
"use strict";
(async () => {
  const $ = (id) => document.getElementById(id), COLORS = ["blue", "orange", "teal", "violet", "red", "grey"];
  const id = decodeURIComponent(location.pathname.split("/").pop());
  $("id").textContent = id;
  function h(tag, className, ...children) {
    const element = document.createElement(tag);
    element.className = className || "";
    element.append(...children);
    return element;
  }
  function fail(text) { $("trouble").hidden = false; $("trouble").textContent = text; }
  const key = sessionStorage.getItem("tidegate-key"), headers = { "x-tidegate-console": "1" };
  if (key) headers.authorization = "Bearer " + key;
  let trace;
  try {
    const reply = await fetch("/console/data/trace/" + encodeURIComponent(id), { headers });
    if (reply.status === 401) return fail("Sign in at the console first, in this tab: the key stays in the tab it was typed into.");
    trace = await reply.json();
    if (!reply.ok) return fail(trace.error.message);
  } catch { return fail("The gateway does not answer."); }
  const rows = trace.rows, total = Math.max(...rows.map((row) => row.ends_s)) || 1e-9;
  const services = [...new Set(rows.map((row) => row.service))], color = (name) => COLORS[services.indexOf(name) % COLORS.length];
  $("took").textContent = tide.format(total, "s") + ", " + rows.length + " spans";
  $("services").replaceChildren(...services.map((name) => h("li", "", h("span", "swatch dots " + color(name)), name)));
  $("rows").hidden = false;
  $("rows").replaceChildren(...rows.map((row) => {
    const name = h("span", "name", row.name), lane = h("span", "lane"), bar = h("b", color(row.service));
    name.style.paddingLeft = row.depth * 0.9 + "em";
    bar.style.left = (100 * row.starts_s) / total + "%";
    bar.style.width = Math.max(0.3, (100 * (row.ends_s - row.starts_s)) / total) + "%";
    lane.append(bar);
    for (const event of row.events) {
      const mark = h("i", "");
      mark.style.left = (100 * event.at_s) / total + "%";
      mark.title = event.name + " at " + tide.format(event.at_s, "s");
      lane.append(mark);
    }
    const list = h("dl", "facts");
    const facts = { service: row.service, starts: tide.format(row.starts_s, "s"), ...row.attributes };
    for (const event of row.events) facts["event " + event.name] = "at " + tide.format(event.at_s, "s");
    for (const [label, value] of Object.entries(facts)) list.append(h("dt", "", label), h("dd", "", value));
    return h("details", row.failed ? "failed" : "",
      h("summary", "", name, h("span", "time", tide.format(row.ends_s - row.starts_s, "s")), lane, h("span", "notes", row.notes)), list);
  }));
})();
