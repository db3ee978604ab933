// A classic script in the head: the stored theme must be set before the first paint, or the page flashes.
(function () {
  try {
    const stored = localStorage.getItem("tandem-studio-theme");
    if (stored === "light" || stored === "dark") document.documentElement.dataset.theme = stored;
  } catch {
    // Storage can be forbidden; the page then follows the system.
  }
})();
