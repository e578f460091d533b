// Follows Airflow's theme, which is stored under "theme", else the system's. Not a module: it must
// run before anything is painted.
(() => {
  const system = window.matchMedia("(prefers-color-scheme: dark)");
  const apply = () => {
    let chosen = null;
    try {
      chosen = window.localStorage.getItem("theme");
    } catch {
      // No storage in this frame: the system decides.
    }
    const dark = chosen === "dark" || (chosen !== "light" && system.matches);
    document.documentElement.dataset.theme = dark ? "dark" : "light";
  };
  apply();
  system.addEventListener("change", apply);
  window.addEventListener("storage", apply);
})();
