/* Our charts over uPlot: one description in, one plot with a legend that tells values, keyboard, zoom, dark mode.

   tide.chart(host, spec) -> {update(spec)}
   spec.x      "run" (seconds after t0), "wall" (unix seconds) or "percentile" (-log10(1 - p))
   spec.xs     numbers, ascending; spec.unit, spec.log of y; spec.top: y reaches at least this
   spec.series [{label, values, color, width, dash, dots, steps, unit, low, high, fill}]; null is a gap
   spec.lines  [{value, label, color}] across the plot; spec.marks [{x, text}] upright, told on hover
   spec.range  [from, to] of x when nothing is zoomed; spec.window [from, to]: what lies outside is shaded
   spec.sync   charts of one name share pointer and zoom */
"use strict";
const tide = (() => {
  const charts = new Set();
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const color = (name) => getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim() || name;
  const faint = (name, share) => color(name) + Math.round(share * 255).toString(16).padStart(2, "0");

  const digits = (value, n = 3) => Number(value.toPrecision(n));
  const SIZES = ["B", "KiB", "MiB", "GiB", "TiB"];
  function seconds(value) {
    const size = Math.abs(value);
    if (size === 0) return "0 s";
    if (size < 0.001) return digits(value * 1e6) + " µs";
    if (size < 1) return digits(value * 1e3) + " ms";
    return digits(value, size < 100 ? 3 : 4) + " s";
  }
  function bytes(value) {
    let step = 0;
    while (Math.abs(value) >= 1024 && step < SIZES.length - 1) { value /= 1024; step += 1; }
    return digits(value) + " " + SIZES[step];
  }
  function format(value, unit) {
    if (value === null || value === undefined || !Number.isFinite(value)) return "–";
    if (unit === "s") return seconds(value);
    if (unit === "bytes") return bytes(value);
    if (unit === "1/s") unit = "/s";
    if (unit === "ratio") return digits(value * 100) + " %";
    const plain = Math.abs(value) < 1000 ? String(digits(value)) : Math.round(value).toLocaleString("en");
    return unit ? plain + " " + unit : plain;
  }
  function clock(value) {
    const whole = Math.floor(value), part = value - whole;
    const tenths = part > 0.001 && part < 0.999 ? "." + Math.floor(part * 10) : "";
    return Math.floor(whole / 60) + ":" + String(whole % 60).padStart(2, "0") + tenths;
  }
  const wall = (value) => new Date(value * 1000).toLocaleTimeString("en-GB");
  const percentile = (value) => digits(100 * (1 - 10 ** -value), 2 + Math.max(1, Math.ceil(value + 0.001))) + " %";
  const moment = (value, kind) =>
    kind === "percentile" ? "p" + percentile(value).replace(" %", "") : kind === "wall" ? wall(value) : clock(value) + " min";

  const TICKS = [0, 0.5, 0.9, 0.99, 0.999, 0.9999, 0.99999, 0.999999];
  const percentileTicks = (u, axis, min, max) =>
    TICKS.map((p) => -Math.log10(1 - p)).filter((x) => x >= min - 1e-9 && x <= max + 1e-9);
  const WHOLE = [1, 2, 5].flatMap((step) => Array.from({ length: 12 }, (_, power) => step * 10 ** power)).sort((a, b) => a - b);
  function logTicks(u, axis, min, max) {
    const found = [], many = max / min > 2000;
    for (let power = Math.floor(Math.log10(min)); power <= Math.ceil(Math.log10(max)); power += 1)
      for (const step of many ? [1] : [1, 2, 5]) {
        const tick = step * 10 ** power;
        if (tick >= min && tick <= max) found.push(Number(tick.toPrecision(1)));
      }
    return found;
  }

  function build(self) {
    const { spec, plot } = self;
    const soft = color("soft"), grid = color("grid");
    const font = "12px system-ui, 'DejaVu Sans', sans-serif";
    const data = [spec.xs], series = [{}], bands = [];
    self.columns = [];
    for (const one of spec.series) {
      const hidden = self.hidden.has(one.label);
      self.columns.push(data.length);
      series.push({
        label: one.label, show: !hidden, spanGaps: false, scale: "y",
        stroke: one.dots ? "transparent" : color(one.color), width: one.width || 1.75,
        dash: one.dash ? [6, 4] : undefined, fill: one.fill ? faint(one.color, 0.14) : undefined,
        paths: one.steps ? uPlot.paths.stepped({ align: 1 }) : undefined,
        points: one.dots
          ? { show: true, size: 4, fill: color(one.color), stroke: color(one.color) } : { show: spec.xs.length < 3, size: 6 },
      });
      data.push(one.values);
      if (one.low && one.high) {
        for (const edge of [one.high, one.low]) {
          series.push({ show: !hidden, stroke: "transparent", width: 0, points: { show: false }, scale: "y" });
          data.push(edge);
        }
        bands.push({ series: [data.length - 2, data.length - 1], fill: faint(one.color, 0.2) });
      }
    }
    const isPercentile = spec.x === "percentile";
    const options = {
      width: Math.max(240, plot.clientWidth), height: plot.clientWidth < 480 ? 210 : spec.height || 240,
      series, bands, legend: { show: false }, padding: [10, 22, 0, 0],
      cursor: {
        drag: { x: true, y: false, setScale: true }, points: { size: 7 }, y: false,
        sync: spec.sync ? { key: spec.sync, setSeries: false, scales: ["x", null] } : undefined,
      },
      scales: {
        x: { time: false, range: (u, low, high) => (low === spec.xs[0] && high === spec.xs[spec.xs.length - 1] ? fullRange(spec) : [low, high]) },
        y: {
          distr: spec.log ? 3 : 1,
          range: (u, low, high) => {
            const tops = (spec.lines || []).map((line) => line.value);
            if (spec.top !== undefined) tops.push(spec.top);
            const most = Math.max(high ?? 0, ...tops);
            if (!spec.log) return [Math.min(0, low ?? 0), most > 0 ? most * 1.06 : 1];
            if (low === null || !(most > 0)) return [0.001, 1];
            return [low / 1.2, most * 1.25];
          },
        },
      },
      axes: [
        {
          stroke: soft, font, grid: { stroke: grid, width: 1 }, ticks: { stroke: grid, width: 1, size: 4 }, size: 30,
          values: (u, ticks, axis, space, incr) =>
            ticks.map((v) => isPercentile ? percentile(v) : spec.x === "wall" ? wall(v).slice(0, incr < 60 ? 8 : 5) : clock(v)),
          splits: isPercentile ? percentileTicks : undefined, space: isPercentile ? 30 : 70,
          incrs: isPercentile ? undefined : [0.1, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200],
        },
        {
          stroke: soft, font, grid: { stroke: grid, width: 1 }, ticks: { show: false }, size: 64, gap: 6,
          values: (u, ticks) => ticks.map((v) => (v === null ? "" : format(v, spec.unit))),
          incrs: spec.unit === "" ? WHOLE : undefined, splits: spec.log ? logTicks : undefined, filter: spec.log ? (u, ticks) => ticks : undefined,
        },
      ],
      hooks: {
        drawAxes: [(u) => shade(u, spec)],
        draw: [(u) => { drawLines(u, spec, font); drawMarks(u, spec); }],
        setCursor: [(u) => tell(self, u)],
      },
    };
    self.u?.destroy();
    self.u = new uPlot(options, data, plot);
    tell(self, self.u);
  }

  function shade(u, spec) {
    if (!spec.window) return;
    const { left, top, width, height } = u.bbox;
    const clip = (x) => Math.min(left + width, Math.max(left, u.valToPos(x, "x", true)));
    u.ctx.fillStyle = color("shade");
    u.ctx.fillRect(left, top, clip(spec.window[0]) - left, height);
    const end = clip(spec.window[1]);
    u.ctx.fillRect(end, top, left + width - end, height);
  }
  function drawLines(u, spec, font) {
    const { left, top, width, height } = u.bbox, ratio = devicePixelRatio;
    for (const [number, line] of (spec.lines || []).entries()) {
      const isLeft = number % 2 === 1;
      const y = u.valToPos(line.value, "y", true);
      if (y < top || y > top + height) continue;
      u.ctx.save();
      u.ctx.strokeStyle = u.ctx.fillStyle = color(line.color || "red");
      u.ctx.lineWidth = 1.5 * ratio;
      u.ctx.setLineDash([7 * ratio, 4 * ratio]);
      u.ctx.beginPath(); u.ctx.moveTo(left, y); u.ctx.lineTo(left + width, y); u.ctx.stroke();
      u.ctx.font = font.replace("12px", 11 * ratio + "px");
      u.ctx.textAlign = isLeft ? "left" : "right";
      u.ctx.textBaseline = y - top < 16 * ratio ? "top" : "bottom";
      u.ctx.fillText(line.label, isLeft ? left + 4 * ratio : left + width - 4 * ratio, y + (u.ctx.textBaseline === "top" ? 3 : -3) * ratio);
      u.ctx.restore();
    }
  }
  function drawMarks(u, spec) {
    const { left, top, width, height } = u.bbox, ratio = devicePixelRatio;
    u.ctx.save();
    u.ctx.strokeStyle = u.ctx.fillStyle = color("violet");
    u.ctx.lineWidth = ratio;
    for (const mark of spec.marks || []) {
      const x = u.valToPos(mark.x, "x", true);
      if (x < left || x > left + width) continue;
      u.ctx.setLineDash([3 * ratio, 3 * ratio]);
      u.ctx.beginPath(); u.ctx.moveTo(x, top); u.ctx.lineTo(x, top + height); u.ctx.stroke();
      const r = 4 * ratio;
      u.ctx.beginPath(); u.ctx.moveTo(x - r, top); u.ctx.lineTo(x + r, top); u.ctx.lineTo(x, top + 1.6 * r); u.ctx.fill();
    }
    u.ctx.restore();
  }

  function tell(self, u) {
    const { spec, buttons, momentText, tip } = self, index = u.cursor.idx;
    const inside = index !== null && index !== undefined && u.cursor.left >= 0;
    momentText.textContent = inside ? "at " + moment(spec.xs[index], spec.x) : "";
    spec.series.forEach((one, i) => {
      let value = inside ? format(one.values[index], one.unit || spec.unit) : "";
      if (inside && one.low && one.low[index] !== null && one.high[index] !== null)
        value += ` (${format(one.low[index], spec.unit)} … ${format(one.high[index], spec.unit)})`;
      buttons[i].querySelector("b").textContent = value;
    });
    const near = inside
      ? (spec.marks || []).filter((mark) => Math.abs(u.valToPos(mark.x, "x") - u.cursor.left) < 7) : [];
    tip.hidden = near.length === 0;
    if (near.length) {
      tip.textContent = near.slice(0, 6).map((mark) => mark.text).join("\n");
      const room = self.plot.clientWidth, at = u.cursor.left + 64;
      tip.style.top = "14px";
      tip.style.left = Math.max(4, Math.min(at + 10, room - tip.offsetWidth - 4)) + "px";
    }
  }

  function legend(self) {
    const { spec, legendHost } = self;
    self.momentText = document.createElement("span");
    self.momentText.className = "moment";
    self.buttons = spec.series.map((one, i) => {
      const button = document.createElement("button");
      button.type = "button";
      button.setAttribute("aria-pressed", String(!self.hidden.has(one.label)));
      const swatch = document.createElement("span"), name = document.createElement("span");
      swatch.className = "swatch " + one.color + (one.dash ? " dash" : one.dots ? " dots" : "");
      name.textContent = one.label;
      button.append(swatch, name, document.createElement("b"));
      button.addEventListener("click", () => {
        self.hidden.has(one.label) ? self.hidden.delete(one.label) : self.hidden.add(one.label);
        button.setAttribute("aria-pressed", String(!self.hidden.has(one.label)));
        build(self);
      });
      return button;
    });
    legendHost.replaceChildren(...self.buttons, self.momentText);
  }

  const fullRange = (spec) => spec.range || [spec.xs[0], spec.xs[spec.xs.length - 1]];
  function zoom(self, min, max) {
    for (const other of charts)
      if (other === self || (self.spec.sync && other.spec.sync === self.spec.sync)) other.u.setScale("x", { min, max });
  }
  function onKey(self, event) {
    const { u, spec } = self, { min, max } = u.scales.x, last = spec.xs.length - 1;
    const now = u.cursor.idx ?? 0, center = spec.xs[now], step = event.shiftKey ? 10 : 1;
    const goTo = (i) => u.setCursor({ left: u.valToPos(spec.xs[Math.max(0, Math.min(last, i))], "x"), top: 10 }, true, true);
    if (event.key === "ArrowLeft") goTo(now - step);
    else if (event.key === "ArrowRight") goTo(now + step);
    else if (event.key === "Home") goTo(0);
    else if (event.key === "End") goTo(last);
    else if (event.key === "+") zoom(self, center - (center - min) / 2, center + (max - center) / 2);
    else if (event.key === "-" || event.key === "Escape") zoom(self, ...fullRange(spec));
    else return;
    event.preventDefault();
  }

  function chart(host, spec) {
    const legendHost = document.createElement("div"), plot = document.createElement("div"), tip = document.createElement("div");
    legendHost.className = "legend"; plot.className = "plot"; tip.className = "tip"; tip.hidden = true;
    plot.tabIndex = 0;
    plot.setAttribute("role", "img");
    plot.setAttribute("aria-label", spec.title + ". Arrow keys read values, + zooms, Escape shows all; the figures are in the table below.");
    host.append(legendHost, plot);
    plot.append(tip);
    const self = { spec, host, legendHost, plot, tip, hidden: new Set(), u: null, width: 0 };
    charts.add(self);
    legend(self);
    build(self);
    plot.addEventListener("keydown", (event) => onKey(self, event));
    plot.addEventListener("blur", () => self.u.setCursor({ left: -10, top: -10 }, true, true));
    new ResizeObserver(() => {
      if (plot.clientWidth && plot.clientWidth !== self.width) { self.width = plot.clientWidth; build(self); }
    }).observe(plot);
    return { update(next) { const same = next.series.length === self.spec.series.length; self.spec = next; if (!same) legend(self); build(self); } };
  }

  const rebuild = () => { for (const one of charts) build(one); };
  dark.addEventListener("change", rebuild);
  addEventListener("beforeprint", () => { document.documentElement.dataset.theme = "light"; rebuild(); });
  addEventListener("afterprint", () => { delete document.documentElement.dataset.theme; rebuild(); });
  return { chart, format, clock };
})();
