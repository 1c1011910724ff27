//! The same as text, for what is no terminal.

use crate::view::{Table, View};
use std::fmt::Write;

/// More rows of a table are not printed.
const MOST_ROWS: usize = 64;

/// A look, as lines.
pub(crate) fn lines(view: &View) -> String {
    let facts: Vec<String> = view
        .facts
        .iter()
        .map(|(name, value)| format!("{name} {value}"))
        .collect();
    let mut text = format!("{}\n  {}\n", view.title, facts.join("; "));
    for table in view.tables.iter().filter(|table| !table.rows.is_empty()) {
        text.push_str(&of_table(table));
    }
    text
}

fn of_table(table: &Table) -> String {
    let titles = table.columns.iter().map(|column| column.title);
    let mut text = format!("  {}:\n", table.name);
    for row in table.rows.iter().take(MOST_ROWS) {
        let named = titles
            .clone()
            .zip(row)
            .map(|(title, cell)| format!("{title} {}", cell.text));
        let _ = writeln!(text, "    {}", named.collect::<Vec<_>>().join("  "));
    }
    if let Some(more) = table
        .rows
        .len()
        .checked_sub(MOST_ROWS)
        .filter(|more| *more > 0)
    {
        let _ = writeln!(text, "    and {more} more");
    }
    text
}
