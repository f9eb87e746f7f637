// Light or dark: as the system is, until somebody chooses; the choice is remembered for all such pages.

const THEME = "everfed-theme";

function isDark() {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

// Some browsers have no storage for pages opened from a file, and say so with an exception.
function remembered() {
  try {
    return localStorage.getItem(THEME);
  } catch {
    return null;
  }
}

function remember(theme) {
  try {
    if (theme) localStorage.setItem(THEME, theme);
    else localStorage.removeItem(THEME);
  } catch {
    // then it holds for this page alone
  }
}

// recolour(): paints anew what does not follow from style sheets.
function theme(recolour) {
  const root = document.documentElement;
  byId("theme").addEventListener("click", () => {
    const wanted = isDark() ? "light" : "dark";
    delete root.dataset.theme; // a choice that is the system's own is none: the page follows the system again
    if (isDark() !== (wanted === "dark")) root.dataset.theme = wanted;
    remember(root.dataset.theme);
    recolour();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", recolour);
  // Paper is white whatever the screen was: the canvas is painted for it and back.
  let before;
  addEventListener("beforeprint", () => { before = root.dataset.theme; root.dataset.theme = "light"; recolour(); });
  addEventListener("afterprint", () => { if (before) root.dataset.theme = before; else delete root.dataset.theme; recolour(); });
}

if (["light", "dark"].includes(remembered())) document.documentElement.dataset.theme = remembered();
