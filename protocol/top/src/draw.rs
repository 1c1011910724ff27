//! The screen. Pure, but for the buffer it is drawn into.

use crate::view::{Column, Order, Table, View};
use ratatui::Frame;
use ratatui::layout::{Alignment, Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span, Text};
use ratatui::widgets::{Cell as Shown, Paragraph, Row, Table as Shape};

const KEYS: &str =
    " q quit   s sort by the next column   r reverse   \u{2191}\u{2193} PgUp PgDn scroll";
/// Most rows of a table behind the first.
const MOST_ROWS: u16 = 6;
/// The first table has so many lines at least.
const LEAST: u16 = 6;

const BOLD: Style = Style::new().add_modifier(Modifier::BOLD);
const TITLE: Style = Style::new()
    .fg(Color::Black)
    .bg(Color::Cyan)
    .add_modifier(Modifier::BOLD);
const NAME: Style = Style::new().fg(Color::DarkGray);
const HEAD: Style = Style::new().fg(Color::Cyan).add_modifier(Modifier::BOLD);
const ALARM: Style = Style::new().fg(Color::Yellow).add_modifier(Modifier::BOLD);
const TROUBLE: Style = Style::new()
    .fg(Color::White)
    .bg(Color::Red)
    .add_modifier(Modifier::BOLD);

/// Draws a view; `trouble` says why there is no newer one.
pub(crate) fn draw(frame: &mut Frame<'_>, view: &View, order: Order, trouble: Option<&str>) {
    let width = frame.area().width;
    let facts = facts(view, width);
    let others = view
        .tables
        .iter()
        .skip(1)
        .filter(|table| !table.rows.is_empty());
    let others: Vec<&Table> = others.collect();
    let mut parts = vec![
        Constraint::Length(1),
        Constraint::Length(facts.len() as u16),
    ];
    parts.push(Constraint::Min(LEAST));
    parts.extend(others.iter().map(|table| Constraint::Max(lines_of(table))));
    parts.push(Constraint::Length(1));
    let areas = Layout::vertical(parts).split(frame.area());
    let mut areas = areas.iter().copied();
    let mut next = || areas.next().unwrap_or_default();
    frame.render_widget(
        Paragraph::new(format!(" {}", view.title)).style(TITLE),
        next(),
    );
    frame.render_widget(Paragraph::new(Text::from(facts)), next());
    let first = next();
    if let Some(table) = view.tables.first() {
        let mut table = table.clone();
        order.sort(&mut table);
        table
            .rows
            .drain(..order.first.min(table.rows.len().saturating_sub(1)));
        show(frame, first, &table, Some(order));
    }
    for table in others {
        show(frame, next(), table, None);
    }
    let last = match trouble {
        Some(trouble) => Paragraph::new(format!(" {trouble}")).style(TROUBLE),
        None => Paragraph::new(KEYS).style(NAME),
    };
    frame.render_widget(last, next());
}

/// A line between it and the one before, its titles, its rows.
fn lines_of(table: &Table) -> u16 {
    let rows = u16::try_from(table.rows.len()).unwrap_or(u16::MAX);
    rows.min(MOST_ROWS) + 2
}

/// Names and values, as many in a line as have room.
fn facts(view: &View, width: u16) -> Vec<Line<'static>> {
    let mut lines: Vec<Vec<Span<'static>>> = vec![Vec::new()];
    let mut used = 0;
    for (name, value) in &view.facts {
        let long = name.chars().count() + value.chars().count() + 4;
        if used > 0 && used + long > usize::from(width) {
            lines.push(Vec::new());
            used = 0;
        }
        used += long;
        if let Some(line) = lines.last_mut() {
            line.push(Span::styled(format!(" {name} "), NAME));
            line.push(Span::styled(format!("{value}  "), BOLD));
        }
    }
    lines.into_iter().map(Line::from).collect()
}

fn show(frame: &mut Frame<'_>, area: Rect, table: &Table, order: Option<Order>) {
    let area = Rect {
        x: area.x.saturating_add(1),
        y: area.y.saturating_add(1),
        width: area.width.saturating_sub(2),
        height: area.height.saturating_sub(1),
    };
    let titles = table.columns.iter().enumerate().map(|(at, column)| {
        let sorted = order.filter(|order| order.column == at);
        let mark = sorted.map_or("", |order| {
            if order.reversed {
                "\u{25b4}"
            } else {
                "\u{25be}"
            }
        });
        Shown::from(Text::from(format!("{}{mark}", column.title)).alignment(side(table, at)))
    });
    let rows = table.rows.iter().take(usize::from(area.height)).map(|row| {
        let cells = row.iter().zip(0..).map(|(cell, at)| {
            let text = Text::from(cell.text.clone()).alignment(side(table, at));
            Shown::from(text).style(if cell.alarm { ALARM } else { Style::new() })
        });
        Row::new(cells)
    });
    let shape = Shape::new(rows, table.columns.iter().map(width_of))
        .header(Row::new(titles).style(HEAD))
        .column_spacing(1);
    frame.render_widget(shape, area);
}

fn width_of(column: &Column) -> Constraint {
    match column.width {
        0 => Constraint::Fill(1),
        width => Constraint::Length(width),
    }
}

/// Numbers stand to the right.
fn side(table: &Table, at: usize) -> Alignment {
    let is_number = |row: &Vec<crate::Cell>| row.get(at).is_some_and(|cell| cell.number.is_some());
    match table.rows.first().is_some_and(is_number) {
        true => Alignment::Right,
        false => Alignment::Left,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Cell;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    const COLUMNS: &[Column] = &[
        Column {
            title: "MOUNT",
            width: 0,
        },
        Column {
            title: "REQ/S",
            width: 9,
        },
    ];

    fn view(rows: usize) -> View {
        let row = |n: usize| vec![Cell::text(format!("host:/mnt/{n}")), Cell::number(n as u64)];
        let waits = Table {
            name: "waiting",
            columns: COLUMNS,
            rows: (0..20).map(row).collect(),
        };
        View {
            title: "fsserver".into(),
            facts: vec![
                ("sessions", rows.to_string()),
                ("requests/s", "1,234".into()),
            ],
            tables: vec![
                Table {
                    name: "sessions",
                    columns: COLUMNS,
                    rows: (0..rows).map(row).collect(),
                },
                waits,
            ],
        }
    }

    fn drawn(
        (width, height): (u16, u16),
        view: &View,
        order: Order,
        trouble: Option<&str>,
    ) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("a terminal");
        terminal
            .draw(|frame| draw(frame, view, order, trouble))
            .expect("drawn");
        let buffer = terminal.backend().buffer().clone();
        let line = |y| (0..width).map(|x| buffer[(x, y)].symbol()).collect();
        (0..height).map(line).collect()
    }

    fn by_rate(first: usize) -> Order {
        Order {
            column: 1,
            reversed: false,
            first,
        }
    }

    #[test]
    fn a_screen_of_80_by_24_has_its_title_facts_tables_and_keys() {
        let lines = drawn((80, 24), &view(3), by_rate(0), None);
        assert!(lines[0].starts_with(" fsserver"));
        assert!(lines[1].contains("requests/s 1,234"));
        assert!(lines[3].starts_with(" MOUNT") && lines[3].trim_end().ends_with("REQ/S\u{25be}"));
        assert!(
            lines[4].starts_with(" host:/mnt/2"),
            "the fastest is first: {lines:#?}"
        );
        assert_eq!(
            lines[4].trim_end().chars().last(),
            Some('2'),
            "numbers stand to the right"
        );
        let shown = lines
            .iter()
            .filter(|line| line.starts_with(" host:"))
            .count();
        assert_eq!(shown, 3 + usize::from(MOST_ROWS), "{lines:#?}");
        assert!(lines[23].contains("q quit"));
    }

    #[test]
    fn scrolling_shows_later_rows_and_never_an_empty_table() {
        let lines = drawn((80, 24), &view(40), by_rate(10), None);
        assert!(lines[4].starts_with(" host:/mnt/29"), "{lines:#?}");
        let lines = drawn((80, 24), &view(3), by_rate(99), None);
        assert!(lines[4].starts_with(" host:/mnt/0"), "{lines:#?}");
    }

    #[test]
    fn trouble_stands_where_it_is_seen_and_a_tiny_screen_is_no_panic() {
        let lines = drawn((80, 24), &view(3), by_rate(0), Some("no server is running"));
        assert!(lines[23].contains("no server is running"));
        for size in [(1, 1), (10, 3), (300, 2), (5, 60)] {
            drawn(size, &view(40), by_rate(7), None);
        }
    }
}
