// @ts-check
/** Pieces that several pages share. All text goes into text nodes. */

import { html, useEffect, useRef, useState } from "./vendor/htm-preact-3.1.1.js";
import { Refused, number, span } from "./api.js";

/** The clock of the pages: every relative time is computed from it. @param {number} [every] milliseconds */
export function useNow(every = 1000) {
  const [now, set] = useState(Date.now());
  useEffect(() => {
    const timer = setInterval(() => set(Date.now()), every);
    return () => clearInterval(timer);
  }, [every]);
  return now;
}

/**
 * What a question is answered with, asked again every so often while the page is visible. Keeps the last answer while
 * the server does not answer.
 * @template T @param {() => Promise<T>} ask @param {any[]} on @param {number} [every] milliseconds; 0 = once
 * @returns {{data: T | undefined, fault: Refused | undefined, again: () => void}}
 */
export function useAsked(ask, on, every = 2000) {
  const [state, set] = useState(/** @type {any} */ ({ data: undefined, fault: undefined, of: "" }));
  const again = useRef(/** @type {() => void} */ (() => {}));
  const of = JSON.stringify(on);
  useEffect(() => {
    let stopped = false;
    /** @type {any} */
    let timer;
    const run = async () => {
      clearTimeout(timer);
      if (!document.hidden) {
        try {
          const data = await ask();
          if (!stopped) set({ data, fault: undefined, of });
          connection.set(true);
        } catch (fault) {
          const refused = fault instanceof Refused ? fault : new Refused(0, String(fault));
          if (!stopped) set((/** @type {any} */ old) => ({ data: old.of === of ? old.data : undefined, fault: refused, of }));
          connection.set(refused.status !== 0, refused.status);
        }
      }
      if (!stopped && every) timer = setTimeout(run, every);
    };
    again.current = run;
    const seen = () => { if (!document.hidden) run(); };
    document.addEventListener("visibilitychange", seen);
    run();
    return () => { stopped = true; clearTimeout(timer); document.removeEventListener("visibilitychange", seen); };
  }, [of, every]);
  return { data: state.of === of ? state.data : undefined, fault: state.of === of ? state.fault : undefined, again: () => again.current() };
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

/** A time as people say it, exact on hover. @param {{at?: string | null}} props */
export function Time({ at }) {
  const now = useNow();
  if (!at) return html`<span class="dim">–</span>`;
  const moment = new Date(at);
  const seconds = (now - moment.getTime()) / 1000;
  const text = Math.abs(seconds) < 1 ? "now" : seconds > 0 ? `${span(seconds)} ago` : `in ${span(-seconds)}`;
  return html`<time datetime=${at} title=${moment.toLocaleString(undefined, { dateStyle: "full", timeStyle: "long" })}>${text}</time>`;
}

/** @param {{state: string}} props */
export const State = ({ state }) => html`<span class=${`badge ${state}`}>${state}</span>`;

/** @param {{to: string, children?: any}} props */
export const Link = ({ to, children }) => html`<a href=${`#${to}`}>${children}</a>`;

/** @param {{id: string, tenant: string}} props */
export const JobLink = ({ id, tenant }) => html`<a class="mono" href=${`#/job/${tenant}/${id}`} title=${id}>${id.slice(0, 8)}…${id.slice(-6)}</a>`;

/** @param {{title: string, children?: any, actions?: any}} props */
export const Panel = ({ title, children, actions }) => html`
  <section class="panel"><header><h2>${title}</h2><span class="grow"></span>${actions}</header>${children}</section>`;

/** @param {{text: string, command?: string}} props */
export const Empty = ({ text, command }) => html`<div class="empty">${text}${command && html`<br /><code>${command}</code>`}</div>`;

/** @param {{fault?: Refused}} props */
export const Fault = ({ fault }) => fault && fault.status ? html`<div class="note-line bad" role="alert">${fault.message}</div>` : null;

/**
 * @param {{columns: {name: string, num?: boolean, tight?: boolean, wide?: boolean, show: (row: any) => any}[], rows?: any[],
 *   of: (row: any) => string, empty: any}} props
 */
export function Table({ columns, rows, of, empty }) {
  if (rows === undefined) return html`<div class="empty">…</div>`;
  if (!rows.length) return empty;
  const name = (/** @type {any} */ one) => [one.num && "num", one.tight && "tight", one.wide && "wide"].filter(Boolean).join(" ");
  return html`<div class="scroll"><table>
    <thead><tr>${columns.map((one) => html`<th class=${name(one)} scope="col">${one.name}</th>`)}</tr></thead>
    <tbody>${rows.map((row) => html`<tr key=${of(row)}>${columns.map((one) => html`<td class=${name(one)}>${one.show(row)}</td>`)}</tr>`)}</tbody>
  </table></div>`;
}

/** A button that does something and says how it went. @param {any} props */
export function Action({ run, children, kind = "", title = "", disabled = false }) {
  const [busy, set] = useState(false);
  const act = async () => {
    set(true);
    try {
      const said = await run();
      if (said) toast(said);
    } catch (fault) {
      toast(fault instanceof Error ? fault.message : String(fault));
    }
    set(false);
  };
  return html`<button type="button" class=${kind} title=${title} disabled=${busy || disabled} onClick=${act}>${children}</button>`;
}

/** @type {(text: string) => void} */
export let toast = () => {};

export function Toasts() {
  const [text, set] = useState("");
  useEffect(() => {
    /** @type {any} */
    let timer;
    toast = (said) => { set(said); clearTimeout(timer); timer = setTimeout(() => set(""), 5000); };
  }, []);
  return html`<div aria-live="polite">${text && html`<div class="toast">${text}</div>`}</div>`;
}

/** @type {(asked: {title: string, text?: string, fields?: any[], go: string, danger?: boolean}) => Promise<any>} */
export let ask = async () => null;

/** Asks before what cannot be undone, and for what an action needs. Resolves to the fields, or null. */
export function Dialogs() {
  const [asked, set] = useState(/** @type {any} */ (null));
  const box = useRef(/** @type {any} */ (null));
  useEffect(() => {
    ask = (wanted) => new Promise((resolve) => set({ ...wanted, resolve }));
  }, []);
  useEffect(() => { if (asked && box.current && !box.current.open) box.current.showModal(); }, [asked]);
  if (!asked) return null;
  const close = (/** @type {any} */ value) => { asked.resolve(value); set(null); };
  const submit = (/** @type {any} */ event) => {
    event.preventDefault();
    close(Object.fromEntries(new FormData(event.target)));
  };
  return html`<dialog ref=${box} onCancel=${() => close(null)} aria-label=${asked.title}>
    <form onSubmit=${submit}>
      <h2>${asked.title}</h2>
      ${asked.text && html`<div class="dim">${asked.text}</div>`}
      ${(asked.fields ?? []).map((/** @type {any} */ one) => html`<label class="field">${one.label}
        ${one.long
          ? html`<textarea name=${one.name} spellcheck="false">${one.value ?? ""}</textarea>`
          : one.options
            ? html`<select name=${one.name}>${one.options.map((/** @type {string} */ option) => html`<option value=${option} selected=${option === one.value}>${option}</option>`)}</select>`
            : html`<input name=${one.name} value=${one.value ?? ""} placeholder=${one.hint ?? ""} required=${!!one.required} />`}
      </label>`)}
      <div class="row"><button type="button" onClick=${() => close(null)}>Cancel</button>
        <button type="submit" class=${asked.danger ? "danger" : "main"}>${asked.go}</button></div>
    </form></dialog>`;
}

/** Bars over time: what succeeded, broke, and ran again. @param {{points: any[], step: number, from: number, to: number}} props */
export function Chart({ points, step, from, to }) {
  const width = 900, height = 120, base = height, left = 0;
  const count = Math.max(1, Math.round((to - from) / step));
  const slot = (width - left) / count;
  const most = Math.max(1, ...points.map((one) => (one.ok ?? 0) + (one.failed ?? 0) + (one.error ?? 0) + (one.retry ?? 0)));
  const scale = (base - 4) / most;
  const bars = points.map((one) => {
    const place = left + ((new Date(one.at).getTime() / 1000 - from) / step - 1) * slot;
    let top = base;
    /** @type {[string, number][]} */
    const parts = [["ok", one.ok ?? 0], ["retry", one.retry ?? 0], ["bad", (one.failed ?? 0) + (one.error ?? 0)]];
    const title = `${new Date(one.at).toLocaleString()}: ${one.ok ?? 0} ok, ${(one.failed ?? 0) + (one.error ?? 0)} failed, ${one.retry ?? 0} to run again`;
    return html`<g><title>${title}</title>${parts.filter(([, n]) => n).map(([kind, n]) => {
      const tall = Math.max(1, n * scale);
      top -= tall;
      return html`<rect class=${kind} x=${place} y=${top} width=${Math.max(1, slot - 1)} height=${tall} />`;
    })}</g>`;
  });
  const label = (/** @type {number} */ at) => new Date(at * 1000).toLocaleString(undefined, step < 3600 ? { hour: "2-digit", minute: "2-digit" } : { day: "2-digit", month: "short", hour: "2-digit" });
  return html`<div class="chart-labels"><span>${number(most)} ${most === 1 ? "run" : "runs"}</span></div>
    <svg class="chart" viewBox=${`0 0 ${width} ${height}`} preserveAspectRatio="none" role="img" aria-label="Runs over time">
    <line class="axis" x1="0" x2=${width} y1=${base - 0.5} y2=${base - 0.5} /><line class="axis" x1="0" x2=${width} y1="4" y2="4" />${bars}</svg>
    <div class="chart-labels"><span>${label(from)}</span><span>${label(to)}</span></div>`;
}

/** A value as people read it. @param {any} value */
export const pretty = (value) => (typeof value === "string" ? value : JSON.stringify(value, null, 2));
