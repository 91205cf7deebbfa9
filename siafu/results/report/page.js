// Draws each figure where its description stands, in the page's own colours; again when the colours change.
"use strict";
(() => {
  const named = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  const isColour = (key) => key.endsWith("color") || key === "colorscale";

  function coloured(value, inColour) {
    if (typeof value === "string") return inColour && value.startsWith("--") ? named(value) : value;
    if (Array.isArray(value)) return value.map((item) => coloured(item, inColour));
    if (value === null || typeof value !== "object") return value;
    return Object.fromEntries(
      Object.entries(value).map(([key, item]) => [key, coloured(item, inColour || isColour(key))]),
    );
  }

  const descriptions = new Map(
    [...document.querySelectorAll("script[data-for]")].map((script) => [
      document.getElementById(script.dataset.for),
      JSON.parse(script.textContent),
    ]),
  );
  const options = {
    displaylogo: false,
    modeBarButtons: [["toImage", "resetScale2d"]],
  };

  function draw(place) {
    const { data, layout } = descriptions.get(place);
    const own = coloured(layout, false);
    own.font.family = getComputedStyle(document.body).fontFamily;
    own.width = place.clientWidth;
    if (matchMedia("(pointer: coarse)").matches) own.dragmode = false; // a finger scrolls the page
    Plotly.react(place, coloured(data, false), own, options);
  }

  const visible = (place) => place.offsetWidth > 0;
  const drawAll = () => [...descriptions.keys()].filter(visible).forEach(draw);

  function printing(on) {
    document.documentElement.classList.toggle("printing", on);
    drawAll();
  }

  addEventListener("resize", drawAll);
  document.querySelectorAll("details").forEach((details) => details.addEventListener("toggle", drawAll));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
  addEventListener("beforeprint", () => printing(true));
  addEventListener("afterprint", () => printing(false));
  drawAll();
})();
