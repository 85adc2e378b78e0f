"use strict";
// Filters, folding and the theme. Nothing here writes markup or reads anything but the page itself; without scripts all
// of the report can be read, folds open by themselves, and only the filters are gone.
document.documentElement.classList.add("js");
document.addEventListener("DOMContentLoaded", () => {
  const all = (selector, within = document) => [...within.querySelectorAll(selector)];
  const folds = all("details");

  document.getElementById("theme").addEventListener("change", (event) => {
    if (event.target.value) document.documentElement.dataset.theme = event.target.value;
    else delete document.documentElement.dataset.theme;
  });
  const setAll = (open) => folds.forEach((fold) => { fold.open = open; });
  document.getElementById("unfold").addEventListener("click", () => setAll(true));
  document.getElementById("fold").addEventListener("click", () => setAll(false));

  // Paper shows everything; afterwards the reader finds the page as it was left.
  let closed = [];
  addEventListener("beforeprint", () => { closed = folds.filter((fold) => !fold.open); setAll(true); });
  addEventListener("afterprint", () => closed.forEach((fold) => { fold.open = false; }));

  const reveal = () => {
    const target = location.hash && document.getElementById(location.hash.slice(1));
    if (!target || target.tagName !== "DETAILS") return;
    target.open = true;
    target.querySelector("summary").focus();
    target.scrollIntoView();
  };
  addEventListener("hashchange", reveal);
  // A second click on the same sign changes no hash.
  all("a.mark").forEach((mark) => mark.addEventListener("click", () => setTimeout(reveal)));
  reveal();

  // A region that does not scroll is no stop for the keyboard.
  const measure = (within) => {
    const open = all(".scroll", within).filter((region) => !region.closest("details:not([open])"));
    const scrolls = open.map((region) => region.scrollWidth > region.clientWidth + 1); // all reads, then all writes
    open.forEach((region, i) => { if (scrolls[i]) region.tabIndex = 0; else region.removeAttribute("tabindex"); });
  };
  addEventListener("resize", () => measure(document));
  document.addEventListener("toggle", (event) => measure(event.target), true);
  measure(document);

  const form = document.getElementById("filters");
  const cells = all("#processes > details");
  const sides = all("#matrix [data-mode]");
  const rows = all("#matrix tbody tr").map((row) => [row, all("a.mark", row)]);
  const filter = () => {
    const { mode, dtype, verdict, text } = form.elements;
    const wanted = text.value.trim().toLowerCase();
    const side = (one) => (!mode.value || one.dataset.mode === mode.value) && (!dtype.value || one.dataset.dtype === dtype.value);
    const shown = new Set();
    cells.forEach((cell) => {
      const fits = side(cell) && (!verdict.value || cell.dataset.verdicts.split(" ").includes(verdict.value))
        && (!wanted || cell.dataset.words.includes(wanted));
      cell.hidden = !fits;
      if (fits) shown.add(cell.id);
    });
    sides.forEach((one) => { one.hidden = !side(one); });
    rows.forEach(([row, marks]) => {
      let any = false;
      marks.forEach((mark) => {
        mark.hidden = !shown.has(mark.dataset.cell) || (verdict.value !== "" && mark.dataset.verdict !== verdict.value);
        any = any || !mark.hidden;
      });
      row.hidden = !any;
    });
    document.getElementById("shown").value = `${shown.size} of ${cells.length} processes shown`;
  };
  form.addEventListener("input", filter);
  form.addEventListener("reset", () => setTimeout(filter));
  form.addEventListener("submit", (event) => event.preventDefault());
  filter();
});
