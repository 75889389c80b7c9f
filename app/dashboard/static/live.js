// Live updates: the server announces a new version, the page fetches itself again.

const head = (name, page = document) => page.querySelector(`meta[name="${name}"]`).content;
const TEXTS = "#head, #now, #cost, p.about[id]";
// Server time minus local time, in milliseconds.
let ahead = 0;
let version = head("version");

// Replaces the text parts by those of the current page; `draw` updates the figures.
async function renew(draw) {
  const response = await fetch(location.href);
  const page = new DOMParser().parseFromString(await response.text(), "text/html");
  if (head("page", page) !== head("page")) {
    location.reload();
    return;
  }
  for (const now of page.querySelectorAll(TEXTS)) {
    const old = document.getElementById(now.id);
    if (old && !old.isEqualNode(now)) old.replaceWith(now.cloneNode(true));
  }
  for (const now of page.querySelectorAll("main > section[id]"))
    if (!document.getElementById(now.id))
      document.getElementById(now.previousElementSibling.id).after(now.cloneNode(true));
  document.title = page.title;
  showTimes();
  draw(page);
  version = head("version", page);
}

function showTimes() {
  for (const time of document.querySelectorAll("time[data-at]")) {
    const at = 1000 * time.dataset.at;
    const seconds = Math.max(0, (Date.now() + ahead - at) / 1000);
    const [unit, length] = [
      ["d", 86400],
      ["h", 3600],
      ["min", 60],
      ["s", 1],
    ].find(([name, length]) => seconds >= 2 * length || name === "s");
    time.textContent = `${Math.floor(seconds / length)} ${unit} ago`;
    time.title = new Date(at).toLocaleString();
  }
}

// Starts live updates. A hidden page holds no connection: a browser opens six per server.
export function follow(draw) {
  const link = document.getElementById("link");
  const path = location.pathname.endsWith("/") ? "list" : location.pathname.split("/").at(-1);
  let stream = null;
  let again = null;
  let busy = Promise.resolve();
  const notify = (text) => {
    link.textContent = text;
    link.hidden = !text;
  };
  // A browser gives up a stream whose server answers with an error, as a proxy before a stopped one.
  const retry = () => {
    notify("No connection to the dashboard. The page shows its last state.");
    stream?.close();
    clearTimeout(again);
    again = setTimeout(listen, 2000);
  };
  const listen = () => {
    stream?.close();
    if (document.hidden) return;
    stream = new EventSource(`events/${path}${location.search}`);
    stream.onopen = () => notify("");
    stream.onerror = retry;
    stream.onmessage = ({ data }) => {
      const latest = JSON.parse(data);
      ahead = 1000 * latest.now - Date.now();
      busy = busy.then(() => (latest.version === version ? null : renew(draw))).catch(retry);
    };
  };
  document.addEventListener("visibilitychange", listen);
  setInterval(showTimes, 1000);
  showTimes();
  listen();
}
