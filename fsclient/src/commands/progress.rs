//! How long work gets on: a bar on a terminal, a line now and then elsewhere.

use super::say;
use indicatif::{ProgressBar, ProgressStyle};
use std::io::{IsTerminal, Read, Write, stderr};
use std::time::{Duration, Instant};

/// Elsewhere than on a terminal there is a line so often.
const LINES: Duration = Duration::from_secs(5);
/// Before, nothing is known of the speed.
const KNOWN: Duration = Duration::from_secs(1);
const BAR: &str = "{msg} [{bar:30}] {bytes} of {total_bytes}, {binary_bytes_per_sec}, {eta} left";
/// As long as nothing gets through, or nothing is known of how fast it does.
const STILL: &str = "{msg} [{bar:30}] {bytes} of {total_bytes}";

/// Of one piece of work that is measured in bytes.
#[derive(Debug)]
pub(super) struct Progress {
    what: &'static str,
    bar: Option<ProgressBar>,
    said: Instant,
    done: u64,
    total: u64,
}

impl Progress {
    /// Nothing is shown until something is known.
    pub fn new(what: &'static str) -> Self {
        Self {
            what,
            bar: None,
            said: Instant::now(),
            done: 0,
            total: 0,
        }
    }

    /// So much is done, of so much.
    pub fn at(&mut self, done: u64, total: u64) {
        (self.done, self.total) = (done, total);
        match stderr().is_terminal() {
            true => self.draw(),
            false if self.said.elapsed() >= LINES => self.tell(),
            false => {}
        }
    }

    /// So much is left; as much as was ever left is the whole.
    pub fn left(&mut self, left: u64) {
        let total = self.total.max(left);
        if total > 0 {
            self.at(total - left, total);
        }
    }

    /// What is read or written counts.
    pub fn add(&mut self, bytes: u64) {
        self.at(self.done + bytes, self.total);
    }

    fn draw(&mut self) {
        let new = || ProgressBar::new(0).with_message(self.what);
        let bar = self.bar.get_or_insert_with(new);
        let known = self.done > 0 && bar.elapsed() >= KNOWN;
        let style = ProgressStyle::with_template(if known { BAR } else { STILL });
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        bar.set_length(self.total);
        bar.set_position(self.done);
    }

    fn tell(&mut self) {
        self.said = Instant::now();
        const MIB: u64 = 1 << 20;
        let (done, total) = (self.done / MIB, self.total.div_ceil(MIB));
        say(&format!("{}: {done} of {total} MiB", self.what));
    }

    /// Copies everything.
    ///
    /// # Errors
    /// Of reading or writing.
    pub fn copy(&mut self, from: &mut impl Read, to: &mut impl Write) -> std::io::Result<()> {
        let mut piece = vec![0; 1 << 20];
        loop {
            match from.read(&mut piece) {
                Ok(0) => return Ok(()),
                Ok(read) => {
                    to.write_all(piece.get(..read).unwrap_or_default())?;
                    self.add(read as u64);
                }
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
