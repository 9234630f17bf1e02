// @ts-check
/** What the pages ask of the server: its public routes, in the name that the browser is signed in with. Keeps nothing. */

/** @typedef {{tenant: string, scopes: string[], token: string, version: string}} Who */

/** An answer that says no. */
export class Refused extends Error {
  /** @param {number} status @param {string} detail */
  constructor(status, detail) {
    super(detail);
    this.status = status;
  }
}

/** The server's clock, by which all times are shown; this machine's may be wrong. */
export const clock = {
  /** Milliseconds. */
  ahead: 0,
  now: () => Date.now() + clock.ahead,
};

/**
 * @param {string} verb @param {string} path
 * @param {{query?: Record<string, any>, body?: any, headers?: Record<string, string>}} [more]
 */
export async function send(verb, path, more = {}) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(more.query ?? {})) {
    for (const one of Array.isArray(value) ? value : [value]) {
      if (one !== undefined && one !== null && one !== "") query.append(name, String(one));
    }
  }
  /** @type {Record<string, string>} */
  const headers = { accept: "application/json", ...more.headers };
  if (more.body !== undefined) headers["content-type"] = "application/json";
  const url = query.size ? `${path}?${query}` : path;
  let response;
  try {
    response = await fetch(url, { method: verb, headers, body: more.body === undefined ? undefined : JSON.stringify(more.body) });
  } catch {
    throw new Refused(0, "the server does not answer");
  }
  const text = await response.text();
  const date = Date.parse(response.headers.get("date") ?? "");
  if (!Number.isNaN(date)) clock.ahead = Math.abs(date - Date.now()) > 2000 ? date - Date.now() : 0;
  if (!response.ok) {
    let detail = `the server answered ${response.status}`;
    try {
      const problem = JSON.parse(text);
      detail = problem.detail ? `${problem.at ? `${problem.at}: ` : ""}${problem.detail}` : detail;
    } catch { /* not a problem document */ }
    throw new Refused(response.status, detail);
  }
  return text ? JSON.parse(text) : null;
}

/** The routes of one tenant; `-` is all of them. @param {string} tenant */
export function queue(tenant) {
  const base = `/v1/${encodeURIComponent(tenant)}`;
  return {
    /** @param {string} path @param {Record<string, any>} [query] */
    get: (path, query) => send("GET", base + path, { query }),
    /** @param {string} path @param {any} [body] @param {Record<string, any>} [query] */
    post: (path, body, query) => send("POST", base + path, { body: body ?? {}, query }),
    /** @param {string} path @param {any} body */
    put: (path, body) => send("PUT", base + path, { body }),
    /** @param {string} path @param {any} body */
    patch: (path, body) => send("PATCH", base + path, { body }),
    /** @param {string} path @param {any} [body] */
    remove: (path, body) => send("DELETE", base + path, { body }),
    /** @param {string} path */
    url: (path) => base + path,
  };
}

/** Words before a colon in a query, and what they mean. @type {Record<string, string>} */
export const FIELDS = {
  state: "where it stands",
  task: "the name of its task",
  queue: "where it waits",
  tag: "one of its tags",
  "payload.": "a field of its payload: payload.customer:5",
  text: "a text in the message of its last error",
  reason: "why it ended or waits: timeout, crashed …",
  worker: "the worker that has it or had it last",
  node: "the machine of that worker",
  key: "the caller's own name for it",
  fingerprint: "the group of its failure",
  created_after: "a time, such as 2026-01-31T08:00:00Z",
  created_before: "a time, such as 2026-01-31T08:00:00Z",
};

export const PENDING = ["blocked", "scheduled", "queued", "running"];
export const FINISHED = ["succeeded", "failed", "cancelled"];
export const STATES = [...PENDING, ...FINISHED];
export const REASONS = ["error", "retry", "failed", "timeout", "crashed", "lost", "deadline", "expired", "shrunk", "lowered", "halted", "released", "snoozed", "cancelled", "memory", "output", "disk", "dependency", "abandoned", "by_hand"];

/** The words of a query: a text in quotes stays together. @param {string} text */
export const wordsOf = (text) => [...text.matchAll(/(?:[\w.-]+:)?"[^"]*"|\S+/g)].map(([word]) => word);

/** A word of a query. @param {string} name @param {string} value */
export const word = (name, value) => `${name}:${/[\s"]/.test(value) ? `"${value.replaceAll('"', "")}"` : value}`;

/**
 * `state:failed task:render payload.n:5 "some text"` as the query of a listing, or what is wrong with it.
 * @param {string} text @returns {{query: Record<string, any>, wrong?: string}}
 */
export function parseQuery(text) {
  /** @type {Record<string, any>} */
  const query = {};
  for (const one of wordsOf(text)) {
    const colon = one.indexOf(":");
    const name = colon > 0 && !one.startsWith('"') ? one.slice(0, colon) : "text";
    const value = (name === "text" && !one.startsWith("text:") ? one : one.slice(colon + 1)).replace(/^"|"$/g, "");
    if (!(name in FIELDS) && !/^payload\.[^.]/.test(name)) return { query, wrong: `${name}: is no field of a job. Fields: ${Object.keys(FIELDS).join(", ")}. Put quotes around a text with a colon.` };
    if (value === "" || name === "payload.") continue;
    if (name === "state" || name === "tag") query[name] = [...(query[name] ?? []), value];
    else query[name] = value;
  }
  return { query };
}

/** The states that a query allows. @param {Record<string, any>} query @returns {string[]} */
export function statesOf(query) {
  if (!query.state?.length) return STATES;
  return STATES.filter((one) => query.state.includes(one) || query.state.includes(PENDING.includes(one) ? "pending" : "finished"));
}

/**
 * A parsed query as the body of an action: the fields of a payload stand together there, each with its value.
 * @param {Record<string, any>} query
 */
export function asMatch(query) {
  /** @type {Record<string, any>} */
  const match = {};
  for (const [name, value] of Object.entries(query)) {
    if (name.startsWith("payload.")) match.payload = { ...match.payload, [name.slice(8)]: scalar(value) };
    else match[name] = value;
  }
  return match;
}

/** A number, true, false or null where a text reads as one, as in the query of a request. @param {string} text */
function scalar(text) {
  try {
    const value = JSON.parse(text);
    return value !== null && typeof value === "object" ? text : value;
  } catch {
    return text;
  }
}

/** @param {number | null | undefined} seconds */
export function span(seconds) {
  if (seconds === null || seconds === undefined) return "";
  if (seconds < 0.995) return `${Math.max(0, Math.round(seconds * 1000))} ms`;
  if (seconds < 9.95) return `${+seconds.toFixed(1)} s`;
  let whole = Math.round(seconds);
  /** @type {[number, string, number, string][]} */
  const units = [[86400, "d", 3600, "h"], [3600, "h", 60, "min"], [60, "min", 1, "s"]];
  for (const [unit, name, below, lower] of units) {
    if (whole >= unit) {
      const rest = Math.floor((whole % unit) / below);
      return `${Math.floor(whole / unit)} ${name}${rest ? ` ${rest} ${lower}` : ""}`;
    }
  }
  return `${whole} s`;
}

/** @param {number} count */
export function bytes(count) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let place = 0;
  while (count >= 1024 && place < units.length - 1) { count /= 1024; place += 1; }
  return `${place ? count.toFixed(1) : count} ${units[place]}`;
}

/** What a running job uses, in words. @param {any} usage */
export const used = (usage) => (usage ? [usage.memory !== null && `${bytes(usage.memory)} of memory`, usage.cpu !== null && `${Math.round(100 * usage.cpu)} % of a CPU`, usage.output > 0 && `${bytes(usage.output)} of output`].filter(Boolean).join(", ") : "");

/** @param {number | undefined} count */
export const number = (count) => (count ?? 0).toLocaleString("en").replaceAll(",", "\u202f");
