// Browsers start no worker from a file: where the site is read without a server, the search runs in a hidden frame.
if (location.protocol === "file:") {
  window.Worker = class IFrameWorker extends EventTarget {
    #frame = document.createElement("iframe");
    #waiting = [];

    constructor(address) {
      super();
      this.#frame.hidden = true;
      this.#frame.addEventListener("load", () => this.#start(address), { once: true });
      document.body.append(this.#frame);
    }

    #start(address) {
      const inside = this.#frame.contentWindow;
      inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      const script = inside.document.createElement("script");
      script.src = address;
      script.addEventListener("load", () => {
        const waiting = this.#waiting;
        this.#waiting = null;
        waiting.forEach((data) => this.postMessage(data));
      });
      inside.document.head.append(script);
    }

    postMessage(data) {
      if (this.#waiting === null) {
        this.#frame.contentWindow.dispatchEvent(new MessageEvent("message", { data }));
      } else {
        this.#waiting.push(data);
      }
    }
  };
}
