// The grid of buckets: painted by each tick; what a bucket says is shown when it is pointed at.
"use strict";
(() => {
  const find = page.find, cells = () => find("#cells"), about = () => find("#about");
  let owners = null, shown = null, seen = [];

  const brief = size => size < 10000 && !cells().matches(".many") ? page.number(size) : charts.brief(size);
  const text = button => {
    const said = find(`#t-buckets [data-bucket="${button.dataset.number}"]`)?.dataset.said;
    return said ? `${button.ariaLabel}; ${said}` : button.ariaLabel;
  };
  const tell = button => { shown = button; about().textContent = text(button); };

  const legend = data => {
    const counts = new Map();
    for (const owner of data.owners) counts.set(owner, (counts.get(owner) ?? 0) + 1);
    const entries = [...counts].sort(([a], [b]) => String(a ?? "") < String(b ?? "") ? -1 : 1).slice(0, 40);
    find("#legend").replaceChildren(...entries.map(([owner, count]) => {
      const entry = document.createElement("span"), mark = document.createElement("i");
      entry.className = "line";
      mark.className = `dot ${owner ? page.colored(owner) : "alone"}`;
      entry.append(mark, `${owner ?? find("#legend").dataset.alone} ${count}`);
      return entry;
    }));
  };

  const changes = data => {
    const list = find("#changes"), at = new Date(data.now_ms), none = cells().dataset.alone;
    const moved = owners ? data.owners.map((owner, i) => [i, owners[i], owner]).filter(([, a, b]) => a !== b) : [];
    owners = data.owners;
    seen = [...seen, ...moved.map(() => data.now_ms)].filter(ms => ms > data.now_ms - 60000);
    find("#changed").textContent = page.number(seen.length);
    for (const [i, a, b] of moved) {
      const line = document.createElement("li");
      line.textContent = `${at.toISOString().slice(11, 19)} ${page.fill(list.dataset.text, i, a ?? none, b ?? none)}`;
      list.prepend(line);
    }
    while (list.children.length > 20) list.lastChild.remove();
    if (moved.length) page.refresh();
  };

  const paint = ({ detail: data }) => {
    const { alone, late, bucket, messages } = cells().dataset, buttons = cells().children, overdue = new Set(data.late);
    if (buttons.length !== data.owners.length) return location.reload();
    data.owners.forEach((owner, i) => {
      const button = buttons[i], [mark, count] = button.children, is = overdue.has(+button.dataset.number);
      mark.className = owner ? page.colored(owner) : "alone";
      count.textContent = brief(data.sizes[i]);
      button.classList.toggle("late", is);
      button.ariaLabel = `${bucket} ${button.dataset.number}: ${owner ?? alone}, ${page.number(data.sizes[i])} ${messages}${is ? `, ${late}` : ""}`;
      button.title = text(button);
    });
    const most = Math.max(...data.sizes), mean = data.sizes.reduce((a, b) => a + b, 0) / data.sizes.length;
    find("#skew").textContent = mean ? (most / mean).toFixed(2) : "–";
    find("#largest").textContent = page.number(most);
    find("#mean").textContent = page.number(mean);
    legend(data);
    changes(data);
    if (shown) tell(shown);
  };

  const move = event => {
    const all = [...cells().children], at = all.indexOf(event.target);
    const wide = all.filter(one => one.offsetTop === all[0].offsetTop).length;
    const to = { ArrowRight: at + 1, ArrowLeft: at - 1, ArrowDown: at + wide, ArrowUp: at - wide, Home: 0, End: all.length - 1 }[event.key];
    if (at < 0 || !all[to]) return;
    event.preventDefault();
    all[at].tabIndex = -1;
    all[to].tabIndex = 0;
    all[to].focus();
  };

  document.addEventListener("DOMContentLoaded", () => {
    for (const kind of ["pointerover", "focusin", "click"]) cells().addEventListener(kind, event => { const button = event.target.closest("button"); if (button) tell(button); });
    cells().addEventListener("keydown", move);
    document.addEventListener("tick", paint);
  });
})();
