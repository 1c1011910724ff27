//! The terminal, and the looks.

use crate::draw::draw;
use crate::lines::lines;
use crate::view::{Order, Sample, View};
use clap::Args;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::io::{self, IsTerminal, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, TryRecvError, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

/// How often it is looked whether a key was pressed or a signal has come.
const KEYS: Duration = Duration::from_millis(50);
const PAGE: isize = 10;
const SHORTEST: f64 = 0.1;
const LONGEST: f64 = 3600.0;

/// How a screen is shown.
#[derive(Clone, Debug, Args)]
pub struct TopArgs {
    /// Seconds from one look to the next
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = parse_interval)]
    interval: Duration,
    /// End after so many looks
    #[arg(long, value_name = "N")]
    count: Option<u64>,
    /// Print lines, as where standard output is no terminal
    #[arg(long)]
    lines: bool,
}

fn parse_interval(text: &str) -> Result<Duration, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (SHORTEST..=LONGEST).contains(&seconds) => {
            Ok(Duration::from_secs_f64(seconds))
        }
        _ => Err(format!("expected seconds, from {SHORTEST} to {LONGEST}")),
    }
}

/// What came of a look.
type Seen<D> = Result<Sample<D>, String>;

/// Looks once an interval and shows it, until a key, a signal or `--count` ends it. `column` is what the first table is sorted
/// by at first.
///
/// # Errors
/// That the first look finds nothing, or the terminal's.
pub fn run<D: Clone + Send + 'static>(
    args: &TopArgs,
    column: usize,
    mut look: impl FnMut() -> Result<D, String> + Send + 'static,
    view: impl Fn(&Sample<D>) -> View,
) -> Result<(), String> {
    let first = look()?;
    let looks = looks(args, first, look);
    let told = match args.lines || !io::stdout().is_terminal() {
        true => print(args, &looks, view),
        false => show(args, column, &looks, view),
    };
    told.map_err(|e| format!("the terminal: {e}"))
}

/// Takes looks on a thread of its own: keys are heard while one takes long.
fn looks<D: Clone + Send + 'static>(
    args: &TopArgs,
    first: D,
    mut look: impl FnMut() -> Result<D, String> + Send + 'static,
) -> Receiver<Seen<D>> {
    let (tell, told) = sync_channel(1);
    let interval = args.interval;
    thread::spawn(move || {
        let (mut last, mut seen) = (first.clone(), Instant::now());
        let sample = Sample {
            before: None,
            now: first,
        };
        let mut next = Ok(sample);
        while tell.send(next).is_ok() {
            thread::sleep(interval.saturating_sub(seen.elapsed()));
            next = look().map(|now| {
                let apart = seen.elapsed();
                seen = Instant::now();
                let before = std::mem::replace(&mut last, now.clone());
                Sample {
                    before: Some((before, apart)),
                    now,
                }
            });
            if next.is_err() {
                seen = Instant::now();
            }
        }
    });
    told
}

/// Whoever reads may go.
fn print<D>(
    args: &TopArgs,
    looks: &Receiver<Seen<D>>,
    view: impl Fn(&Sample<D>) -> View,
) -> io::Result<()> {
    for _ in 0..args.count.unwrap_or(u64::MAX) {
        let Ok(seen) = looks.recv() else {
            return Ok(());
        };
        let text = seen.map_or_else(|trouble| format!("{trouble}\n"), |seen| lines(&view(&seen)));
        let mut out = io::stdout().lock();
        if out
            .write_all(text.as_bytes())
            .and_then(|()| out.flush())
            .is_err()
        {
            return Ok(());
        }
    }
    Ok(())
}

fn show<D>(
    args: &TopArgs,
    column: usize,
    looks: &Receiver<Seen<D>>,
    view: impl Fn(&Sample<D>) -> View,
) -> io::Result<()> {
    let ended = Arc::new(AtomicBool::new(false));
    for signal in [SIGTERM, SIGINT, SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&ended))?;
    }
    // A panic restores the terminal, too.
    let mut terminal = ratatui::try_init()?;
    let done = live(&mut terminal, args, column, looks, view, &ended);
    ratatui::restore();
    done
}

fn live<D>(
    terminal: &mut DefaultTerminal,
    args: &TopArgs,
    column: usize,
    looks: &Receiver<Seen<D>>,
    view: impl Fn(&Sample<D>) -> View,
    ended: &AtomicBool,
) -> io::Result<()> {
    let mut order = Order {
        column,
        ..Order::default()
    };
    let (mut shown, mut trouble, mut left) = (View::default(), None, args.count);
    while !ended.load(Ordering::Relaxed) && left != Some(0) {
        match looks.try_recv() {
            Ok(Ok(seen)) => {
                (shown, trouble) = (view(&seen), None);
                left = left.map(|left| left - 1);
            }
            Ok(Err(error)) => trouble = Some(error),
            Err(TryRecvError::Empty) => {}
            Err(TryRecvError::Disconnected) => return Ok(()),
        }
        terminal.draw(|frame| draw(frame, &shown, order, trouble.as_deref()))?;
        if event::poll(KEYS)?
            && let Event::Key(key) = event::read()?
            && !obey(key, &mut order, &shown)
        {
            return Ok(());
        }
    }
    Ok(())
}

/// False to end.
fn obey(key: KeyEvent, order: &mut Order, shown: &View) -> bool {
    let first = shown.tables.first();
    let rows = first.map_or(0, |table| table.rows.len());
    let control = key.modifiers.contains(KeyModifiers::CONTROL);
    match key.code {
        _ if key.kind == KeyEventKind::Release => {}
        KeyCode::Char('q') | KeyCode::Esc => return false,
        KeyCode::Char('c') if control => return false,
        KeyCode::Char('s') => order.next(first.map_or(0, |table| table.columns.len())),
        KeyCode::Char('r') => order.reversed = !order.reversed,
        KeyCode::Up => order.scroll(-1, rows),
        KeyCode::Down => order.scroll(1, rows),
        KeyCode::PageUp => order.scroll(-PAGE, rows),
        KeyCode::PageDown => order.scroll(PAGE, rows),
        KeyCode::Home => order.first = 0,
        _ => {}
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Cell, Column, Table};

    const COLUMN: Column = Column {
        title: "N",
        width: 0,
    };

    fn shown() -> View {
        let table = Table {
            name: "rows",
            columns: &[COLUMN, COLUMN],
            rows: vec![vec![Cell::number(1)], vec![Cell::number(2)]],
        };
        View {
            tables: vec![table],
            ..View::default()
        }
    }

    #[test]
    fn keys_sort_reverse_scroll_and_end() {
        let (mut order, shown) = (Order::default(), shown());
        let mut press = |code| obey(KeyEvent::from(code), &mut order, &shown);
        assert!(press(KeyCode::Char('s')) && press(KeyCode::Char('r')) && press(KeyCode::Down));
        assert!(press(KeyCode::Down), "there is no third row to scroll to");
        assert!(!press(KeyCode::Char('q')));
        let reached = Order {
            column: 1,
            reversed: true,
            first: 1,
        };
        assert_eq!(order, reached);
        assert!(obey(KeyEvent::from(KeyCode::Char('s')), &mut order, &shown));
        assert_eq!(order.column, 0, "behind the last column comes the first");
        let interrupt = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        assert!(!obey(interrupt, &mut order, &shown));
    }

    #[test]
    fn an_interval_has_bounds() {
        assert_eq!(parse_interval("0.5"), Ok(Duration::from_millis(500)));
        for bad in ["0", "-1", "nan", "1e9", "x", ""] {
            assert!(parse_interval(bad).is_err(), "{bad}");
        }
    }
}
