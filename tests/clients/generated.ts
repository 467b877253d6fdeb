// A program on the types that openapi-typescript makes: it schedules, shows, lists, cancels, and is
// refused. Its argument is the server's address.
import createClient from "openapi-fetch";
import type { components, paths } from "./delaybridge.js";

declare const process: { argv: string[] };

type NewMessage = components["schemas"]["NewMessage"];
const api = createClient<paths>({ baseUrl: process.argv[2], headers: { Authorization: "Bearer none" } });

function expect(what: string, got: unknown, wanted: unknown): void {
  if (JSON.stringify(got) !== JSON.stringify(wanted)) {
    throw new Error(`${what}: got ${JSON.stringify(got)}, expected ${JSON.stringify(wanted)}`);
  }
}

const message: NewMessage = {
  destination: "memory:orders",
  delay: "1h",
  body: "{}",
  id: "ts/ä",
  headers: { kind: "close" },
};
const made = await api.POST("/v1/messages", { body: message });
expect("schedule", [made.response.status, made.data?.id], [201, "ts/ä"]);
const due: number | undefined = made.data?.due_ms;

const path = { id: "ts/ä" };
const shown = await api.GET("/v1/messages/{id}", { params: { path } });
expect("show", [shown.data?.body, shown.data?.due_ms], ["{}", due]);
const header = shown.data?.headers?.[0];
expect("header", header, ["kind", "close"]);

const query = { id_prefix: "ts/", limit: 10 };
const listed = await api.GET("/v1/messages", { params: { query } });
expect("list", [listed.data?.items.map((one) => one.id), listed.data?.next_cursor], [["ts/ä"], null]);

const batch = { messages: [{ ...message, id: "ts/2" }, { ...message, destination: "nowhere" }] };
const items = (await api.POST("/v1/messages:batch", { body: batch })).data?.items;
expect("batch", items?.map((one) => one.code ?? one.result), ["created", "bad_destination"]);

const cancelled = await api.DELETE("/v1/messages/{id}", { params: { path } });
expect("cancel", cancelled.data?.result, "cancelled");
const gone = await api.DELETE("/v1/messages/{id}", { params: { path } });
expect("refusal", [gone.response.status, gone.error?.code, gone.error?.at], [404, "unknown", "$.id"]);
console.log("well");
