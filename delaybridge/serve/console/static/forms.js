// The publish form shows the same for a shell and for Python; lists are narrowed as one types.
"use strict";
(() => {
  const quoted = text => `'${String(text).replaceAll("'", "'\\''")}'`;

  const form = document.getElementById("publish");
  const show = () => {
    let message;
    try { message = page.fields(form); } catch { message = null; }
    const put = (id, text) => { document.getElementById(id).textContent = text; };
    if (!message) return ["as-curl", "as-cli", "as-python"].forEach(id => put(id, "JSON?"));
    put("as-curl", `curl -sS ${location.origin}${page.base}/v1/messages --json ${quoted(page.encode(message, 1))}`);
    const { destination = "", delay, due, id, key, headers, properties, body, body_json, body_base64, ttl, priority, at_most_once, retry } = message;
    const pairs = Array.isArray(headers?.value) ? headers.value : Object.entries(headers?.value ?? {}), content = body ?? body_json?.text ?? "";
    put("as-cli", [
      body_base64 ? `base64 -d <<< ${quoted(body_base64)} |` : "", "delaybridge schedule", quoted(destination), due ? `--at ${quoted(due)}` : `--in ${quoted(delay ?? "")}`,
      id ? `--id ${quoted(id)}` : "", key ? `-k ${quoted(key)}` : "", ...pairs.map(([name, value]) => `-H ${quoted(`${name}=${value}`)}`),
      ...Object.entries(properties?.value ?? {}).map(([name, value]) => `-P ${quoted(`${name}=${value}`)}`), ttl ? `--ttl ${quoted(ttl)}` : "",
      priority ? `--priority ${priority}` : "", at_most_once ? "--at-most-once" : "", retry?.value?.max_attempts ? `--max-attempts ${retry.value.max_attempts}` : "",
      retry?.value?.base_ms ? `--backoff ${retry.value.base_ms}ms` : "", body_base64 ? "-" : quoted(content),
    ].filter(Boolean).join(" "));
    const given = {
      delay: due ? undefined : delay, at: due, id, key, ttl, priority, headers: pairs.length ? Object.fromEntries(pairs) : undefined,
      properties: properties?.value, retry: retry?.value, at_most_once,
    };
    const literal = value => value === true ? "True" : JSON.stringify(value);
    const named = Object.entries(given).filter(([, value]) => value !== undefined).map(([name, value]) => `${name}=${literal(value)}`);
    put("as-python", `from delaybridge import Client\n\nwith Client.from_settings() as bridge:\n    bridge.schedule(${[literal(destination), body_base64 ? `base64.b64decode(${literal(body_base64)})` : literal(content), ...named].join(", ")})`);
  };
  if (form) {
    form.addEventListener("change", event => {
      if (!event.target.matches("[data-kind]")) return;
      const body = form.querySelector("[data-body]");
      body.name = event.target.value;
      if (body.name === "body_json") body.dataset.as = "json"; else delete body.dataset.as;
    });
    form.addEventListener("input", show);
    form.addEventListener("change", show);
    // One of delay and due: what is written last counts.
    form.elements.due.addEventListener("input", () => { if (form.elements.due.value) form.elements.delay.value = ""; });
    form.elements.delay.addEventListener("input", () => { if (form.elements.delay.value) form.elements.due.value = ""; });
    document.addEventListener("page", show);
  }

  page.each("[data-narrow]", box => box.addEventListener("input", () => {
    const wanted = box.value.toLowerCase();
    for (const row of document.getElementById(box.dataset.narrow).tBodies[0].rows) row.hidden = !row.textContent.toLowerCase().includes(wanted);
  }));
})();
