"use strict";
// Readouts: the pointer and the arrow keys step through a plot's values, which data-stops holds as
// [position in percent, words].
const readouts = (part) => {
  for (const plot of part.querySelectorAll(".plot")) {
    const stops = JSON.parse(plot.dataset.stops);
    const rule = plot.querySelector(".rule");
    const readout = plot.closest(".chart").querySelector("output");
    let current = -1;
    const show = (index) => {
      if (!stops.length) return;
      current = Math.max(0, Math.min(stops.length - 1, index));
      const [position, words] = stops[current];
      rule.style.left = position + "%";
      rule.hidden = false;
      readout.textContent = words;
      plot.setAttribute("aria-valuenow", current);
      plot.setAttribute("aria-valuetext", words);
    };
    const hide = () => {
      rule.hidden = true;
      readout.textContent = "";
    };
    plot.addEventListener("pointermove", (event) => {
      const box = plot.getBoundingClientRect();
      const at = (100 * (event.clientX - box.left)) / box.width;
      let best = 0;
      stops.forEach((stop, i) => {
        if (Math.abs(stop[0] - at) < Math.abs(stops[best][0] - at)) best = i;
      });
      show(best);
    });
    plot.addEventListener("pointerleave", hide);
    plot.addEventListener("blur", hide);
    plot.addEventListener("keydown", (event) => {
      const moves = { ArrowRight: current + 1, ArrowUp: current + 1, ArrowLeft: current - 1, ArrowDown: current - 1,
        PageUp: current + 10, PageDown: current - 10, Home: 0, End: stops.length - 1 };
      if (!(event.key in moves)) return;
      event.preventDefault();
      show(moves[event.key]);
    });
  }
};
readouts(document);

// Confusion: the chosen client's counts replace those in the table's cells.
const choice = document.getElementById("confusion-client");
if (choice) {
  const matrices = JSON.parse(document.getElementById("confusion-data").textContent);
  const rows = [...document.querySelectorAll(".confusion tbody tr")].map((row) => [...row.querySelectorAll("td")]);
  const fill = () => {
    matrices[choice.selectedIndex].forEach((counts, i) => {
      const total = counts.reduce((a, b) => a + b, 0);
      counts.forEach((count, j) => {
        const cell = rows[i][j];
        const share = total ? count / total : 0;
        cell.textContent = count;
        cell.style.setProperty("--share", share.toFixed(3));
        cell.classList.toggle("zero", count === 0);
      });
    });
  };
  choice.addEventListener("change", fill);
  fill(); // a reloaded page keeps its selection
}
