// One result for each page. Sphinx lists a page, and each of its headings that matches, one by one.
"use strict";

function onePerPage() {
  if (typeof Search === "undefined" || Search.onePerPage) return;
  Search.onePerPage = true;
  const all = Search._performSearch;
  Search._performSearch = (...query) => {
    const pages = new Set();
    // Sorted with the best result last. A result begins with the name of its page.
    return all(...query)
      .reverse()
      .filter(([page]) => !pages.has(page) && pages.add(page))
      .reverse();
  };
}

onePerPage();
// This script can come before Sphinx's own, which searches once the page is there.
document.addEventListener("DOMContentLoaded", onePerPage);
