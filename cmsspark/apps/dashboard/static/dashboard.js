"use strict";
// Values of charts under the pointer, filters without a full load, suggestions as one types. Without it all tables work.
(() => {
  let request = null;

  function exact(value, unit) {
    if (value === null || value === undefined) return "–";
    return `${value.toLocaleString("en", { maximumFractionDigits: 1 })}${unit ? ` ${unit}` : ""}`;
  }

  // The values of the step under the pointer, the largest first, and a line at the step.
  function point(figure, event) {
    const picture = [...figure.querySelectorAll("svg")].find((one) => one.getBoundingClientRect().width);
    const [data, steps] = [JSON.parse(figure.dataset.chart), JSON.parse(figure.dataset.steps)];
    const [low, high] = ["x1", "x2"].map((end) => Number(picture.querySelector("line.grid").getAttribute(end)));
    const box = picture.getBoundingClientRect();
    const scale = box.width / picture.viewBox.baseVal.width;
    const share = ((event.clientX - box.left) / scale - low) / (high - low);
    const step = steps.reduce((best, one, number) => (Math.abs(one - share) < Math.abs(steps[best] - share) ? number : best), 0);
    const x = low + steps[step] * (high - low);
    const levels = [...picture.querySelectorAll("line.grid")].map((one) => Number(one.getAttribute("y1")));
    const line = picture.querySelector(".pointer") || picture.appendChild(document.createElementNS(picture.namespaceURI, "line"));
    Object.entries({ class: "pointer", x1: x, x2: x, y1: Math.min(...levels), y2: Math.max(...levels) }).forEach(([name, value]) => line.setAttribute(name, value));
    const values = data.series.map((one) => ({ ...one, value: one.values[step] })).sort((a, b) => (b.value ?? -1) - (a.value ?? -1));
    const known = values.filter((one) => one.value !== null);
    const rows = values.map((one) => [`${one.name}: ${exact(one.value, data.unit)}`, `key c${one.colour + 1}`]);
    if (data.isStack && known.length > 1) rows.push([`Total: ${exact(known.reduce((sum, one) => sum + one.value, 0), data.unit)}`, ""]);
    const readout = figure.querySelector(".readout");
    readout.replaceChildren(...[[data.labels[step], ""], ...rows].map(([text, key]) => {
      const entry = document.createElement("p");
      if (key) entry.append(Object.assign(document.createElement("span"), { className: key }));
      entry.append(text);
      return entry;
    }));
    readout.hidden = false;
    const left = x * scale + 14;
    readout.style.left = `${Math.max(0, left + readout.offsetWidth > box.width ? left - 28 - readout.offsetWidth : left)}px`;
  }

  function leave(figure) {
    figure.querySelector(".readout").hidden = true;
    figure.querySelectorAll(".pointer").forEach((one) => one.remove());
  }

  // The file of the chart as pixels, twice as many as it has units.
  async function picture(address) {
    const image = new Image();
    image.src = address;
    await image.decode();
    const canvas = document.createElement("canvas");
    canvas.width = 2 * image.naturalWidth;
    canvas.height = 2 * image.naturalHeight;
    canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
    return new Promise((resolve) => { canvas.toBlob(resolve, "image/png"); });
  }

  async function take(button, figure) {
    const address = figure.nextElementSibling.querySelector("[data-svg]").href;
    if (button.dataset.picture === "copy") {
      await navigator.clipboard.write([new ClipboardItem({ "image/png": picture(address) })]);
      document.getElementById("announce").textContent = "The picture was copied";
      return;
    }
    const link = document.createElement("a");
    link.href = URL.createObjectURL(await picture(address));
    link.download = `${document.title.split(" · ")[0]}-${JSON.parse(figure.dataset.chart).name}.png`.replace(/[^\w.+-]+/g, "_");
    link.click();
    URL.revokeObjectURL(link.href);
  }

  function liven(figure) {
    ["pointermove", "pointerdown"].forEach((kind) => figure.addEventListener(kind, (event) => point(figure, event)));
    figure.addEventListener("pointerleave", () => leave(figure));
    figure.nextElementSibling.querySelectorAll("[data-picture]").forEach((button) => {
      button.hidden = button.dataset.picture === "copy" && !(navigator.clipboard && window.ClipboardItem);
      button.onclick = () => take(button, figure);
    });
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
    const figures = document.querySelectorAll("figure.chart");
    figures.forEach(liven);
    document.documentElement.dataset.drawn = String(figures.length);
  }

  // A link to a place on this page is such an event, too: the page stays, and with it the focus.
  window.addEventListener("popstate", () => {
    if (window.location.pathname + window.location.search !== shown) go(window.location.href, { push: false });
  });
  // A list of choices closes when something else is clicked.
  document.addEventListener("click", (event) => {
    document.querySelectorAll("details.many[open]").forEach((one) => { if (!one.contains(event.target)) one.open = false; });
  });
  ready();
})();
