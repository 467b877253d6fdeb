// The bars of the horizon: drag to zoom, click for the messages.
"use strict";
(() => {
  const cells = () => JSON.parse(document.getElementById("cells").textContent);
  const query = given => new URLSearchParams(Object.entries(given).filter(([, value]) => value !== "" && value != null));
  let drag = null, drawn = "", going;

  charts.kinds.horizon = element => {
    if (drag) return;
    const text = document.getElementById("cells").textContent, before = charts.made.get(element);
    if (before && text === drawn) return;
    drawn = text;
    // The first cell is the rest of its step: its bar is as wide as the others, and begins before the axis.
    const all = cells(), x = all.map((c, i) => (i ? c[0] : c[1] - element.dataset.width) / 1000);
    const names = JSON.parse(document.getElementById("cells").dataset.names), rest = c => c[2] - c[4].reduce((a, b) => a + b, 0);
    const parts = names.length ? names.map((_, n) => all.map(c => c[4][n] ?? rest(c))) : [all.map(c => c[2])];
    const said = names.length ? names.map(name => name || element.dataset.others) : [element.dataset.label];
    const colors = names.length ? names.map((name, n) => name ? ["--c1", "--c5", "--c6"][n] : "--c2") : ["--c1"];
    const { data, series } = charts.stacked(said, parts, colors, (value, i) => value == null ? "" : `${names.length && "shared" in document.getElementById("cells").dataset || cells()[i]?.[3] ? "~" : ""}${page.number(value)}`,
      (label, name, more) => charts.bars(label, name, { ...more, paths: uPlot.paths.bars({ size: [1], gap: 2, align: 1 }) }));
    const isLog = element.dataset.scale === "log", drawnRows = isLog ? data.map(row => row.map(n => n || null)) : data;
    const most = () => Math.max(...cells().map(c => c[2]));  // the first bar begins before the axis
    if (before?.names === names.join()) { before.parts = parts; return before.setData([x, ...drawnRows]); }
    const { scales, axes } = isLog ? charts.logarithmic(0.5, 9, most) : charts.upright(true, most);
    const plot = charts.draw(element, {
      legend: { show: true }, cursor: { y: false, points: { show: false }, drag: { x: true, y: false, setScale: false } },
      scales: { x: { range: () => { const now = cells(); return [now[0][0] / 1000, now.at(-1)[1] / 1000]; } }, ...scales }, axes,
      series: [{ label: " ", value: (_, __, ___, i) => i == null || !cells()[i] ? "" : new Date(cells()[i][0]).toISOString().slice(0, 19).replace("T", " ") }, ...series],
    }, [x, ...drawnRows]);
    Object.assign(plot, { names: names.join(), parts });
    plot.over.addEventListener("mousedown", event => { if (!event.button) drag = { plot, element, from: event.offsetX }; });
    // A double click leads out: a click waits that long for its second.
    plot.over.addEventListener("dblclick", () => { clearTimeout(going); page.find("[data-hotkey='-']").click(); });
    return plot;
  };

  // The end of a drag, wherever it is: a span to zoom into, or a bar.
  addEventListener("mouseup", event => {
    if (!drag) return;
    const { plot, element, from } = drag, rect = plot.over.getBoundingClientRect(), to = Math.min(Math.max(event.clientX - rect.left, 0), rect.width);
    drag = null;
    const at = x => Math.round(plot.posToVal(x, "x") * 1000), { destination, scale } = element.dataset;
    if (Math.abs(to - from) >= 5) {
      const [low, high] = [at(Math.min(from, to)), at(Math.max(from, to))];
      location.href = `${element.dataset.page}?${query({ from_ms: low, to_ms: Math.max(high, low + 1000), destination, scale })}`;
      return;
    }
    const cell = cells().find(c => c[0] <= at(to) && at(to) < c[1]);
    clearTimeout(going);
    if (cell) going = setTimeout(() => { location.href = `${element.dataset.link}?${query({ due_from_ms: cell[0], due_to_ms: cell[1] - 1, destination })}`; }, 300);
  });

  // Per second on both sides of now: what was published, and what is due.
  charts.kinds.expected = async element => {
    const found = await charts.get(`/v1/series?step=${element.dataset.step}`), step = found.step_ms / 1000, { destination } = element.dataset;
    const unread = step === 1 ? 1 : 0, points = found.points.slice(0, found.points.length - unread);  // as in charts.past
    const last = Math.floor(found.now_ms / found.step_ms) * step - unread, count = points.length;
    const past = points.map((p, i) => [last - (count - i) * step, p && ((destination ? p.destinations[destination] : p.counts)?.published ?? 0) / step, null]);
    const future = cells().map(c => [c[0] / 1000, null, c[2] / Math.max(1, (c[1] - c[0]) / 1000)]);
    const rows = [...past.filter(row => row[0] < future[0][0]), ...future], data = [0, 1, 2].map(i => rows.map(row => row[i]));
    const before = charts.made.get(element);
    if (before) return before.setData(data);
    const steps = uPlot.paths.stepped({ align: 1 });
    return charts.draw(element, {
      ...charts.upright(false),
      series: [{ label: " ", value: "{HH}:{mm}:{ss}" }, charts.line(element.dataset.actual, "--c5", { width: 2 }), charts.line(element.dataset.expected, "--c1", { paths: steps, fill: charts.color("--faint") })],
      hooks: { setLegend: [charts.latest], setData: [charts.latest], ready: [charts.latest], draw: [plot => {
        const x = Math.round(plot.valToPos(page.now() / 1000, "x", true)), { ctx, bbox } = plot;
        ctx.save();
        ctx.strokeStyle = charts.color("--soft");
        ctx.setLineDash([3, 3]);
        ctx.beginPath();
        ctx.moveTo(x, bbox.top);
        ctx.lineTo(x, bbox.top + bbox.height);
        ctx.stroke();
        ctx.restore();
      }] },
    }, data);
  };

  // What is moved is the span that is shown, also when that has gone on with the time.
  document.addEventListener("htmx:after:swap", () => {
    const move = document.getElementById("move");
    if (move) move.dataset.filter = document.getElementById("cells").dataset.filter;
    document.querySelectorAll("[data-chart=horizon], [data-chart=expected]").forEach(charts.redraw);
  });
})();
