// Acts: buttons and forms that ask the API for a change, the dialog that asks before, and what became of it.
"use strict";
(() => {
  const { find, each, words, fill, number, say, base, refresh, ticks } = page;

  // JSON that is sent as it was written: JavaScript would round long numbers, and drop keys that repeat.
  class Written { constructor(text) { this.text = text; this.value = JSON.parse(text); } }
  const encode = (body, space) => {
    const mark = `${Date.now()} ${Math.random()}`, texts = [];
    const text = JSON.stringify(body, (_, value) => value instanceof Written ? `${mark} ${texts.push(value.text) - 1}` : value, space);
    return text?.replace(new RegExp(`"${mark} (\\d+)"`, "g"), (_, i) => texts[i]);
  };

  // The same message sent again, after an answer that did not come, is the same call.
  let drafted = {};
  const callOf = text => {
    if (drafted.text !== text) drafted = { text, key: [...crypto.getRandomValues(new Uint8Array(16))].map(n => n.toString(16)).join("-") };
    return drafted.key;
  };

  const CERTAIN = ["draining", "too_many_clients", "store_full"];  // of the 5xx: nothing was done
  const failure = (found, status, changes) => {
    const text = found?.detail ?? (status ? String(status) : words.away), isUnknown = changes && (!status || status >= 500) && !CERTAIN.includes(found?.code);
    return Object.assign(new Error(isUnknown ? `${words.unknown} (${text})` : text), { problem: found, isUnknown });
  };

  // isOnce: if its answer is lost, the same again is the same call.
  const send = async (method, path, body, isOnce = false) => {
    const headers = { accept: "application/json", "x-delaybridge-console": "1" }, text = body instanceof File ? body : encode(body);
    if (text !== undefined) headers["content-type"] = text === body ? "application/x-ndjson" : "application/json";
    const changes = method !== "GET" && !body?.dry_run;
    if (isOnce) headers["idempotency-key"] = callOf(text);
    let answer, found = null;
    try {
      answer = await fetch(base + path, { method, headers, body: text });
      if (answer.status !== 204) found = await answer.json().catch(() => null);
    } catch { throw failure(null, 0, changes); }
    if (!answer.ok) throw failure(found, answer.status, changes);
    if (isOnce) drafted = {};
    return found;
  };

  // A form's fields as JSON. A name with dots is a field within; data-as: number, json, list, flag.
  const fields = form => {
    const found = {};
    for (const field of form.elements) {
      if (!field.name || field.disabled || field.name === "typed" || "kind" in field.dataset) continue;
      if (["checkbox", "radio"].includes(field.type) && !field.checked) continue;
      if (field.value === "" && !("empty" in field.dataset)) continue;
      const as = field.dataset.as ?? "text", value = {
        number: () => +field.value, json: () => written(field), flag: () => true,
        list: () => field.value.split(/[\s,]+/).filter(Boolean), text: () => field.value,
      }[as]();
      const path = field.name.split("."), last = path.pop();
      path.reduce((at, part) => at[part] ??= {}, found)[last] = value;
    }
    return found;
  };
  const written = field => {
    try { return new Written(field.value); } catch (error) {
      throw new Error(`${field.closest("label")?.firstChild.textContent.trim() ?? field.name}: ${error.message}`);
    }
  };

  const said = word => words.answers[word] ?? word;
  const told = found => Object.entries(found.answers ?? {}).map(([name, count]) => `${said(name)} ${number(count)}`).join(", ")
    || said(found.result ?? found.state ?? "") || words.done;

  // One request, or one for each of several paths.
  const run = async ({ method, path, body, isOnce }) => {
    const paths = path.split(" ");
    let found, done = 0;
    try { for (const each of paths) { found = await send(method, each, body, isOnce); done += 1; } }
    catch (error) { throw done ? Object.assign(new Error(`${fill(words.partly, done, paths.length)} ${error.message}`), error) : error; }
    return found ?? {};
  };

  // An act: asked for in the dialog, done, its job followed to the end. Resolves to its answer, null if it was left.
  // wanted = {method, path, body, ask, title, typed, danger, counts}. An answer that comes when the dialog was left is
  // told, and changes nothing of the next act's dialog.
  const act = wanted => new Promise(resolve => {
    const dialog = find("#ask"), form = find("form", dialog), part = name => find(name, dialog);
    const problem = text => { part(".problem").hidden = !text; part(".problem").textContent = text; };
    const go = part(".go"), typed = part(".typed"), input = find("input", typed), bar = part("progress"), count = part(".count");
    let job, isOver = false, isSent = false;
    const finish = value => { isOver = true; dialog.close(); resolve(value); };
    const leave = () => {
      if (job?.state === "running") say(words.goes_on);
      else if (isSent) say(`${wanted.title}: ${words.under_way}`);
      finish(null);
    };
    const confirmed = text => {
      typed.hidden = !text;
      typed.firstElementChild.textContent = text ? fill(words.type, text) : "";
      input.value = "";
      go.disabled = !!text;
      const plain = /^[\d,]+$/.test(text) ? text.replaceAll(",", "") : text;  // 2,000 or 2000
      input.oninput = event => { go.disabled = ![text, plain].includes(event.target.value.trim()); };
    };
    const follow = async () => {
      go.hidden = true;
      while (job.state === "running" && !isOver) {
        bar.hidden = false;
        const done = Object.values(job.answers ?? {}).reduce((a, b) => a + b, 0);
        bar.max = Math.max(job.matched ?? 0, 1);
        bar.value = done;
        count.textContent = fill(words.working, number(done), number(job.matched ?? 0));
        await new Promise(again => setTimeout(again, 400));
        // Redis may be slow, or the server start anew: the job goes on, or is marked as interrupted.
        job = await send("GET", `/v1/jobs/${job.id}`).catch(error => error.problem?.status < 500 && error.problem.status !== 429 ? Promise.reject(error) : job);
      }
      return job;
    };
    form.onsubmit = async event => {
      event.preventDefault();
      if (go.disabled) return;
      go.disabled = isSent = true;
      problem("");
      try {
        let found = await run(wanted);
        isSent = false;
        if (found.verb) { job = found; if (isOver) return say(words.goes_on); found = await follow(); }
        if (found.state === "failed") throw new Error(found.error);
        if (isOver && job) return;
        say(`${wanted.title}: ${told(found)}`);
        isOver ? refresh() : finish(found);
      } catch (error) {
        isSent = false;
        if (error.isUnknown) refresh();
        if (isOver) return say(`${wanted.title}: ${error.message}`, true);
        bar.hidden = true;
        go.hidden = job?.state === "running";  // it goes on, whatever became of the question
        go.disabled = false;
        problem(error.message);
      }
    };
    part("h2").textContent = go.textContent = wanted.title;
    part(".what").textContent = wanted.ask ?? "";
    part(".no").textContent = words.close;
    part(".no").onclick = dialog.oncancel = leave;
    count.textContent = "";
    go.hidden = false;
    bar.hidden = true;
    go.classList.toggle("danger", !!wanted.danger);
    problem("");
    confirmed(wanted.typed ?? "");
    if (wanted.counts) {
      count.textContent = words.counting;
      go.disabled = true;
      send(wanted.method, wanted.path, { ...wanted.body, dry_run: true }).then(found => {
        if (isOver) return;
        count.textContent = found.matched ? fill(words.matched, number(found.matched)) : words.none;
        if (found.matched) { confirmed(wanted.typed || number(found.matched)); input.focus(); }
      }).catch(error => isOver || problem(error.message));
    }
    dialog.showModal();
    (typed.hidden ? go : input).focus();
  });

  // What follows an act. True: this page is left, and until then takes no other click.
  const after = (element, found) => {
    if (!found) return false;
    const then = element.dataset.then ?? "refresh";
    if (then.startsWith("/")) location.href = base + then.replace("{id}", encodeURIComponent(found.id ?? ""));
    else if (then === "reload") location.reload();
    else {
      each("main :checked[name=id]", box => { box.checked = false; });
      ticks();
      refresh();
      setTimeout(refresh, 1000);  // perhaps another process answered, which looks once a second
      return false;
    }
    return true;
  };

  // What a button acts on, as people call it.
  const nameOf = (element, ids) => ids ? fill(words.ticked, number(ids.length))
    : element.closest("[data-of]")?.dataset.of ?? find("a", element.closest("tbody tr") ?? document.createElement("i"))?.textContent.trim();

  // A button or a form with data-act. data-ids: the ticked rows. data-filter: everything that matches.
  const asked = async element => {
    const form = element.matches("form") ? element : element.closest("form[data-act]");
    let typed;
    try { typed = form && (find("[type=file]", form)?.files[0] ?? fields(form)); } catch (error) { return say(error.message, true); }
    const body = form ? typed : element.dataset.body ? JSON.parse(element.dataset.body) : undefined;
    const ids = "ids" in element.dataset ? [...document.querySelectorAll("main :checked[name=id]")].map(box => box.value) : null;
    const filter = element.dataset.filter ? JSON.parse(element.dataset.filter) : null;
    const verb = element.dataset.title ?? (element.matches("form") ? find("button[type=submit], button.go", element) : element).textContent.trim();
    const of = filter ? "" : nameOf(element, ids), title = of ? `${verb}: ${of}` : verb;
    const wanted = { method: element.dataset.act, path: element.dataset.path + (find("[data-query]:checked", form ?? element)?.dataset.query ?? ""), body: ids ? { ...body, ids } : filter ? { ...body, filter } : body, title, isOnce: "once" in element.dataset };
    form?.closest("dialog")?.close();
    if ("ask" in element.dataset || filter) {
      const danger = "danger" in element.dataset || element.matches(".danger");
      return after(element, await act({ ...wanted, ask: element.dataset.ask, typed: element.dataset.typed, danger, counts: !!filter }));
    }
    if (element.ariaBusy) return;  // a second click, while the first is on its way
    element.ariaBusy = "true";
    let isLeft = false;
    try {
      const found = await run(wanted);
      say(`${title}: ${told(found)}`);
      isLeft = after(element, found);
    } catch (error) {
      say(error.message, true);
      if (error.isUnknown) refresh();
    } finally { if (!isLeft) element.ariaBusy = null; }
  };
  addEventListener("pageshow", event => { if (event.persisted) each("[data-act][aria-busy]", element => { element.ariaBusy = null; }); });  // back
  document.addEventListener("click", event => {
    const button = event.target.closest("[data-act]:not(form)");
    if (button) { event.preventDefault(); asked(button); }
  });
  document.addEventListener("submit", event => {
    if (event.target.matches("form[data-act]")) { event.preventDefault(); asked(event.target); }
  });

  Object.assign(page, { send, fields, encode });
})();
