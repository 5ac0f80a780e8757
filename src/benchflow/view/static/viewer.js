// Keys, live updates and the theme. Pages work without it; everything it does is a link or a button of the page.
(() => {
  "use strict";
  const root = document.documentElement;
  const stored = (() => { try { return localStorage.getItem("benchcube-theme"); } catch { return null; } })();
  if (stored === "light" || stored === "dark") root.dataset.theme = stored;  // before the first paint

  const find = (selector) => document.querySelector(selector);
  const all = (selector) => [...document.querySelectorAll(selector)];
  const page = () => find("#page");

  function switchTheme() {
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
    try { localStorage.setItem("benchcube-theme", root.dataset.theme); } catch { /* private window */ }
  }

  function toggleHelp() {
    const help = find("#help");
    if (help) help.open ? help.close() : help.showModal();
  }

  // Rows of tables and steps of conversations are walked with the same keys.
  let selected = null;
  function walk(by) {
    const items = all("#page [data-row], #page .step");
    if (!items.length) return;
    const now = items.findIndex((item) => item.id === selected);
    const next = items[Math.min(items.length - 1, Math.max(0, now < 0 ? (by > 0 ? 0 : items.length - 1) : now + by))];
    items.forEach((item) => item.classList.toggle("selected", item === next));
    selected = next.id;
    next.scrollIntoView({ block: "nearest" });
    const link = next.querySelector("[data-open]");
    if (link) link.focus({ preventScroll: true });
  }

  function openSelected() {
    const item = selected && document.getElementById(selected);
    if (!item) return false;
    const link = item.querySelector("[data-open]");
    if (link) link.click();
    else item.querySelectorAll("details").forEach((part) => { part.open = !part.open; });
    return true;
  }

  const follow = (selector) => { const link = find(selector); if (link) link.click(); return Boolean(link); };
  const keys = {
    j: () => walk(1),
    k: () => walk(-1),
    n: () => follow('#page [data-next]') || follow('#page a[rel="next"]'),
    p: () => follow('#page [data-previous]') || follow('#page a[rel="prev"]'),
    f: () => { const first = find("#page [data-facet], #page [data-toggle]"); if (first) first.focus(); },
    x: () => follow("#page [data-clear]"),
    t: () => follow('#page [data-toggle="thoughts"]'),
    o: () => follow('#page [data-toggle="tools"]'),
    m: () => follow('#page [data-toggle="messages"]'),
    e: () => {
      const parts = all("#page .steps details");
      const open = parts.some((part) => !part.open);
      parts.forEach((part) => { part.open = open; });
    },
    u: () => { const links = all(".crumbs a"); if (links.length) links[links.length - 1].click(); },
    d: switchTheme,
    "?": toggleHelp,
    "/": () => { const box = find("#page [data-search]"); if (box) { box.focus(); box.select(); } },
  };

  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return;
    const typing = event.target.closest("input:not([type=checkbox]), textarea, select, [contenteditable]");
    if (typing) {
      if (event.key === "Escape") typing.blur();
      return;
    }
    if (find("#help")?.open && event.key !== "?") return;
    if (event.key === "Enter") {
      if (!event.target.closest("a, button, summary, input") && openSelected()) event.preventDefault();
      return;
    }
    if (event.key === " " && event.target.matches("a[role=checkbox]")) {
      event.preventDefault();
      event.target.click();
      return;
    }
    const tab = /^[1-9]$/.test(event.key) && all("#page .tabs a")[Number(event.key) - 1];
    if (tab) { event.preventDefault(); tab.click(); return; }
    const action = keys[event.key];
    if (action) { event.preventDefault(); action(); }
  });

  document.addEventListener("click", (event) => {
    const button = event.target.closest("[data-action]");
    if (!button) return;
    if (button.dataset.action === "theme") switchTheme();
    if (button.dataset.action === "help") toggleHelp();
  });

  // Two to four jobs can be compared.
  function countChosen() {
    const button = find("[data-compare]");
    if (!button) return;
    const chosen = all('#page input[name="job"]:checked').length;
    button.disabled = chosen < 2 || chosen > 4;
  }
  document.addEventListener("change", countChosen);

  // A part that was too long for the page is fetched when it is opened.
  document.addEventListener("toggle", (event) => {
    const place = event.target.open && event.target.querySelector(":scope > [data-fetch]");
    if (!place || !window.htmx) return;
    const address = place.dataset.fetch;
    delete place.dataset.fetch;
    window.htmx.ajax("GET", address, { target: place, swap: "innerHTML", select: "#part" });
  }, true);

  // Live: the server is asked whether anything changed; only then the page is fetched and merged into what is shown.
  const say = (text, bad) => {
    const status = find("#status");
    if (!status || status.textContent === text) return;
    status.textContent = text;
    status.classList.toggle("bad", Boolean(bad));
  };
  let lost = false;
  async function look() {
    const now = page();
    if (!now?.dataset.live || document.hidden) return;
    const from = location.href;
    let answer;
    try {
      answer = await fetch(`${now.dataset.live}?v=${encodeURIComponent(now.dataset.version)}`, { cache: "no-store" });
    } catch {
      lost = true;
      say("The viewer does not answer; trying again", true);
      return;
    }
    if (location.href !== from || page() !== now) return;
    if (answer.status === 404) { say("This is no longer there", true); return; }
    if (!answer.ok) return;
    if (answer.status === 204) {
      if (lost) say("");
      lost = false;
      return;
    }
    lost = false;
    say("");
    const typing = document.activeElement?.matches("#page input[type=search]");
    const chosen = new Set(all('#page input[name="job"]:checked').map((box) => box.value));
    if (typing || !window.htmx) return;
    await window.htmx.ajax("GET", location.pathname + location.search, { target: "#page", select: "#page", swap: "outerMorph" });
    all('#page input[name="job"]').forEach((box) => { box.checked = chosen.has(box.value); });
    countChosen();
  }
  const rate = () => (["running", "reading"].includes(page()?.dataset.state) ? 1000 : 3000);
  (function again() { setTimeout(() => look().finally(again), rate()); })();
  document.addEventListener("visibilitychange", () => { if (!document.hidden) look(); });

  // After a swap the selected row is the one with the same name.
  new MutationObserver(() => {
    countChosen();
    const item = selected && document.getElementById(selected);
    if (item && !item.classList.contains("selected")) item.classList.add("selected");
  }).observe(document, { childList: true, subtree: true });
})();
