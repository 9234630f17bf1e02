// @ts-check
/** The frame of the pages: signing in, navigation, keyboard. */

import { html, render, useEffect, useMemo, useRef, useState } from "./vendor/htm-preact-3.1.1.js";
import { number, queue, send } from "./api.js";
import { Dialogs, Toasts, connection, useAsked } from "./parts.js";
import { Job } from "./job.js";
import { Failures, Jobs } from "./jobs.js";
import { Audit, Handlers, Limits, Overview, Queues, Schedules, Tokens, Workers } from "./pages.js";

/** @typedef {import("./api.js").Who} Who */

/** @type {{path: string, name: string, page: any, scope?: string, key: string}[]} */
const PAGES = [
  { path: "/", name: "Overview", page: Overview, key: "o" },
  { path: "/jobs", name: "Jobs", page: Jobs, key: "j" },
  { path: "/failures", name: "Failures", page: Failures, key: "f" },
  { path: "/queues", name: "Queues", page: Queues, key: "q" },
  { path: "/workers", name: "Workers", page: Workers, key: "w" },
  { path: "/schedules", name: "Schedules", page: Schedules, key: "s" },
  { path: "/limits", name: "Limits", page: Limits, key: "l" },
  { path: "/handlers", name: "Handlers", page: Handlers, key: "h" },
  { path: "/audit", name: "Audit", page: Audit, scope: "operate", key: "a" },
  { path: "/tokens", name: "Tokens", page: Tokens, scope: "admin", key: "t" },
];

function useRoute() {
  const read = () => location.hash.slice(1) || "/";
  const [route, set] = useState(read());
  useEffect(() => {
    const changed = () => set(read());
    addEventListener("hashchange", changed);
    changed(); // it may have changed before there was a listener
    return () => removeEventListener("hashchange", changed);
  }, []);
  return route;
}

function useTheme() {
  const [theme, set] = useState(localStorage.getItem("theme") ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light"));
  useEffect(() => { document.documentElement.dataset.theme = theme; }, [theme]);
  return { theme, flip: () => { const next = theme === "dark" ? "light" : "dark"; localStorage.setItem("theme", next); set(next); } };
}

const MARK = html`<svg viewBox="0 0 24 24" fill="none" stroke="currentColor" stroke-width="2" aria-hidden="true"><circle cx="12" cy="12" r="4" /><path d="M12 2v6M12 16v6M2 12h6M16 12h6M5 5l4 4M15 15l4 4M19 5l-4 4M9 15l-4 4" /></svg>`;

/** @param {{done: (who: Who) => void}} props */
function SignIn({ done }) {
  const [fault, set] = useState("");
  const submit = async (/** @type {any} */ event) => {
    event.preventDefault();
    const token = new FormData(event.target).get("token");
    try {
      done(await send("POST", "/session", { headers: { authorization: `Bearer ${token}` } }));
    } catch (refused) {
      set(refused instanceof Error ? refused.message : "");
    }
  };
  return html`<main class="sign-in panel stack"><div class="brand">${MARK} Windlass</div>
    <div class="dim">Open the link that <code>windlass serve</code> prints, or sign in with a token (<code>windlass tokens add read operate</code>).</div>
    <form class="stack" onSubmit=${submit}><label class="field">Token <input type="password" name="token" autocomplete="off" required autofocus /></label>
      ${fault && html`<div class="note-line bad" role="alert">${fault}</div>`}<button class="main">Sign in</button></form></main>`;
}

/** @param {{close: () => void, pages: any[], can: (scope: string) => boolean, flip: () => void}} props */
function Palette({ close, pages, flip }) {
  const [text, set] = useState("");
  const [at, setAt] = useState(0);
  const box = useRef(/** @type {any} */ (null));
  useEffect(() => { box.current.showModal(); }, []);
  const go = (/** @type {string} */ to) => () => { location.hash = to; };
  const entries = useMemo(() => {
    const found = [
      ...pages.map((one) => ({ name: one.name, hint: `g ${one.key}`, run: go(one.path) })),
      ...["failed", "running", "queued", "scheduled"].map((state) => ({ name: `Jobs: ${state}`, hint: `state:${state}`, run: go(`/jobs?q=state:${state}`) })),
      { name: "Light or dark", hint: "", run: flip },
    ].filter((one) => one.name.toLowerCase().includes(text.toLowerCase()));
    if (text.trim()) found.push({ name: `Find jobs: ${text.trim()}`, hint: "↵", run: go(`/jobs?q=${encodeURIComponent(text.trim())}`) });
    return found;
  }, [text]);
  const chosen = Math.min(at, entries.length - 1);
  const keys = (/** @type {any} */ event) => {
    if (event.key === "ArrowDown") setAt(Math.min(chosen + 1, entries.length - 1));
    else if (event.key === "ArrowUp") setAt(Math.max(chosen - 1, 0));
    else if (event.key === "Enter" && entries[chosen]) { entries[chosen].run(); close(); }
    else return;
    event.preventDefault();
  };
  return html`<dialog class="palette" ref=${box} onCancel=${close} aria-label="Commands" onClick=${(/** @type {any} */ event) => event.target === box.current && close()}>
    <input aria-label="Command or query" placeholder="Go to a page, or find jobs: state:failed task:mail" value=${text} onInput=${(/** @type {any} */ event) => { set(event.target.value); setAt(0); }} onKeyDown=${keys} />
    <ul role="listbox">${entries.map((one, place) => html`<li role="option" aria-selected=${place === chosen} onClick=${() => { one.run(); close(); }}><span>${one.name}</span><span class="dim small">${one.hint}</span></li>`)}</ul></dialog>`;
}

/** @param {{who: Who, leave: () => void}} props */
function Frame({ who, leave }) {
  const route = useRoute();
  const { theme, flip } = useTheme();
  const [palette, setPalette] = useState(false);
  const [up, setUp] = useState(true);
  const [path, rest = ""] = route.split("?");
  const can = (/** @type {string} */ scope) => who.scopes.includes(scope);
  const pages = PAGES.filter((one) => !one.scope || can(one.scope));
  const [seen, look] = useState(localStorage.getItem("tenant") ?? "default");
  const tenant = who.tenant === "-" ? seen : who.tenant;
  const known = useAsked(() => queue(who.tenant).get("/stats"), [who.tenant], 3000).data;
  const stats = known && { queues: known.queues.filter((/** @type {any} */ one) => tenant === "-" || one.tenant === tenant) };
  const tenants = [...new Set(["default", seen, ...(known?.queues ?? []).map((/** @type {any} */ one) => one.tenant)])].filter((one) => one !== "-").sort();
  const choose = (/** @type {any} */ event) => { localStorage.setItem("tenant", event.target.value); look(event.target.value); };
  const failed = stats ? stats.queues.reduce((/** @type {number} */ sum, /** @type {any} */ one) => sum + (one.states.failed ?? 0), 0) : 0;

  useEffect(() => {
    const listener = (/** @type {boolean} */ now, /** @type {number} */ status) => { setUp(now); if (status === 401) leave(); };
    connection.listeners.add(listener);
    let prefix = 0;
    const keys = (/** @type {KeyboardEvent} */ event) => {
      const typing = event.target instanceof HTMLElement && /INPUT|TEXTAREA|SELECT/.test(event.target.tagName);
      if ((event.metaKey || event.ctrlKey) && event.key === "k") { event.preventDefault(); setPalette(true); return; }
      if (typing || event.metaKey || event.ctrlKey || event.altKey) return;
      if (event.key === "g") { prefix = Date.now(); return; }
      const page = PAGES.find((one) => one.key === event.key);
      if (page && Date.now() - prefix < 1200) { location.hash = page.path; prefix = 0; }
      if (event.key === "/") { const bar = document.querySelector(".query"); if (bar instanceof HTMLElement) { event.preventDefault(); bar.focus(); } }
    };
    addEventListener("keydown", keys);
    return () => { connection.listeners.delete(listener); removeEventListener("keydown", keys); };
  }, []);

  const job = /^\/job\/([^/]+)\/([0-9a-f-]+)$/.exec(path);
  const current = PAGES.find((one) => one.path === path) ?? (job ? PAGES[1] : undefined);
  useEffect(() => { document.title = `${current ? current.name : "Windlass"} · Windlass`; }, [path]);
  const shown = { tenant, can, query: new URLSearchParams(rest), who };
  const page = job
    ? html`<${Job} key=${path} ...${shown} tenant=${decodeURIComponent(job[1])} id=${job[2]} />`
    : current ? html`<${current.page} key=${`${tenant} ${current.path}`} ...${shown} />` : html`<div class="empty">There is no page ${path}.</div>`;
  return html`<div class="frame">
    <aside class="side"><a class="brand" href="#/">${MARK} Windlass</a>
      <nav aria-label="Pages">${pages.map((one) => html`<a href=${`#${one.path}`} aria-current=${current === one ? "page" : undefined}>${one.name}
        ${one.path === "/failures" && failed > 0 && html`<span class="count">${number(failed)}</span>`}</a>`)}</nav>
      <div class="foot">${who.tenant === "-" ? html`<label class="field">Tenant<select value=${tenant} onChange=${choose}><option value="-">all tenants</option>${tenants.map((one) => html`<option value=${one}>${one}</option>`)}</select></label>` : html`<div>tenant ${tenant}</div>`}
        <div>${can("operate") ? `signed in as ${who.token}` : "read only"}</div>
        <div class="row"><button class="plain" onClick=${() => setPalette(true)} title="Ctrl K">Commands</button>
          <button class="plain" onClick=${flip} aria-label=${theme === "dark" ? "Light colours" : "Dark colours"}>${theme === "dark" ? "Light" : "Dark"}</button>
          <button class="plain" onClick=${async () => { await send("DELETE", "/session"); leave(); }}>Sign out</button></div>
        <div>${who.version}</div></div></aside>
    <div>${!up && html`<div class="lost" role="alert">The server does not answer. This page shows what was last known, and goes on by itself.</div>`}<main>${page}</main></div>
    ${palette && html`<${Palette} close=${() => setPalette(false)} pages=${pages} can=${can} flip=${flip} />`}
    <${Dialogs} /><${Toasts} /></div>`;
}

function App() {
  useTheme();
  const [who, set] = useState(/** @type {Who | null | undefined} */ (undefined));
  useEffect(() => { send("GET", "/session").then(set, () => set(null)); }, []);
  if (who === undefined) return null;
  return who ? html`<${Frame} who=${who} leave=${() => set(null)} />` : html`<${SignIn} done=${set} />`;
}

render(html`<${App} />`, /** @type {Element} */ (document.getElementById("app")));
