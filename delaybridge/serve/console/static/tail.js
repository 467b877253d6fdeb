// Tail: events as they happen. Rows are made four times a second, and never more than can be read.
"use strict";
(() => {
  const ROWS = 1000, EVERY_MS = 250, AT_ONCE = 50, find = page.find;
  let unheard = null, waiting = [], ready = [], sampled = 0, arrived = 0, counts = [], held = false, number = 0, table;

  const cell = (row, text, name) => { const it = row.insertCell(); it.textContent = text; if (name) it.className = name; return it; };
  const linked = (place, path, value) => {
    const link = document.createElement("a");
    link.href = `${page.base}/${path}/${encodeURIComponent(value).replaceAll("~", "%7E")}`;
    link.textContent = value;
    place.append(link);
  };
  const rowOf = told => {
    const row = document.createElement("tr");
    cell(row, told.time.slice(11, 23), "nowrap mono");
    cell(row, told.worker, "wide");
    cell(row, told.event, `nowrap ${{ warning: "warn", error: "bad" }[told.level] ?? ""}`);
    const what = cell(row, "");
    for (const [name, value] of Object.entries(told.fields)) {
      what.append(`${what.childNodes.length ? "  " : ""}${name}=`);
      if (name === "id" && typeof value === "string") linked(what, "messages", value);
      else what.append(Array.isArray(value) ? value.join(",") : String(value));
    }
    return row;
  };
  const gap = text => take({ time: new Date(page.now()).toISOString(), worker: "", level: "warning", event: "gap", fields: { reason: text } });

  const take = told => {
    arrived += 1;
    waiting.push(told);
    if (waiting.length > 2 * ROWS) waiting = waiting.slice(-ROWS);
  };

  const flush = () => {
    counts = [...counts, arrived].slice(-1000 / EVERY_MS * 4);
    arrived = 0;
    find("#per-second").textContent = page.number(counts.reduce((a, b) => a + b, 0) / (counts.length * EVERY_MS / 1000));
    find("#held").textContent = held && waiting.length ? page.fill(find("#held").dataset.text, page.number(waiting.length)) : "";
    if (held) return;
    // A second's events come at once. They are spread over it; what is too much is left out, and said.
    const nth = Math.max(1, Math.ceil((waiting.length + ready.length) / (4 * AT_ONCE)));
    ready.push(...nth > 1 ? waiting.filter(told => told.event === "gap" || number++ % nth === 0) : waiting);
    waiting = [];
    if (nth > 1) { sampled = 12; find("#sampled").textContent = page.fill(find("#sampled").dataset.text, nth); }
    else if (sampled && !--sampled) find("#sampled").textContent = "";
    if (!ready.length) return;
    const body = table.tBodies[0];
    body.prepend(...ready.splice(0, AT_ONCE).reverse().map(rowOf));
    while (body.rows.length > ROWS) body.deleteRow(-1);
    find("#quiet").hidden = true;
  };

  const stop = () => { unheard?.(); unheard = null; };
  const listen = () => {
    if (unheard || document.hidden) return;
    unheard = page.stream(table.dataset.path, [...table.dataset.names.split(","), "gap"], (name, text) => {
      if (name === "lost" || name === "taken") return gap(table.dataset.lost);
      if (name === "refused") { stop(); return setTimeout(listen, 3000); }
      const told = JSON.parse(text);
      name === "gap" ? gap(told.reason) : take(told);
    });
  };

  document.addEventListener("DOMContentLoaded", () => {
    table = find("#t-tail");
    const button = find("#hold");
    button.addEventListener("click", () => { held = !held; button.textContent = held ? button.dataset.go : button.dataset.hold; flush(); });
    find("#clear").addEventListener("click", () => { waiting = []; ready = []; table.tBodies[0].replaceChildren(); });
    document.addEventListener("visibilitychange", () => { if (document.hidden) { stop(); gap(table.dataset.missed); } else listen(); });
    addEventListener("pagehide", stop);
    addEventListener("pageshow", event => { if (event.persisted) { gap(table.dataset.missed); listen(); } });
    setInterval(flush, EVERY_MS);
    listen();
  });
})();
