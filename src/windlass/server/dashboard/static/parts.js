// @ts-check
/** Pieces that several pages share. All text goes into text nodes. */

import { html, useEffect, useLayoutEffect, useRef, useState } from "./vendor/htm-preact-3.1.1.js";
import { Refused, clock, number, span } from "./api.js";
import { live } from "./live.js";

/** @type {Set<() => void>} */
const ticking = new Set();
setInterval(() => { for (const tick of ticking) tick(); }, 1000);

/** What a moment makes of a clock, each second; the page changes only where the outcome does. @template T @param {() => T} make @param {any[]} on */
export function useTicking(make, on) {
  const [, set] = useState(/** @type {T} */ (make()));
  useEffect(() => {
    const tick = () => set(make());
    ticking.add(tick);
    return () => { ticking.delete(tick); };
  }, on);
  return make();
}

/** The clock of the pages, by the second. */
export const useNow = () => useTicking(() => Math.floor(clock.now() / 1000) * 1000, []);

/** Milliseconds between two questions to a server that answers slowly. */
const SLOWEST = 8000;

/** Milliseconds between two questions because of events: after a quiet moment, and while they go on. */
const QUICKEST = 400, STEADY = 1000;

/** Milliseconds between two questions while events announce each change: for what has none. */
const SELDOM = 10000;

/** Of the events, those of the state of jobs. @param {string} name */
export const moves = (name) => !["output", "estimate", "progress"].includes(name);

/**
 * What a question is answered with, asked again every so often while the page is visible. Keeps the last answer while
 * the server does not answer, and asks a slow server less often.
 * @template T @param {() => Promise<T>} ask @param {any[]} on @param {number} [every] milliseconds; 0 = once
 * @param {(name: string) => boolean} [wanted] which events it is asked again for, at once; while there is a stream, `every` is longer
 * @returns {{data: T | undefined, fault: Refused | undefined, at: number, again: () => void}}
 */
export function useAsked(ask, on, every = 2000, wanted) {
  const [state, set] = useState(/** @type {any} */ ({ data: undefined, fault: undefined, of: "", at: 0 }));
  const again = useRef(/** @type {() => void} */ (() => {}));
  const wants = useRef(wanted);
  wants.current = wanted;
  const of = JSON.stringify(on);
  useEffect(() => {
    let stopped = false, asked = 0, answered = 0, last = 0, took = 0, gap = QUICKEST, changed = false;
    /** @type {any} */
    let timer;
    /** @type {any} */
    let due;
    const run = async () => {
      clearTimeout(timer);
      clearTimeout(due);
      due = undefined;
      changed = false;
      const number = ++asked, begun = (last = Date.now());
      let failed = false;
      if (!document.hidden) {
        try {
          const data = await ask();
          if (!stopped && number === asked) set({ data, fault: undefined, of, at: clock.now() });
          connection.set(true);
        } catch (fault) {
          const refused = fault instanceof Refused ? fault : new Refused(0, String(fault));
          failed = refused.status === 0;
          if (!stopped && number === asked) set((/** @type {any} */ old) => ({ ...old, data: old.of === of ? old.data : undefined, fault: refused, of }));
          connection.set(!failed, refused.status);
        }
      }
      if (stopped || number !== asked) return;
      answered = number;
      took = failed ? 0 : Math.min(SLOWEST, 10 * (Date.now() - begun));
      const next = every && wants.current && live.sure && !failed ? SELDOM : every || 2000;
      if (every || failed) timer = setTimeout(run, Math.max(next, took));
      if (changed) soon();
    };
    const soon = () => {
      const now = Date.now();
      changed = true;
      if (due !== undefined || answered !== asked) return;
      gap = now - last > 2 * STEADY ? QUICKEST : Math.min(STEADY, 1.25 * gap);
      due = setTimeout(run, Math.max(0, last + Math.max(gap, took) - now));
    };
    const hear = (/** @type {string} */ name) => { if (every && wants.current && (["open", "lost"].includes(name) || wants.current(name))) soon(); };
    live.listeners.add(hear);
    again.current = run;
    const seen = () => { if (!document.hidden) run(); };
    document.addEventListener("visibilitychange", seen);
    run();
    return () => { stopped = true; clearTimeout(timer); clearTimeout(due); live.listeners.delete(hear); document.removeEventListener("visibilitychange", seen); };
  }, [of, every]);
  const current = state.of === of;
  return { data: current ? state.data : undefined, fault: current ? state.fault : undefined, at: state.at, again: () => again.current() };
}

/** Whether the server answers, for the line at the top. */
export const connection = {
  /** @type {Set<(up: boolean, status: number) => void>} */
  listeners: new Set(),
  up: true,
  /** @param {boolean} up @param {number} [status] */
  set(up, status = 0) {
    if (up === this.up && status !== 401) return;
    this.up = up;
    for (const listener of this.listeners) listener(up, status);
  },
};

/** A moment in the viewer's time zone, exactly. @param {string | number} at */
export const exact = (at) => new Date(at).toLocaleString(undefined, { dateStyle: "full", timeStyle: "long" });

/** A time as people say it, exact on hover. @param {{at?: string | null}} props */
export function Time({ at }) {
  const text = useTicking(() => {
    const seconds = at ? (clock.now() - new Date(at).getTime()) / 1000 : 0;
    return Math.abs(seconds) < 1 ? "now" : seconds > 0 ? `${span(Math.floor(seconds))} ago` : `in ${span(Math.ceil(-seconds))}`;
  }, [at]);
  return at ? html`<time datetime=${at} title=${exact(at)}>${text}</time>` : html`<span class="dim">–</span>`;
}

/** How long ago, without the word. @param {{at?: string | null}} props */
export function Since({ at }) {
  const text = useTicking(() => (at ? span(Math.max(0, Math.floor((clock.now() - new Date(at).getTime()) / 1000))) : ""), [at]);
  return at ? html`<time datetime=${at} title=${exact(at)}>${text}</time>` : html`<span class="dim">–</span>`;
}

/** @param {{state: string}} props */
export const State = ({ state }) => html`<span class=${`badge ${state}`}>${state}</span>`;

/** @param {{to: string, children?: any, title?: string}} props */
export const Link = ({ to, children, title }) => html`<a href=${`#${to}`} title=${title}>${children}</a>`;

/** The jobs of a query. @param {{q: string, children?: any, title?: string}} props */
export const JobsLink = ({ q, children, title }) => html`<a href=${`#/jobs?q=${encodeURIComponent(q)}`} title=${title}>${children}</a>`;

/** @param {{id: string, tenant: string}} props */
export const JobLink = ({ id, tenant }) => html`<a class="mono" href=${`#/job/${tenant}/${id}`} title=${id}>${id.slice(0, 8)}…${id.slice(-6)}</a>`;

/** @param {{title: string, children?: any, actions?: any}} props */
export const Panel = ({ title, children, actions }) => html`
  <section class="panel" aria-label=${title}><header><h2>${title}</h2><span class="grow"></span>${actions}</header>${children}</section>`;

/** @param {{text: string, command?: string}} props */
export const Empty = ({ text, command }) => html`<div class="empty">${text}${command && html`<br /><code>${command}</code>`}</div>`;

/** @param {{fault?: Refused}} props */
export const Fault = ({ fault }) => fault && fault.status ? html`<div class="note-line bad" role="alert">${fault.message}</div>` : null;

/** How much of something is used. @param {{used: number, of: number, label: string}} props */
export const Use = ({ used, of, label }) => html`<div class=${`bar ${used >= of ? "full" : ""}`} role="img" aria-label=${label} title=${label}>
  <i style=${{ width: `${of ? Math.min(100, (100 * used) / of) : 0}%` }}></i></div>`;

/**
 * @param {{columns: {name: any, num?: boolean, tight?: boolean, wide?: boolean, fill?: boolean, show: (row: any) => any}[], rows?: any[],
 *   of: (row: any) => string, empty: any, label: string, cards?: boolean}} props `cards`: on a phone its rows are cards; those with buttons always are
 */
export function Table({ columns, rows, of, empty, label, cards }) {
  if (rows === undefined) return html`<div class="empty" aria-busy="true">…</div>`;
  if (!rows.length) return empty;
  const name = (/** @type {any} */ one) => [one.num && "num", one.tight && "tight", one.wide && "wide", one.fill && "fill"].filter(Boolean).join(" ");
  return html`<div class="scroll" tabindex="0" role="region" aria-label=${label}><table class=${cards || columns.some((one) => one.name === "") ? "cards" : ""}>
    <thead><tr>${columns.map((one) => (one.name ? html`<th class=${name(one)} scope="col">${one.name}</th>` : html`<td class=${name(one)}></td>`))}</tr></thead>
    <tbody>${rows.map((row) => html`<tr key=${of(row)}>${columns.map((one) => html`<td class=${name(one)} data-name=${typeof one.name === "string" && one.name ? one.name : undefined}>${one.show(row)}</td>`)}</tr>`)}</tbody>
  </table></div>`;
}

/** A button that does something and says how it went. @param {any} props */
export function Action({ run, children, kind = "", title = "", label = undefined, disabled = false }) {
  const [busy, set] = useState(false);
  const act = async () => {
    set(true);
    try {
      const said = await run();
      if (said) toast(said);
    } catch (fault) {
      toast(fault instanceof Error ? fault.message : String(fault), { bad: true });
    }
    set(false);
  };
  return html`<button type="button" class=${kind} title=${title} aria-label=${label} aria-busy=${busy} disabled=${busy || disabled} onClick=${act}>${children}</button>`;
}

/** Further actions behind one button. @param {{children?: any, label?: string}} props */
export function Menu({ children, label = "More" }) {
  const box = useRef(/** @type {any} */ (null));
  useEffect(() => {
    const outside = (/** @type {any} */ event) => { if (box.current?.open && (event.key === "Escape" || (event.type === "click" && !box.current.querySelector("summary").contains(event.target)))) box.current.open = false; };
    addEventListener("click", outside);
    addEventListener("keydown", outside);
    return () => { removeEventListener("click", outside); removeEventListener("keydown", outside); };
  }, []);
  return html`<details class="menu" ref=${box}><summary class="button">${label}</summary><div>${children}</div></details>`;
}

/** @type {(text: string, how?: {bad?: boolean, stays?: boolean}) => void} */
export let toast = () => {};

export function Toasts() {
  const [shown, set] = useState({ text: "", bad: false });
  useEffect(() => {
    /** @type {any} */
    let timer;
    toast = (text, how = {}) => {
      set({ text, bad: !!how.bad });
      clearTimeout(timer);
      if (!how.stays) timer = setTimeout(() => set({ text: "", bad: false }), how.bad ? 12000 : 5000);
    };
  }, []);
  return html`<div aria-live="polite">${shown.text && html`<div class=${`toast ${shown.bad ? "bad" : ""}`}>${shown.text}
    <button class="plain" aria-label="Close this message" onClick=${() => set({ text: "", bad: false })}>×</button></div>`}</div>`;
}

/**
 * @typedef {{name: string, label: string, value?: any, hint?: string, required?: boolean, long?: boolean, flag?: boolean,
 *   options?: string[], checks?: string[], suggested?: string[], number?: boolean, samples?: {name: string, load: () => Promise<string>}[]}} Field
 */

/** @type {(asked: {title: string, text?: string, fields?: Field[], go: string, danger?: boolean, act?: (given: any) => Promise<any>}) => Promise<any>} */
export let ask = async () => null;

/**
 * Asks before what cannot be undone, and for what an action needs. Answers the fields, or null; with `act` what that
 * answers: while it fails, the dialog stays and says why.
 */
export function Dialogs() {
  const [asked, set] = useState(/** @type {any} */ (null));
  const [fault, setFault] = useState("");
  const [busy, setBusy] = useState(false);
  const box = useRef(/** @type {any} */ (null));
  useEffect(() => {
    ask = (wanted) => new Promise((resolve) => { setFault(""); set({ ...wanted, resolve }); });
  }, []);
  useLayoutEffect(() => { if (asked && box.current && !box.current.open) box.current.showModal(); }, [asked]);
  if (!asked) return null;
  const close = (/** @type {any} */ value) => { asked.resolve(value); set(null); setBusy(false); };
  const submit = async (/** @type {any} */ event) => {
    event.preventDefault();
    const form = new FormData(event.target);
    /** @type {any} */
    const given = {};
    for (const one of asked.fields ?? []) given[one.name] = one.checks ? form.getAll(one.name) : one.flag ? form.has(one.name) : form.get(one.name);
    if (!asked.act) { close(given); return; }
    setBusy(true);
    try {
      close((await asked.act(given)) ?? given);
    } catch (refused) {
      setFault(refused instanceof Error ? refused.message : String(refused));
      setBusy(false);
    }
  };
  return html`<dialog ref=${box} onCancel=${() => close(null)} aria-label=${asked.title}>
    <form onSubmit=${submit}>
      <h2>${asked.title}</h2>
      ${asked.text && html`<div class="dim">${asked.text}</div>`}
      ${(asked.fields ?? []).map((/** @type {Field} */ one) => html`<${Input} key=${one.name} field=${one} />`)}
      ${fault && html`<div class="note-line bad" role="alert">${fault}</div>`}
      <div class="row"><button type="button" onClick=${() => close(null)}>Cancel</button>
        <button type="submit" disabled=${busy} class=${asked.danger ? "danger" : "main"}>${asked.go}</button></div>
    </form></dialog>`;
}

/** @param {{field: Field}} props */
function Input({ field: one }) {
  if (one.checks) {
    return html`<fieldset class="field"><legend>${one.label}</legend><div class="row">${one.checks.map((option) => html`<label class="check">
      <input type="checkbox" name=${one.name} value=${option} defaultChecked=${(one.value ?? []).includes(option)} /> ${option}</label>`)}</div></fieldset>`;
  }
  if (one.flag) return html`<label class="check"><input type="checkbox" name=${one.name} defaultChecked=${!!one.value} /> ${one.label}</label>`;
  if (one.long) {
    const take = (/** @type {() => Promise<string>} */ load) => async (/** @type {any} */ event) => { const { form } = event.target; form.elements[one.name].value = await load(); };
    return html`<label class="field">${one.label}<textarea name=${one.name} spellcheck="false" placeholder=${one.hint ?? ""} defaultValue=${String(one.value ?? "")}></textarea></label>
      ${one.samples?.length ? html`<div class="small dim">Take that of a job: ${one.samples.map((each) => html`<button type="button" class="plain link small" onClick=${take(each.load)}>${each.name}</button> `)}</div>` : ""}`;
  }
  if (one.options) {
    return html`<label class="field">${one.label}<select name=${one.name}>${one.options.map((option) => html`
      <option value=${option} selected=${option === (one.value ?? "")}>${option || "as usual"}</option>`)}</select></label>`;
  }
  return html`<label class="field">${one.label}<input name=${one.name} defaultValue=${String(one.value ?? "")} placeholder=${one.hint ?? ""}
    required=${!!one.required} inputmode=${one.number ? "decimal" : undefined} list=${one.suggested ? `of-${one.name}` : undefined} autocomplete="off" />
    ${one.suggested && html`<datalist id=${`of-${one.name}`}>${one.suggested.map((option) => html`<option value=${option} />`)}</datalist>`}</label>`;
}

/** Whether it is to be deleted, and so on. @param {string} title @param {string} text @param {string} go */
export const sure = async (title, text, go) => (await ask({ title, text, go, danger: true })) !== null;

/** Asks for how long and why, then pauses. @param {string} name @param {(pause: any) => Promise<any>} send */
export const pause = (name, send) => async () => {
  const done = await ask({
    title: `Pause ${name}?`, text: "What runs goes on; what is queued waits.", go: "Pause",
    fields: [{ name: "why", label: "Why", hint: "shown in listings" }, { name: "minutes", label: "For how many minutes (empty: until it is resumed)", number: true }],
    act: (given) => send({ paused: true, why: given.why, ...(given.minutes ? { until: new Date(clock.now() + 60000 * Number(given.minutes)).toISOString() } : {}) }),
  });
  return done ? `${name} is paused` : "";
};

/** @param {{one: any}} props */
export const Paused = ({ one }) => (one.paused ? html`<div class="sub warn-text">paused${one.since ? html` for <${Since} at=${one.since} />` : ""}${one.until ? html`, goes on <${Time} at=${one.until} />` : ""}${one.why ? `: ${one.why}` : ""}</div>` : null);

/** A text of a form as JSON; what is wrong with it names the field. @param {string} text @param {string} label */
export function json(text, label) {
  try {
    return JSON.parse(text || "null");
  } catch (fault) {
    throw new Error(`${label} is no JSON: ${fault instanceof Error ? fault.message : fault}`);
  }
}

const MOST_BARS = 180;

/**
 * Numbers over time: bars on top of each other, or lines. What is under the pointer is named in the legend.
 * @param {{points: any[], step: number, from: number, to: number, lines?: boolean, label: string, actions?: any,
 *   series: {name: string, kind: string, of: (point: any) => number}[]}} props
 */
export function Chart({ points, step, from, to, lines, series, label }) {
  const [over, set] = useState(-1);
  const slots = Math.max(1, Math.round((to - from) / step));
  const together = Math.ceil(slots / MOST_BARS), count = Math.ceil(slots / together);
  /** @type {(number[] | null)[]} */
  const values = new Array(count).fill(null);
  for (const point of points) {
    const place = Math.floor((Math.round(new Date(point.at).getTime() / 1000 - from) / step - 1) / together);
    if (place < 0 || place >= count) continue;
    const before = values[place];
    values[place] = series.map((one, index) => (lines ? Math.max(before?.[index] ?? 0, one.of(point)) : (before?.[index] ?? 0) + one.of(point)));
  }
  const known = /** @type {number[][]} */ (values.filter(Boolean));
  const sum = (/** @type {number[]} */ row) => row.reduce((all, one) => all + one, 0);
  const most = nice(Math.max(1, ...known.map((row) => (lines ? Math.max(...row) : sum(row)))));
  const height = 120, scale = (height - 2) / most, slot = 900 / count;
  const shown = values[over] ?? null;
  const totals = series.map((_, index) => (lines ? known.at(-1)?.[index] ?? 0 : known.reduce((all, row) => all + row[index], 0)));
  const moment = (/** @type {number} */ at) => new Date(at * 1000).toLocaleString(undefined, step < 3600 ? { hour: "2-digit", minute: "2-digit", ...(to - from > 86000 ? { weekday: "short" } : {}) } : { day: "2-digit", month: "short", hour: "2-digit", minute: "2-digit" });
  const move = (/** @type {any} */ event) => {
    const box = event.currentTarget.getBoundingClientRect();
    set(Math.min(count - 1, Math.max(0, Math.floor(((event.clientX - box.left) / box.width) * count))));
  };
  const begins = from + over * together * step;
  return html`<figure class="plot"><figcaption class="legend">${series.map((one, index) => html`<span><i class=${one.kind}></i>${one.name} <b>${number(shown ? shown[index] : over >= 0 ? 0 : totals[index])}</b></span>`)}
      <span class="grow"></span><span>${over >= 0 ? `${moment(begins)}${shown ? "" : ": not noted"}` : ""}</span></figcaption>
    <div class="plot-row"><div class="scale" aria-hidden="true"><span>${short(most)}</span><span>${most > 1 ? short(most / 2) : ""}</span><span>0</span></div>
    <svg viewBox=${`0 0 900 ${height}`} preserveAspectRatio="none" role="img" aria-label=${`${label}: ${series.map((one, index) => `${one.name} ${totals[index]}`).join(", ")}`} onMouseMove=${move} onMouseLeave=${() => set(-1)}>
      <line class="axis" x1="0" x2="900" y1=${height - 0.5} y2=${height - 0.5} /><line class="axis" x1="0" x2="900" y1="1" y2="1" /><line class="axis" x1="0" x2="900" y1=${height / 2} y2=${height / 2} />
      ${over >= 0 && html`<rect class="over" x=${over * slot} y="0" width=${slot} height=${height} />`}
      ${lines ? series.map((one, index) => html`<path class=${`line ${one.kind}`} d=${path(values, index, slot, (value) => height - 1 - value * scale)} />`)
        : values.map((row, place) => row && bar(row, series, place * slot, slot, scale, height))}</svg></div>
    <div class="plot-labels"><span>${moment(from)}</span><span>${moment((from + to) / 2)}</span><span>${moment(to)}</span></div></figure>`;
}

/** @param {number[]} row @param {{kind: string}[]} series @param {number} x @param {number} slot @param {number} scale @param {number} height */
function bar(row, series, x, slot, scale, height) {
  let top = height - 1;
  return row.map((value, index) => {
    if (!value) return null;
    const tall = Math.max(1.2, value * scale);
    top -= tall;
    return html`<rect class=${series[index].kind} x=${x} y=${top} width=${Math.max(1, slot * 0.82)} height=${tall} />`;
  });
}

/**
 * A row of bars, the newest at the right: how many there were, and how many of them were bad.
 * @param {{all: number[], bad: number[], most: number}} props
 */
export function Spark({ all, bad, most }) {
  const top = Math.max(1, ...all), sum = (/** @type {number[]} */ row) => row.reduce((total, one) => total + one, 0);
  const text = `${number(sum(all))} ${sum(all) === 1 ? "run" : "runs"} in the last hour${sum(bad) ? `, ${number(sum(bad))} failed` : ""}`;
  const tall = (/** @type {number} */ value) => (value ? Math.max(1.5, (value / top) * 20) : 0);
  return html`<svg class="spark" viewBox=${`0 0 ${2 * most} 22`} role="img" aria-label=${text}><title>${text}</title><line class="axis" x1="0" x2=${2 * most} y1="21.5" y2="21.5" />
    ${all.map((value, place) => { const x = 2 * (most - all.length + place); return html`<rect class="ok" x=${x} y=${21 - tall(value)} width="1.6" height=${tall(value)} /><rect class="bad" x=${x} y=${21 - tall(bad[place])} width="1.6" height=${tall(bad[place])} />`; })}</svg>`;
}

/** @param {(number[] | null)[]} values @param {number} index @param {number} slot @param {(value: number) => number} place */
function path(values, index, slot, place) {
  let text = "", pen = false;
  values.forEach((row, number) => {
    if (row) text += `${pen ? "L" : "M"}${((number + 0.5) * slot).toFixed(1)} ${place(row[index]).toFixed(1)}${pen ? "" : "h0.1"}`;
    pen = row !== null;
  });
  return text;
}

/** The next round number. @param {number} value */
function nice(value) {
  const unit = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 4, 6, 8, 10].map((one) => one * unit).find((one) => one >= value) ?? value;
}

/** @param {number} value */
const short = (value) => (value >= 1e6 ? `${+(value / 1e6).toFixed(1)}M` : value >= 1000 ? `${+(value / 1000).toFixed(1)}k` : `${+value.toFixed(1)}`);

/** A value as people read it. @param {any} value */
export const pretty = (value) => (typeof value === "string" ? value : JSON.stringify(value, null, 2));
