// Tail: messages and other events as they happen. A line that names messages is a row for each of them. Rows are made
// four times a second, and never more than can be read: about 50 a second.
"use strict";
(() => {
  const ROWS = 1000, EVERY_MS = 250, AT_ONCE = 15, LATELY = 12, find = page.find;
  let unheard = null, waiting = [], ready = [], arrived = 0, counts = [], lately = [], held = false, number = 0, table;

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
    const message = cell(row, "", "id");
    if (told.id != null) linked(message, "messages", told.id);
    cell(row, Object.entries(told.fields).map(([name, value]) => `${name}=${Array.isArray(value) ? value.join(",") : value}`).join("  "));
    return row;
  };
  const own = (event, level, fields) => take({ time: new Date(page.now()).toISOString(), worker: "", level, event, fields });
  const gap = reason => own("events_missing", "warning", { reason });

  // of: how many messages a row stands for. alone: it is the only row of its line, and is left out last.
  const take = told => {
    const { ids, n, ...fields } = told.fields, row = { ...told, of: 1, alone: true };
    if (!ids) waiting.push(row);
    else {
      if (n > 1) delete fields.lateness_ms;  // of the latest of them
      waiting.push(...ids.map(id => ({ ...row, fields, id, of: n / ids.length, alone: ids.length === 1 })));
    }
    arrived += ids ? n : 1;
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
    const kept = waiting.filter(told => nth === 1 || told.alone && nth < 5 || number++ % nth === 0);
    lately = [...lately, [kept.length, waiting.reduce((sum, told) => sum + told.of, 0)]].slice(-LATELY);
    const [shown, all] = lately.reduce(([a, b], [c, d]) => [a + c, b + d], [0, 0]);
    find("#sampled").textContent = all > shown + .5 ? page.fill(find("#sampled").dataset.text, page.number(Math.max(2, all / shown))) : "";
    ready.push(...kept);
    waiting = [];
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
      if (name !== "gap") take(told);
      else if (table.tBodies[0].rows.length || waiting.length) gap(told.reason);
      else own("listening", "info", { hint: table.dataset.listening });
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
