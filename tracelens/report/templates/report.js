// Sorts a table by the column whose heading is pressed; without it the tables stay as they are.
document.querySelectorAll("table.sortable").forEach((table) => {
  const body = table.tBodies[0];
  const key = (row, column) => {
    const cell = row.cells[column];
    return cell.dataset.v === undefined ? cell.textContent : Number(cell.dataset.v);
  };
  const compare = (a, b) => {
    if (typeof a === "number" && typeof b === "number") return a - b;
    if (typeof a !== typeof b) return typeof a === "number" ? -1 : 1;
    return a.localeCompare(b, "en", { numeric: true });
  };
  [...table.tHead.rows[0].cells].forEach((heading, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = heading.textContent;
    heading.replaceChildren(button);
    button.addEventListener("click", () => {
      const down = heading.classList.contains("num");
      const before = heading.getAttribute("aria-sort");
      const order = before ? (before === "descending" ? "ascending" : "descending") : down ? "descending" : "ascending";
      for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
      heading.setAttribute("aria-sort", order);
      const sign = order === "descending" ? -1 : 1;
      const rows = [...body.rows].map((row) => [key(row, column), row]);
      rows.sort((a, b) => (typeof a[0] === typeof b[0] ? sign * compare(a[0], b[0]) : compare(a[0], b[0])));
      body.append(...rows.map((pair) => pair[1]));
    });
  });
});
