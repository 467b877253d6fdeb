// The form of a definition: the next runs, while its times are typed.
"use strict";
(() => {
  const show = (words, runs, bad) => {
    const said = page.find("#preview .words");
    said.textContent = words;
    said.classList.toggle("error", bad);
    page.find("#preview ol").replaceChildren(...runs.map(run => Object.assign(document.createElement("li"), { textContent: run })));
  };
  let wait, asked = 0;
  const preview = async () => {
    const { cron, every, tz } = page.find("#definition").elements, number = ++asked;
    const given = [["cron", cron.value], ["every", every.value], ["tz", tz.value]].filter(([, text]) => text.trim());
    if (!cron.value.trim() && !every.value.trim()) return show("", [], false);
    try {
      const found = await page.send("GET", `/v1/recurring:preview?${new URLSearchParams(given)}`);
      if (number === asked) show(found.words, found.runs, false);
    } catch (error) { if (number === asked) show(error.message, [], true); }
  };
  document.addEventListener("DOMContentLoaded", () => {
    const form = page.find("#definition");
    if (!form) return;
    form.addEventListener("input", event => {
      if (!["cron", "every", "tz"].includes(event.target.name)) return;
      clearTimeout(wait);
      wait = setTimeout(preview, 250);
    });
    if (form.elements.cron.value || form.elements.every.value) preview();
  });
})();
