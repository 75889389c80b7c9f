// Search in pages that are opened from disk, where browsers start no workers: the script of the worker runs in a hidden
// frame. Mkdocs-material asks for this file by its name.

if (location.protocol === "file:") {
  window.IFrameWorker = true; // the search finds its languages beside the worker's script then
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.waiting = [];
      const frame = document.createElement("iframe");
      frame.hidden = true;
      const start = () => {
        document.body.append(frame);
        const inside = frame.contentWindow;
        inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
        inside.importScripts = (...urls) => {
          for (const each of urls) load(frame, each);
        };
        load(frame, url).onload = () => {
          this.inside = inside;
          for (const data of this.waiting) this.postMessage(data);
        };
      };
      if (document.body) start();
      else document.addEventListener("DOMContentLoaded", start);
    }

    postMessage(data) {
      if (this.inside) this.inside.dispatchEvent(new MessageEvent("message", { data }));
      else this.waiting.push(data);
    }

    terminate() {}
  };
}

function load(frame, url) {
  const script = frame.contentDocument.createElement("script");
  script.src = url;
  frame.contentDocument.body.append(script);
  return script;
}
