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

const FIELDS = ["state", "task", "queue", "tag", "worker", "key", "reason", "created_after", "created_before", "text"];

/** Completions of the query bar. */
export const QUALIFIERS = FIELDS.map((name) => `${name}:`).concat("payload.");

export const STATES = ["blocked", "scheduled", "queued", "running", "succeeded", "failed", "cancelled"];

/**
 * `state:failed task:render payload.n:5 "some text"` as the query of a listing, or what is wrong with it.
 * @param {string} text @returns {{query: Record<string, any>, wrong?: string}}
 */
export function parseQuery(text) {
  /** @type {Record<string, any>} */
  const query = {};
  for (const [word] of text.matchAll(/(?:[\w.-]+:)?"[^"]*"|\S+/g)) {
    const colon = word.indexOf(":");
    const name = colon > 0 && !word.startsWith('"') ? word.slice(0, colon) : "text";
    const value = (name === "text" && !word.startsWith("text:") ? word : word.slice(colon + 1)).replace(/^"|"$/g, "");
    if (!FIELDS.includes(name) && !/^payload\.[^.]/.test(name)) return { query, wrong: `there is no ${name}: — ${QUALIFIERS.join(" ")}` };
    if (value === "") continue;
    if (name === "state" || name === "tag") query[name] = [...(query[name] ?? []), value];
    else query[name] = value;
  }
  return { query };
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
  if (seconds < 9.95) return `${seconds.toFixed(1)} s`;
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

/** @param {number | undefined} count */
export const number = (count) => (count ?? 0).toLocaleString("en").replaceAll(",", "\u202f");

/** Failed jobs by what they have in common: task, error, and the message without its numbers. @param {any[]} jobs */
export function groupFailures(jobs) {
  /** @type {Map<string, any>} */
  const groups = new Map();
  for (const job of jobs) {
    const error = job.error ?? {};
    const shape = (error.message ?? "").replace(/0x[0-9a-f]+|[0-9a-f]{8}-[0-9a-f-]{27}|\d+(\.\d+)?/gi, "…").slice(0, 200);
    const key = JSON.stringify([job.tenant, job.task, error.type || job.reason, shape]);
    const at = job.finished_at ?? job.updated_at;
    const group = groups.get(key) ?? { key, tenant: job.tenant, task: job.task, type: error.type || job.reason, message: error.message ?? "", first: at, last: at, jobs: [] };
    group.jobs.push(job);
    if (at < group.first) group.first = at;
    if (at > group.last) group.last = at;
    groups.set(key, group);
  }
  return [...groups.values()].sort((a, b) => b.jobs.length - a.jobs.length || (a.last < b.last ? 1 : -1));
}
