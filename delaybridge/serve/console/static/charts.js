// Charts: what a page marks with data-chart, drawn by uPlot in the colours of the page.
// Other scripts register further kinds: charts.kinds[name] = element => chart.
"use strict";
const charts = (() => {
  const root = document.documentElement, base = root.dataset.base;
  const color = name => getComputedStyle(root).getPropertyValue(name).trim();
  const made = new Map(), kinds = {}, REPEATED = 5;  // seconds that each tick has

  const brief = value => {
    if (value == null) return "";
    const size = Math.abs(value);
    if (size >= 1e9) return +(value / 1e9).toPrecision(3) + "G";
    if (size >= 1e6) return +(value / 1e6).toPrecision(3) + "M";
    if (size >= 1e4) return +(value / 1e3).toPrecision(3) + "k";
    return String(+value.toPrecision(3));
  };

  const iso = s => new Date(s * 1000).toISOString();
  const moments = (_, all, __, ___, step) => all.map(s => step < 60 ? iso(s).slice(11, 19) : step < 86400 ? iso(s).slice(11, 16) : iso(s).slice(5, 10));

  const axis = (more = {}) => ({
    stroke: color("--soft"), font: `12px ${getComputedStyle(document.body).fontFamily}`,
    grid: { stroke: color("--faint"), width: 1 }, ticks: { show: false }, ...more,
  });

  const height = element => element.matches(".tall") ? 280 : element.matches(".short") ? 120 : 165;
  // Bars begin at their x: the last one needs room of its own, and whoever points at the right half of one means it, too.
  const columns = (plot, low, high) => [low, high + (plot.data[0].at(-1) - plot.data[0].at(-2) || 1)];
  const under = (plot, _, nearest, x) => nearest > 0 && plot.data[0][nearest] > x ? nearest - 1 : nearest;
  const ofBars = own => own.series.some(one => one.isBar)
    ? { cursor: { y: false, points: { size: 6 }, dataIdx: under, ...own.cursor }, scales: { ...own.scales, x: { range: columns, ...own.scales?.x } } } : {};

  // An axis of amounts ends above the highest, at a number that it shows. isWhole: they are counts, of which there are no
  // parts. most: the highest, if uPlot does not see it.
  const upright = (isWhole = true, most = (_, __, high) => high ?? 0) => ({
    scales: { y: { range: (...seen) => {
      const [plot] = seen, high = most(...seen), least = Math.max(high, isWhole ? 1 : 1e-3) / Math.max(2, Math.round(plot.height / 45)), power = 10 ** Math.floor(Math.log10(least));
      plot.step = Math.max([1, 2, 5, 10].find(n => n * power >= least) * power, isWhole ? 1 : 0);
      return [0, plot.step * (Math.floor(high / plot.step) + 1)];
    } } },
    axes: [axis({ values: moments, space: 70, size: 30 }), axis({ size: 46, values: (_, all) => all.map(brief), splits: (plot, _, __, top) => Array.from({ length: Math.round(top / plot.step) + 1 }, (_, n) => n * plot.step) })],
  });
  // One of powers of ten: a hundred and a million are both seen. It ends at the power above the highest.
  const powers = (_, all) => all.map(v => Math.abs(Math.log10(v) - Math.round(Math.log10(v))) < 1e-9 ? v : null);
  const above = value => { let top = 1; while (top <= value) top *= 10; return top; };
  const logarithmic = (low, least, most = (_, __, high) => high ?? 0) => ({
    scales: { y: { distr: 3, range: (...seen) => [low, above(Math.max(least, most(...seen)))] } },
    axes: [axis({ values: moments, space: 70, size: 30 }), axis({ size: 46, grid: { stroke: color("--faint"), filter: powers }, filter: powers, values: (_, all) => all.map(brief) })],
  });

  const options = (element, own) => ({
    width: element.clientWidth, height: height(element), padding: [8, 30, 0, 0], tzDate: s => uPlot.tzDate(new Date(s * 1e3), "Etc/UTC"),
    cursor: { y: false, points: { size: 6 } }, legend: { show: true, live: true },
    ...own, ...ofBars(own),
  });

  const line = (label, name, more = {}) => ({
    label, stroke: color(name), width: 1.5, points: { show: false }, spanGaps: false,
    value: (_, value) => value == null ? "–" : brief(value), ...more,
  });

  const bars = (label, name, more = {}) => line(label, name, {
    isBar: true, fill: color(name), width: 0, paths: uPlot.paths.bars({ size: [0.86, 60], align: 1 }), ...more,
  });

  // Bars, or lines, that stand on each other: the whole is drawn first, its parts over it. parts: rows of numbers, the lowest first.
  // say: a number as the legend has it. The chart keeps the parts: what is drawn are sums.
  const stacked = (names, parts, colors, say = brief, drawn = bars) => ({
    data: parts.map((_, n) => parts[0].map((whole, i) => whole == null ? null : parts.slice(0, n + 1).reduce((sum, part) => sum + (part[i] ?? 0), 0))).reverse(),
    series: parts.map((_, n) => drawn(names[n], colors[n], {
      value: (plot, _, __, i) => i == null ? "" : say(plot.parts?.[n]?.[i], i),
    })).reverse(),
  });

  // While nobody points at it, the legend has the latest values.
  const latest = plot => {
    if (plot.cursor.idx != null) return;
    const idx = plot.data[1].findLastIndex(value => value != null);
    if (idx >= 0 && plot.legend.idx !== idx) plot.setLegend({ idx }, false);
  };

  const draw = (element, own, data, parts) => {
    made.get(element)?.destroy();
    element.replaceChildren();
    const plot = Object.assign(new uPlot(options(element, own), data, element), { parts });
    made.set(element, plot);
    return plot;
  };

  const get = async path => {
    const answer = await fetch(base + path, { headers: { accept: "application/json" } });
    if (!answer.ok) throw new Error((await answer.json()).detail ?? answer.status);
    return answer.json();
  };

  // a series of the past: points by second, minute or half hour, with the newest added by ticks
  const series = new Map();
  const past = (step, points) => {
    if (!series.has(step)) series.set(step, get(`/v1/series?step=${step}`).catch(problem => { series.delete(step); throw problem; }));
    return series.get(step).then(found => {
      found.points = found.points.slice(-61);
      // Workers report a second within the next one: the newest is not whole, and not drawn.
      const whole = step === "1s" ? { now_ms: found.now_ms - found.step_ms, points: found.points.slice(0, -1) } : found;
      return { ...found, ...whole, points: whole.points.slice(-points) };
    });
  };
  const times = found => {
    const last = Math.floor(found.now_ms / found.step_ms) * found.step_ms;
    return found.points.map((point, i) => (last - (found.points.length - i) * found.step_ms) / 1000);
  };
  const perSecond = (found, name) => found.points.map(p => p && (p.counts[name] ?? 0) / (found.step_ms / 1000));

  const lines = (element, shown) => past(element.dataset.step, +element.dataset.points).then(found => {
    const { data, series: list, parts, ...own } = shown(found);
    const before = made.get(element);
    if (before && before.series.length === data.length) { before.parts = parts; before.setData(data); }
    else draw(element, { series: [{ label: " ", value: "{HH}:{mm}:{ss}" }, ...list], hooks: { setLegend: [latest], setData: [latest], ready: [latest] }, ...own }, data, parts);
  });

  kinds.rates = element => lines(element, found => ({
    data: [times(found), ...["scheduled", "published", "retried", "buried"].map(n => perSecond(found, n))],
    series: [line(t("scheduled"), "--c2"), line(t("published"), "--c1", { width: 2 }), line(t("retried"), "--c4"), line(t("buried"), "--c3")],
    ...upright(found.step_ms === 1000),
  }));

  kinds.lateness = element => lines(element, found => ({
    data: [times(found), ...["p50_ms", "p99_ms", "max_ms"].map(n => found.points.map(p => p?.lateness ? Math.max(p.lateness[n], 0.1) : null))],
    series: [line(t("median"), "--c1", { width: 2 }), line(t("slowest1"), "--c4"), line(t("slowest"), "--c2")],
    ...logarithmic(0.1, 10),
  }));

  const area = (label, name, more) => line(label, name, { fill: `color-mix(in srgb, ${color(name)} 35%, ${color("--paper")})`, ...more });
  kinds.states = element => lines(element, found => {
    const parts = ["dead", "parked", "in_flight", "delayed"].map(state => found.points.map(p => p?.states?.[state] ?? null));
    const { data, series: list } = stacked([t("dead"), t("parked"), t("in_flight"), t("delayed")], parts, ["--c3", "--c4", "--c2", "--c1"], brief, area);
    return { data: [times(found), ...data], series: list, parts, ...upright() };
  });

  kinds.minute = element => {
    const counts = now.minute ?? [], x = counts.map((_, i) => i * 60 / counts.length);
    const before = made.get(element);
    if (before) return before.setData([x, counts]);
    const { scales, axes } = upright();
    return draw(element, {
      legend: { show: false }, scales: { x: { time: false }, ...scales }, axes: [axis({ size: 30, values: (_, all) => all.map(v => v + " s") }), axes[1]],
      series: [{}, bars(t("due"), "--c1")],
    }, [x, counts]);
  };

  // A number of each bucket.
  const byBucket = (element, counts) => {
    const x = counts.map((_, i) => i), before = made.get(element), whole = (_, all) => all.map(v => Number.isInteger(v) ? brief(v) : "");
    if (before && before.data[0].length === x.length) return before.setData([x, counts]);
    const { scales, axes } = upright();
    return draw(element, {
      legend: { show: false }, scales: { x: { time: false, range: [-0.6, x.length - 0.4] }, ...scales },
      axes: [axis({ size: 24, incrs: [1, 2, 4, 8, 16, 64, 256], values: whole }), axes[1]],
      series: [{}, bars(element.dataset.label, "--c1", { isBar: false, paths: uPlot.paths.bars({ size: [0.7, 40] }) })],
    }, [x, counts]);
  };
  kinds.sizes = element => now.at && byBucket(element, now.at.sizes);

  // One count of the past in bars; data-destination: of this exchange, topic or broker only.
  kinds.counted = element => lines(element, found => {
    const { count, destination, label } = element.dataset;
    const isOf = name => name === destination || name.startsWith(`${destination}:`) && !destination.includes(":");
    const sum = p => Object.entries(p.destinations).reduce((all, [name, counts]) => all + (isOf(name) && counts[count] || 0), 0);
    const values = found.points.map(p => p && (destination ? sum(p) : p.counts[count] ?? 0));
    return { legend: { show: false }, data: [times(found), values], series: [bars(label ?? count, "--c1")], ...upright() };
  });

  // What was given up, by reason: those that were most of it, and all others.
  kinds.reasons = element => past(element.dataset.step, +element.dataset.points).then(found => {
    const of = name => found.points.map(p => p && (p.counts[name] ?? 0)), sum = values => values.reduce((a, b) => a + (b ?? 0), 0);
    const named = [...new Set(found.points.flatMap(p => Object.keys(p?.counts ?? {})))].filter(name => name.startsWith("buried "));
    const most = named.sort((a, b) => sum(of(b)) - sum(of(a)) || (a < b ? -1 : 1)).slice(0, 3), all = of("buried"), parts = most.map(of);
    const rest = all.map((n, i) => n && Math.max(0, n - sum(parts.map(part => part[i]))));
    if (sum(rest) || !most.length) { parts.push(rest); most.push(`buried ${most.length ? element.dataset.others : element.dataset.label}`); }
    const { data, series: list } = stacked(most.map(name => name.slice(7)), parts, ["--c3", "--c4", "--c6", "--c2"]);
    const drawn = made.get(element), names = most.join();
    if (drawn?.names === names) { drawn.parts = parts; return drawn.setData([times(found), ...data]); }
    return Object.assign(draw(element, { series: [{ label: " ", value: (_, s) => s == null ? "" : iso(s).slice(11, 16) }, ...list], ...upright() }, [times(found), ...data]), { parts, names });
  });

  // What falls due for one destination in the coming hour.
  kinds.ahead = async element => {
    const { destination, label } = element.dataset;
    if (Date.now() - (element.dataset.drawn ?? 0) < 5000) return;
    element.dataset.drawn = Date.now();
    const found = await get(`/v1/horizon?span=1h&step=1m&destination=${encodeURIComponent(destination)}`);
    const cells = found.cells.slice(1), data = [cells.map(c => c.from_ms / 1000), cells.map(c => c.messages)];
    const before = made.get(element);
    return before ? before.setData(data) : draw(element, { legend: { show: false }, series: [{}, bars(label, "--c1")], ...upright() }, data);
  };

  const words = JSON.parse(document.getElementById("words")?.textContent ?? "{}");
  const t = name => words[name] ?? name;
  const now = { minute: null };

  // A chart that cannot be brought up to date stays as it is.
  const redraw = async element => {
    try { await kinds[element.dataset.chart]?.(element); }
    catch (problem) {
      delete element.dataset.drawn;
      if (!made.has(element)) element.textContent = problem.message;
    }
  };
  const all = () => document.querySelectorAll("[data-chart]");
  const anew = () => {
    for (const [element, plot] of made) { plot.destroy(); made.delete(element); delete element.dataset.drawn; }
    all().forEach(redraw);
  };

  // the newest points of the past, and the numbers of now
  const tick = async data => {
    now.at = data;
    now.minute = data.minute;
    const seconds = series.has("1s") && await series.get("1s").catch(() => null);
    if (seconds) {
      const at = ms => Math.floor(ms / 1000), moved = at(data.now_ms) - at(seconds.now_ms);
      if (moved > REPEATED) series.delete("1s");  // the page was hidden, or Redis away
      for (let i = 0; i < Math.min(moved, 60); i++) seconds.points.push(null);
      seconds.now_ms = Math.max(seconds.now_ms, data.now_ms);
      for (const point of data.points) {
        const index = seconds.points.length - (at(seconds.now_ms) - at(point.from_ms));
        if (index >= 0 && index < seconds.points.length) seconds.points[index] = point;
      }
      seconds.points = seconds.points.slice(-61);
    }
    for (const element of all()) if (!element.dataset.step || element.dataset.step === "1s") redraw(element);
    if (data.now_ms - last > 30000) { last = data.now_ms; for (const step of ["1m", "30m"]) { series.delete(step); all().forEach(e => e.dataset.step === step && redraw(e)); } }
  };
  let last = 0;

  addEventListener("resize", () => {
    for (const [element, plot] of made) plot.setSize({ width: element.clientWidth, height: height(element) });
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", anew);
  document.addEventListener("DOMContentLoaded", () => all().forEach(redraw));
  return { kinds, made, draw, line, bars, stacked, byBucket, latest, axis, moments, upright, logarithmic, color, brief, get, tick, anew, redraw, now, t };
})();
