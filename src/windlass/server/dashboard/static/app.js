// @ts-check
/** The frame of the pages: signing in, navigation, keyboard. */

import { html, render, useEffect, useLayoutEffect, useMemo, useRef, useState } from "./vendor/htm-preact-3.1.1.js";
import { number, parseQuery, queue, send, word } from "./api.js";
import { useStream } from "./live.js";
import { Dialogs, Toasts, connection, moves, useAsked } from "./parts.js";
import { Job } from "./job.js";
import { Failures, Jobs } from "./jobs.js";
import { Overview } from "./overview.js";
import { Audit, Handlers, Limits, Queues, Schedules, Tokens, Workers } from "./pages.js";

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

const JOB_ID = /^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$/;

/**
 * What can be done from anywhere, found by typing.
 * @param {{close: () => void, pages: any[], stats: any, tenant: string, flip: () => void, leave: () => void}} props
 */
function Palette({ close, pages, stats, tenant, flip, leave }) {
  const [text, set] = useState("");
  const [at, setAt] = useState(0);
  const box = useRef(/** @type {any} */ (null));
  useLayoutEffect(() => { box.current.showModal(); }, []); // at once: what is typed next is for it
  const go = (/** @type {string} */ to) => () => { location.hash = to; };
  const jobs = (/** @type {string} */ query) => go(`/jobs?q=${encodeURIComponent(query)}`);
  const entries = useMemo(() => {
    const names = (/** @type {string} */ field) => [...new Set((stats?.queues ?? []).map((/** @type {any} */ one) => one[field]))].sort();
    const typed = text.trim(), lower = typed.toLowerCase();
    const found = [
      ...pages.map((one) => ({ name: one.name, hint: `g ${one.key}`, run: go(one.path) })),
      ...["failed", "running", "queued", "scheduled", "blocked"].map((state) => ({ name: `Jobs: ${state}`, hint: `state:${state}`, run: jobs(`state:${state}`) })),
      { name: "Light or dark", hint: "", run: flip },
      { name: "Sign out", hint: "", run: leave },
      ...(typed ? [...names("queue").map((one) => ({ name: `Queue ${one}`, hint: word("queue", one), run: jobs(word("queue", one)) })), ...names("task").map((one) => ({ name: `Task ${one}`, hint: word("task", one), run: jobs(word("task", one)) }))] : []),
    ].filter((one) => `${one.name} ${one.hint}`.toLowerCase().includes(lower)).slice(0, 40);
    if (JOB_ID.test(lower) && tenant !== "-") found.unshift({ name: `Open job ${lower}`, hint: "↵", run: go(`/job/${tenant}/${lower}`) });
    if (typed) found.push({ name: `Find jobs: ${typed}`, hint: "↵", run: jobs(typed) });
    return found;
  }, [text, stats]);
  const chosen = Math.min(at, entries.length - 1);
  useEffect(() => { box.current.querySelector('[aria-selected="true"]')?.scrollIntoView({ block: "nearest" }); }, [chosen]);
  const keys = (/** @type {any} */ event) => {
    if (event.key === "ArrowDown") setAt(Math.min(chosen + 1, entries.length - 1));
    else if (event.key === "ArrowUp") setAt(Math.max(chosen - 1, 0));
    else if (event.key === "Enter" && entries[chosen]) { close(); entries[chosen].run(); }
    else return;
    event.preventDefault();
  };
  return html`<dialog class="palette" ref=${box} onCancel=${close} aria-label="Commands" onClick=${(/** @type {any} */ event) => event.target === box.current && close()}>
    <input role="combobox" aria-label="Command or query" aria-expanded="true" aria-controls="commands" aria-activedescendant=${`command-${chosen}`} autocomplete="off" spellcheck="false" placeholder="Go to a page or a job, or find jobs: state:failed task:mail" value=${text} onInput=${(/** @type {any} */ event) => { set(event.target.value); setAt(0); }} onKeyDown=${keys} />
    <ul id="commands" role="listbox" aria-label="Commands">${entries.map((one, place) => html`<li id=${`command-${place}`} role="option" aria-selected=${place === chosen} onClick=${() => { close(); one.run(); }}><span>${one.name}</span><span class="dim small">${one.hint}</span></li>`)}</ul></dialog>`;
}

/** The fields by which events are selected: they stay as they are while a job lives. */
const LASTING = ["task", "queue", "tag"];

/** The events of a list. @param {string} tenant @param {string} text the query of the page */
function eventsOf(tenant, text) {
  const { query, wrong } = parseQuery(text);
  const match = new URLSearchParams();
  for (const name of wrong ? [] : LASTING) for (const value of [query[name] ?? []].flat()) match.append(name, value);
  return { url: queue(tenant).url(match.size ? `/events?${match}` : "/events"), whole: !match.size };
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
  const job = /^\/job\/([^/]+)\/([0-9a-f-]+)$/.exec(path);
  const current = PAGES.find((one) => one.path === path) ?? (job ? PAGES[1] : undefined);
  const events = eventsOf(tenant, path === "/jobs" ? new URLSearchParams(rest).get("q") ?? "" : "");
  useStream(job ? queue(decodeURIComponent(job[1])).url(`/jobs/${job[2]}/events`) : events.url);
  const known = useAsked(() => queue(who.tenant).get("/stats"), [who.tenant], job ? 4000 : 2000, !job && events.whole ? moves : undefined).data;
  const stats = useMemo(() => {
    const own = (/** @type {any} */ one) => tenant === "-" || one.tenant === tenant;
    return known && { queues: known.queues.filter(own), alone: who.tenant === "-" && known.queues.every((/** @type {any} */ one) => own(one) || !one.states.running) };
  }, [known, tenant]);
  const tenants = [...new Set(["default", seen, ...(known?.queues ?? []).map((/** @type {any} */ one) => one.tenant)])].filter((one) => one !== "-").sort();
  const choose = (/** @type {any} */ event) => { localStorage.setItem("tenant", event.target.value); look(event.target.value); };
  const failed = stats ? stats.queues.reduce((/** @type {number} */ sum, /** @type {any} */ one) => sum + (one.states.failed ?? 0), 0) : 0;
  const signOut = async () => { await send("DELETE", "/session").catch(() => {}); leave(); };

  useEffect(() => {
    const listener = (/** @type {boolean} */ now, /** @type {number} */ status) => { setUp(now); if (status === 401) leave(); };
    connection.listeners.add(listener);
    let prefix = 0;
    const keys = (/** @type {KeyboardEvent} */ event) => {
      const typing = event.target instanceof HTMLElement && /INPUT|TEXTAREA|SELECT/.test(event.target.tagName);
      if ((event.metaKey || event.ctrlKey) && event.key === "k") { event.preventDefault(); setPalette(true); return; }
      if (typing || event.metaKey || event.ctrlKey || event.altKey || document.querySelector("dialog[open]")) return;
      if (event.key === "g") { prefix = Date.now(); return; }
      const page = PAGES.find((one) => one.key === event.key);
      if (page && Date.now() - prefix < 1200) { location.hash = page.path; prefix = 0; }
      if (event.key === "/") {
        event.preventDefault();
        const bar = document.querySelector(".query");
        if (bar instanceof HTMLElement) bar.focus(); else setPalette(true);
      }
    };
    addEventListener("keydown", keys);
    return () => { connection.listeners.delete(listener); removeEventListener("keydown", keys); };
  }, []);

  useEffect(() => { document.title = `${current ? current.name : "Windlass"} · Windlass`; scrollTo(0, 0); }, [path]);
  const shown = { tenant, can, query: new URLSearchParams(rest), who, stats };
  const page = job
    ? html`<${Job} key=${path} ...${shown} tenant=${decodeURIComponent(job[1])} id=${job[2]} />`
    : current ? html`<${current.page} key=${`${tenant} ${current.path}`} ...${shown} />` : html`<div class="empty"><h1>No such page</h1>There is no page ${path}.</div>`;
  return html`<div class="frame"><a class="skip" href="#content" onClick=${(/** @type {any} */ event) => { event.preventDefault(); document.querySelector("main")?.focus(); }}>Skip to the content</a>
    <header class="side"><a class="brand" href="#/">${MARK} Windlass</a>
      <nav aria-label="Pages">${pages.map((one) => html`<a href=${`#${one.path}`} aria-current=${current === one ? "page" : undefined}>${one.name}
        ${one.path === "/failures" && failed > 0 && html` <span class="count">${number(failed)}</span>`}</a>`)}</nav>
      <div class="foot">${who.tenant === "-" ? html`<label class="field">Tenant<select value=${tenant} onChange=${choose}><option value="-">all tenants</option>${tenants.map((one) => html`<option value=${one}>${one}</option>`)}</select></label>` : html`<div>tenant ${tenant}</div>`}
        <div class="row tight"><button class="plain" onClick=${() => setPalette(true)} title="Ctrl K">Commands</button>
          <button class="plain" onClick=${flip} title=${theme === "dark" ? "Light colours" : "Dark colours"}>${theme === "dark" ? "Light" : "Dark"}</button>
</div>
        <div class="who">${can("operate") ? who.token : "read only"} · <button class="plain link" onClick=${signOut}>Sign out</button></div>
        <div class="who">Windlass ${who.version}</div></div></header>
    <div>${!up && html`<div class="lost" role="alert">The server does not answer. This page shows what was last known, and goes on by itself.</div>`}<main tabindex="-1">${page}</main></div>
    ${palette && html`<${Palette} close=${() => setPalette(false)} pages=${pages} stats=${stats} tenant=${tenant} flip=${flip} leave=${signOut} />`}
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
