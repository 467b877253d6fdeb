// The frame of every page: ticks, refresh, choices, tables, keys.
"use strict";
const page = (() => {
  const root = document.documentElement, base = root.dataset.base;
  const find = (selector, within = document) => within.querySelector(selector);
  const each = (selector, act, within = document) => within.querySelectorAll(selector).forEach(act);
  const words = JSON.parse(find("#words")?.textContent ?? "{}");
  const fill = (text, ...values) => values.reduce((said, value, i) => said.replace(`{${i}}`, () => value), text);
  const kept = name => document.cookie.split("; ").find(one => one.startsWith(name + "="))?.slice(name.length + 1);
  const number = value => value == null ? "–" : Math.round(value).toLocaleString("en-US");

  // durations as the server writes them: 41ms, 2.3s, 42s, 4m12s, 15m, 3h05m, 6d23h
  const roughly = ms => {
    if (ms < 1000) return `${Math.round(ms)}ms`;
    if (ms < 10_000) return `${+(ms / 1000).toFixed(1)}s`;
    let s = Math.round(ms / 1000);
    if (s >= 595) s = Math.round(s / 60) * 60;
    if (s >= 86_395) s = Math.round(s / 3600) * 3600;
    const parts = [[Math.floor(s / 86400), "d"], [Math.floor(s / 3600) % 24, "h"], [Math.floor(s / 60) % 60, "m"], [s % 60, "s"]];
    return parts.filter(([n]) => n).map(([n, unit]) => n + unit).join("") || "0s";
  };

  let skew_ms = root.dataset.now ? +root.dataset.now - Date.now() : 0;
  const now = () => Date.now() + skew_ms;
  const clocks = () => {
    const at = now(), clock = find("[data-clock]");
    if (clock) clock.textContent = new Date(at).toISOString().slice(11, 19);
    each("time[data-at]", element => {
      const wait = +element.dataset.at - at;
      const text = fill(wait >= 0 ? words.in : "next" in element.dataset ? words.now : words.ago, roughly(Math.abs(wait)));
      if (element.textContent !== text) element.textContent = text;
    });
  };

  // what happened, said once
  let saying;
  const say = (text, bad = false) => {
    const said = find("#said");
    said.textContent = text;
    said.classList.toggle("bad", bad);
    clearTimeout(saying);
    saying = setTimeout(() => { said.textContent = ""; }, bad ? 12000 : 4000);
  };

  // ticks: the numbers of the frame, once a second, while the page is seen
  const shown = {
    published: v => v >= 9.95 || !v ? number(v) : v.toFixed(1),
    overdue_ms: v => v ? roughly(v) : "0",
    took_ms: v => v.toFixed(1),
  };
  // The colour of an owner is the same on all pages. A new one gets the colour that was not seen for longest.
  const owners = new Map(JSON.parse(localStorage.getItem("delaybridge-owners") ?? "[]"));
  const colored = owner => {
    const known = owners.get(owner), recent = [...new Set([...owners.values()].reverse())];
    const color = known ?? [0, 1, 2, 3, 4, 5, 6, 7].find(i => !recent.includes(i)) ?? recent.at(-1);
    owners.delete(owner);
    owners.set(owner, color);
    if (known == null) localStorage.setItem("delaybridge-owners", JSON.stringify([...owners].slice(-100)));
    return `o${color}`;
  };
  const named = () => each("[data-owner]", mark => { mark.className = `dot ${colored(mark.dataset.owner)}`; });
  const paint = data => {
    each("[data-tick]", element => {
      const name = element.dataset.tick;
      if (!(name in data)) return;
      const text = (shown[name] ?? number)(data[name]);
      if (element.textContent !== text) element.textContent = text;
      if (name === "overdue_ms") element.parentElement.classList.toggle("trouble", data[name] > 1000);
      if (name === "dead") element.closest(".card")?.classList.toggle("trouble", data[name] > 0);
    });
    each("[data-buckets]", map => [...map.children].forEach((cell, i) => {
      const owner = data.owners[i];
      cell.className = owner ? colored(owner) : "alone";
      cell.title = `${i}: ${owner ?? "–"}, ${number(data.sizes[i])}`;
    }));
    const alerts = find("#alerts"), text = JSON.stringify(data.alerts);
    if (alerts && alerts.dataset.text !== text) {
      if (!alerts.dataset.text) alerts.replaceChildren();
      alerts.dataset.text = text;
      // Lines that are there stay: a link that is replaced while it is pressed is not followed.
      data.alerts.forEach((alert, i) => {
        const line = alerts.children[i] ?? alerts.appendChild(document.createElement("p"));
        const link = line.firstElementChild ?? line.appendChild(document.createElement("a"));
        line.className = alert.level;
        Object.assign(link, { href: base + alert.path, textContent: alert.text });
        const code = link.nextElementSibling ?? line.appendChild(document.createElement("code"));
        code.textContent = alert.command;
      });
      while (alerts.children.length > data.alerts.length) alerts.lastChild.remove();
    }
  };
  // A stream that all pages share that are seen: of one browser a server gets six connections at most.
  // One page has it, and tells the others. hear(name, data), also `lost` if it broke, `refused` if it will not come back,
  // and `taken` if this page goes on with it where another one has left.
  const stream = (path, names, hear) => {
    const channel = new BroadcastChannel(path), asking = new AbortController();
    let source, release, heard = false;
    const tell = (...said) => { channel.postMessage(said); hear(...said); };
    const lead = () => new Promise(done => {
      release = done;
      if (heard) hear("taken");
      source = new EventSource(path);
      for (const name of names) source.addEventListener(name, event => tell(name, event.data));
      source.onerror = () => { tell("lost"); if (source.readyState === EventSource.CLOSED) hear("refused"); };
    });
    channel.onmessage = event => { heard = true; hear(...event.data); };
    // Pages of plain HTTP from another host have no locks: each of them has a stream of its own.
    navigator.locks ? navigator.locks.request(path, { signal: asking.signal }, lead).catch(() => {}) : lead();
    return () => { asking.abort(); source?.close(); release?.(); channel.close(); };
  };
  let unheard, frames = 0, seen_ms = Date.now();
  const beacon = on => {
    const it = find(".beacon");
    if (!it) return;
    it.classList.toggle("on", on);
    it.classList.toggle("off", !on);
    if (on) { it.classList.remove("beat"); void it.offsetWidth; it.classList.add("beat"); }
  };
  const away = (text, ...more) => {
    beacon(false);
    const alerts = find("#alerts");
    if (!alerts) return;
    alerts.dataset.text = "";
    const line = document.createElement("p");
    line.append(text, " ", ...more);
    if (alerts.textContent !== line.textContent) alerts.replaceChildren(line);  // a link may be pressed
  };
  const listen = () => {
    if (unheard || !find(".beacon") || document.hidden) return;
    unheard = stream(`${base}/live?language=${root.lang.slice(0, 2)}`, ["tick"], (name, text) => {
      if (name === "lost") return away(words.away);
      if (name === "refused") { stop(); return lookSoon(); }  // perhaps the session has ended
      if (name !== "tick") return;
      const data = JSON.parse(text);
      if (data.error) return away(`${words.old.replace("{age}", roughly(Math.max(1000 * data.age_s, Date.now() - seen_ms)))} (${data.error})`);
      seen_ms = Date.now();
      skew_ms = data.now_ms - Date.now();
      beacon(true);
      paint(data);
      charts.tick(data);
      document.dispatchEvent(new CustomEvent("tick", { detail: data }));
    });
  };
  const stop = () => { unheard?.(); unheard = null; };
  // The session is over: to the login, but not while something is being typed, which would be lost.
  const isTyped = () => [...document.querySelectorAll("main input:not([type=checkbox], [type=radio]), main textarea")].some(field => field.value !== field.defaultValue);
  const ended = () => {
    if (!isBusy() && !isTyped()) return location.reload();
    const login = Object.assign(document.createElement("a"), { href: `${base}/login`, target: "_blank", textContent: words.login });
    away(words.ended, login);
    lookSoon();
  };
  let looking;
  const lookSoon = () => { clearTimeout(looking); looking = setTimeout(look, 2000); };
  const look = async () => {
    try {
      const answer = await fetch(location.href, { redirect: "manual" });
      if (answer.type === "opaqueredirect") return ended();
    } catch { /* not there yet */ }
    setTimeout(listen, 1000);
  };
  document.addEventListener("visibilitychange", () => document.hidden ? stop() : (listen(), refresh()));
  addEventListener("pagehide", stop);
  addEventListener("pageshow", event => { if (event.persisted) { listen(); refresh(); } });  // back to a page that was kept

  // refresh: regions with hx-trigger="refresh from:body" fetch themselves again
  const every = () => localStorage.getItem("delaybridge-refresh") ?? "live";
  const isBusy = () => document.hidden || find("dialog[open]") || find("main :checked:is([name=id])") || String(getSelection()) !== ""
    || document.activeElement?.matches("main input:not([type=checkbox]), main textarea, main select");
  const refresh = () => document.body.dispatchEvent(new Event("refresh"));
  setInterval(() => {
    clocks();
    const s = { live: 5, off: Infinity }[every()] ?? +every();
    if (++frames % s === 0 && !isBusy()) refresh();
    if (frames >= 3600 && !isBusy() && find(".beacon.on")) location.reload();  // a screen on a wall gets new versions
  }, 1000);

  // htmx only reads. Whatever a page may contain, changes come from acts.js, which alone has the header that allows them.
  document.addEventListener("htmx:config:request", event => {
    const { method, headers } = event.detail.ctx.request;
    if (method.toUpperCase() !== "GET") event.preventDefault();
    for (const name of Object.keys(headers)) if (name.toLowerCase() === "x-delaybridge-console") delete headers[name];
  });

  // A refusal is no content: what is seen stays, grey, until an answer comes. Others are pages of their own.
  document.addEventListener("htmx:before:response", event => {
    const { status, raw } = event.detail.ctx.response, region = event.target;
    if (status === 200 && !raw.redirected) return;
    event.preventDefault();
    if (raw.redirected) return ended();
    if (status < 500 && status !== 429) return location.reload();  // no such message
    region.classList.add("stale");
    say(fill(words.stale, status), true);
  });

  // choices of this browser
  const choose = (name, value) => {
    if (name === "refresh") { localStorage.setItem("delaybridge-refresh", value); return; }
    document.cookie = `delaybridge-${name}=${value}; Path=${base || "/"}; Max-Age=31536000; SameSite=Lax`;
    if (name === "language") return location.reload();
    root.dataset.theme = value;
    charts.anew();
  };
  each("[data-choice]", choice => {
    if (choice.dataset.choice === "refresh") choice.value = every();
    choice.addEventListener("change", () => choose(choice.dataset.choice, choice.value));
  });

  document.addEventListener("click", event => {
    const button = event.target.closest("button, a");
    if (!button) return;
    if (button.dataset.dialog) return find(`#${button.dataset.dialog}`).showModal();
    if ("more" in button.dataset) { button.ariaExpanded = button.closest(".top").classList.toggle("open"); return; }
    if ("shut" in button.dataset) return button.closest("dialog").close();
    if (button.dataset.copy) return copy(find(button.dataset.copy)?.textContent ?? button.dataset.copy);
    if (button.dataset.copyText) return copy(button.dataset.copyText);
  });
  document.addEventListener("submit", event => {
    if (event.target.matches("form[action]:not([method]), form[method=get]")) for (const field of event.target.elements) if (field.name && field.value === "") field.disabled = true;
  });
  const copy = async text => {
    try { await navigator.clipboard.writeText(text); }
    catch {
      const area = Object.assign(document.createElement("textarea"), { value: text });
      (find("dialog[open]") ?? document.body).append(area);
      area.select();
      document.execCommand("copy");
      area.remove();
    }
    say(words.copied);
  };

  // ticked rows: buttons with data-ids are for them
  const ticks = () => {
    const count = document.querySelectorAll("main :checked[name=id]").length;
    each("[data-ids]", button => { button.disabled = !count; });
    each("[data-ticked]", element => { element.textContent = number(count); });
  };
  document.addEventListener("change", event => {
    if (event.target.matches("[data-all]")) each("main [name=id]", box => { box.checked = event.target.checked; });
    if (event.target.matches("[data-all], [name=id]")) ticks();
    if (event.target.matches("[data-submit]")) event.target.form.requestSubmit();
  });

  // tables: sorted by a click on a title, columns chosen
  const value = cell => { const it = cell?.querySelector("[data-at]")?.dataset.at ?? cell?.dataset.value ?? cell?.textContent.trim() ?? ""; return it !== "" && !isNaN(it.replaceAll(",", "")) ? +it.replaceAll(",", "") : it; };
  const sort = (header, down) => {
    const table = header.closest("table"), column = [...header.parentElement.children].indexOf(header), body = table.tBodies[0];
    each("th", other => other.removeAttribute("aria-sort"), table);
    header.setAttribute("aria-sort", down ? "descending" : "ascending");
    const rows = [...body.rows].map(row => [value(row.cells[column]), row]);
    rows.sort(([a], [b]) => (typeof a === typeof b ? (a < b ? -1 : a > b ? 1 : 0) : typeof a === "number" ? 1 : -1) * (down ? -1 : 1));
    body.append(...rows.map(([, row]) => row));
  };
  document.addEventListener("click", event => {
    const header = event.target.closest("th[data-sort]");
    if (!header) return;
    const down = header.getAttribute("aria-sort") === "ascending";
    sort(header, down);
    const table = header.closest("table");
    if (table.id) link({ [`sort-${table.id}`]: (down ? "-" : "") + header.dataset.sort });
  });
  const link = changes => {
    const url = new URL(location.href);
    for (const [name, text] of Object.entries(changes)) text == null ? url.searchParams.delete(name) : url.searchParams.set(name, text);
    history.replaceState(null, "", url);
  };
  const hideColumns = () => each("table[id]", table => {
    const hidden = new Set((localStorage.getItem(`delaybridge-hidden-${table.id}`) ?? "").split(",").filter(Boolean));
    const heads = [...(table.tHead?.rows[0]?.cells ?? [])];
    for (const row of table.rows) [...row.cells].forEach((cell, i) => { cell.hidden = hidden.has(heads[i]?.dataset.sort); });
  });
  const sorted = () => each("table[id]", table => {
    const wanted = document.location.search && new URLSearchParams(location.search).get(`sort-${table.id}`);
    const header = wanted && find(`th[data-sort="${CSS.escape(wanted.replace(/^-/, ""))}"]`, table);
    if (header) sort(header, wanted.startsWith("-"));
  });
  const chooser = () => each("[data-columns]", place => {
    const table = document.getElementById(place.dataset.columns);
    if (!table || place.childElementCount) return;
    const menu = document.createElement("details"), title = document.createElement("summary");
    title.textContent = words.columns;
    menu.append(title);
    each("th[data-sort]", header => {
      const label = document.createElement("label"), box = Object.assign(document.createElement("input"), { type: "checkbox" });
      const key = `delaybridge-hidden-${table.id}`, names = () => (localStorage.getItem(key) ?? "").split(",").filter(Boolean);
      box.checked = !names().includes(header.dataset.sort);
      box.addEventListener("change", () => {
        localStorage.setItem(key, box.checked ? names().filter(n => n !== header.dataset.sort).join() : [...names(), header.dataset.sort].join());
        hideColumns();
      });
      label.append(box, " ", header.textContent.trim());
      menu.append(label);
    }, table);
    place.append(menu);
  });

  // keys
  const row = step => {
    const rows = [...document.querySelectorAll("main tbody tr")].filter(one => one.offsetParent);
    if (!rows.length) return;
    const at = rows.findIndex(one => one.ariaSelected === "true");
    choice(rows[Math.min(rows.length - 1, Math.max(0, at + step))]);
    selected().scrollIntoView({ block: "nearest" });
  };
  // A refresh forgets which row was selected: it is known by its first link.
  let kept_row;
  const choice = next => {
    selected()?.removeAttribute("aria-selected");
    if (next) next.ariaSelected = "true";
    kept_row = next && find("a", next)?.href;
  };
  const chosen = () => { if (kept_row && !selected()) choice([...document.querySelectorAll("main tbody tr")].find(one => find("a", one)?.href === kept_row)); };
  const selected = () => find("main tr[aria-selected=true]");
  const keys = {
    "/": () => find(".search input")?.focus(), "?": () => find("#keys").showModal(), c: () => find("#curl").showModal(),
    j: () => row(1), k: () => row(-1), x: () => find("[name=id]", selected() ?? document.createElement("i"))?.click(),
    Enter: () => find("a", selected() ?? document.createElement("i"))?.click(), ".": refresh,
    "]": () => find("a[rel=next]")?.click(), "[": () => find("a[rel=prev]")?.click(),
    g: () => { document.body.classList.add("going"); setTimeout(() => document.body.classList.remove("going"), 2500); },
  };
  document.addEventListener("keydown", event => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.isContentEditable) return;
    const isTyping = event.target.matches("input:not([type=checkbox]), textarea, select");
    if (event.key === "Escape" && isTyping && !find("dialog[open]")) return event.target.blur();
    if (isTyping || find("dialog[open]")) return;
    if (document.body.classList.contains("going")) {
      document.body.classList.remove("going");
      const entry = find(`.side a[data-key="${CSS.escape(event.key)}"]`);
      if (entry) { event.preventDefault(); entry.click(); }
      return;
    }
    const hot = find(`[data-hotkey="${CSS.escape(event.key)}"]`);
    if (hot && !event.target.closest("a, button, summary, [tabindex='0']:not(main)")) { event.preventDefault(); return hot.click(); }
    if (event.key === "Enter" && event.target.closest("a, button, summary")) return;
    if (keys[event.key]) { event.preventDefault(); keys[event.key](); }
  });

  // the page that says that Redis is away heals itself
  if (find("[data-heal]")) setInterval(async () => {
    try { if ((await fetch(location.href)).status !== 503) location.reload(); } catch { /* not there yet */ }
  }, 2000);

  // rows that come as text: the browser reads them when it has painted the others
  const later = () => each("script[data-later]", rows => requestAnimationFrame(() => setTimeout(() => {
    rows.previousElementSibling.insertAdjacentHTML("beforeend", rows.textContent);
    rows.remove();
    ready();
  })));

  const ready = () => { ticks(); sorted(); hideColumns(); chooser(); chosen(); clocks(); named(); document.dispatchEvent(new Event("page")); };
  document.addEventListener("htmx:after:swap", ready);
  document.addEventListener("DOMContentLoaded", () => { ready(); later(); listen(); find(".side [aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" }); });
  return { colored, stream, say, refresh, ticks, number, roughly, now, link, find, each, words, fill, base };
})();
