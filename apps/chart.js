// The browser's half of chart.py.

const CORNERS = "M3 9V3h6v2H5v4zM15 3h6v6h-2V5h-4zM3 15h2v4h4v2H3zM19 15h2v6h-6v-2h4z";

const QUIET = 150; // milliseconds

let library = null;
let lastCame = 0;

// Until no figure has come, to any chart, for a while.
async function quiet() {
  for (let left; (left = lastCame + QUIET - performance.now()) > 0; ) {
    await new Promise((resolve) => setTimeout(resolve, left));
  }
}

// Through a script tag, for plotly.js is no module; once for all charts.
function plotlyFrom(address) {
  library ??= new Promise((resolve, reject) => {
    const script = document.createElement("script");
    script.src = new URL(address, document.baseURI);
    script.onload = () => resolve(globalThis.Plotly);
    script.onerror = () => {
      library = null;
      script.remove();
      reject(new Error("plotly.js did not come from the server: load the page again"));
    };
    document.head.append(script);
  });
  return library;
}

class Chart {
  constructor(box) {
    this.box = box;
    this.turn = Promise.resolve();
    this.resized = new ResizeObserver(() => this.fit());
  }

  show(text) {
    if (text === this.text) return;
    this.text = text;
    this.asked = JSON.parse(text);
    lastCame = performance.now();
    const { figure, alt, clickable } = this.asked;
    if (figure) {
      this.box.dataset.drawn = "false";
      this.box.setAttribute("role", "figure");
      this.box.setAttribute("aria-label", alt);
      this.box.classList.toggle("clickable", clickable);
      // Its place is kept until it is there, so that nothing below it jumps.
      if (!this.plotly) this.box.style.minHeight = `${figure.layout.height}px`;
    }
    this.next(() => this.draw(text));
  }

  // One after another, for plotly works on a chart in steps.
  next(work) {
    this.turn = this.turn.then(work).catch((problem) => this.fail(problem));
  }

  async draw(text) {
    const plotly = await plotlyFrom(this.asked.library);
    // Charts in the window come first, and while somebody walks on only they are drawn.
    if (!this.isInSight()) await quiet();
    // Another figure is waiting by now, or the page is gone: nobody would see this one.
    if (text !== this.text || !this.box.isConnected || !this.asked.figure) return;
    const { data, layout } = this.asked.figure;
    const size = this.size();
    if (!this.plotly) this.box.replaceChildren();
    const ours = { clickmode: "event", hovermode: "closest", uirevision: this.asked.subject };
    await plotly.react(this.box, data, { ...ours, ...layout, ...size }, this.config());
    if (!this.plotly) {
      this.plotly = plotly;
      this.box.style.minHeight = "";
      this.box.on("plotly_click", ({ points }) => this.click(points[0]?.customdata));
      this.resized.observe(this.box);
    }
    if (text === this.text) this.box.dataset.drawn = "true";
  }

  config() {
    const button = {
      name: "fullscreen",
      title: "Full screen",
      icon: { width: 24, height: 24, path: CORNERS },
      click: () => (this.isAlone() ? document.exitFullscreen() : this.box.requestFullscreen()),
    };
    this.settings ??= { ...this.asked.config, modeBarButtonsToAdd: [button] };
    return this.settings;
  }

  isInSight() {
    const { top, bottom } = this.box.getBoundingClientRect();
    return bottom > 0 && top < window.innerHeight;
  }

  isAlone() {
    return document.fullscreenElement === this.box;
  }

  size() {
    const height = this.isAlone() ? window.innerHeight : this.asked.figure.layout.height;
    return { width: this.box.clientWidth, height };
  }

  fit() {
    const { width, height } = this.size();
    const now = this.box._fullLayout;
    if (!width || !now || (now.width === width && now.height === height)) return;
    this.next(() => this.plotly?.relayout(this.box, this.size()));
  }

  click(customdata) {
    if (!this.asked.clickable || customdata === undefined) return;
    this.told("clicked", ArrayBuffer.isView(customdata) ? Array.from(customdata) : customdata);
  }

  fail(problem) {
    this.leave();
    this.text = this.plotly = null;
    this.box.textContent = `This chart cannot be drawn: ${problem.message}.`;
    this.box.dataset.drawn = "true";
  }

  leave() {
    this.resized.disconnect();
    this.plotly?.purge(this.box);
  }
}

export default function ({ data, parentElement, setTriggerValue }) {
  const box = parentElement.querySelector(".chart");
  const chart = (box.orrery ??= new Chart(box));
  chart.told = setTriggerValue;
  chart.show(new TextDecoder().decode(data));
  // Also called when another figure came before this one was taken up; then the chart stays.
  return () => {
    if (!box.isConnected) chart.leave();
  };
}
