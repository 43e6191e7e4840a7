"use strict";
// Charts from the values in the page, filters without a full load, suggestions as one types. Without it all tables work.
(() => {
  const charts = [];
  const PREFIXES = ["", "k", "M", "G", "T", "P", "E", "Z"];
  const DASHES = [[], [6, 3], [2, 2], [8, 3, 2, 3], [], [6, 3], [2, 2], [3, 3]];
  const POINTS = ["circle", "rect", "triangle", "rectRot", "star", "cross", "crossRot", "dash"];
  let request = null;

  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  function si(value, unit) {
    if (value === null || value === undefined) return "–";
    if (unit === "%") return `${value.toLocaleString("en", { maximumFractionDigits: 1 })} %`;
    let power = 0;
    let number = value;
    while (Math.abs(number) >= 999.5 && power < PREFIXES.length - 1) { number /= 1000; power += 1; }
    return `${number.toLocaleString("en", { maximumSignificantDigits: 3 })} ${PREFIXES[power]}${unit}`.trim();
  }

  function exact(value, unit) {
    if (value === null || value === undefined) return "–";
    return `${value.toLocaleString("en", { maximumFractionDigits: 1 })}${unit ? ` ${unit}` : ""}`;
  }

  function datasets(data) {
    const stacked = data.kind === "stack";
    return data.series.map((one, number) => {
      const line = colour(`--c${one.name === "other" ? 7 : number % 7}`);
      return {
        label: one.name, data: one.values, borderColor: line, backgroundColor: stacked ? `${line}b3` : line,
        borderWidth: stacked ? 1 : 2, borderDash: stacked ? [] : DASHES[number % 8], fill: stacked ? (number ? "-1" : "origin") : false, spanGaps: false,
        pointStyle: POINTS[number % 8], pointRadius: data.labels.length > 60 ? 0 : 2.5, pointHoverRadius: 5, tension: 0,
      };
    });
  }

  function draw(figure) {
    const data = JSON.parse(figure.dataset.chart);
    const text = colour("--soft");
    const grid = colour("--line");
    const stacked = data.kind === "stack";
    const title = (words) => ({ display: true, text: words, color: text });
    charts.push(new Chart(figure.querySelector("canvas"), {
      type: data.kind === "bar" ? "bar" : "line",
      data: { labels: data.labels, datasets: datasets(data) },
      options: {
        animation: false, responsive: true, maintainAspectRatio: false, interaction: { mode: "index", intersect: false },
        scales: {
          x: { title: title(data.xTitle), ticks: { color: text, maxRotation: 0, autoSkipPadding: 18 }, grid: { display: false } },
          y: {
            beginAtZero: true, stacked, title: title(data.unit ? `${data.yTitle} (${data.unit})` : data.yTitle), grid: { color: grid },
            max: data.unit === "%" ? 100 : undefined, ticks: { color: text, callback: (value) => si(value, data.unit) },
          },
        },
        plugins: {
          legend: { display: data.series.length > 1, position: "bottom", labels: { color: text, usePointStyle: true, boxHeight: 7 } },
          tooltip: { itemSort: (a, b) => b.raw - a.raw, callbacks: { label: (one) => ` ${one.dataset.label}: ${exact(one.raw, data.unit)}` } },
        },
      },
    }));
  }

  function drawAll() {
    charts.splice(0).forEach((one) => one.destroy());
    if (window.Chart) document.querySelectorAll("figure.chart[data-chart]").forEach(draw);
    document.documentElement.dataset.drawn = String(charts.length);
  }

  let shown = window.location.pathname + window.location.search;

  // Fetch a page of this server and put its content in place. The address stays a real one: back and bookmarks work.
  async function go(address, { push = true, focus = null } = {}) {
    if (request) request.abort();
    const own = new AbortController();
    request = own;
    const main = document.getElementById("main");
    main.classList.add("busy");
    try {
      const answer = await fetch(address, { signal: own.signal, credentials: "same-origin" });
      const text = await answer.text();
      if (!(answer.headers.get("Content-Type") || "").startsWith("text/html")) { window.location.assign(address); return; }
      const page = new DOMParser().parseFromString(text, "text/html");
      const fresh = page.getElementById("main");
      const nav = page.querySelector("nav");
      if (!fresh || !nav) { window.location.assign(address); return; }
      const open = [...main.querySelectorAll("details")].map((one) => one.open);
      main.replaceWith(document.adoptNode(fresh));
      document.querySelector("nav").replaceWith(document.adoptNode(nav));
      if (push) [...fresh.querySelectorAll("details")].forEach((one, n) => { one.open = Boolean(open[n]); });
      document.title = page.title;
      if (push) window.history.pushState({}, "", address);
      shown = window.location.pathname + window.location.search;
      ready();
      const field = focus && document.getElementById(focus);
      if (field) field.focus({ preventScroll: true });
      document.getElementById("announce").textContent = `${page.title}: updated`;
    } catch (error) {
      if (error.name !== "AbortError") window.location.assign(address);
    } finally {
      if (request === own) { request = null; document.getElementById("main").classList.remove("busy"); }
    }
  }

  function addressOf(form) {
    const values = new URLSearchParams();
    new FormData(form).forEach((value, name) => { if (value !== "") values.append(name, value); });
    const text = values.toString();
    return form.getAttribute("action") + (text ? `?${text}` : "");
  }

  function enhance(form) {
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      go(addressOf(form), { focus: document.activeElement && document.activeElement.id });
    });
    form.addEventListener("change", (event) => {
      const field = event.target;
      const isReady = field.tagName === "SELECT" || (["date", "number"].includes(field.type) && field.value && field.validity.valid);
      if (isReady) go(addressOf(form), { focus: field.id });
    });
    form.querySelectorAll("[data-suggest]").forEach(suggest);
  }

  // A combobox as the ARIA practices describe it: arrows choose, Enter opens, Escape closes.
  function suggest(field) {
    const list = document.createElement("ul");
    list.className = "suggestions";
    list.id = `${field.id}-list`;
    list.setAttribute("role", "listbox");
    list.setAttribute("aria-label", "Datasets");
    list.hidden = true;
    field.parentElement.append(list);
    Object.entries({ role: "combobox", "aria-autocomplete": "list", "aria-expanded": "false", "aria-controls": list.id })
      .forEach(([name, value]) => field.setAttribute(name, value));
    let timer = 0;
    let asked = 0;
    let chosen = -1;
    const close = () => { list.hidden = true; chosen = -1; field.setAttribute("aria-expanded", "false"); field.removeAttribute("aria-activedescendant"); };
    const mark = (number) => {
      chosen = number;
      [...list.children].forEach((one, n) => one.setAttribute("aria-selected", String(n === number)));
      if (number < 0) { field.removeAttribute("aria-activedescendant"); return; }
      field.setAttribute("aria-activedescendant", list.children[number].id);
      list.children[number].scrollIntoView({ block: "nearest" });
    };
    const show = (found) => {
      list.replaceChildren(...found.map((one, number) => {
        const entry = document.createElement("li");
        entry.id = `${list.id}-${number}`;
        entry.setAttribute("role", "option");
        entry.setAttribute("aria-selected", "false");
        const name = document.createElement("span");
        name.textContent = one.name;
        const count = document.createElement("span");
        count.textContent = one.nacc.toLocaleString("en");
        entry.append(name, count);
        entry.addEventListener("mousedown", (event) => { event.preventDefault(); close(); go(one.href); });
        entry.dataset.href = one.href;
        return entry;
      }));
      mark(-1);
      list.hidden = !found.length;
      field.setAttribute("aria-expanded", String(Boolean(found.length)));
    };
    field.addEventListener("input", () => {
      window.clearTimeout(timer);
      if (!field.value.trim()) { close(); return; }
      timer = window.setTimeout(async () => {
        asked += 1;
        const own = asked;
        const answer = await fetch(`${field.dataset.suggest}?q=${encodeURIComponent(field.value)}`, { credentials: "same-origin" }).catch(() => null);
        if (answer && answer.ok && own === asked && document.activeElement === field) show(await answer.json());
      }, 120);
    });
    field.addEventListener("keydown", (event) => {
      if (list.hidden) return;
      const count = list.children.length;
      if (event.key === "ArrowDown") { event.preventDefault(); mark((chosen + 1) % count); }
      else if (event.key === "ArrowUp") { event.preventDefault(); mark((chosen + count - 1) % count); }
      else if (event.key === "Escape") { event.preventDefault(); close(); }
      else if (event.key === "Enter" && chosen >= 0) { event.preventDefault(); const to = list.children[chosen].dataset.href; close(); go(to); }
    });
    field.addEventListener("blur", close);
  }

  function ready() {
    document.querySelectorAll("form[data-live]").forEach(enhance);
    drawAll();
  }

  // A link to a place on this page is such an event, too: the page stays, and with it the focus.
  window.addEventListener("popstate", () => {
    if (window.location.pathname + window.location.search !== shown) go(window.location.href, { push: false });
  });
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
  ready();
})();
