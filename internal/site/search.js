// The search: all words have to begin a word of a section; a hit in a heading counts more. Guides come before generated
// reference pages, and these before manual pages, which repeat the reference. The index is loaded with the first use, as a
// script: a page from a disk may not read other files.
"use strict";
{
  const top = document.currentScript.dataset.top;
  const form = document.querySelector("form"), input = form.querySelector("input"), list = form.querySelector("ol");
  let index = null, asked = false;
  form.hidden = false;
  const narrow = matchMedia("(max-width: 48rem)");
  if (narrow.matches) document.querySelector("nav details").open = false;
  const current = document.querySelector("nav [aria-current]");
  if (current && !narrow.matches) current.closest("nav").scrollTop = current.offsetTop - 200;

  window.searchIndex = (entries) => {
    index = entries.map((e) => ({ ...e, page: e.p.toLowerCase(), head: e.h.toLowerCase(), text: e.t.toLowerCase() }));
    show();
  };
  const load = () => {
    if (asked) return;
    asked = true;
    const script = document.createElement("script");
    script.src = top + "index.js";
    document.head.append(script);
  };
  const begins = (text, word) => {
    for (let at = text.indexOf(word); at >= 0; at = text.indexOf(word, at + 1))
      if (at === 0 || !/[\p{L}\p{N}]/u.test(text[at - 1])) return at;
    return -1;
  };
  const weight = (to) => to.startsWith("docs/man/") ? 0.2 : /^(docs\/(plugins\/|clauses|architecture|tree|decisions|performance)|CHANGELOG)/.test(to) ? 0.6 : 1;
  const rank = (e, words) => {
    let sum = 0;
    for (const w of words) {
      const score = (begins(e.head, w) >= 0 ? 6 : 0) + (begins(e.page, w) >= 0 ? 4 : 0) + (begins(e.text, w) >= 0 ? 1 : 0);
      if (!score) return 0;
      sum += score;
    }
    return (sum + (e.head === words.join(" ") ? 10 : 0)) * weight(e.u);
  };
  const part = (e, words) => {
    const at = Math.max(0, ...words.map((w) => begins(e.text, w)));
    return (at > 40 ? "…" : "") + e.t.slice(at > 40 ? at - 40 : 0, at + 160);
  };
  const show = () => {
    const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
    list.replaceChildren();
    if (!index || !words.length) return;
    const hits = index.map((e) => [rank(e, words), e]).filter(([r]) => r).sort((a, b) => b[0] - a[0]).slice(0, 20);
    for (const [, e] of hits) {
      const a = document.createElement("a"), where = document.createElement("span"), small = document.createElement("small");
      a.href = top + e.u;
      a.textContent = e.h;
      if (e.h !== e.p) { where.textContent = " · " + e.p; a.append(where); }
      small.textContent = part(e, words);
      a.append(small);
      const li = document.createElement("li");
      li.append(a);
      list.append(li);
    }
    if (!hits.length) {
      const li = document.createElement("li");
      li.className = "none";
      li.textContent = "Nothing found. Try fewer or shorter words.";
      list.append(li);
    }
  };
  input.addEventListener("focus", load);
  input.addEventListener("input", show);
  form.addEventListener("submit", (e) => { e.preventDefault(); list.querySelector("a")?.click(); });
  document.addEventListener("keydown", (e) => {
    if (e.key === "/" && document.activeElement !== input) { e.preventDefault(); input.focus(); }
    if (e.key === "Escape") { input.value = ""; show(); input.blur(); }
    if (e.key !== "ArrowDown" && e.key !== "ArrowUp") return;
    const links = [...list.querySelectorAll("a")], at = links.indexOf(document.activeElement);
    if (!links.length || (at < 0 && document.activeElement !== input)) return;
    e.preventDefault();
    (links[at + (e.key === "ArrowDown" ? 1 : -1)] || input).focus();
  });
  document.addEventListener("click", (e) => { if (!form.contains(e.target)) list.replaceChildren(); });
}
