// Lists of messages and one message: saved filters, commands of ticked rows, small charts.
"use strict";
(() => {
  const { find, each, base } = page;
  const quoted = text => `'${text.replaceAll("'", "'\\''")}'`;
  const made = (name, more = {}, ...within) => { const it = Object.assign(document.createElement(name), more); it.append(...within); return it; };

  // a field that stands for one of several: which one the choice before it says
  document.addEventListener("change", event => {
    const choice = event.target.closest("[data-names]");
    if (!choice) return;
    const field = document.getElementById(choice.dataset.names);
    field.name = choice.value;
    field.placeholder = choice.selectedOptions[0].dataset.hint;
  });

  // a menu closes when something else is meant
  document.addEventListener("click", event => each(".menu[open]", menu => { if (!menu.contains(event.target) && !event.target.closest("dialog")) menu.open = false; }));
  document.addEventListener("keydown", event => { if (event.key === "Escape" && !find("dialog[open]")) each(".menu[open]", menu => { menu.open = false; find("summary", menu).focus(); }); });

  // commands for the ticked rows, as they are when the dialog opens
  document.addEventListener("click", event => {
    const opener = event.target.closest("[data-dialog=cli]"), place = find("#cli [data-ticked-commands]");
    if (!opener || !place) return;
    const ids = [...document.querySelectorAll("main :checked[name=id]")].map(box => quoted(box.value)).join(" ");
    place.replaceChildren(...(ids ? ["message cancel", "message publish-now", "message reschedule --in 10m"] : []).map(verb => {
      const command = `delaybridge ${verb} -- ${ids}`, button = made("button", { type: "button", className: "small", textContent: find("#curl [data-copy]").textContent });
      button.dataset.copyText = command;
      return made("div", { className: "line command" }, made("pre", { tabIndex: 0, textContent: command }), button);
    }));
  }, true);

  // filters that this browser keeps: a name and a query
  const key = "delaybridge-filters", saved = () => { try { return JSON.parse(localStorage.getItem(key)) ?? []; } catch { return []; } };
  const keep = list => { localStorage.setItem(key, JSON.stringify(list)); filters(); };
  const here = () => { const query = new URLSearchParams(location.search); ["cursor", "back"].forEach(name => query.delete(name)); return query.toString(); };
  const filters = () => each("[data-filters]", menu => {
    const words = menu.dataset, list = made("div", { className: "saved" });
    for (const { name, query } of saved()) {
      const drop = made("button", { type: "button", className: "small quiet", textContent: words.drop, ariaLabel: `${words.drop}: ${name}` });
      drop.addEventListener("click", () => keep(saved().filter(each => each.name !== name)));
      list.append(made("p", { className: "line" }, made("a", { href: `${base}/messages?${query}`, textContent: name }), drop));
    }
    if (!list.childElementCount) list.append(made("p", { className: "muted", textContent: words.none }));
    const name = made("input", { placeholder: words.name, ariaLabel: words.name, maxLength: 60, required: true });
    const form = made("form", { className: "line" }, name, made("button", { className: "small", textContent: words.save }));
    form.addEventListener("submit", event => {
      event.preventDefault();
      keep([...saved().filter(each => each.name !== name.value), { name: name.value, query: here() }].sort((a, b) => a.name < b.name ? -1 : 1));
    });
    menu.querySelector(".saved")?.remove();
    menu.append(list);
    list.append(form);
  });
  addEventListener("storage", filters);
  filters();

  // the result by due time: the nearest span that holds most of it
  const spans = [["1h", "1m"], ["1d", "30m"], ["30d", "12h"], ["365d", "7d"]];
  charts.kinds.due = async element => {
    if (element.dataset.drawn && Date.now() - element.dataset.drawn < 30000) return;
    element.dataset.drawn = Date.now();
    let found, chosen;
    for (chosen of spans) {
      const path = element.dataset.api + (element.dataset.api.includes("?") ? "&" : "?") + `for=${chosen[0]}&step=${chosen[1]}`;
      found = await charts.get(path);
      if (found.messages >= found.later * 9) break;
    }
    // the first cell is the rest of its step: a bar of its own width would make all others thin
    const cells = found.cells, x = cells.map(cell => cell.from_ms / 1000);
    if (x.length > 2) x[0] = 2 * x[1] - x[2];
    const { scales, axes } = charts.upright(), plot = charts.draw(element, {
      height: 84, legend: { show: false }, cursor: { y: false, drag: { x: false } }, scales,
      axes: [charts.axis({ values: charts.moments, space: 80, size: 22 }), axes[1]],
      series: [{}, charts.bars("", "--c1")],
    }, [x, cells.map(cell => cell.messages)]);
    plot.over.addEventListener("click", () => {
      const cell = cells[plot.cursor.idxs[1]];
      if (!cell) return;
      const to = element.dataset.here;
      location.href = `${base}${to}${to.includes("?") ? "&" : "?"}due_from_ms=${cell.from_ms}&due_to_ms=${cell.to_ms - 1}`;
    });
  };

  charts.kinds.mirror = element => charts.byBucket(element, JSON.parse(find("#mirror").dataset.counts));
  document.addEventListener("page", () => each("[data-chart=mirror]", charts.redraw));
})();
