(() => {
  const say = (message) => parent.postMessage({ artifact: message }, "*");
  const XLINK = "http://www.w3.org/1999/xlink";

  const hrefOf = (event) => {
    const link = event.composedPath().find((node) => node.localName === "a" || node.localName === "area");
    return link ? (link.getAttribute("href") ?? link.getAttributeNS(XLINK, "href")) : null;
  };
  const decoded = (text) => {
    try {
      return decodeURIComponent(text);
    } catch {
      return text;
    }
  };
  const named = (name) => document.getElementById(name) ?? document.getElementsByName(name)[0];
  const scrollToAnchor = (name) => {
    const target = named(name) ?? named(decoded(name));
    if (target) target.scrollIntoView();
    else if (name === "" || name.toLowerCase() === "top") scrollTo(0, 0);
  };

  // A document's own handler goes first: what it has dealt with is not ours.
  const follow = (event) => {
    const href = hrefOf(event)?.trim();
    if (href == null || event.defaultPrevented || /^javascript:/i.test(href)) return;
    event.preventDefault();
    if (href.startsWith("#")) scrollToAnchor(href.slice(1));
    else say({ kind: "link", href });
  };
  addEventListener("click", follow);
  // One that stops the event would leave the browser to navigate, and that adds to the history of the page around us.
  addEventListener(
    "click",
    (event) => {
      for (const stop of ["stopPropagation", "stopImmediatePropagation"]) {
        event[stop] = () => {
          Event.prototype[stop].call(event);
          follow(event);
        };
      }
    },
    true,
  );
  addEventListener("keydown", (event) => {
    if (event.key === "Escape" && !event.defaultPrevented) say({ kind: "escape" });
  });
  say({ kind: "ready" });
})();
