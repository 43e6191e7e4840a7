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
      const line = colour(`--c${one.colour}`);
      return {
        label: one.name, data: data.x.length ? one.values.map((y, n) => ({ x: data.x[n], y })) : one.values, borderColor: line, backgroundColor: stacked ? `${line}b3` : line,
        borderWidth: stacked ? 1 : 2, borderDash: stacked ? [] : DASHES[number % 8], fill: stacked ? (number ? "-1" : "origin") : false, spanGaps: false,
        pointStyle: POINTS[number % 8], pointRadius: data.labels.length > 60 ? 0 : 2.5, pointHoverRadius: 5, tension: 0, clip: 6, maxBarThickness: 90,
      };
    });
  }

  // A horizontal line at the value that is aimed at.
  const target = {
    id: "target",
    afterDatasetsDraw(chart, _, options) {
      if (typeof options.value !== "number") return;
      const y = chart.scales.y.getPixelForValue(options.value);
      const { ctx, chartArea } = chart;
      ctx.save();
      ctx.strokeStyle = options.color;
      ctx.setLineDash([6, 4]);
      ctx.beginPath();
      ctx.moveTo(chartArea.left, y);
      ctx.lineTo(chartArea.right, y);
      ctx.stroke();
      ctx.restore();
    },
  };

  // The horizontal axis: labels one after another, or values on a scale with the labels of the data.
  function axis(data, text, title) {
    const shared = { title: title(data.xTitle), grid: { display: false } };
    const ticks = { color: text, maxRotation: 0, autoSkipPadding: 22, minRotation: 0 };
    if (!data.x.length) return { ...shared, ticks: { ...ticks, callback(value) { return short(this.getLabelForValue(value)); } } };
    const labels = new Map(data.x.map((value, number) => [value, data.labels[number]]));
    return {
      ...shared, type: data.logX ? "logarithmic" : "linear", min: Math.min(...data.x), max: Math.max(...data.x),
      ticks: { ...ticks, callback: (value) => labels.get(value) },
      afterBuildTicks(scale) { scale.ticks = data.x.map((value) => ({ value })); },
    };
  }

  function total(items, unit) {
    const values = items.map((one) => one.raw).filter((value) => value !== null);
    return values.length > 1 ? `Total: ${exact(values.reduce((sum, value) => sum + value, 0), unit)}` : "";
  }

  function draw(figure) {
    const data = JSON.parse(figure.dataset.chart);
    const text = colour("--soft");
    const grid = colour("--line");
    const stacked = data.kind === "stack" || data.kind === "columns";
    const title = (words) => ({ display: true, text: words, color: text });
    charts.push(new Chart(figure.querySelector("canvas"), {
      type: data.kind === "bar" || data.kind === "columns" ? "bar" : "line",
      plugins: [target],
      data: { labels: data.labels, datasets: datasets(data) },
      options: {
        animation: false, responsive: true, maintainAspectRatio: false, interaction: { mode: "index", intersect: false },
        scales: {
          x: { ...axis(data, text, title), stacked: data.kind === "columns" },
          y: {
            beginAtZero: true, stacked, title: title(data.unit ? `${data.yTitle} (${data.unit})`.trim() : data.yTitle), grid: { color: grid },
            max: data.unit === "%" && highest(data, stacked) < 100.5 ? 100 : undefined, ticks: { color: text, callback: (value) => si(value, data.unit) },
          },
        },
        plugins: {
          legend: { display: data.series.length > 1, position: "bottom", labels: { color: text, usePointStyle: true, boxHeight: 7 } },
          target: { value: data.target, color: text },
          tooltip: {
            itemSort: (a, b) => b.parsed.y - a.parsed.y,
            callbacks: {
              label: (one) => ` ${one.dataset.label}: ${exact(one.parsed.y, data.unit)}`,
              footer: (items) => (stacked ? total(items, data.unit) : ""),
            },
          },
        },
      },
    }));
  }

  // The highest point of the picture: the CPU of several cores is more than 100 %.
  function highest(data, stacked) {
    const steps = data.labels.map((_, number) => data.series.map((one) => one.values[number] || 0));
    return Math.max(...steps.map((values) => (stacked ? values.reduce((sum, value) => sum + value, 0) : Math.max(...values))));
  }

  // Long names of an axis keep their beginning and end.
  function short(label) {
    const text = String(label);
    return text.length > 24 ? `${text.slice(0, 11)}…${text.slice(-11)}` : text;
  }

  // The chart on the page's card colour, as a picture.
  function picture(chart) {
    const canvas = document.createElement("canvas");
    canvas.width = chart.canvas.width;
    canvas.height = chart.canvas.height;
    const context = canvas.getContext("2d");
    context.fillStyle = colour("--card");
    context.fillRect(0, 0, canvas.width, canvas.height);
    context.drawImage(chart.canvas, 0, 0);
    return new Promise((resolve) => { canvas.toBlob(resolve, "image/png"); });
  }

  async function take(button, name, chart) {
    const announce = document.getElementById("announce");
    if (button.dataset.picture === "copy") {
      await navigator.clipboard.write([new ClipboardItem({ "image/png": picture(chart) })]);
      announce.textContent = "The picture was copied";
      return;
    }
    const link = document.createElement("a");
    link.href = URL.createObjectURL(await picture(chart));
    link.download = `${document.title.split(" · ")[0]}-${name}.png`.replace(/[^\w.+-]+/g, "_");
    link.click();
    URL.revokeObjectURL(link.href);
  }

  function offerPictures(figure, chart) {
    const tools = figure.nextElementSibling;
    if (!tools || !tools.classList.contains("pictures")) return;
    tools.querySelectorAll("[data-picture]").forEach((button) => {
      button.hidden = button.dataset.picture === "copy" && !(navigator.clipboard && window.ClipboardItem);
      button.onclick = () => take(button, JSON.parse(figure.dataset.chart).name, chart);
    });
  }

  function drawAll() {
    charts.splice(0).forEach((one) => one.destroy());
    if (window.Chart) document.querySelectorAll("figure.chart[data-chart]").forEach((figure) => {
      draw(figure);
      offerPictures(figure, charts[charts.length - 1]);
    });
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
      const nav = page.querySelector("header nav");
      if (!fresh || !nav) { window.location.assign(address); return; }
      const key = (one) => one.querySelector("[id]")?.id || one.querySelector("summary").textContent.trim().slice(0, 40);
      const open = new Map([...main.querySelectorAll("details")].map((one) => [key(one), one.open]));
      main.replaceWith(document.adoptNode(fresh));
      document.querySelector("header nav").replaceWith(document.adoptNode(nav));
      [...fresh.querySelectorAll("details:not(.filters)")].forEach((one) => { one.open = open.get(key(one)) || one.open; });
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
      const isReady = field.tagName === "SELECT" || field.type === "checkbox" || (["date", "number"].includes(field.type) && field.value && field.validity.valid);
      if (isReady) go(addressOf(form), { focus: field.id });
    });
    form.querySelectorAll("[data-suggest]").forEach(suggest);
    form.querySelectorAll("[data-complete]").forEach(complete);
  }

  // Names of tables and columns for the word at the cursor of a query: Tab takes the first.
  function complete(area) {
    const list = document.createElement("div");
    list.className = "links completions";
    area.after(list);
    let words = null;
    const word = () => /[\w$]*$/.exec(area.value.slice(0, area.selectionStart))[0];
    const put = (text, from) => {
      area.setRangeText(text, from, area.selectionEnd, "end");
      list.replaceChildren();
      area.focus();
    };
    const offer = () => {
      const begun = word().toLowerCase();
      const found = begun.length < 2 ? [] : words.filter((one) => one.toLowerCase().startsWith(begun) && one.toLowerCase() !== begun);
      list.replaceChildren(...found.slice(0, 8).map((one) => {
        const button = document.createElement("button");
        button.type = "button";
        button.className = "insert";
        button.textContent = one;
        button.addEventListener("click", () => put(one, area.selectionStart - word().length));
        return button;
      }));
    };
    area.addEventListener("input", async () => {
      if (!words) {
        const answer = await fetch(area.dataset.complete, { credentials: "same-origin" }).catch(() => null);
        words = answer && answer.ok ? await answer.json() : [];
      }
      offer();
    });
    area.addEventListener("keydown", (event) => {
      if (event.key === "Tab" && !event.shiftKey && list.firstChild) { event.preventDefault(); list.firstChild.click(); }
      if (event.key === "Escape") list.replaceChildren();
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) { event.preventDefault(); area.form.requestSubmit(); }
    });
    area.offerWords = () => document.querySelectorAll("[data-insert]").forEach((button) => {
      button.hidden = false;
      button.onclick = () => put(button.dataset.insert, area.selectionStart);
    });
    area.offerWords();
  }

  // Some parts of a page come when they are opened.
  async function load(fold) {
    const answer = await fetch(fold.dataset.source, { credentials: "same-origin" }).catch(() => null);
    const content = answer && answer.ok && new DOMParser().parseFromString(await answer.text(), "text/html").getElementById(fold.id);
    if (!content) return;
    fold.replaceChildren(...document.adoptNode(content).childNodes);
    const area = document.querySelector("textarea[data-complete]");
    if (area) area.offerWords();
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

  const narrow = window.matchMedia("(max-width: 760px)");
  let timer = 0;

  // While the server sums up days, the page loads itself again, unless someone is writing in it.
  function refreshSoon() {
    window.clearTimeout(timer);
    const note = document.querySelector("[data-refresh]");
    if (!note) return;
    timer = window.setTimeout(() => {
      const field = document.activeElement;
      if (field && ["INPUT", "TEXTAREA", "SELECT"].includes(field.tagName)) refreshSoon();
      else go(window.location.href, { push: false });
    }, 1000 * Number(note.dataset.refresh));
  }

  function ready() {
    if (narrow.matches) document.querySelectorAll("details.filters:not(:has(textarea))").forEach((one) => { one.open = false; });
    refreshSoon();
    document.querySelectorAll("a[data-live]").forEach((link) => link.addEventListener("click", (event) => {
      if (event.ctrlKey || event.metaKey || event.shiftKey) return;
      event.preventDefault();
      go(link.href);
    }));
    document.querySelectorAll("form[data-live]").forEach(enhance);
    document.querySelectorAll("details[data-source]").forEach((fold) => fold.addEventListener("toggle", () => load(fold), { once: true }));
    drawAll();
  }

  // A link to a place on this page is such an event, too: the page stays, and with it the focus.
  window.addEventListener("popstate", () => {
    if (window.location.pathname + window.location.search !== shown) go(window.location.href, { push: false });
  });
  // Paper has another width: charts are drawn for it.
  window.addEventListener("beforeprint", () => charts.forEach((one) => one.resize(700, 250)));
  window.addEventListener("afterprint", () => charts.forEach((one) => one.resize()));
  // A list of choices closes when something else is clicked.
  document.addEventListener("click", (event) => {
    document.querySelectorAll("details.many[open]").forEach((one) => { if (!one.contains(event.target)) one.open = false; });
  });
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
  ready();
})();
