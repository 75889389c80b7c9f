// Keeps a page up to date: the server says that there is more, the page asks for itself anew.

const head = (name, page = document) => page.querySelector(`meta[name="${name}"]`).content;
const PARTS = ["head", "now", "cost"];
// What the server's clock is ahead of this one, in milliseconds.
let ahead = 0;
let version = head("version");

// Takes over what is text in the page as it is now; `draw` does the same for its figures.
async function renew(draw) {
  const response = await fetch(location.href);
  const page = new DOMParser().parseFromString(await response.text(), "text/html");
  if (head("page", page) !== head("page")) {
    location.reload();
    return;
  }
  for (const id of PARTS) {
    const [old, now] = [document, page].map((where) => where.getElementById(id));
    if (old && !old.isEqualNode(now)) old.replaceWith(now);
  }
  document.title = page.title;
  tellTimes();
  draw(page);
  version = head("version", page);
}

function tellTimes() {
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

// Starts it. A page that nobody sees holds no connection: a browser has six for a server.
export function follow(draw) {
  const link = document.getElementById("link");
  const path = location.pathname.endsWith("/") ? "list" : location.pathname.split("/").at(-1);
  let stream = null;
  let busy = Promise.resolve();
  const say = (text) => {
    link.textContent = text;
    link.hidden = !text;
  };
  const listen = () => {
    stream?.close();
    if (document.hidden) return;
    stream = new EventSource(`events/${path}${location.search}`);
    stream.onopen = () => say("");
    stream.onerror = () => say("No connection to the dashboard: this is what it last said.");
    stream.onmessage = ({ data }) => {
      const said = JSON.parse(data);
      ahead = 1000 * said.now - Date.now();
      busy = busy.then(() => (said.version === version ? null : renew(draw))).catch(stream.onerror);
    };
  };
  document.addEventListener("visibilitychange", listen);
  setInterval(tellTimes, 1000);
  tellTimes();
  listen();
}
