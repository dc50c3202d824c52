// A live page: events bring the parts that have changed, by the id of the element that holds each.
// The page's address may hold its password, which the browser sends by itself: it is no part of this one.
const source = new EventSource(location.origin + location.pathname + "events");
const lost = document.getElementById("lost");
source.onopen = () => { lost.hidden = true; };
source.onerror = () => { lost.hidden = false; };
source.onmessage = (event) => {
  for (const [id, markup] of Object.entries(JSON.parse(event.data))) {
    if (id === "title") {
      document.title = markup;
      continue;
    }
    const part = document.getElementById(id);
    part.innerHTML = markup;
    readouts(part);
  }
};
