(() => {
  const tip = document.getElementById("tip");
  const hide = () => { tip.hidden = true; };
  const show = (target) => {
    tip.textContent = target.getAttribute("data-tip");
    tip.hidden = false;
    const place = target.getBoundingClientRect();
    const own = tip.getBoundingClientRect();
    const middle = place.left + place.width / 2 - own.width / 2;
    const left = Math.min(Math.max(12, middle), document.documentElement.clientWidth - own.width - 12);
    const above = place.top - own.height - 8;
    tip.style.left = `${left + scrollX}px`;
    tip.style.top = `${(above < 4 ? place.bottom + 8 : above) + scrollY}px`;
  };
  const tipOf = (event) => event.target instanceof Element && event.target.closest("[data-tip]");
  for (const kind of ["pointerover", "focusin"]) {
    document.addEventListener(kind, (event) => {
      const target = tipOf(event);
      if (target) show(target); else hide();
    });
  }
  document.addEventListener("focusout", hide);
  const steps = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 };
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") return hide();
    const group = event.target instanceof Element && event.target.closest("[data-roving]");
    if (!group || !tipOf(event)) return;
    const marks = [...group.querySelectorAll("[data-tip]")];
    const at = marks.indexOf(tipOf(event));
    const to = event.key === "Home" ? 0 : event.key === "End" ? marks.length - 1 : at + (steps[event.key] || 0);
    if (to === at || !marks[to]) return;
    event.preventDefault();
    marks[at].setAttribute("tabindex", "-1");
    marks[to].setAttribute("tabindex", "0");
    marks[to].focus();
  });
})();
