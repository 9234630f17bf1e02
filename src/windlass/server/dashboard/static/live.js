// @ts-check
/** The event stream of the page that is open: it says when to ask again. There is one, also for several questions. */

import { useEffect } from "./vendor/htm-preact-3.1.1.js";

/** Events of so many milliseconds; with more of them, asking now and then costs less than following. */
const WINDOW = 2000, MOST_EVENTS = 100;

/** Milliseconds without a stream after too many events: at first, and at most. */
const CALM_DOWN = 10000, BUSY = 60000;

/** Milliseconds before a lost stream is opened again: at first, and at most. */
const SOON = 1000, LATE = 15000;

/** Milliseconds without a byte after which a stream is dead: the server sends at least a line every 15 seconds. */
const SILENT = 40000;

/** Pieces of output that are kept. */
const MOST_PIECES = 500;

const ENDS = ["succeeded", "failed", "cancelled"];

export const live = {
  /** Whether each change is announced by an event. */
  sure: false,
  /** Called with the name of an event, `open` and `lost`. @type {Set<(name: string) => void>} */
  listeners: new Set(),
  /** What the job of the page has printed. @type {{n: number, stream: string, text: string}[]} */
  output: [],
  /** Opens the stream of a job again that had ended and runs once more. */
  resume: () => {},
};

/** @param {string} name */
const notify = (name) => { for (const listener of [...live.listeners]) listener(name); };

/** Follows the events of an address while the page is visible. @param {string} url */
export function useStream(url) {
  useEffect(() => follow(url), [url]);
}

/** @param {string} url */
function follow(url) {
  let stopped = false, ended = false, refused = false, pause = SOON, calm = CALM_DOWN, cursor = "";
  /** @type {any} */
  let timer;
  /** @type {AbortController | null} */
  let current = null;
  /** @type {Record<string, TextDecoder>} */
  let decoders = {};

  /** @param {any} chunk */
  const print = (chunk) => {
    const decoder = (decoders[chunk.stream] ??= new TextDecoder());
    const text = chunk.text !== undefined ? decoder.decode() + chunk.text
      : decoder.decode(Uint8Array.from(atob(chunk.base64 ?? ""), (byte) => byte.charCodeAt(0)), { stream: true });
    live.output = [...live.output, { n: chunk.n, stream: chunk.stream, text }].slice(-MOST_PIECES);
  };

  /** One event; its name. @param {string} text */
  const take = (text) => {
    /** @type {Record<string, string>} */
    const fields = {};
    for (const line of text.split("\n")) {
      const colon = line.indexOf(":");
      if (colon > 0) fields[line.slice(0, colon)] = line.slice(colon + 1).trimStart();
    }
    cursor = fields.id ?? cursor;
    if (fields.event === "output") print(JSON.parse(fields.data));
    if (fields.id && ENDS.includes(fields.event)) ended = true;
    return fields.event ?? "";
  };

  /** Reads until the stream ends; whether it brought too much. @param {AbortController} control */
  const read = async (control) => {
    /** @type {Record<string, string>} */
    const headers = { accept: "text/event-stream", ...(cursor && { "last-event-id": cursor }) };
    let silence = setTimeout(() => control.abort(), SILENT);
    try {
      const response = await fetch(url, { headers, signal: control.signal });
      if (response.status === 204 || response.status === 404) ended = true;
      refused = response.status >= 400 && response.status < 500 && response.status !== 429;
      if (!response.ok || !response.body) return false;
      live.sure = true;
      pause = SOON;
      notify("open");
      const reader = response.body.getReader(), decoder = new TextDecoder();
      let rest = "", since = Date.now(), came = 0;
      for (;;) {
        const { done, value } = await reader.read();
        if (done) return false;
        clearTimeout(silence);
        silence = setTimeout(() => control.abort(), SILENT);
        const parts = (rest + decoder.decode(value, { stream: true })).split("\n\n");
        rest = parts.pop() ?? "";
        const names = parts.map(take).filter(Boolean);
        if (Date.now() - since > WINDOW) { since = Date.now(); came = 0; }
        came += names.filter((name) => name !== "output").length;
        for (const name of new Set(names)) notify(name);
        if (came > MOST_EVENTS) return true;
      }
    } finally {
      clearTimeout(silence);
      control.abort();
    }
  };

  const run = async () => {
    clearTimeout(timer);
    if (stopped || current || document.hidden) return;
    const control = (current = new AbortController()), begun = Date.now();
    const many = await read(control).catch(() => false);
    if (current === control) current = null;
    if (stopped || document.hidden) return;
    live.sure = ended;
    notify("lost");
    if (ended || refused) return;
    if (Date.now() - begun > BUSY) calm = CALM_DOWN;
    timer = setTimeout(run, many ? calm : pause);
    if (many) calm = Math.min(BUSY, 2 * calm);
    else pause = Math.min(LATE, 2 * pause);
  };

  const seen = () => {
    if (document.hidden) {
      clearTimeout(timer);
      current?.abort();
      current = null;
      live.sure = ended;
    } else if (!ended) run();
  };
  live.sure = false;
  live.output = [];
  live.resume = () => {
    if (!ended) return;
    ended = live.sure = false;
    cursor = "";
    decoders = {};
    live.output = [];
    run();
  };
  document.addEventListener("visibilitychange", seen);
  run();
  return () => {
    stopped = true;
    clearTimeout(timer);
    current?.abort();
    document.removeEventListener("visibilitychange", seen);
  };
}
