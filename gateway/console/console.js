/* The console's page: asks /console/data once a second and draws. All texts go in as text, never as markup. */
"use strict";
(() => {
  const $ = (id) => document.getElementById(id);
  const KEY = "tidegate-key", ASK_MS = 1000, KEPT_S = 3600;
  const COLORS = ["blue", "orange", "teal", "violet", "dark-blue", "red", "grey"];
  const format = tide.format;
  let last = null, history = null, chosen = null, timer = 0, since = 0, charts = null, heardMs = 0, drawnStep = -1;

  function h(tag, props, ...children) {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(props || {}))
      if (name in element && name !== "list") element[name] = value;
      else element.setAttribute(name, value);
    element.append(...children.filter((child) => child !== null && child !== undefined));
    return element;
  }
  const cell = (text, className) => h("td", { className: className || "" }, String(text));
  const wall = (unixS) => new Date(unixS * 1000).toLocaleTimeString("en-GB");
  const count = (value) => (value === null || value === undefined ? "–" : Math.round(value).toLocaleString("en"));
  const rate = (value) => (value === null || value === undefined ? "–" : Number(value.toPrecision(3)).toLocaleString("en"));

  const drawn = new Map();
  function redraw(host, data, build) {
    /* Only what has changed is built anew, so that focus and selection stay. */
    const text = JSON.stringify(data);
    if (drawn.get(host) === text) return;
    drawn.set(host, text);
    host.replaceChildren(...build());
  }
  function rows(id, data, build, empty) {
    const body = $(id).tBodies[0], width = $(id).tHead.rows[0].cells.length;
    redraw(body, data, () => data.length ? data.map(build) : [h("tr", {}, h("td", { className: "empty", colSpan: width }, empty))]);
  }

  /* --- asking ------------------------------------------------------------------------------------------------ */
  function headers() {
    const key = sessionStorage.getItem(KEY), found = { "x-tidegate-console": "1" };
    if (key) found.authorization = "Bearer " + key;
    return found;
  }
  async function told(reply) {
    try { return (await reply.json()).error.message; } catch { return "HTTP " + reply.status; }
  }
  async function ask() {
    clearTimeout(timer);
    try {
      const reply = await fetch("/console/data?since=" + since, { headers: headers(), cache: "no-store" });
      if (reply.status === 401 || (reply.status === 403 && sessionStorage.getItem(KEY))) return askForKey(await told(reply));
      if (!reply.ok) throw new Error(await told(reply));
      take(await reply.json());
      trouble("");
    } catch (error) {
      const silent = heardMs ? ", what you see is " + Math.round((Date.now() - heardMs) / 1000) + " s old" : "";
      trouble((error.name === "TypeError" ? "The gateway does not answer" : error.message) + silent + ".");
    }
    if (!document.hidden) timer = setTimeout(ask, ASK_MS);
  }
  function trouble(text) {
    $("trouble").hidden = !text;
    if ($("trouble").textContent !== text) $("trouble").textContent = text;
    document.body.classList.toggle("stale", Boolean(text) && Boolean(last));
  }
  function askForKey(why) {
    const had = sessionStorage.getItem(KEY);
    sessionStorage.removeItem(KEY);
    $("board").hidden = true; $("leave").hidden = true; $("login").hidden = false;
    $("refused").textContent = had ? why : "";
    last = history = null; since = 0; drawnStep = -1;
    $("key").focus();
  }
  $("login").addEventListener("submit", (event) => {
    event.preventDefault();
    sessionStorage.setItem(KEY, $("key").value.trim());
    $("key").value = "";
    ask();
  });
  $("leave").addEventListener("click", () => { sessionStorage.removeItem(KEY); askForKey(""); });
  document.addEventListener("visibilitychange", () => { if (!document.hidden && $("login").hidden) ask(); });

  function take(data) {
    heardMs = Date.now();
    if (history && data.last_step < since) history = null; /* another gateway's life: all its steps came */
    history = joined(history, data.history, data.now_unix_s - KEPT_S);
    since = data.last_step;
    last = data;
    $("login").hidden = true; $("board").hidden = false;
    $("leave").hidden = !sessionStorage.getItem(KEY);
    show();
  }
  function joined(before, after, fromUnixS) {
    if (!before) return after;
    const from = before.t.findIndex((t) => t >= fromUnixS), cut = from < 0 ? before.t.length : from;
    const kept = before.t.length - cut;
    const both = (old, fresh) => [...(old ? old.slice(cut) : Array(kept).fill(null)), ...(fresh || Array(after.t.length).fill(null))];
    const names = new Set([...Object.keys(before.models), ...Object.keys(after.models)]);
    const models = {};
    for (const name of names) {
      const old = before.models[name], fresh = after.models[name];
      models[name] = {};
      for (const column of Object.keys(old || fresh)) models[name][column] = both(old && old[column], fresh && fresh[column]);
    }
    const node = {};
    for (const column of Object.keys(after.node)) node[column] = both(before.node[column], after.node[column]);
    return { t: both(before.t, after.t), models, node };
  }

  /* --- the tide ---------------------------------------------------------------------------------------------- */
  const names = () => Object.keys(history.models);
  function selected() { return chosen === null ? names() : [chosen]; }
  function sum(column) {
    const parts = selected().map((name) => history.models[name]).filter(Boolean);
    return history.t.map((_, i) => {
      const known = parts.map((part) => part[column][i]).filter((value) => value !== null);
      return known.length ? known.reduce((a, b) => a + b, 0) : null;
    });
  }
  const line = (label, values, color, more) => ({ label, values, color, ...more });
  function each(column, what, more) {
    return selected().slice(0, COLORS.length).filter((name) => history.models[name]?.[column].some((value) => value !== null))
      .map((name) => line(name + (what ? " " + what : ""), history.models[name][column], COLORS[names().indexOf(name) % COLORS.length], more));
  }
  function marks() {
    return last.decisions.filter((one) => one.direction !== "hold" && (chosen === null || one.model === chosen))
      .map((one) => ({ x: one.at_unix_s, text: wall(one.at_unix_s) + "  " + one.model + ": " + one.before + " → " + one.wanted + ", " + one.reason + (one.trouble ? "\n" + one.trouble : "") }));
  }
  function specs() {
    const now = last.now_unix_s, common = { x: "wall", xs: history.t, range: [Math.max(now - KEPT_S, Math.min(history.t[0], now - 300)), now], sync: "tide", marks: marks(), height: 130 };
    const latency = chosen === null
      ? [...each("ttft_p90", "TTFT p90"), ...each("latency_p90", "latency p90", { dash: true })]
      : [["TTFT p50", "ttft_p50", "light-blue"], ["TTFT p90", "ttft_p90", "blue"], ["TTFT p99", "ttft_p99", "dark-blue"], ["latency p50", "latency_p50", "orange"], ["latency p99", "latency_p99", "red"]]
          .map(([label, column, color]) => line(label, history.models[chosen]?.[column] || history.t.map(() => null), color));
    return {
      requests: { ...common, title: "Requests", unit: "/s", series: [line("requests", sum("arrivals"), "blue", { fill: true }), line("failed", sum("failed"), "red")] },
      queue: { ...common, title: "Queue", unit: "", series: [line("in flight", sum("in_flight"), "grey", { fill: true }), line("queue", sum("queue"), "orange")] },
      instances: { ...common, title: "Instances", unit: "", series: [line("ready", sum("ready"), "teal", { steps: true, fill: true }), line("wanted", sum("wanted"), "violet", { steps: true, dash: true })] },
      utilization: { ...common, title: "Utilisation", unit: "ratio", top: 1, series: chosen === null ? each("utilization") : [line("busy", sum("utilization"), "blue", { fill: true })] },
      latency: { ...common, title: "Latency", unit: "s", log: true, height: 320, series: latency },
      pool: { ...common, title: "KV pool", unit: "bytes", height: 180, series: [line("held", history.node.kv_used_bytes, "blue", { fill: true }), line("high water", history.node.kv_high_water_bytes, "red", { dash: true })],
        lines: [history.node.kv_total_bytes.findLast?.((value) => value !== null)].filter(Boolean).map((value) => ({ value, label: "all of it" })) },
    };
  }
  function drawCharts() {
    if (!history.t.length) return;
    const found = specs();
    if (!charts) {
      charts = {};
      for (const key of Object.keys(found)) charts[key] = tide.chart($("chart-" + key), found[key]);
    } else for (const key of Object.keys(found)) charts[key].update(found[key]);
  }

  /* --- showing ----------------------------------------------------------------------------------------------- */
  function show() {
    showSources(); showChoice(); showTiles(); showDecisions(); showModels(); showPool(); showRoutes(); showCalls();
    const stamp = since + "/" + chosen + "/" + last.decisions.length;
    if (stamp !== drawnStep) { drawnStep = stamp; drawCharts(); }
    $("age").textContent = "as of " + wall(last.now_unix_s) + (last.who && last.who !== "console" ? ", signed in as " + last.who : "");
  }
  function showSources() {
    redraw($("sources"), last.sources, () => last.sources.map((one) =>
      h("li", { title: one.error }, h("span", { className: "dot " + one.state }), one.name + (one.state === "ok" ? "" : " " + one.state), one.state === "down" ? h("span", { className: "soft" }, one.error.slice(0, 80)) : null)));
  }
  function showChoice() {
    const options = names();
    redraw($("model"), options, () => [h("option", { value: "" }, "all"), ...options.map((name) => h("option", { value: name }, name))]);
    $("model").value = chosen || "";
  }
  $("model").addEventListener("change", () => { chosen = $("model").value || null; show(); });
  const tail = (values) => (values.length ? values[values.length - 1] : null);
  function showTiles() {
    const mine = last.models.filter((one) => chosen === null || one.model === chosen);
    const add = (pick) => { const known = mine.map(pick).filter((v) => v !== null && v !== undefined); return known.length ? known.reduce((a, b) => a + b, 0) : null; };
    const most = (pick) => { const known = mine.map(pick).filter((v) => v !== null && v !== undefined); return known.length ? Math.max(...known) : null; };
    const calls = add((one) => one.calls.num), failed = add((one) => one.calls.failed);
    const tiles = [
      ["requests /s", rate(tail(sum("arrivals"))), "last 5 s"],
      ["in flight", count(add((one) => one.in_flight)), "now"],
      ["queue", count(add((one) => one.scaler?.queue ?? one.pending)), "now"],
      ["instances", count(add((one) => one.scaler?.ready)) + " / " + count(add((one) => one.scaler?.wanted)), "ready / wanted"],
      ["busiest", format(most((one) => one.scaler?.utilization ?? null), "ratio"), "utilisation"],
      ["TTFT p99", format(most((one) => one.calls.ttft_p99_s), "s"), chosen === null && mine.length > 1 ? "worst model, 5 min" : "last 5 min"],
      ["failed", count(failed), calls ? rate((100 * failed) / calls) + " % of " + count(calls) + ", 5 min" : "no calls in 5 min"],
    ];
    redraw($("tiles"), tiles, () => tiles.map(([label, value, note]) => h("div", {}, h("dt", {}, label), h("dd", { className: "value" }, value), h("dd", { className: "note" }, note))));
  }
  function showDecisions() {
    const found = last.decisions.filter((one) => chosen === null || one.model === chosen).slice(-100).reverse();
    const body = $("decisions").querySelector("tbody");
    $("decisions").querySelector("summary").textContent = found.length + (found.length === 1 ? " decision" : " decisions");
    redraw(body, found, () => found.map((one) => h("tr", {}, cell(wall(one.at_unix_s)), cell(one.model, "word"),
      cell(one.before === one.wanted ? one.wanted : one.before + " → " + one.wanted), h("td", { className: "long" }, one.reason, one.trouble ? h("div", { className: "bad" }, one.trouble) : null))));
  }
  function showModels() {
    $("models").caption.textContent = "Calls and times of the last " + last.window_s / 60 + " minutes.";
    rows("models", last.models, (one) => {
      const s = one.scaler, c = one.calls;
      const says = !s ? "not told" : [s.is_saturated ? "saturated" : "", s.paused ? "paused " + s.paused : "", s.override, s.last_error, s.decision].filter(Boolean).join("; ") || "–";
      return h("tr", {}, h("th", { scope: "row" }, one.model),
        h("td", {}, s ? count(s.ready) + " / " + count(s.wanted) + (s.starting ? " (+" + s.starting + ")" : "") : "–", s?.is_managed ? h("div", { className: "soft small" }, "of " + s.min + " … " + s.max) : null),
        cell(format(s?.utilization, "ratio")), cell(count(s?.queue ?? one.pending)), cell(count(one.in_flight)), cell(count(c.num)),
        cell(count(c.failed), c.failed ? "bad" : ""), cell(format(c.ttft_p50_s, "s") + " / " + format(c.ttft_p99_s, "s")), cell(format(c.latency_p50_s, "s") + " / " + format(c.latency_p99_s, "s")),
        cell(c.tokens_per_s ? rate(c.tokens_per_s) : "–"), h("td", { className: "long" + (s?.is_saturated || s?.last_error ? " bad" : "") }, says));
    }, "No model is known yet.");
  }

  /* --- the pool ---------------------------------------------------------------------------------------------- */
  const SHADE = { leased: 1, published: 0.72, cached: 0.34 }, COLUMNS = 48, SIDE = 14, GAP = 2;
  let map = null;
  function showPool() {
    const pool = last.pool;
    const words = pool === null ? "The node does not tell (" + (last.sources.find((one) => one.name === "node")?.error || "nothing heard yet") + ")."
      : format(pool.held_bytes, "bytes") + " held, " + format(pool.cached_bytes, "bytes") + " cached, of " + format(pool.total_bytes, "bytes")
        + (pool.high_water_bytes ? "; most in the last minute " + format(pool.high_water_bytes, "bytes") : "") + ".";
    if ($("pool-words").textContent !== words) $("pool-words").textContent = words;
    map = pool?.map || null;
    redraw($("map"), [map, matchMedia("(prefers-color-scheme: dark)").matches], () => { drawMap(); return []; });
    const shown = pool ? pool.models.flatMap((one) => [{ ...one, tenant: "" }, ...pool.tenants.filter((t) => t.model === one.model && t.tenant).map((t) => ({ model: one.model, tenant: t.tenant, held_bytes: t.leased_bytes, cached_bytes: t.published_bytes }))]) : [];
    rows("pool-models", shown, (one) => h("tr", {}, h("th", { scope: "row" }, one.tenant ? "" : one.model), cell(one.tenant || "all", "word"), cell(format(one.held_bytes, "bytes")),
      cell(format(one.cached_bytes, "bytes")), cell(one.limit_bytes ? format(one.limit_bytes, "bytes") : "–"), cell(count(one.num_refused))), "No model with a KV cache.");
    rows("instances", pool?.instances || [], (one) => h("tr", {}, h("th", { scope: "row" }, one.instance), cell(one.state, "word"), cell(one.in_flight + " / " + (one.cap || "–")), cell(one.running), cell(one.waiting), cell(one.preempted)), "No instance is attached.");
  }
  const poolModels = () => (last.pool?.models || []).map((one) => one.model);
  const colorOf = (model) => COLORS[Math.max(0, poolModels().indexOf(model)) % COLORS.length];
  function drawMap() {
    const canvas = $("map"), cells = map?.cells || [];
    canvas.hidden = !cells.length; $("map-legend").hidden = !cells.length;
    if (!cells.length) return;
    const step = SIDE + GAP, high = Math.ceil(cells.length / COLUMNS);
    canvas.width = COLUMNS * step - GAP; canvas.height = high * step - GAP;
    const ctx = canvas.getContext("2d"), css = getComputedStyle(document.documentElement);
    cells.forEach((kind, i) => {
      const found = kind < 0 ? null : map.kinds[kind];
      ctx.globalAlpha = found ? SHADE[found.state] ?? 1 : 1;
      ctx.fillStyle = css.getPropertyValue(found ? "--" + colorOf(found.model) : "--line");
      ctx.fillRect((i % COLUMNS) * step, Math.floor(i / COLUMNS) * step, SIDE, SIDE);
      if (found?.state === "published") { ctx.globalAlpha = 1; ctx.clearRect((i % COLUMNS) * step + 5, Math.floor(i / COLUMNS) * step + 5, 4, 4); }
    });
    ctx.globalAlpha = 1;
    const size = format(last.pool.total_bytes / cells.length, "bytes");
    $("map-legend").replaceChildren(...poolModels().map((model) => h("li", {}, h("span", { className: "swatch dots " + colorOf(model) }), model)),
      h("li", {}, "full: leased"), h("li", {}, "dotted: shared prefix"), h("li", {}, "pale: cached"), h("li", {}, "a square is " + size));
    const used = cells.filter((kind) => kind >= 0).length;
    canvas.setAttribute("aria-label", "Map of the KV arena: " + used + " of " + cells.length + " squares in use; the table below has the figures");
  }
  let at = -1;
  function tellCell(index) {
    at = index;
    const kind = map?.cells[index];
    if (kind === undefined) { $("map-at").textContent = ""; return; }
    const found = kind < 0 ? null : map.kinds[kind], offset = format((index * last.pool.total_bytes) / map.cells.length, "bytes");
    $("map-at").textContent = "at " + offset + ": " + (found ? found.model + ", " + found.state + (found.tenant ? ", tenant " + found.tenant : "") : "free");
  }
  $("map").addEventListener("mousemove", (event) => {
    const box = $("map").getBoundingClientRect(), high = Math.ceil((map?.cells.length || 0) / COLUMNS);
    tellCell(Math.floor(((event.clientY - box.top) / box.height) * high) * COLUMNS + Math.min(COLUMNS - 1, Math.floor(((event.clientX - box.left) / box.width) * COLUMNS)));
  });
  $("map").addEventListener("mouseleave", () => tellCell(-1));
  $("map").addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -COLUMNS, ArrowDown: COLUMNS }[event.key];
    if (step === undefined || !map) return;
    event.preventDefault();
    tellCell(Math.max(0, Math.min(map.cells.length - 1, (at < 0 ? -step : at) + step)));
  });

  /* --- routes ------------------------------------------------------------------------------------------------ */
  function showRoutes() {
    $("revision").textContent = last.routes.revision ? "revision " + last.routes.revision : "none set: every model is a service";
    redraw($("routes"), [last.routes, last.can_change], () => last.routes.services.map(routeCard));
  }
  function routeCard(route) {
    const button = route.can_roll_back && last.can_change
      ? h("button", { type: "button", className: "danger", onclick: () => confirmRollback(route) }, "Roll back to " + route.rollout.previous) : null;
    const share = h("div", { className: "share" });
    for (const version of route.versions) {
      const fill = h("div", { className: "fill" + (route.rollout?.next === version.name ? " next" : "") }), c = version.calls;
      fill.style.width = version.percent + "%";
      share.append(h("span", { className: "name" }, version.name), h("div", { className: "track" }, fill), h("span", { className: "percent" }, version.percent + " %"),
        h("span", { className: "did" }, c.num ? count(c.num) + " calls, " + count(c.failed) + " failed, TTFT p50 " + format(c.ttft_p50_s, "s") + ", p99 " + format(c.ttft_p99_s, "s") : "no calls in 5 min"));
    }
    return h("section", { className: "card" }, h("header", {}, h("h3", {}, route.service), button), share, ...route.rules.map((rule) => h("p", { className: "soft small" }, rule)));
  }
  let asked = null;
  function confirmRollback(route) {
    asked = { service: route.service, revision: last.routes.revision };
    $("confirm-title").textContent = "Roll " + route.service + " back?";
    $("confirm-text").textContent = "All new calls go to " + route.rollout.previous + " within a second. Answers that run are finished where they are. " + route.rollout.next + " stays in the routes at 0 %.";
    $("confirm-trouble").textContent = "";
    $("confirm-go").disabled = false;
    $("confirm").showModal();
  }
  $("confirm-go").addEventListener("click", async () => {
    $("confirm-go").disabled = true;
    try {
      const reply = await fetch("/console/rollback", { method: "POST", headers: { ...headers(), "content-type": "application/json" }, body: JSON.stringify(asked) });
      if (!reply.ok) throw new Error(await told(reply));
      $("confirm").close();
      ask();
    } catch (error) {
      $("confirm-trouble").textContent = error.message;
      $("confirm-go").disabled = false;
    }
  });

  /* --- calls ------------------------------------------------------------------------------------------------- */
  const serviceOf = (one) => one.service + (one.version && one.version !== one.service ? " / " + one.version : "");
  const traceOf = (one) => h("td", { className: "word" }, one.trace_id
    ? h("a", { href: "/console/trace/" + encodeURIComponent(one.trace_id) }, one.trace_id.slice(0, 8))
    : h("code", { title: "request id; this call was not traced" }, one.request_id.slice(0, 12)));
  function showCalls() {
    const { total, longest } = last.in_flight;
    $("in-flight-total").textContent = total > longest.length ? "the " + longest.length + " oldest of " + count(total) : "";
    rows("in-flight", longest, (one) => h("tr", {}, cell(format(one.age_s, "s")), cell(one.service, "word"), cell(one.version || "–", "word"), cell(one.tenant || "–", "word"),
      cell(one.state, "word"), cell(count(one.prompt_tokens)), cell(one.door, "word"), h("td", { className: "word" }, h("code", {}, one.request_id.slice(0, 12)))), "Nothing is in flight.");
    $("slowest").caption.textContent = "Until their first text, of the traced calls of the last " + last.window_s / 60 + " minutes; slow ones are traced, up to two a second.";
    rows("slowest", last.slowest, (one) => h("tr", {}, cell(wall(one.at_unix_s)), cell(serviceOf(one), "word"), cell(format(one.ttft_s, "s")), cell(format(one.queue_s, "s")),
      cell(format(one.duration_s, "s")), cell(count(one.prompt_tokens) + " / " + count(one.output_tokens)), cell(one.tenant || "–", "word"), traceOf(one)), "No call was traced.");
    rows("errors", last.errors, (one) => h("tr", {}, cell(wall(one.at_unix_s)), cell(serviceOf(one), "word"),
      cell(one.status), h("td", { className: "long" }, one.code ? one.code + ": " + one.text : one.text), cell(format(one.duration_s, "s")), cell(one.tenant || "–", "word"), traceOf(one)),
      "No call has failed since the gateway started.");
  }

  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => last && showPool());
  ask();
})();
